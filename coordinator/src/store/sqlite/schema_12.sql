-- What users ordered of the job (core/orders.rs), as JSON.
ALTER TABLE jobs ADD COLUMN orders TEXT;
-- It is queued because a more urgent job took its workers.
ALTER TABLE jobs ADD COLUMN preempted INTEGER NOT NULL DEFAULT 0;
