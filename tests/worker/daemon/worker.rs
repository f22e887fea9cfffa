//! Workers under test, on the fake engine.

use std::sync::Arc;

use ringtune_fake_engine::{FakeEngine, FakeScript};
use ringtune_security::JoinToken;
use ringtune_shared::{
    daemon::{lifecycle::Shutdown, listen::Launch},
    ids::JobId,
};
use ringtune_worker::{
    daemon::{Error, Start, run_with},
    engine::EngineHandle,
    settings::Settings,
};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::coordinator::{Coordinator, Session};
pub use crate::support::{fixture, in_time, job, job_on, pictures, settings};

pub struct Worker {
    pub shutdown: Shutdown,
    pub running: JoinHandle<Result<(), Error>>,
    /// Of this worker and of those that are started on it later.
    pub state: Arc<TempDir>,
}

/// Waits until something is so.
pub async fn until(mut condition: impl FnMut() -> bool) {
    in_time(async {
        while !condition() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Worker {
    pub fn start(coordinator: &Coordinator, script: FakeScript) -> Self {
        Self::start_with(coordinator, script, |_| ())
    }

    pub fn start_with(
        coordinator: &Coordinator,
        script: FakeScript,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut settings = settings(coordinator, &state);
        change(&mut settings);
        Self::start_in(Arc::new(state), settings, None, script)
    }

    /// One that is to join.
    pub fn start_joining(coordinator: &Coordinator, token: JoinToken) -> Self {
        let state = tempfile::tempdir().unwrap();
        let settings = settings(coordinator, &state);
        Self::start_in(Arc::new(state), settings, Some(token), FakeScript::default())
    }

    /// In a state folder that may be another worker's before.
    pub fn start_in(
        state: Arc<TempDir>,
        settings: Settings,
        token: Option<JoinToken>,
        script: FakeScript,
    ) -> Self {
        let shutdown = Shutdown::default();
        let start = Start { launch: Launch::default(), token };
        let running = tokio::spawn(run_with(settings, start, shutdown.clone(), move || {
            EngineHandle::start(move || Ok(FakeEngine::new(script)))
        }));
        Self { shutdown, running, state }
    }

    /// Ends it as SIGTERM does.
    pub async fn end(mut self) -> Result<(), Error> {
        self.shutdown.soft.cancel();
        in_time(&mut self.running).await.unwrap()
    }

    /// The same, and leaves its state folder to the next one.
    pub async fn leave(self) -> Arc<TempDir> {
        let state = Arc::clone(&self.state);
        self.end().await.unwrap();
        state
    }
}

/// A worker in a session with its coordinator.
pub struct Alone {
    pub coordinator: Coordinator,
    pub worker: Worker,
    pub session: Session,
}

impl Alone {
    pub async fn start(script: FakeScript) -> Self {
        let mut coordinator = Coordinator::start().await;
        let worker = Worker::start(&coordinator, script);
        let session = coordinator.accept().await;
        Self { coordinator, worker, session }
    }

    /// With the only rank of a job of so many steps, which it prepares. `world_size` is what the job asks for.
    pub async fn with_job(steps: u64, world_size: u32) -> (Self, JobId) {
        let alone = Self::start(FakeScript::default()).await;
        let id = JobId::new();
        alone.session.assign_alone(id, &job(&alone.coordinator, steps, world_size)).await;
        (alone, id)
    }
}
