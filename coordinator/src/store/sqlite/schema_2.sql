-- What the checkpoint has that a job goes on from; null: it starts at step 1.
ALTER TABLE jobs ADD COLUMN resumed TEXT;
