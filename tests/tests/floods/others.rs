//! Somebody who goes on calling the coordinator while it is flooded.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::QueueSpec;
use ringtune_tests::{
    Bystander, Door,
    swarm::{JobList, paced_job},
};
use tokio::task::JoinHandle;
use uuid::Uuid;

/// A call takes no longer, on a busy machine too.
const MOST_TIME: Duration = Duration::from_secs(10);
/// Between two calls.
const PAUSE: Duration = Duration::from_millis(100);
/// More than there are workers.
const RANKS: i64 = 64;

/// A caller whose connection stood before.
pub(crate) struct Others {
    calling: JoinHandle<Result<()>>,
    over: tokio::sync::watch::Sender<bool>,
    /// Steps of the job until then.
    before: i64,
}

/// Queues a job that nobody takes.
async fn create(jobs: &mut JobList) -> Result<Duration> {
    let begun = Instant::now();
    jobs.create(paced_job(RANKS, 1), QueueSpec::default(), Uuid::new_v4().to_string()).await?;
    Ok(begun.elapsed())
}

/// Comes anew and queues a job, trying again until there is a place; returns how long that took.
pub(crate) async fn newcomer(door: &Door) -> Result<Duration> {
    let begun = Instant::now();
    loop {
        let created = create(&mut JobList::new(door.channel()?)).await;
        match created {
            Ok(_) => return Ok(begun.elapsed()),
            Err(error) => ensure!(begun.elapsed() < MOST_TIME * 6, "no place: {error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl Others {
    /// Begins to call the coordinator of a job.
    pub(crate) async fn start(bystander: &Bystander<'_>) -> Result<Self> {
        let mut jobs = JobList::new(bystander.cluster.coordinator.door().channel()?);
        create(&mut jobs).await.context("before the flood")?;
        let (over, mut is_over) = tokio::sync::watch::channel(false);
        let calling = tokio::spawn(async move {
            while !*is_over.borrow_and_update() {
                let took = tokio::time::timeout(MOST_TIME, create(&mut jobs)).await;
                took.context("CreateJob takes too long")??;
                let _ = tokio::time::timeout(PAUSE, is_over.changed()).await;
            }
            Ok(())
        });
        Ok(Self { calling, over, before: bystander.step().await? })
    }

    /// Every call was answered, and soon; the job went on meanwhile, and is unharmed.
    pub(crate) async fn were_served(self, bystander: Bystander<'_>) -> Result<()> {
        ensure!(bystander.step().await? > self.before, "the job makes no steps");
        self.over.send_replace(true);
        self.calling.await??;
        bystander.unharmed().await
    }
}
