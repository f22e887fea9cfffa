//! The store in a SQLite file: one connection writes, a few read beside it (WAL).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use ringtune_shared::ids::{CONTENT_URI_PREFIX, ContentHash, JobId};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, Connection as _, Row, SqliteConnection};

use super::lists::{ArtifactQuery, EventQuery, JobQuery, sqlite as lists};
use super::rows::{self, JOB_COLUMNS, integer, to_json};
use super::{Error, Store};
use crate::core::{
    ArtifactRecord, EventBody, Job, JobEvent, JobState, Recovered, RequestKey, StepRecord, Write,
};

/// Every schema there ever was; a database of an older one is brought forward at the start.
const SCHEMAS: [&str; 4] = [
    include_str!("schema_1.sql"),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
];

/// Connections that read.
const READERS: u32 = 4;

/// Jobs in a SQLite file. Every commit is synced to the disk before it returns.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    writer: SqlitePool,
    readers: SqlitePool,
}

impl SqliteStore {
    /// Opens a database file, makes it where it is missing, and brings its schema up to date.
    ///
    /// # Errors
    /// A file that is no database, a newer schema, the file system's.
    pub async fn open(path: &Path) -> Result<Self, Error> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(10));
        let writer = SqlitePoolOptions::new().max_connections(1).connect_with(options.clone()).await?;
        bring_up_to_date(&writer).await?;
        // Not opened read-only: SQLite wants to write the WAL's index for readers too.
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .connect_with(options.pragma("query_only", "ON"))
            .await?;
        Ok(Self { writer, readers })
    }

    /// Waits for what is under way and closes the file.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

async fn bring_up_to_date(writer: &SqlitePool) -> Result<(), Error> {
    let known = i64::try_from(SCHEMAS.len()).unwrap_or(i64::MAX);
    let found: i64 = sqlx::query("PRAGMA user_version").fetch_one(writer).await?.try_get(0)?;
    if found > known {
        return Err(Error::Newer { found, known });
    }
    for (version, schema) in (1_i64..).zip(SCHEMAS).filter(|(version, _)| *version > found) {
        let mut transaction = writer.begin().await?;
        sqlx::raw_sql(schema).execute(&mut *transaction).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("PRAGMA user_version = {version}")))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
    }
    Ok(())
}

/// All of it or nothing.
async fn write_all(connection: &mut SqliteConnection, writes: &[Write]) -> Result<(), Error> {
    let mut transaction = connection.begin().await?;
    for write in writes {
        match write {
            Write::InsertJob(job) => insert_job(&mut transaction, job).await?,
            Write::UpdateJob(job) => update_job(&mut transaction, job).await?,
            Write::UpdateProgress { job, step, loss, last_sequence, artifacts } => {
                let query =
                    "UPDATE jobs SET step = ?, loss = ?, last_sequence = ?, artifacts = ? WHERE job_id = ?";
                sqlx::query(query)
                    .bind(integer(*step))
                    .bind(*loss)
                    .bind(integer(*last_sequence))
                    .bind(integer(*artifacts))
                    .bind(job.to_string())
                    .execute(&mut *transaction)
                    .await?;
            }
            Write::AppendEvent(event) => append_event(&mut transaction, event).await?,
            Write::AppendStep(job, step) => append_step(&mut transaction, *job, step).await?,
            Write::PutArtifact(artifact) => put_artifact(&mut transaction, artifact).await?,
            Write::DropArtifact(job, name) => drop_artifact(&mut transaction, *job, name).await?,
        }
    }
    transaction.commit().await?;
    Ok(())
}

#[async_trait]
impl Store for SqliteStore {
    async fn commit(&self, writes: &[Write]) -> Result<(), Error> {
        if writes.is_empty() {
            return Ok(());
        }
        let mut connection = self.writer.acquire().await?;
        let stored = write_all(&mut connection, writes).await;
        if stored.is_err() {
            // SQLite may have rolled back by itself, which sqlx does not notice: what this connection would
            // store next would be nested in a transaction that nobody commits.
            connection.close_on_drop();
        }
        stored
    }

    async fn probe(&self) -> Result<(), Error> {
        let mut connection = self.writer.acquire().await?;
        // SQLite would not write what is there already.
        let query = "INSERT INTO counters (name, value) VALUES ('probes', 1) \
                     ON CONFLICT (name) DO UPDATE SET value = value + 1";
        let written = sqlx::query(query).execute(&mut *connection).await;
        if written.is_err() {
            connection.close_on_drop();
        }
        Ok(written.map(drop)?)
    }

