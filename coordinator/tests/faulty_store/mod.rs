//! A store in SQLite whose disk can be full or broken, whose commits can take long, and whose readers can hang.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ringtune_coordinator::core::{
    ArtifactRecord, Job, JobEvent, JobState, Recovered, RequestKey, StepRecord, Write,
};
use ringtune_coordinator::store::lists::{ArtifactQuery, EventQuery, JobQuery};
use ringtune_coordinator::store::{Error, SqliteStore, Store};
use ringtune_shared::ids::{ContentHash, JobId};
use tokio::runtime::Runtime;

/// See the file. Its database goes with it.
pub(crate) struct FaultyStore {
    store: SqliteStore,
    _folder: tempfile::TempDir,
    /// Commits fail with [`Error::Full`].
    pub(crate) full: AtomicBool,
    /// Commits fail with [`Error::Database`].
    pub(crate) broken: AtomicBool,
    /// Reads never return.
    pub(crate) readers_hang: AtomicBool,
    /// How many milliseconds the next commit takes.
    pub(crate) next_commit: AtomicU64,
    /// Commits so far.
    pub(crate) commits: AtomicUsize,
}

impl FaultyStore {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            store: block_on(SqliteStore::open(&folder.path().join("coordinator.db"))).unwrap(),
            _folder: folder,
            full: AtomicBool::default(),
            broken: AtomicBool::default(),
            readers_hang: AtomicBool::default(),
            next_commit: AtomicU64::default(),
            commits: AtomicUsize::default(),
        }
    }

    pub(crate) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    /// The faults of a call, before SQLite is asked.
    async fn before(&self, call: &str) -> Result<(), Error> {
        if !["commit", "probe"].contains(&call) {
            if self.readers_hang.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            return Ok(());
        }
        if call == "commit" {
            self.commits.fetch_add(1, Ordering::Relaxed);
            let milliseconds = self.next_commit.swap(0, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        }
        if self.full.load(Ordering::Relaxed) {
            return Err(Error::Full);
        }
        match self.broken.load(Ordering::Relaxed) {
            true => Err(Error::Database("it is broken".to_owned())),
            false => Ok(()),
        }
    }
}

/// Blocks the test until SQLite's threads have answered: a paused clock would go on while it waited for them.
fn block_on<T: Send>(answer: impl Future<Output = T> + Send) -> T {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
    std::thread::scope(|scope| scope.spawn(|| RUNTIME.block_on(answer)).join().unwrap())
}

macro_rules! ask_sqlite {
    ($($call:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl Store for FaultyStore {
            $(async fn $call(&self, $($argument: $kind),*) -> Result<$answer, Error> {
                self.before(stringify!($call)).await?;
                block_on(self.store.$call($($argument),*))
            })*
        }
    };
}

ask_sqlite! {
    commit(writes: &[Write]) -> ();
    probe() -> ();
    recover() -> Recovered;
    job(id: JobId) -> Option<Job>;
    request(request_id: &str) -> Option<(JobId, RequestKey)>;
    list_jobs(query: &JobQuery) -> Vec<Job>;
    list_events(query: &EventQuery) -> Vec<JobEvent>;
    list_artifacts(query: &ArtifactQuery) -> Vec<ArtifactRecord>;
    events(job: JobId, after: u64, limit: u32) -> Vec<JobEvent>;
    steps(job: JobId, after: u64, limit: u32) -> Vec<StepRecord>;
    artifact(job: JobId, name: &str) -> Option<ArtifactRecord>;
    artifact_of_content(hash: ContentHash) -> Option<ArtifactRecord>;
    delete_job(id: JobId) -> Vec<ContentHash>;
    purge(rows: u32) -> bool;
    unwanted(candidates: &[ContentHash]) -> Vec<ContentHash>;
    put_manifest(manifest: ContentHash, files: &[ContentHash]) -> ();
    unread_manifests(after: Option<ContentHash>, limit: u32) -> Vec<ContentHash>;
    forget_contents(gone: &[ContentHash]) -> ();
    count_jobs() -> BTreeMap<JobState, u64>;
}
