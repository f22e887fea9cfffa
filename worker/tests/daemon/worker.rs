//! Workers under test, and the jobs they get.

use std::{io::Cursor, path::PathBuf, time::Duration};

use image::{ImageFormat, Rgb, RgbImage};
use ringtune_shared::{
    daemon::{lifecycle::Shutdown, listen::Launch},
    ids::JobId,
    job::{JobSpec, parse_job_toml},
};
use ringtune_worker::{
    daemon::{Error, run_with},
    engine::{EngineHandle, FakeEngine, FakeScript},
    settings::Settings,
};
use tempfile::TempDir;
use tokio::{task::JoinHandle, time::timeout};

use crate::coordinator::{Coordinator, Session};

/// A test that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Bounds a test.
pub async fn in_time<T>(test: impl Future<Output = T>) -> T {
    timeout(LIMIT, test).await.expect("the test hangs")
}

pub struct Worker {
    pub shutdown: Shutdown,
    pub running: JoinHandle<Result<(), Error>>,
    pub state: TempDir,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.running.abort();
    }
}

pub fn settings(coordinator: &Coordinator, state: &TempDir) -> Settings {
    let mut settings = Settings::default();
    settings.coordinator.url = coordinator.url();
    settings.grpc.listen.set_port(0);
    settings.http.listen.set_port(0);
    settings.ring.peer_timeout_seconds = 5.0;
    settings.storage.state_dir = state.path().to_owned();
    settings
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
        let shutdown = Shutdown::default();
        let running = tokio::spawn(run_with(settings, Launch::default(), shutdown.clone(), move || {
            EngineHandle::start(move || Ok(FakeEngine::new(script)))
        }));
        Self { shutdown, running, state }
    }

    /// Ends it as SIGTERM does.
    pub async fn end(mut self) -> Result<(), Error> {
        self.shutdown.soft.cancel();
        (&mut self.running).await.unwrap()
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

pub fn fixture(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(path)
}

/// Small pictures, each another.
pub fn pictures(count: u8) -> Vec<(String, Vec<u8>)> {
    (0..count)
        .map(|number| {
            let picture =
                RgbImage::from_fn(16, 16, |x, y| Rgb([number * 40, (x * 16) as u8, (y * 16) as u8]));
            let mut bytes = Cursor::new(Vec::new());
            picture.write_to(&mut bytes, ImageFormat::Png).unwrap();
            (format!("picture-{number}.png"), bytes.into_inner())
        })
        .collect()
}

/// Uploads pictures and describes a job on them.
pub fn job(coordinator: &Coordinator, steps: u64, world_size: u32) -> JobSpec {
    job_on(coordinator, pictures(3), steps, world_size)
}

/// The same on other pictures.
pub fn job_on(
    coordinator: &Coordinator,
    pictures: Vec<(String, Vec<u8>)>,
    steps: u64,
    world_size: u32,
) -> JobSpec {
    let borrowed: Vec<(&str, Vec<u8>)> =
        pictures.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let images = coordinator.add_images(&borrowed);
    parse_job_toml(&format!(
        "kind = \"textual_inversion\"\nname = \"test\"\n\
         [model]\nbase = \"{}\"\n[data]\nimages = \"{images}\"\n\
         [train]\nplaceholder_token = \"<thing>\"\ninitializer_token = \"star\"\nnum_vectors = 2\n\
         resolution = 16\ntrain_batch_size = 2\nmax_train_steps = {steps}\nlearning_rate = 0.01\nsave_steps = 2\n\
         [cluster]\nworld_size = {world_size}\nmin_world_size = 1\n",
        fixture("toy-sd").display()
    ))
    .unwrap()
}
