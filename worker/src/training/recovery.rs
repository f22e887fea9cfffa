//! The state that rank 0 keeps at the coordinator every now and then, for the case that the whole ring is lost. No file of
//! the user's: a list leaves it out, and it goes with the job's end. No failure of it ends a job. It is written while the next
//! steps are computed, but for a twentieth of the time at most: it takes processor and disk from them.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use ringtune_shared::{
    checkpoint::{About, recovery_name},
    ids::JobId,
};
use tokio::{
    sync::watch,
    time::{Duration, Instant},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::writing::{StateFile, Writing};
use crate::{
    contents::ArtifactClient,
    rank::{Error, Rank},
    rank_state::RankState,
    session::{RankOrders, stored},
};

/// How often the time that writing took passes before the next one.
const PAUSE: u32 = 19;

/// Keeps one recovery point after the other.
#[derive(Debug)]
pub(super) struct Recovery {
    folder: PathBuf,
    job: JobId,
    client: ArtifactClient,
    orders: watch::Receiver<RankOrders>,
    /// None: never.
    every: Option<Duration>,
    /// When the last one began.
    last: Instant,
    /// Milliseconds that writing it took.
    took: Arc<AtomicU64>,
    /// The one on its way. The next one waits for its turn.
    running: Option<AbortOnDropHandle<()>>,
}

impl Recovery {
    /// The first one is due after the first interval. A coordinator of release 0.2.0 would list them with the job's files,
    /// and goes on from none.
    pub(super) fn new(rank: &Rank, client: ArtifactClient, orders: watch::Receiver<RankOrders>) -> Self {
        let every = rank.context.recovery_interval.filter(|_| rank.assignment.re_forms);
        let (folder, job) = (rank.folder.clone(), rank.life.job);
        Self { folder, job, client, orders, every, last: Instant::now(), took: Arc::default(), running: None }
    }

    /// Whether it is time for the next one.
    pub(super) fn is_due(&self) -> bool {
        let is_running = self.running.as_ref().is_some_and(|running| !running.is_finished());
        let pause = Duration::from_millis(self.took.load(Ordering::Relaxed)) * PAUSE;
        self.every.is_some_and(|every| self.last.elapsed() >= every.max(pause)) && !is_running
    }

    /// Begins to keep a state. `pending`: the report of its step is not stored yet, and goes first.
    pub(super) async fn begin(&mut self, about: About, state: RankState, pending: bool) {
        self.last = Instant::now();
        let (step, mut orders) = (about.step, self.orders.clone());
        let path = self.folder.join(recovery_name(step));
        let (job, client, took) = (self.job, self.client.clone(), Arc::clone(&self.took));
        let begun = Writing::begin(StateFile { path: path.clone(), about, span: None }, state).await;
        self.running = Some(AbortOnDropHandle::new(ringtune_shared::tasks::spawn(async move {
            let kept = async {
                let written = begun?.outcome().await?;
                took.store(u64::try_from(written.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
                if pending {
                    stored(&mut orders, step).await;
                }
                send(job, &client, &path).await
            };
            if let Err(error) = kept.await {
                warn!(%error, "a recovery point could not be kept");
            }
        })));
    }

    /// Keeps a state in the place of what is on its way, and waits for it.
    pub(super) async fn keep_now(&mut self, about: About, state: RankState, pending: bool) {
        if self.every.is_none() {
            return;
        }
        self.begin(about, state, pending).await;
        if let Some(running) = self.running.take() {
            // It says by itself what went wrong.
            let _ = running.await;
        }
    }
}

async fn send(job: JobId, client: &ArtifactClient, file: &Path) -> Result<(), Error> {
    let sent = client.upload(job, file).await;
    // What cannot be removed goes with the folder.
    let _ = tokio::fs::remove_file(file).await;
    Ok(sent?)
}
