-- Which store this is: made once, copied with backups. The folder of contents beside the database says the same.
CREATE TABLE store_identity (
    -- A UUID. One row.
    id TEXT PRIMARY KEY NOT NULL
) STRICT, WITHOUT ROWID;
