-- A job may compute steps of another job again.

-- As JSON: that job, the first and the last step, and the first difference. Null: an ordinary job.
ALTER TABLE jobs ADD COLUMN verification TEXT;
