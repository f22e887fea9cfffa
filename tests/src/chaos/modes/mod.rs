//! Measurements that last longer than a row: kills by the hundred, time in which nothing may be lost, faults at random on
//! many jobs, and large rings.

pub mod calm;
pub mod kills;
pub mod random;
pub mod ranks;

use std::{
    future::ready,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::RankPhase;

use super::{
    clean,
    row::Row,
    runner::{logs, told},
    stage::Stage,
    story::{self, Story},
};
use crate::{Sandbox, wait::until};

/// A job that is whole again later than this is not going to be.
const PATIENCE: Duration = Duration::from_secs(120);
/// More steps than any of these jobs makes.
const ENDLESS: i64 = 1_000_000;

/// A row's daemons and its job, which has begun.
struct Running<'a> {
    stage: Stage<'a>,
    story: Story,
    job_id: String,
}

impl<'a> Running<'a> {
    async fn begin(sandbox: &'a Sandbox, row: &Row, seed: u64) -> Result<Self> {
        let stage = Stage::set(sandbox, row, seed).await?.context("this machine has no such ground")?;
        let job_file = sandbox.write_job("job.toml", &clean::job(row)?)?;
        let job_id = stage.cluster.submit(&job_file).await?;
        let story = Story::follow(&stage.cluster.coordinator.door(), &job_id)?;
        let running = Self { stage, story, job_id };
        running.wait_until_whole(row.workers.len()).await?;
        Ok(running)
    }

    /// Waits until the ring has so many members, all of them train, and its newest epoch has made a step.
    async fn wait_until_whole(&self, ranks: usize) -> Result<()> {
        let since = Instant::now();
        let whole = || {
            let ring = self.story.job().and_then(|job| job.ring).filter(|ring| {
                let trains = |phase| phase == RankPhase::Training;
                ring.members.len() == ranks && ring.members.iter().all(|member| trains(member.phase()))
            });
            let epoch = ring.map(|ring| ring.epoch);
            let news = self.story.events_since(since);
            let made = news.iter().any(|seen| story::step(seen).map(|step| step.epoch) == epoch);
            ready(Ok((epoch.is_some() && made).then_some(())))
        };
        until("the ring is whole", PATIENCE, whole).await
    }

    /// Facts that a failure shows.
    fn shown(&self) -> String {
        format!("{}\n{}", logs(self.stage.sandbox), told(&self.story))
    }

    /// The hash of the state after each step so far; each step has to be there, once.
    async fn states(&self) -> Result<Vec<String>> {
        let steps = clean::steps(&self.stage.cluster.coordinator.door(), &self.job_id).await?;
        for (number, step) in (1..).zip(&steps) {
            ensure!(step.step == number, "step {} stands where step {number} should", step.step);
            ensure!(!step.state_sha256.is_empty(), "step {number} has no hash of its state");
        }
        Ok(steps.into_iter().map(|step| step.state_sha256).collect())
    }
}

/// Holds the states of rings against one worker's without faults.
async fn compare_states(row: &Row, rings: &[Vec<String>]) -> Result<()> {
    let most = rings.iter().map(Vec::len).max().unwrap_or_default();
    let clean = clean::first_states(row, most).await.context("the run without faults")?;
    for states in rings {
        let other = states.iter().zip(&clean).position(|(state, wanted)| state != wanted);
        ensure!(
            other.is_none(),
            "after step {} the state is another one than without faults",
            other.unwrap_or(0) + 1
        );
        ensure!(states.len() <= clean.len(), "the run without faults has {} steps", clean.len());
    }
    Ok(())
}
