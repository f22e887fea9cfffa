-- What changes often is parted from what never changes, so that a step report writes a few bytes: jobs changes with a
-- job's state, job_progress with each step, event and file, job_specs never. What is deleted goes in chunks
-- (deleted_jobs), so that foreign keys are enforced no longer.

-- Its key counts up, so that new specs go to the table's end.
CREATE TABLE job_specs (
    number  INTEGER PRIMARY KEY NOT NULL,
    -- Of the spec's form; 0: from before there were versions.
    version INTEGER NOT NULL,
    spec    TEXT NOT NULL
) STRICT;
INSERT INTO job_specs (number, version, spec) SELECT number, 0, spec FROM jobs ORDER BY number;

CREATE TABLE job_progress (
    job_id        TEXT PRIMARY KEY NOT NULL,
    step          INTEGER NOT NULL,
    loss          REAL,
    last_sequence INTEGER NOT NULL,
    artifacts     INTEGER NOT NULL,
    -- When the job last changed.
    updated       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO job_progress (job_id, step, loss, last_sequence, artifacts, updated)
    SELECT job_id, step, loss, last_sequence, artifacts, COALESCE(ended, started, created) FROM jobs ORDER BY job_id;

-- Which contents jobs name. 'images' are manifests, which name contents themselves.
CREATE TABLE content_refs (
    sha256 TEXT NOT NULL,
    job_id TEXT NOT NULL,
    use    TEXT NOT NULL,
    PRIMARY KEY (sha256, job_id, use)
) STRICT, WITHOUT ROWID;
CREATE INDEX content_refs_by_job ON content_refs (job_id);
INSERT OR IGNORE INTO content_refs (sha256, job_id, use)
    SELECT substr(atom, 19, 64), job_id,
           CASE key WHEN 'images' THEN 'images' WHEN 'resume_from_checkpoint' THEN 'checkpoint' ELSE 'embedding' END
    FROM jobs, json_tree(CASE WHEN json_valid(jobs.spec) THEN jobs.spec ELSE '{}' END)
    WHERE type = 'text' AND substr(atom, 1, 18) = 'artifact://sha256/' AND length(substr(atom, 19, 64)) = 64
        AND substr(atom, 19, 64) NOT GLOB '*[^0-9a-f]*';

-- Manifests that jobs name or named. What they name stands in manifest_files once they were read.
CREATE TABLE manifests (
    sha256  TEXT PRIMARY KEY NOT NULL,
    is_read INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX manifests_unread ON manifests (sha256) WHERE is_read = 0;
INSERT OR IGNORE INTO manifests (sha256, is_read) SELECT sha256, 0 FROM content_refs WHERE use = 'images';
CREATE TABLE manifest_files (
    manifest TEXT NOT NULL,
    sha256   TEXT NOT NULL,
    PRIMARY KEY (manifest, sha256)
) STRICT, WITHOUT ROWID;
CREATE INDEX manifest_files_by_content ON manifest_files (sha256);

CREATE TABLE jobs_3 (
    job_id              TEXT PRIMARY KEY NOT NULL,
    number              INTEGER NOT NULL UNIQUE,
    request_id          TEXT UNIQUE,
    request_fingerprint TEXT,
    state               TEXT NOT NULL,
    reason              TEXT NOT NULL,
    created             INTEGER NOT NULL,
    started             INTEGER,
    ended               INTEGER,
    -- Rings formed for the job so far, which is the epoch of the newest one.
    rings               INTEGER NOT NULL DEFAULT 0,
    ring                TEXT,
    precision           TEXT,
    cancel              TEXT,
    finish_by           INTEGER,
    -- What the checkpoint has that the job goes on from; null: it starts at step 1.
    resumed             TEXT,
    -- Whose the job is: owner, priority and labels as JSON.
    queue               TEXT NOT NULL DEFAULT '{}',
    -- What failed.
    failure             TEXT
) STRICT, WITHOUT ROWID;
INSERT INTO jobs_3 (job_id, number, request_id, request_fingerprint, state, reason, created, started, ended, ring,
        precision, cancel, finish_by, resumed)
    SELECT job_id, number, request_id, request_fingerprint, state, reason, created, started, ended, ring, precision,
        cancel, finish_by, resumed
    FROM jobs ORDER BY job_id;
DROP TABLE jobs;
ALTER TABLE jobs_3 RENAME TO jobs;
CREATE INDEX jobs_by_state ON jobs (state, number);

-- The event is that of a step of the table steps, and its body is empty. Null: the body is the event.
ALTER TABLE events ADD COLUMN step INTEGER;

-- Jobs whose events and steps are still to go.
CREATE TABLE deleted_jobs (
    job_id TEXT PRIMARY KEY NOT NULL
) STRICT, WITHOUT ROWID;

-- Jobs as lists are filtered and ordered: narrow rows, of which many lie on a page.
CREATE TABLE job_list (
    number   INTEGER PRIMARY KEY NOT NULL,
    state    TEXT NOT NULL,
    name     TEXT NOT NULL,
    kind     TEXT NOT NULL,
    owner    TEXT NOT NULL,
    priority INTEGER NOT NULL
) STRICT;
-- A damaged row is listed, too.
INSERT INTO job_list (number, state, name, kind, owner, priority)
    SELECT
        jobs.number,
        state,
        CASE WHEN json_valid(spec) THEN COALESCE(json_extract(spec, '$.name'), '') ELSE '' END,
        CASE WHEN json_valid(spec) THEN COALESCE(json_extract(spec, '$.kind'), '') ELSE '' END,
        '',
        0
    FROM jobs JOIN job_specs ON job_specs.number = jobs.number;
CREATE INDEX job_list_by_state ON job_list (state, number);
CREATE INDEX job_list_by_owner ON job_list (owner, number);
CREATE INDEX job_list_by_name ON job_list (name, number);
CREATE INDEX job_list_by_priority ON job_list (priority DESC, number);

CREATE TABLE job_labels (
    key    TEXT NOT NULL,
    value  TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (key, value, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_labels_of_job ON job_labels (number);
