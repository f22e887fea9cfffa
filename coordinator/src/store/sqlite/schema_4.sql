-- What all rings of a job have in common is the job's (pin), not the ring's, and what it is to become when it leaves its
-- ring is one thing (stop). What cannot be read stays as it is, so that the job says so.

-- As JSON: numerics class, threads, precision, version. Null: the job has had no ring.
ALTER TABLE jobs ADD COLUMN pin TEXT;
UPDATE jobs SET pin = json_object(
        'numerics_class', COALESCE(json_extract(ring, '$.numerics_class'), ''),
        'threads_per_rank', COALESCE(json_extract(ring, '$.threads_per_rank'), 0),
        'precision', COALESCE(precision, 'no'),
        'version', COALESCE(json_extract(ring, '$.version'), '')
    )
    WHERE (precision IS NOT NULL OR ring IS NOT NULL) AND (ring IS NULL OR json_valid(ring));
ALTER TABLE jobs DROP COLUMN precision;

-- A ring of a job that runs was started.
UPDATE jobs SET ring = json_set(ring, '$.started', json('true'))
    WHERE state = 'running' AND ring IS NOT NULL AND json_valid(ring);

-- As JSON: the goal and the deadline.
ALTER TABLE jobs ADD COLUMN stop TEXT;
UPDATE jobs SET stop = CASE
        WHEN cancel IS NULL THEN json_object('goal', 'succeeded', 'deadline', finish_by)
        WHEN json_valid(cancel) THEN json_object(
            'goal', json_object('cancelled', json_object('reason', json_extract(cancel, '$.reason'))),
            'deadline', json_extract(cancel, '$.deadline')
        )
        ELSE cancel
    END
    WHERE cancel IS NOT NULL OR finish_by IS NOT NULL;
ALTER TABLE jobs DROP COLUMN cancel;
ALTER TABLE jobs DROP COLUMN finish_by;

-- The newest of the job's checkpoints that are there, as JSON: step, epoch, hash.
ALTER TABLE jobs ADD COLUMN checkpoint TEXT;

-- Of the ring that made the file; null: a user sent it, or it is older than this column.
ALTER TABLE artifacts ADD COLUMN epoch INTEGER;
