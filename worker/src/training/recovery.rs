//! The state that rank 0 keeps at the coordinator every now and then, for the case that the whole ring is lost. No file of
//! the user's: a list leaves it out, and it goes with the job's end. No failure of it ends a job. Nothing waits for it but where
//! the state is only lent: then it is written before the next step changes it, so seldom that steps are held up by a
//! twentieth at most.

use std::path::{Path, PathBuf};

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
    rank_state::RankState,
    session::{RankOrders, stored},
};

/// Of a state that is lent: how often the time that writing took passes before the next one.
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
    /// How long it held up the steps.
    took: Duration,
    /// The one on its way. The next one waits for its turn.
    running: Option<AbortOnDropHandle<()>>,
}

impl Recovery {
    /// The first one is due after the first interval. A coordinator of release 0.2.0 would list them with the job's files,
    /// and goes on from none.
    pub(super) fn new(rank: &Rank, client: ArtifactClient, orders: watch::Receiver<RankOrders>) -> Self {
        let every = rank.context.recovery_interval.filter(|_| rank.assignment.re_forms);
        let (folder, job) = (rank.folder.clone(), rank.life.job);
        Self { folder, job, client, orders, every, last: Instant::now(), took: Duration::ZERO, running: None }
    }

    /// Whether it is time for the next one.
    pub(super) fn is_due(&self) -> bool {
        let is_running = self.running.as_ref().is_some_and(|running| !running.is_finished());
        let pause = self.took * PAUSE;
        self.every.is_some_and(|every| self.last.elapsed() >= every.max(pause)) && !is_running
    }

    /// Begins to keep a state. `pending`: the report of its step is not stored yet, and goes first.
    pub(super) async fn begin(&mut self, about: About, state: RankState, pending: bool) {
        self.last = Instant::now();
        let (step, mut orders) = (about.step, self.orders.clone());
        let file = self.folder.join(recovery_name(step));
        let (job, client) = (self.job, self.client.clone());
        let mut early = None;
        if state.is_lent() {
            early = Some(write(file.clone(), about.clone(), state.clone()).await);
            self.took = self.last.elapsed();
        }
        self.running = Some(AbortOnDropHandle::new(ringtune_shared::tasks::spawn(async move {
            if pending {
                stored(&mut orders, step).await;
            }
            let written = match early {
                Some(written) => written,
                None => write(file.clone(), about, state).await,
            };
            if let Err(error) = send(job, &client, &file, written).await {
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

async fn write(file: PathBuf, about: About, state: RankState) -> Result<(), Error> {
    let written = move || output::checkpoint::write(&file, &about, state.numbers(), &state);
    Ok(ringtune_shared::tasks::spawn_blocking(written).await??)
}

async fn send(
    job: JobId,
    client: &ArtifactClient,
    file: &Path,
    written: Result<(), Error>,
) -> Result<(), Error> {
    written?;
    let sent = client.upload(job, file).await;
    // What cannot be removed goes with the folder.
    let _ = tokio::fs::remove_file(file).await;
    Ok(sent?)
}
