//! A ring of two that computes while something is thrown at its daemons: it must not notice.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::JobState;

use crate::{Cluster, Job, Launch, Sandbox};

/// Few enough to be done in a moment where gradients take no time.
const STEPS: i64 = 60;

/// A coordinator, two workers and their job.
#[derive(Debug)]
pub struct Bystander<'a> {
    /// The daemons.
    pub cluster: Cluster<'a>,
    /// The job's id.
    pub job: String,
}

fn job() -> Result<Job> {
    Ok(Job::toy()?.set("train.max_train_steps", STEPS).set("train.num_vectors", 2).shared_by(2))
}

impl<'a> Bystander<'a> {
    /// Begins a job that takes so many seconds at least.
    pub async fn start(sandbox: &'a Sandbox, coordinator: Launch, seconds: u64) -> Result<Self> {
        let milliseconds = (seconds * 1000).div_ceil(STEPS.unsigned_abs()).to_string();
        let paced = |launch: Launch| launch.flags(["--gradient-takes", &milliseconds]);
        let cluster = Cluster::start_fake_with(sandbox, coordinator, 2, paced).await?;
        let job = cluster.submit(&sandbox.write_job("bystander.toml", &job()?)?).await?;
        cluster.wait_for_step(&job, 1).await?;
        Ok(Self { cluster, job })
    }

    /// Process ids: of the coordinator, and of the worker with that place.
    pub fn process(&self, worker: Option<usize>) -> Result<u32> {
        let daemon = match worker {
            None => &self.cluster.coordinator,
            Some(place) => self.cluster.workers.get(place).context("a worker")?,
        };
        daemon.process_id().with_context(|| format!("{} has ended", daemon.label))
    }

    /// Number of steps done, in the first ring still.
    ///
    /// # Errors
    /// The ring had to be formed again, or the job has ended badly.
    pub async fn step(&self) -> Result<i64> {
        let job = self.cluster.job(&self.job).await?;
        // A job that has ended has no ring: `unharmed` looks at its steps.
        let epoch = job.ring.as_ref().map_or(1, |ring| ring.epoch);
        ensure!(epoch == 1, "the ring was formed again, now {epoch}: {}", job.state_reason);
        ensure!(
            matches!(job.state(), JobState::Running | JobState::Succeeded),
            "the job is {:?}: {}",
            job.state(),
            job.state_reason
        );
        Ok(job.step)
    }

    /// Waits for the end of the job: its ring was never formed again, and it learned what one worker learns that nobody
    /// disturbs.
    pub async fn unharmed(self) -> Result<()> {
        let ended = self.cluster.wait_for_success(&self.job).await?;
        let epochs: BTreeSet<u64> =
            self.cluster.steps(&self.job).await?.iter().map(|step| step.epoch).collect();
        ensure!(ended.step == STEPS && epochs == [1].into(), "step {}, epochs {epochs:?}", ended.step);
        let learned = self.cluster.learned(&self.job, "learned").await?;
        let (alone, calm) = (Sandbox::new()?, job()?);
        let cluster = Cluster::start_fake(&alone, 1).await?;
        let id = cluster.submit(&alone.write_job("calm.toml", &calm)?).await?;
        ensure!(learned == cluster.learned(&id, "learned").await?, "it learned something else");
        Ok(())
    }
}
