//! The store in a SQLite file: one connection writes, a few read beside it (WAL).

mod access;
mod contents;
mod examine;
mod lists;
mod log_mover;
mod portions;
mod quota;
mod readers;
mod recovery;
mod rows;
mod schema;
mod snapshot;
mod write;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use ringtune_shared::ids::{ContentHash, JobId, StoreId};
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, Row, Sqlite};
use tokio_util::sync::CancellationToken;

use super::lists::{ArtifactQuery, EventQuery, JobQuery};
use super::{Error, Store};
use crate::core::{ArtifactRecord, Job, JobEvent, JobState, Recovered, RequestKey, StepRecord, Write};
pub use examine::{Examined, examine};
use log_mover::{LONGEST_LOG, LogMover};
use readers::{Alarm, Readers};
use rows::{Damaged, SELECT_EVENTS, SELECT_JOBS, integer};
pub use snapshot::{CopyFailed, Inspected, copy_database, inspect_database};

/// Connections that read.
const READERS: u32 = 4;

/// Jobs in a SQLite file. Every commit is synced to the disk before it returns.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    writer: SqlitePool,
    readers: Readers,
    id: StoreId,
    damaged: Damaged,
    log_mover: LogMover,
}

impl SqliteStore {
    /// Opens a database file, makes it where it is missing, and brings its schema up to date.
    ///
    /// # Errors
    /// A file that is not a database, a newer schema, the file system's.
    pub async fn open(path: &Path) -> Result<Self, Error> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            // What goes with a job goes in chunks: see schema 3.
            .foreign_keys(false)
            .pragma("wal_autocheckpoint", LONGEST_LOG)
            .busy_timeout(Duration::from_secs(10));
        let writer = SqlitePoolOptions::new().max_connections(1).connect_with(options.clone()).await?;
        schema::bring_up_to_date(&writer).await?;
        let id = examine::id(&writer).await?;
        // Not opened read-only: SQLite wants to write the WAL's index for readers too.
        let pool = SqlitePoolOptions::new()
            .max_connections(READERS)
            .connect_with(options.pragma("query_only", "ON"))
            .await?;
        let readers = Readers { pool, alarm: Alarm::default() };
        let log_mover = LogMover::start(readers.clone());
        Ok(Self { writer, readers, id, damaged: Damaged::default(), log_mover })
    }

    /// Which store this is.
    pub fn id(&self) -> StoreId {
        self.id
    }

    /// Cancelled once SQLite says that the file is damaged: then nothing more may be built on it.
    pub fn damage(&self) -> CancellationToken {
        self.readers.alarm.raised()
    }

    /// Waits for what is under way and closes the file.
    pub async fn close(&self) {
        self.readers.pool.close().await;
        self.writer.close().await;
    }

    /// Jobs that cannot be read are FAILED from now on, whatever they were: nobody can run them.
    async fn fail_damaged(&self, damaged: Vec<(JobId, String)>) -> Result<(), Error> {
        let names: Vec<String> = JobState::ALL.iter().map(|state| format!("'{state}'")).collect();
        let other = format!("SELECT 1 FROM jobs WHERE state NOT IN ({}) LIMIT 1", names.join(", "));
        let has_other = sqlx::query(AssertSqlSafe(other)).fetch_optional(&self.readers).await?.is_some();
        if damaged.is_empty() && !has_other {
            return Ok(());
        }
        let query = "UPDATE jobs SET state = 'failed', reason = ?, ring = NULL, stop = NULL \
                     WHERE job_id = ?";
        for (job, reason) in damaged {
            sqlx::query(query).bind(reason).bind(job.to_string()).execute(&self.writer).await?;
        }
        let unknown = format!("UPDATE jobs SET state = 'failed' WHERE state NOT IN ({})", names.join(", "));
        sqlx::query(AssertSqlSafe(unknown)).execute(&self.writer).await?;
        let listed = "UPDATE job_list SET state = 'failed' WHERE state <> 'failed' \
                      AND number IN (SELECT number FROM jobs WHERE state = 'failed')";
        sqlx::query(listed).execute(&self.writer).await?;
        Ok(())
    }

    /// Gives the connection that writes back after a change.
    fn changed<T>(
        &self,
        mut connection: PoolConnection<Sqlite>,
        outcome: Result<T, Error>,
    ) -> Result<T, Error> {
        if let Err(error) = &outcome {
            self.see(error);
            // SQLite may have rolled back by itself, which sqlx does not notice: what this connection would store next
            // would be nested in a transaction that nobody commits.
            connection.close_on_drop();
        }
        outcome
    }

    /// Raises the alarm for an error of a connection that is not one of the [`Readers`].
    fn see(&self, error: &Error) {
        if let Error::Corrupt(problem) = error {
            self.readers.alarm.raise(problem);
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn commit(&self, writes: &[Write]) -> Result<(), Error> {
        if writes.is_empty() {
            return Ok(());
        }
        let mut connection = self.writer.acquire().await?;
        let outcome = write::write_all(&mut connection, writes).await;
        self.log_mover.committed();
        self.changed(connection, outcome)
    }

    async fn probe(&self) -> Result<(), Error> {
        let mut connection = self.writer.acquire().await?;
        // SQLite would not write what is there already.
        let query = "INSERT INTO counters (name, value) VALUES ('probes', 1) \
                     ON CONFLICT (name) DO UPDATE SET value = value + 1";
        let written = sqlx::query(query).execute(&mut *connection).await;
        self.changed(connection, written.map(drop).map_err(Error::from))
    }

    async fn recover(&self) -> Result<Recovered, Error> {
        let query = format!(
            "{SELECT_JOBS} WHERE state IN ('queued', 'preparing', 'running', 'paused') ORDER BY jobs.number"
        );
        let mut jobs = Vec::new();
        let mut damaged = Vec::new();
        for row in sqlx::query(AssertSqlSafe(query)).fetch_all(&self.readers).await? {
            match rows::job(&row) {
                Ok(job) => jobs.push(job),
                Err(Error::Damaged { .. }) => {
                    let stand_in = rows::job_or_stand_in(&row, &self.damaged)?;
                    damaged.extend(stand_in.map(|job| (job.id, job.reason)));
                }
                Err(error) => return Err(error),
            }
        }
        self.fail_damaged(damaged).await?;
        let last: i64 = sqlx::query("SELECT value FROM counters WHERE name = 'last_job_number'")
            .fetch_one(&self.readers)
            .await?
            .try_get(0)?;
        let checkpoints = recovery::checkpoints(&self.readers).await?;
        let hashes = recovery::newest_hashes(&self.readers, &jobs).await?;
        let drained = recovery::drained(&self.readers).await?;
        let accounts = recovery::accounts(&self.readers).await?;
        let last_number = u64::try_from(last).unwrap_or(0);
        Ok(Recovered { jobs, checkpoints, hashes, drained, accounts, last_number })
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>, Error> {
        let query = format!("{SELECT_JOBS} WHERE jobs.job_id = ?");
        let row =
            sqlx::query(AssertSqlSafe(query)).bind(id.to_string()).fetch_optional(&self.readers).await?;
        Ok(row.map(|row| rows::job_or_stand_in(&row, &self.damaged)).transpose()?.flatten())
    }

    async fn request(&self, request_id: &str) -> Result<Option<(JobId, RequestKey)>, Error> {
        let query = "SELECT job_id, request_id, request_fingerprint FROM jobs WHERE request_id = ?";
        let row = sqlx::query(query).bind(request_id).fetch_optional(&self.readers).await?;
        let Some(row) = row else { return Ok(None) };
        let job = rows::job_id(&row)?;
        Ok(rows::request(&row)?.map(|key| (job, key)))
    }

    async fn list_jobs(&self, query: &JobQuery) -> Result<Vec<Job>, Error> {
        lists::jobs(&self.readers, &self.damaged, query).await
    }

    async fn list_events(&self, query: &EventQuery) -> Result<Vec<JobEvent>, Error> {
        lists::events(&self.readers, query).await
    }

    async fn list_artifacts(&self, query: &ArtifactQuery) -> Result<Vec<ArtifactRecord>, Error> {
        lists::artifacts(&self.readers, query).await
    }

    async fn events(&self, job: JobId, after: u64, limit: u32) -> Result<Vec<JobEvent>, Error> {
        let query =
            format!("{SELECT_EVENTS} WHERE events.job_id = ? AND sequence > ? ORDER BY sequence LIMIT ?");
        let found = sqlx::query(AssertSqlSafe(query)).bind(job.to_string()).bind(integer(after)).bind(limit);
        found.fetch_all(&self.readers).await?.iter().map(|row| rows::event(job, row)).collect()
    }

    async fn steps(&self, job: JobId, after: u64, limit: u32) -> Result<Vec<StepRecord>, Error> {
        let query = "SELECT body FROM steps WHERE job_id = ? AND step > ? ORDER BY step LIMIT ?";
        let found = sqlx::query(query).bind(job.to_string()).bind(integer(after)).bind(limit);
        found.fetch_all(&self.readers).await?.iter().map(rows::step).collect()
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
        let mut connection = self.writer.acquire().await?;
        let outcome = contents::delete_job(&mut connection, id).await;
        self.changed(connection, outcome)
    }

    async fn purge(&self, rows: u32) -> Result<bool, Error> {
        let mut connection = self.writer.acquire().await?;
        let outcome = contents::purge(&mut connection, rows).await;
        self.changed(connection, outcome)
    }

    async fn unwanted(&self, candidates: &[ContentHash]) -> Result<Vec<ContentHash>, Error> {
        let mut connection = self.readers.pool.acquire().await?;
        contents::unwanted(&mut connection, candidates).await.inspect_err(|error| self.see(error))
    }

    async fn put_manifest(&self, manifest: ContentHash, files: &[ContentHash]) -> Result<(), Error> {
        if contents::is_read(&self.readers, manifest).await? {
            return Ok(());
        }
        let mut connection = self.writer.acquire().await?;
        let outcome = contents::put_manifest(&mut connection, manifest, files).await;
        self.changed(connection, outcome)
    }

    async fn unread_manifests(
        &self,
        after: Option<ContentHash>,
        limit: u32,
    ) -> Result<Vec<ContentHash>, Error> {
        contents::unread_manifests(&self.readers, after, limit).await
    }

    async fn forget_contents(&self, gone: &[ContentHash]) -> Result<(), Error> {
        let mut connection = self.writer.acquire().await?;
        let outcome = contents::forget_contents(&mut connection, gone).await;
        self.changed(connection, outcome)
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

#[cfg(test)]
mod tests;
