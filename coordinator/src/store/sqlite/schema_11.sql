-- What each owner has used of the cluster, for fair share (core/shares.rs).
CREATE TABLE fair_share (
    owner TEXT PRIMARY KEY NOT NULL,
    -- Rank-seconds, faded, as of as_of.
    used REAL NOT NULL,
    -- Milliseconds since 1970.
    as_of INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
