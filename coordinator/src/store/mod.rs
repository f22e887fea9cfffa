//! What survives a restart: jobs with their events, steps and artifacts.
//!
//! Invariant: what [`Store::commit`] returned from is on disk; a commit that failed left nothing.
//!
//! Invariant: a row that cannot be read becomes a job that says so, and disturbs no other job.
//!
//! Invariant: once SQLite reports a damaged file, to whichever caller, the coordinator ends (`sqlite/readers.rs`).

pub mod access;
#[cfg(test)]
pub(crate) mod conformance;
pub mod lists;
pub mod quota;
mod sqlite;

use std::collections::BTreeMap;

use async_trait::async_trait;
use ringtune_shared::ids::{ContentHash, JobId};

use crate::core::{ArtifactRecord, Job, JobEvent, JobState, Recovered, RequestKey, StepRecord, Write};

use lists::{ArtifactQuery, EventQuery, JobQuery};

pub use sqlite::{CopyFailed, Examined, Inspected, SqliteStore, copy_database, examine, inspect_database};

/// What a store can fail with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk has no room.
    #[error("the disk that holds the database is full")]
    Full,
    /// The database refuses, is locked for too long, or cannot be reached.
    #[error("database: {0}")]
    Database(String),
    /// The file is not what was written. Nobody goes on with it.
    #[error("the database is damaged: {0}")]
    Corrupt(String),
    /// A row holds something that this version cannot read.
    #[error("database: {what} cannot be read: {problem}")]
    Damaged {
        /// Which row and column.
        what: String,
        /// Why.
        problem: String,
    },
    /// The database was written by a newer version.
    #[error("the database has schema {found}, this coordinator knows up to {known}: install a newer one")]
    Newer {
        /// As found.
        found: i64,
        /// The newest one known.
        known: i64,
    },
}

/// Jobs and all that belongs to them.
///
/// A job whose row cannot be read disturbs no other one: in its place stands a job that says so, FAILED at the latest
/// after the next start, which can be deleted.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Stores all of `writes` in their order, or nothing. Durable once it returns. The event of a step comes with the
    /// step, in one commit. A job that is inserted is tied to the contents that its spec names.
    async fn commit(&self, writes: &[Write]) -> Result<(), Error>;

    /// Stores something that nobody reads: whether anything can be stored at all.
    async fn probe(&self) -> Result<(), Error>;

    /// Every job that has not ended, for a start. One that cannot be read is FAILED from then on.
    async fn recover(&self) -> Result<Recovered, Error>;

    /// One job.
    async fn job(&self, id: JobId) -> Result<Option<Job>, Error>;

    /// The job that a request id made.
    async fn request(&self, request_id: &str) -> Result<Option<(JobId, RequestKey)>, Error>;

    /// A page of jobs.
    async fn list_jobs(&self, query: &JobQuery) -> Result<Vec<Job>, Error>;

    /// A job's events with a greater sequence number, in order, at most `limit`.
    async fn events(&self, job: JobId, after: u64, limit: u32) -> Result<Vec<JobEvent>, Error>;

    /// A job's steps after `after`, in order, at most `limit`.
    async fn steps(&self, job: JobId, after: u64, limit: u32) -> Result<Vec<StepRecord>, Error>;

    /// A page of a job's events.
    async fn list_events(&self, query: &EventQuery) -> Result<Vec<JobEvent>, Error>;

    /// A page of a job's artifacts.
    async fn list_artifacts(&self, query: &ArtifactQuery) -> Result<Vec<ArtifactRecord>, Error>;

    /// One artifact of a job.
    async fn artifact(&self, job: JobId, name: &str) -> Result<Option<ArtifactRecord>, Error>;

    /// Any artifact with this content.
    async fn artifact_of_content(&self, hash: ContentHash) -> Result<Option<ArtifactRecord>, Error>;

    /// Forgets a job and all that belongs to it; returns the contents of its files that no other job wants (see
    /// [`Store::unwanted`]). A job that is not there has none. Its events and steps take room until [`Store::purge`] has
    /// taken them.
    async fn delete_job(&self, id: JobId) -> Result<Vec<ContentHash>, Error>;

    /// Removes at most `rows` events and as many steps of deleted jobs; whether there may be more.
    async fn purge(&self, rows: u32) -> Result<bool, Error>;

    /// Those of `candidates` that no job wants, sorted: neither as its file, nor by its spec, nor by an image
    /// manifest that its spec names. None as long as there are [`Store::unread_manifests`].
    async fn unwanted(&self, candidates: &[ContentHash]) -> Result<Vec<ContentHash>, Error>;

    /// Keeps which contents an image manifest names. Comes before the commit of a job whose spec names the manifest.
    async fn put_manifest(&self, manifest: ContentHash, files: &[ContentHash]) -> Result<(), Error>;

    /// Image manifests that jobs name and that were never put here, sorted, from behind `after`, at most `limit`: of jobs of an
    /// older version.
    async fn unread_manifests(
        &self,
        after: Option<ContentHash>,
        limit: u32,
    ) -> Result<Vec<ContentHash>, Error>;

    /// Forgets what the manifests among these contents name, unless a job names the manifest. They are gone.
    async fn forget_contents(&self, gone: &[ContentHash]) -> Result<(), Error>;

    /// How many jobs are in each state; states without jobs may be left out.
    async fn count_jobs(&self) -> Result<BTreeMap<JobState, u64>, Error>;
}
