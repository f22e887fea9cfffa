CREATE TABLE jobs (
    job_id              TEXT PRIMARY KEY NOT NULL,
    number              INTEGER NOT NULL UNIQUE,
    spec                TEXT NOT NULL,
    request_id          TEXT UNIQUE,
    request_fingerprint TEXT,
    state               TEXT NOT NULL,
    reason              TEXT NOT NULL,
    created             INTEGER NOT NULL,
    started             INTEGER,
    ended               INTEGER,
    step                INTEGER NOT NULL,
    loss                REAL,
    last_sequence       INTEGER NOT NULL,
    artifacts           INTEGER NOT NULL,
    ring                TEXT,
    precision           TEXT,
    cancel              TEXT,
    finish_by           INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX jobs_by_state ON jobs (state, number);

CREATE TABLE events (
    job_id   TEXT NOT NULL REFERENCES jobs (job_id) ON DELETE CASCADE,
    sequence INTEGER NOT NULL,
    time     INTEGER NOT NULL,
    body     TEXT NOT NULL,
    PRIMARY KEY (job_id, sequence)
) STRICT, WITHOUT ROWID;

CREATE TABLE steps (
    job_id TEXT NOT NULL REFERENCES jobs (job_id) ON DELETE CASCADE,
    step   INTEGER NOT NULL,
    body   TEXT NOT NULL,
    PRIMARY KEY (job_id, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE artifacts (
    job_id     TEXT NOT NULL REFERENCES jobs (job_id) ON DELETE CASCADE,
    name       TEXT NOT NULL,
    sha256     TEXT NOT NULL,
    size       INTEGER NOT NULL,
    media_type TEXT NOT NULL,
    created    INTEGER NOT NULL,
    PRIMARY KEY (job_id, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX artifacts_by_content ON artifacts (sha256);

-- The newest job's number outlives the job: numbers are never used twice.
CREATE TABLE counters (
    name  TEXT PRIMARY KEY NOT NULL,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO counters (name, value) VALUES ('last_job_number', 0);
