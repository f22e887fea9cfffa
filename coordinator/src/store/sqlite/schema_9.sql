-- A job may be traced.

-- The call that made it, as W3C Trace Context writes it. Null: it is not traced.
ALTER TABLE jobs ADD COLUMN trace TEXT;
