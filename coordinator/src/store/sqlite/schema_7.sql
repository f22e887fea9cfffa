-- Who may join the cluster or call it, and the certificates that its authority gave. Nothing here is a secret: of a token
-- there is the hash of its secret.

CREATE TABLE tokens (
    -- 16 hexadecimal digits.
    token_id      TEXT PRIMARY KEY NOT NULL,
    -- join or access.
    kind          TEXT NOT NULL,
    role          TEXT NOT NULL,
    name          TEXT NOT NULL,
    creator       TEXT NOT NULL,
    created       INTEGER NOT NULL,
    expires       INTEGER NOT NULL,
    -- How many may still join with it. Of an access token 1, for ever.
    uses_left     INTEGER NOT NULL,
    secret_sha256 BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tokens_by_time ON tokens (created, token_id);
CREATE INDEX tokens_by_member ON tokens (role, name);

CREATE TABLE certificates (
    -- 32 hexadecimal digits.
    serial   TEXT PRIMARY KEY NOT NULL,
    role     TEXT NOT NULL,
    name     TEXT NOT NULL,
    created  INTEGER NOT NULL,
    expires  INTEGER NOT NULL,
    -- The number of the root that signed it.
    root     INTEGER NOT NULL,
    -- Since when it is good no more.
    revoked  INTEGER,
    -- When its holder got the next one for it.
    replaced INTEGER,
    -- Of its public key.
    key_sha256 BLOB NOT NULL,
    -- Of the token that it was given for. None: it was given for another certificate.
    token_id TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX certificates_by_time ON certificates (created, serial);
CREATE INDEX certificates_by_member ON certificates (role, name);
CREATE INDEX certificates_revoked ON certificates (serial) WHERE revoked IS NOT NULL;

-- Members all of whose certificates are revoked, until they join again with a newer token.
CREATE TABLE revoked_members (
    role    TEXT NOT NULL,
    name    TEXT NOT NULL,
    revoked INTEGER NOT NULL,
    PRIMARY KEY (role, name)
) STRICT, WITHOUT ROWID;

-- Revoked certificates that another authority gave.
CREATE TABLE revoked_serials (
    serial  TEXT PRIMARY KEY NOT NULL,
    revoked INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
