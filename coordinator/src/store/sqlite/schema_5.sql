-- A job that runs may lose members of its ring and go on, so that its rings no longer count its tries.

-- Rings formed since the job last did a step.
ALTER TABLE jobs ADD COLUMN tries INTEGER NOT NULL DEFAULT 0;
UPDATE jobs SET tries = rings WHERE state IN ('queued', 'preparing');

-- Workers that get no rank until a user says otherwise.
CREATE TABLE drained_workers (worker_id TEXT PRIMARY KEY) WITHOUT ROWID;
