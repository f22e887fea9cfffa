//! The state that rank 0 keeps at the coordinator every now and then, for the case that the whole ring is lost. No file of
//! the user's: a list leaves it out, and it goes with the job's end. Nothing waits for it, and no failure of it ends a job.

use std::{path::PathBuf, sync::Arc};

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

use crate::{
    contents::ArtifactClient,
    output,
    rank::{Error, Rank},
    session::{RankOrders, stored},
    train::SavedState,
};

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
    /// The one on its way. The next one waits for its turn.
    running: Option<AbortOnDropHandle<()>>,
}

impl Recovery {
    /// The first one is due after the first interval. A coordinator of release 0.2.0 would list them with the job's files,
    /// and goes on from none.
    pub(super) fn new(rank: &Rank, client: ArtifactClient, orders: watch::Receiver<RankOrders>) -> Self {
        let every = rank.context.recovery_interval.filter(|_| rank.assignment.re_forms);
        let (folder, job) = (rank.folder.clone(), rank.life.job);
        Self { folder, job, client, orders, every, last: Instant::now(), running: None }
    }

    /// Whether it is time for the next one.
    pub(super) fn is_due(&self) -> bool {
        let is_running = self.running.as_ref().is_some_and(|running| !running.is_finished());
        self.every.is_some_and(|every| self.last.elapsed() >= every) && !is_running
    }

    /// Begins to keep a state. `pending`: the report of its step is not stored yet, and goes first.
    pub(super) fn begin(&mut self, about: About, state: Arc<SavedState>, pending: bool) {
        self.last = Instant::now();
        let (step, mut orders) = (about.step, self.orders.clone());
        let keeping = keep(self.folder.clone(), self.job, self.client.clone(), about, state);
        self.running = Some(AbortOnDropHandle::new(ringtune_shared::tasks::spawn(async move {
            if pending {
                stored(&mut orders, step).await;
            }
            if let Err(error) = keeping.await {
                warn!(%error, "a recovery point could not be kept");
            }
        })));
    }

    /// Keeps a state in the place of what is on its way, and waits for it.
    pub(super) async fn keep_now(&mut self, about: About, state: SavedState, pending: bool) {
        if self.every.is_none() {
            return;
        }
        self.begin(about, Arc::new(state), pending);
        if let Some(running) = self.running.take() {
            // It says by itself what went wrong.
            let _ = running.await;
        }
    }
}

async fn keep(
    folder: PathBuf,
    job: JobId,
    client: ArtifactClient,
    about: About,
    state: Arc<SavedState>,
) -> Result<(), Error> {
    let file = folder.join(recovery_name(about.step));
    let written = file.clone();
    ringtune_shared::tasks::spawn_blocking(move || {
        output::checkpoint::write(&written, &about, &state.numbers, &*state)
    })
    .await??;
    let sent = client.upload(job, &file).await;
    // What cannot be removed goes with the folder.
    let _ = tokio::fs::remove_file(&file).await;
    Ok(sent?)
}
