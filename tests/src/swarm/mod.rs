//! A swarm of fake workers: they speak the real protocol to a real coordinator and compute nothing.
//!
//! Each one has a connection of its own, as a real worker has: it says hello and sends heartbeats as the welcome
//! asks for; it takes a rank, prepares it at once, and steps when told to start; it lets go when told to stop; it
//! comes back when its session breaks, with the ranks that it holds and the steps that are not stored. What a worker
//! holds and says is decided in [`ranks`], without a clock or a channel; [`link`] carries it out; the [`Ledger`] counts.

mod coordinator;
mod jobs;
mod ledger;
mod link;
mod presence;
mod ranks;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use tokio::{runtime::Handle, task::JoinSet};

pub use coordinator::Coordinator;
pub use jobs::{JobList, PACED, QUICK, paced_job, quick_job};
pub use ledger::{Counts, Ledger};

use crate::wait::until;
use presence::Presence;

/// What swarm to start.
#[derive(Debug, Clone)]
pub struct Options {
    /// HOST:PORT of the coordinator.
    pub coordinator: String,
    /// How many workers.
    pub workers: usize,
    /// Between two steps of the jobs named [`PACED`]; all others step as fast as they can.
    pub step_time: Duration,
}

/// Fake workers at work; they end when it is dropped.
#[derive(Debug)]
pub struct Swarm {
    shared: Arc<Shared>,
    workers: usize,
    tasks: JoinSet<()>,
}

/// What all workers of a swarm look at.
#[derive(Debug)]
struct Shared {
    url: String,
    step_time: Duration,
    ledger: Arc<Ledger>,
    /// Paced jobs make no more steps.
    holding: AtomicBool,
    presence: Presence,
}

impl Swarm {
    /// Starts the workers on a runtime.
    pub fn start(options: Options, runtime: &Handle) -> Self {
        let shared = Arc::new(Shared {
            url: format!("http://{}", options.coordinator),
            step_time: options.step_time,
            ledger: Arc::default(),
            holding: AtomicBool::new(false),
            presence: Presence::default(),
        });
        let mut tasks = JoinSet::new();
        for number in 0..options.workers {
            tasks.spawn_on(link::keep(link::Identity::of(number), shared.clone()), runtime);
        }
        Self { shared, workers: options.workers, tasks }
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        self.shared.ledger.counts()
    }

    /// The counting itself.
    pub fn ledger(&self) -> Arc<Ledger> {
        self.shared.ledger.clone()
    }

    /// Workers that have a session with the coordinator as it runs now.
    pub fn connected(&self) -> usize {
        self.shared.presence.connected()
    }

    /// The coordinator is about to be killed: sessions that end from now on ended with it.
    pub(crate) fn coordinator_goes(&self) {
        self.shared.presence.coordinator_goes();
    }

    /// The coordinator is gone and about to be started again.
    pub(crate) fn coordinator_comes(&self) {
        self.shared.presence.coordinator_comes();
    }

    /// Waits until all workers have a session; returns how long that took.
    ///
    /// # Errors
    /// Not all have one by the deadline: how many, and what kept the others.
    pub async fn all_connected(&self, deadline: Duration) -> Result<Duration> {
        let start = Instant::now();
        let all = || async { Ok((self.connected() >= self.workers).then_some(())) };
        until("all workers have a session", deadline, all).await.map_err(|error| {
            let counts = self.counts();
            error.context(format!(
                "{} of {}; refused or failed: {:?}",
                self.connected(),
                self.workers,
                counts.failed_attempts
            ))
        })?;
        Ok(start.elapsed())
    }

    /// Paced jobs make no more steps: what was reported can then be compared with what is stored.
    pub fn hold_paced_jobs(&self) {
        self.shared.holding.store(true, Ordering::Release);
    }

    /// Ends all workers and waits until they are gone.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}
