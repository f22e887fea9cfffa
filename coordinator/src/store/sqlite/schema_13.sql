-- The job's place in its sweep (core/sweeps.rs), as JSON.
ALTER TABLE jobs ADD COLUMN sweep TEXT;
-- Errors of its own after which it was tried again.
ALTER TABLE jobs ADD COLUMN errors INTEGER NOT NULL DEFAULT 0;
-- The validation loss of the job's result so far, and the step after which it was taken.
ALTER TABLE job_progress ADD COLUMN validation_step INTEGER;
ALTER TABLE job_progress ADD COLUMN validation_loss REAL;
-- The jobs of a sweep.
ALTER TABLE job_list ADD COLUMN sweep TEXT;
CREATE INDEX job_list_by_sweep ON job_list (sweep, number) WHERE sweep IS NOT NULL;
