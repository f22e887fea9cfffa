//! A hundred fake workers and three hundred jobs, and a coordinator that is killed among them: nothing is lost.

use std::time::Duration;

use anyhow::{Result, ensure};
use ringtune_proto::v1::{JobState, QueueSpec};
use ringtune_tests::{
    Sandbox,
    swarm::{Coordinator, JobList, Options, Swarm, paced_job, quick_job},
    wait::{SOON, until},
};
use tokio::runtime::Handle;

const WORKERS: usize = 100;
const RANKS: i64 = 4;
/// Rings that step all the time; the workers that are left are for the quick jobs.
const PACED_JOBS: usize = 20;
const PACED_STEPS: i64 = 60;
const QUICK_JOBS: usize = 300;
const QUICK_STEPS: i64 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_coordinator_costs_a_swarm_no_step_no_job_and_no_worker() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let coordinator = Coordinator::start(&sandbox, Vec::new()).await?;
    let step_time = Duration::from_millis(100);
    let options = Options { coordinator: coordinator.address(), workers: WORKERS, step_time };
    let swarm = Swarm::start(options, &Handle::current());
    swarm.all_connected(SOON).await?;

    // 1. Rings that step, and jobs that wait behind each other.
    let mut jobs = coordinator.jobs();
    let mut paced = Vec::new();
    for number in 0..PACED_JOBS {
        paced.push(
            jobs.create(paced_job(RANKS, PACED_STEPS), QueueSpec::default(), format!("paced-{number}"))
                .await?,
        );
    }
    let mut all = paced.clone();
    for number in 0..QUICK_JOBS {
        all.push(
            jobs.create(quick_job(RANKS, QUICK_STEPS), QueueSpec::default(), format!("quick-{number}"))
                .await?,
        );
    }

    // 2. In the middle of it the coordinator is killed.
    let in_the_middle = || async {
        let stepping = paced.iter().all(|job| swarm.ledger().last_step(job) >= 5);
        Ok((stepping && swarm.counts().finished_jobs >= 30).then_some(()))
    };
    until("all rings step and jobs pass through", SOON, in_the_middle).await?;
    let before = swarm.counts();
    ensure!(before.finished_jobs < (PACED_JOBS + QUICK_JOBS) as u64, "everything was over: {before:?}");
    ensure!(before.lost_sessions() == 0 && before.failed_attempts.is_empty(), "{before:?}");
    let (coordinator, _) = coordinator.replace(&swarm).await?;
    swarm.all_connected(SOON).await?;

    // 3. All jobs reach their end.
    let jobs = coordinator.jobs();
    let all_succeeded = || async {
        let failed = jobs.clone().in_state(JobState::Failed).await?;
        ensure!(failed.is_empty(), "{} jobs failed, one of them: {}", failed.len(), failed[0].state_reason);
        let succeeded = jobs.clone().in_state(JobState::Succeeded).await?;
        Ok((succeeded.len() == all.len()).then_some(()))
    };
    until("all jobs succeed", SOON, all_succeeded).await?;

    // 4. Nothing was lost: no step, no session whose worker spoke, no worker.
    ensure!(lost_steps(&mut coordinator.jobs(), &all, &swarm).await? == 0);
    let counts = swarm.counts();
    let steps = PACED_JOBS as i64 * PACED_STEPS + QUICK_JOBS as i64 * QUICK_STEPS;
    ensure!(counts.steps == steps.unsigned_abs(), "{counts:?}");
    ensure!(counts.ended_that_spoke.is_empty(), "{counts:?}");
    ensure!(counts.ended_with_coordinator >= WORKERS as u64, "{counts:?}");
    let all_there = || async { Ok((coordinator.connected_workers().await? == WORKERS).then_some(())) };
    until("all workers are there", SOON, all_there).await?;
    let busy = coordinator.workers().await?.iter().filter(|worker| !worker.job_id.is_empty()).count();
    ensure!(busy == 0, "{busy} workers still have a rank");
    swarm.stop().await;
    Ok(())
}

async fn lost_steps(jobs: &mut JobList, all: &[String], swarm: &Swarm) -> Result<i64> {
    let mut lost = 0;
    for job in all {
        lost += jobs.lost_steps(job, &swarm.ledger()).await?;
    }
    Ok(lost)
}
