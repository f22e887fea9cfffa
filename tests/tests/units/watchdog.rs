//! A worker's watchdog is fed by its work.

use std::{
    os::unix::net::UnixDatagram,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{Cluster, Job, Sandbox, daemon::Launch, wait::SOON};

use crate::PAUSE;

/// The watchdog's patience. It is fed four times as often.
const PATIENCE: Duration = Duration::from_millis(400);
/// A gradient that takes longer is taken for one that hangs.
const LONGEST_SILENCE: &str = "3000";
/// Duration of a gradient without signs of progress.
const GRADIENT: &str = "1500";
/// The gradient that never ends: so early that the worker does not know yet how long one takes, and so does not notice by
/// itself.
const HANGS: u64 = 3;

/// Notifications of a worker.
struct Ear {
    socket: UnixDatagram,
    status: String,
    /// Signs of progress while it was busy.
    signs: usize,
    last_sign: Instant,
}

impl Ear {
    fn listen(&mut self) {
        let mut buffer = [0u8; 4096];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            for line in String::from_utf8_lossy(&buffer[..length]).lines() {
                if let Some(status) = line.strip_prefix("STATUS=") {
                    status.clone_into(&mut self.status);
                } else if line == "WATCHDOG=1" {
                    self.signs += usize::from(self.step().is_some());
                    self.last_sign = Instant::now();
                }
            }
        }
    }

    /// Of "rank 0 of job X, step 12/1000".
    fn step(&self) -> Option<u64> {
        self.status.split_once(", step ")?.1.split('/').next()?.parse().ok()
    }

    async fn until(&mut self, what: &str, is_true: impl Fn(&Self) -> bool) -> Result<()> {
        let began = Instant::now();
        loop {
            self.listen();
            if is_true(self) {
                return Ok(());
            }
            ensure!(began.elapsed() < SOON, "not {what}; it says {:?}, {} signs", self.status, self.signs);
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[tokio::test]
async fn a_worker_that_is_busy_is_fed_and_one_whose_engine_hangs_is_not() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let path = sandbox.path("notify");
    let socket = UnixDatagram::bind(&path)?;
    socket.set_nonblocking(true)?;
    let mut ear = Ear { socket, status: String::new(), signs: 0, last_sign: Instant::now() };

    let mut cluster = Cluster::start_coordinator(&sandbox, Launch::coordinator()).await?;
    let hangs = HANGS.to_string();
    let flags =
        ["--gradient-takes", GRADIENT, "--longest-silence", LONGEST_SILENCE, "--hang-on-gradient", &hangs];
    let launch = Launch::worker("worker-1", "fake-worker", &cluster.coordinator.grpc)
        .flags(flags)
        .variable("NOTIFY_SOCKET", &path.to_string_lossy())
        .variable("WATCHDOG_USEC", &PATIENCE.as_micros().to_string());
    cluster.add_worker(launch).await?;
    ear.until("idle", |ear| ear.status == "idle, connected").await?;

    let job = Job::toy()?.set("train.max_train_steps", 1000).shared_by(1);
    let id = cluster.submit(&sandbox.write_job("job.toml", &job)?).await?;
    // Busy for several times the patience: it is fed all the way.
    ear.until("at work", |ear| ear.signs >= 10).await?;
    ensure!(ear.status.contains(&id), "{}", ear.status);
    // The session's loop goes on, and the worker stays what it was: the engine alone is silent.
    ear.until("quiet", |ear| ear.last_sign.elapsed() > 10 * PATIENCE).await?;
    ensure!(ear.step().is_some_and(|step| step + 1 == HANGS), "it hangs at another step: {}", ear.status);
    let worker = cluster.daemon("worker-1")?;
    ensure!(worker.process_id().is_some(), "it ended");
    let listed = cluster.finish(&["workers", "--output", "json"]).await?.expect_code(0)?;
    let state = listed.json_lines()?;
    ensure!(listed.stdout.contains(&id), "its session ended: {state:?}");
    worker_ends(&mut cluster).await
}

/// With SIGKILL, as its watchdog would: an engine that hangs listens to nothing.
async fn worker_ends(cluster: &mut Cluster<'_>) -> Result<()> {
    cluster.daemon("worker-1")?.end().await.context("it ends")
}
