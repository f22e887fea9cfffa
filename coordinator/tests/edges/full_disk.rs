//! A store on a disk that can be full.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use ringtune_coordinator::core::{
    ArtifactRecord, Job, JobEvent, JobState, Recovered, RequestKey, StepRecord, Write,
};
use ringtune_coordinator::store::lists::{ArtifactQuery, EventQuery, JobQuery};
use ringtune_coordinator::store::{Error, SqliteStore, Store};
use ringtune_shared::ids::{ContentHash, JobId};

/// Stores in SQLite, and nothing while it is full.
pub(crate) struct FullDisk {
    store: SqliteStore,
    full: AtomicBool,
}

impl FullDisk {
    pub(crate) async fn open(folder: &Path) -> Self {
        let store = SqliteStore::open(&folder.join("coordinator.db")).await.unwrap();
        Self { store, full: AtomicBool::new(false) }
    }

    pub(crate) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    fn room(&self) -> Result<(), Error> {
        if self.full.load(Ordering::Relaxed) { Err(Error::Full) } else { Ok(()) }
    }
}

#[async_trait]
impl Store for FullDisk {
    async fn commit(&self, writes: &[Write]) -> Result<(), Error> {
        if !writes.is_empty() {
            self.room()?;
        }
        self.store.commit(writes).await
    }

    async fn probe(&self) -> Result<(), Error> {
        self.room()?;
        self.store.probe().await
    }

    async fn recover(&self) -> Result<Recovered, Error> {
        self.store.recover().await
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>, Error> {
        self.store.job(id).await
    }

    async fn request(&self, request_id: &str) -> Result<Option<(JobId, RequestKey)>, Error> {
        self.store.request(request_id).await
    }

    async fn list_jobs(&self, query: &JobQuery) -> Result<Vec<Job>, Error> {
        self.store.list_jobs(query).await
    }

    async fn list_events(&self, query: &EventQuery) -> Result<Vec<JobEvent>, Error> {
        self.store.list_events(query).await
    }

    async fn list_artifacts(&self, query: &ArtifactQuery) -> Result<Vec<ArtifactRecord>, Error> {
        self.store.list_artifacts(query).await
    }

    async fn events(&self, job: JobId, after: u64, limit: u32) -> Result<Vec<JobEvent>, Error> {
        self.store.events(job, after, limit).await
    }

    async fn steps(&self, job: JobId, after: u64, limit: u32) -> Result<Vec<StepRecord>, Error> {
        self.store.steps(job, after, limit).await
    }

    async fn artifact(&self, job: JobId, name: &str) -> Result<Option<ArtifactRecord>, Error> {
        self.store.artifact(job, name).await
    }

    async fn artifact_of_content(&self, hash: ContentHash) -> Result<Option<ArtifactRecord>, Error> {
        self.store.artifact_of_content(hash).await
    }

    async fn delete_job(&self, id: JobId) -> Result<Vec<ContentHash>, Error> {
        self.store.delete_job(id).await
    }

    async fn purge(&self, rows: u32) -> Result<bool, Error> {
        self.store.purge(rows).await
    }

    async fn unwanted(&self, candidates: &[ContentHash]) -> Result<Vec<ContentHash>, Error> {
        self.store.unwanted(candidates).await
    }

    async fn put_manifest(&self, manifest: ContentHash, files: &[ContentHash]) -> Result<(), Error> {
        self.store.put_manifest(manifest, files).await
    }

    async fn unread_manifests(
        &self,
        after: Option<ContentHash>,
        limit: u32,
    ) -> Result<Vec<ContentHash>, Error> {
        self.store.unread_manifests(after, limit).await
    }

    async fn forget_contents(&self, gone: &[ContentHash]) -> Result<(), Error> {
        self.store.forget_contents(gone).await
    }

    async fn count_jobs(&self) -> Result<BTreeMap<JobState, u64>, Error> {
        self.store.count_jobs().await
    }
}
