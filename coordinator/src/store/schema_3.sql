-- Rings formed for a job so far, which is the epoch of the newest one.
ALTER TABLE jobs ADD COLUMN rings INTEGER NOT NULL DEFAULT 0;