    async fn recover(&self) -> Result<Recovered, Error> {
        let query =
            format!("SELECT {JOB_COLUMNS} FROM jobs WHERE state IN ('queued', 'preparing', 'running')");
        let found = sqlx::query(AssertSqlSafe(query)).fetch_all(&self.readers).await?;
        let jobs = found.iter().map(rows::job).collect::<Result<Vec<Job>, Error>>()?;
        let last: i64 = sqlx::query("SELECT value FROM counters WHERE name = 'last_job_number'")
            .fetch_one(&self.readers)
            .await?
            .try_get(0)?;
        Ok(Recovered { jobs, last_number: u64::try_from(last).unwrap_or(0) })
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>, Error> {
        let query = format!("SELECT {JOB_COLUMNS} FROM jobs WHERE job_id = ?");
        let row =
            sqlx::query(AssertSqlSafe(query)).bind(id.to_string()).fetch_optional(&self.readers).await?;
        row.as_ref().map(rows::job).transpose()
    }

    async fn request(&self, request_id: &str) -> Result<Option<(JobId, RequestKey)>, Error> {
        let query = format!("SELECT {JOB_COLUMNS} FROM jobs WHERE request_id = ?");
        let row = sqlx::query(AssertSqlSafe(query)).bind(request_id).fetch_optional(&self.readers).await?;
        let job = row.as_ref().map(rows::job).transpose()?;
        Ok(job.and_then(|job| Some((job.id, job.request?))))
    }

    async fn list_jobs(&self, query: &JobQuery) -> Result<Vec<Job>, Error> {
        lists::jobs(&self.readers, query).await
    }

    async fn events(&self, job: JobId, after: u64, limit: u32) -> Result<Vec<JobEvent>, Error> {
        let query = "SELECT sequence, time, body FROM events WHERE job_id = ? AND sequence > ? \
                     ORDER BY sequence LIMIT ?";
        let found = sqlx::query(query).bind(job.to_string()).bind(integer(after)).bind(limit);
        found.fetch_all(&self.readers).await?.iter().map(|row| rows::event(job, row)).collect()
    }

    async fn steps(&self, job: JobId, after: u64, limit: u32) -> Result<Vec<StepRecord>, Error> {
        let query = "SELECT body FROM steps WHERE job_id = ? AND step > ? ORDER BY step LIMIT ?";
        let found = sqlx::query(query).bind(job.to_string()).bind(integer(after)).bind(limit);
        found.fetch_all(&self.readers).await?.iter().map(rows::step).collect()
    }

    async fn list_events(&self, query: &EventQuery) -> Result<Vec<JobEvent>, Error> {
        lists::events(&self.readers, query).await
    }

    async fn list_artifacts(&self, query: &ArtifactQuery) -> Result<Vec<ArtifactRecord>, Error> {
        lists::artifacts(&self.readers, query).await
    }

    async fn artifact(&self, job: JobId, name: &str) -> Result<Option<ArtifactRecord>, Error> {
        let query = "SELECT * FROM artifacts WHERE job_id = ? AND name = ?";
        let row = sqlx::query(query).bind(job.to_string()).bind(name).fetch_optional(&self.readers).await?;
        row.as_ref().map(rows::artifact).transpose()
    }

    async fn artifact_of_content(&self, hash: ContentHash) -> Result<Option<ArtifactRecord>, Error> {
        let query = "SELECT * FROM artifacts WHERE sha256 = ? LIMIT 1";
        let row = sqlx::query(query).bind(hash.to_string()).fetch_optional(&self.readers).await?;
        row.as_ref().map(rows::artifact).transpose()
    }

    async fn delete_job(&self, id: JobId) -> Result<Vec<ContentHash>, Error> {
        let mut transaction = self.writer.begin().await?;
        let query = "SELECT DISTINCT mine.sha256 FROM artifacts AS mine WHERE mine.job_id = ?1 AND NOT EXISTS \
                     (SELECT 1 FROM artifacts AS other \
                      WHERE other.sha256 = mine.sha256 AND other.job_id <> ?1)";
        let free = sqlx::query(query).bind(id.to_string()).fetch_all(&mut *transaction).await?;
        let deleted = sqlx::query("DELETE FROM jobs WHERE job_id = ?").bind(id.to_string());
        deleted.execute(&mut *transaction).await?;
        transaction.commit().await?;
        let parse = |text: &str| {
            text.parse().map_err(|error: ringtune_shared::ids::IdError| Error::Damaged {
                what: "artifacts.sha256".to_owned(),
                problem: error.to_string(),
            })
        };
        free.iter().map(|row| parse(row.try_get(0)?)).collect()
    }

    /// Nothing is left: rows go with their job.
    async fn purge(&self, _rows: u32) -> Result<bool, Error> {
        Ok(false)
    }

    async fn content_uris(&self) -> Result<Vec<String>, Error> {
        let query = "SELECT DISTINCT atom FROM jobs, json_tree(jobs.spec) \
            WHERE type = 'text' AND substr(atom, 1, length(?1)) = ?1 ORDER BY atom";
        let found = sqlx::query(query).bind(CONTENT_URI_PREFIX).fetch_all(&self.readers).await?;
        found.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    async fn count_jobs(&self) -> Result<BTreeMap<JobState, u64>, Error> {
        let query = "SELECT state, COUNT(*) FROM jobs GROUP BY state";
        let mut counts = BTreeMap::new();
        for row in sqlx::query(query).fetch_all(&self.readers).await? {
            if let Some(state) = JobState::from_name(row.try_get(0)?) {
                counts.insert(state, u64::try_from(row.try_get::<i64, _>(1)?).unwrap_or(0));
            }
        }
        Ok(counts)
    }
}

async fn insert_job(connection: &mut SqliteConnection, job: &Job) -> Result<(), Error> {
    let places = ["?"; 23].join(", ");
    let query = format!("INSERT INTO jobs ({JOB_COLUMNS}) VALUES ({places})");
    sqlx::query(AssertSqlSafe(query))
        .bind(job.id.to_string())
        .bind(integer(job.number))
        .bind(to_json("jobs.spec", &*job.spec)?)
        .bind(job.request.as_ref().map(|request| request.id.clone()))
        .bind(job.request.as_ref().map(|request| request.fingerprint.to_string()))
        .bind(job.state.as_str())
        .bind(job.reason.as_str())
        .bind(job.created.0)
        .bind(job.started.map(|time| time.0))
        .bind(job.ended.map(|time| time.0))
        .bind(integer(job.step))
        .bind(job.loss)
        .bind(integer(job.last_sequence))
        .bind(integer(job.artifacts))
        .bind(job.ring.as_ref().map(|ring| to_json("jobs.ring", &**ring)).transpose()?)
        .bind(job.precision.map(|precision| precision.as_str()))
        .bind(job.cancel.as_ref().map(|cancel| to_json("jobs.cancel", cancel)).transpose()?)
        .bind(job.finish_by.map(|time| time.0))
        .bind(job.resumed.as_ref().map(|resumed| to_json("jobs.resumed", resumed)).transpose()?)
        .bind(to_json("jobs.queue", &*job.queue)?)
        .bind(job.updated.0)
        .bind(job.failure.map(|failure| to_json("jobs.failure", &failure)).transpose()?)
        .bind(integer(job.rings))
        .execute(&mut *connection)
        .await?;
    lists::insert_job(connection, job).await?;
    sqlx::query("UPDATE counters SET value = MAX(value, ?) WHERE name = 'last_job_number'")
        .bind(integer(job.number))
        .execute(connection)
        .await?;
    Ok(())
}

async fn update_job(connection: &mut SqliteConnection, job: &Job) -> Result<(), Error> {
    let query = "UPDATE jobs SET state = ?, reason = ?, started = ?, ended = ?, step = ?, loss = ?, \
                 last_sequence = ?, artifacts = ?, ring = ?, precision = ?, cancel = ?, finish_by = ?, \
                 updated = ?, failure = ?, rings = ? WHERE job_id = ?";
    sqlx::query(query)
        .bind(job.state.as_str())
        .bind(job.reason.as_str())
        .bind(job.started.map(|time| time.0))
        .bind(job.ended.map(|time| time.0))
        .bind(integer(job.step))
        .bind(job.loss)
        .bind(integer(job.last_sequence))
        .bind(integer(job.artifacts))
        .bind(job.ring.as_ref().map(|ring| to_json("jobs.ring", &**ring)).transpose()?)
        .bind(job.precision.map(|precision| precision.as_str()))
        .bind(job.cancel.as_ref().map(|cancel| to_json("jobs.cancel", cancel)).transpose()?)
        .bind(job.finish_by.map(|time| time.0))
        .bind(job.updated.0)
        .bind(job.failure.map(|failure| to_json("jobs.failure", &failure)).transpose()?)
        .bind(integer(job.rings))
        .bind(job.id.to_string())
        .execute(&mut *connection)
        .await?;
    lists::update_job(connection, job).await
}

async fn append_event(connection: &mut SqliteConnection, event: &JobEvent) -> Result<(), Error> {
    sqlx::query("INSERT INTO events (job_id, sequence, time, body) VALUES (?, ?, ?, ?)")
        .bind(event.job.to_string())
        .bind(integer(event.sequence))
        .bind(event.time.0)
        .bind(to_json::<EventBody>("events.body", &event.body)?)
        .execute(connection)
        .await?;
    Ok(())
}

async fn append_step(connection: &mut SqliteConnection, job: JobId, step: &StepRecord) -> Result<(), Error> {
    sqlx::query("INSERT INTO steps (job_id, step, body) VALUES (?, ?, ?)")
        .bind(job.to_string())
        .bind(integer(step.step))
        .bind(to_json("steps.body", step)?)
        .execute(connection)
        .await?;
    Ok(())
}

async fn drop_artifact(connection: &mut SqliteConnection, job: JobId, name: &str) -> Result<(), Error> {
    let query = "DELETE FROM artifacts WHERE job_id = ? AND name = ?";
    sqlx::query(query).bind(job.to_string()).bind(name).execute(connection).await?;
    Ok(())
}

async fn put_artifact(connection: &mut SqliteConnection, artifact: &ArtifactRecord) -> Result<(), Error> {
    let query = "INSERT OR REPLACE INTO artifacts (job_id, name, sha256, size, media_type, created) \
                 VALUES (?, ?, ?, ?, ?, ?)";
    sqlx::query(query)
        .bind(artifact.job.to_string())
        .bind(artifact.name.as_str())
        .bind(artifact.hash.to_string())
        .bind(integer(artifact.size))
        .bind(artifact.media_type.as_str())
        .bind(artifact.created.0)
        .execute(connection)
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::LogLevel;
    use crate::store::conformance;

    #[tokio::test]
    async fn conforms_and_survives_reopening() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("coordinator.db");
        let store = SqliteStore::open(&path).await.unwrap();
        let written = conformance::run(&store).await;
        store.close().await;
        let store = SqliteStore::open(&path).await.unwrap();
        conformance::check_written(&store, &written).await;
        let store = SqliteStore::open(&folder.path().join("lists.db")).await.unwrap();
        crate::store::lists::conformance::run(&store).await;
    }

    #[tokio::test]
    async fn a_newer_schema_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("coordinator.db");
        let store = SqliteStore::open(&path).await.unwrap();
        sqlx::raw_sql("PRAGMA user_version = 99").execute(&store.writer).await.unwrap();
        store.close().await;
        assert!(matches!(SqliteStore::open(&path).await, Err(Error::Newer { found: 99, known: 3 })));
    }

