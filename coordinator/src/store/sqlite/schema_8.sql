-- What each owner has on the disk: contents that they uploaded, whole or not, and those of their jobs, each once. A row
-- is there before the first byte comes and goes after the last one went. Jobs without an owner are nobody's.

CREATE TABLE owned_contents (
    owner  TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    size   INTEGER NOT NULL,
    PRIMARY KEY (owner, sha256)
) STRICT, WITHOUT ROWID;
CREATE INDEX owned_by_content ON owned_contents (sha256);

-- Their sums, which triggers keep: in the same transaction, whatever changes the rows. (INSERT OR REPLACE would fire none
-- for the row that it replaces: there is none here.)
CREATE TABLE owner_usage (
    owner TEXT PRIMARY KEY NOT NULL,
    files INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER owned_content_came AFTER INSERT ON owned_contents BEGIN
    INSERT INTO owner_usage (owner, files, bytes) VALUES (NEW.owner, 1, NEW.size)
        ON CONFLICT (owner) DO UPDATE SET files = files + 1, bytes = bytes + NEW.size;
END;
CREATE TRIGGER owned_content_grew AFTER UPDATE OF size ON owned_contents BEGIN
    UPDATE owner_usage SET bytes = bytes - OLD.size + NEW.size WHERE owner = NEW.owner;
END;
CREATE TRIGGER owned_content_went AFTER DELETE ON owned_contents BEGIN
    UPDATE owner_usage SET files = files - 1, bytes = bytes - OLD.size WHERE owner = OLD.owner;
    DELETE FROM owner_usage WHERE owner = OLD.owner AND files = 0;
END;

-- The sizes of other contents that jobs name are not in the database: they count from their next use on.
INSERT INTO owned_contents (owner, sha256, size)
    SELECT job_list.owner, artifacts.sha256, MAX(artifacts.size)
    FROM artifacts
    JOIN jobs ON jobs.job_id = artifacts.job_id
    JOIN job_list ON job_list.number = jobs.number
    WHERE job_list.owner <> ''
    GROUP BY job_list.owner, artifacts.sha256;
