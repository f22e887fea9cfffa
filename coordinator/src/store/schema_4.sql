-- Whose a job is (owner, priority and labels as JSON), when it last changed, and what failed.
ALTER TABLE jobs ADD COLUMN queue TEXT NOT NULL DEFAULT '{}';
ALTER TABLE jobs ADD COLUMN updated INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN failure TEXT;
UPDATE jobs SET updated = COALESCE(ended, started, created);

-- Jobs as lists are filtered and ordered: narrow rows, of which many lie on a page, beside the wide ones of jobs.
CREATE TABLE job_list (
    number   INTEGER PRIMARY KEY NOT NULL REFERENCES jobs (number) ON DELETE CASCADE,
    state    TEXT NOT NULL,
    name     TEXT NOT NULL,
    kind     TEXT NOT NULL,
    owner    TEXT NOT NULL,
    priority INTEGER NOT NULL
) STRICT;
-- A damaged row is listed, too.
INSERT INTO job_list (number, state, name, kind, owner, priority)
    SELECT
        number,
        state,
        CASE WHEN json_valid(spec) THEN COALESCE(json_extract(spec, '$.name'), '') ELSE '' END,
        CASE WHEN json_valid(spec) THEN COALESCE(json_extract(spec, '$.kind'), '') ELSE '' END,
        '',
        0
    FROM jobs;
CREATE INDEX job_list_by_state ON job_list (state, number);
CREATE INDEX job_list_by_owner ON job_list (owner, number);
CREATE INDEX job_list_by_name ON job_list (name, number);
CREATE INDEX job_list_by_priority ON job_list (priority DESC, number);

CREATE TABLE job_labels (
    key    TEXT NOT NULL,
    value  TEXT NOT NULL,
    number INTEGER NOT NULL REFERENCES jobs (number) ON DELETE CASCADE,
    PRIMARY KEY (key, value, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_labels_of_job ON job_labels (number);