    #[tokio::test]
    async fn a_database_of_the_first_schema_is_brought_forward() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("coordinator.db");
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let old = SqlitePoolOptions::new().connect_with(options).await.unwrap();
        sqlx::raw_sql(SCHEMAS[0]).execute(&old).await.unwrap();
        let job = conformance::queued_job(1);
        let query = "INSERT INTO jobs (job_id, number, spec, state, reason, created, step, last_sequence, \
                     artifacts) VALUES (?, 1, ?, 'queued', '', ?, 0, 0, 0)";
        let insert = sqlx::query(query).bind(job.id.to_string()).bind(to_json("spec", &*job.spec).unwrap());
        insert.bind(job.created.0).execute(&old).await.unwrap();
        sqlx::raw_sql("PRAGMA user_version = 1").execute(&old).await.unwrap();
        old.close().await;
        let store = SqliteStore::open(&path).await.unwrap();
        assert_eq!(store.job(job.id).await.unwrap().as_ref(), Some(&*job));
    }

    #[tokio::test]
    async fn a_full_database_says_so_and_keeps_what_it_had_and_what_comes_later() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("coordinator.db")).await.unwrap();
        let job = conformance::queued_job(1);
        store.commit(&[Write::InsertJob(job.clone())]).await.unwrap();
        let event = |text: String| JobEvent {
            job: job.id,
            sequence: 1,
            time: job.created,
            body: EventBody::note(LogLevel::Info, text),
        };
        for _ in 0..3 {
            // SQLite answers SQLITE_FULL where a file may not grow, as on a full disk.
            sqlx::raw_sql("PRAGMA max_page_count = 1").execute(&store.writer).await.unwrap();
            let long = event("x".repeat(1 << 20));
            assert!(matches!(store.commit(&[Write::AppendEvent(long)]).await, Err(Error::Full)));
        }
        assert_eq!(store.job(job.id).await.unwrap().as_ref(), Some(&*job));
        assert!(store.events(job.id, 0, 10).await.unwrap().is_empty());
        // There is room again: what is stored now is there for other connections too.
        let short = event("short".to_owned());
        store.commit(&[Write::AppendEvent(short.clone())]).await.unwrap();
        assert_eq!(store.events(job.id, 0, 10).await.unwrap(), [short]);
    }
}
