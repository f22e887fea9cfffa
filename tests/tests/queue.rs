//! Jobs that give way to urgent ones, and jobs that are paused, on libtorch: they lose no step, and learn the same bytes,
//! whoever dies meanwhile.

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::JobState;
use ringtune_tests::{Cluster, Job, Sandbox};

/// Steps of the job that gives way.
const STEPS: i64 = 60;

struct Queue<'a> {
    cluster: Cluster<'a>,
    sandbox: &'a Sandbox,
}

impl Queue<'_> {
    /// A job on two ranks, or on one if need be.
    async fn submit(&self, name: &str, steps: i64, min_world_size: i64, priority: i64) -> Result<String> {
        let job = Job::toy()?
            .set("train.max_train_steps", steps)
            .set("cluster.world_size", 2)
            .set("cluster.min_world_size", min_world_size)
            .set("queue.priority", priority);
        self.cluster.submit(&self.sandbox.write_job(name, &job)?).await
    }

    async fn kill(&mut self, label: &str) -> Result<()> {
        self.cluster.daemon(label)?.end().await?;
        self.cluster.start_again(label).await
    }
}

#[tokio::test]
async fn jobs_that_give_way_to_urgent_ones_lose_no_step() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut queue = Queue { cluster: Cluster::start(&sandbox, 2).await?, sandbox: &sandbox };
    let peace = queue.submit("peace.toml", STEPS, 1, 0).await?;
    queue.cluster.wait_for_success(&peace).await?;
    let expected = queue.cluster.learned(&peace, "peace").await?;

    // 1. Its ring shrinks; the coordinator dies meanwhile.
    let job = queue.submit("shrinks.toml", STEPS, 1, 0).await?;
    queue.cluster.wait_for_step(&job, 3).await?;
    let urgent = queue.submit("urgent.toml", 5, 1, 100).await?;
    queue.kill("coordinator").await?;
    queue.cluster.wait_for_success(&urgent).await?;
    let ring = queue.cluster.job(&job).await?;
    ensure!(ring.step < STEPS && ring.state() == JobState::Running, "{ring:?}");
    queue.cluster.expect_learned(&job, &expected, STEPS).await?;

    // 2. It goes back to the queue, and a worker of the urgent one dies.
    let job = queue.submit("stops.toml", STEPS, 1, 0).await?;
    queue.cluster.wait_for_step(&job, 3).await?;
    let urgent = queue.submit("both.toml", 30, 2, 100).await?;
    queue.cluster.wait_for_state(&job, JobState::Queued).await?;
    queue.cluster.wait_for_step(&urgent, 2).await?;
    let waiting = queue.cluster.job(&job).await?;
    ensure!((3..STEPS).contains(&waiting.step), "{waiting:?}");
    queue.kill("worker-1").await?;
    queue.cluster.wait_for_success(&urgent).await.context("the urgent job")?;
    queue.cluster.expect_learned(&job, &expected, STEPS).await
}

#[tokio::test]
async fn a_job_that_is_paused_holds_no_worker_and_goes_on_from_where_it_was() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut queue = Queue { cluster: Cluster::start(&sandbox, 2).await?, sandbox: &sandbox };
    let peace = queue.submit("peace.toml", STEPS, 2, 0).await?;
    queue.cluster.wait_for_success(&peace).await?;
    let expected = queue.cluster.learned(&peace, "peace").await?;
    let job = queue.submit("pauses.toml", STEPS, 2, 0).await?;
    let ask = async |cluster: &Cluster<'_>, verb: &str| {
        cluster.finish(&[verb, &job]).await?.expect_code(0).map(drop)
    };

    // 1. The coordinator dies after it was asked; the pause holds.
    queue.cluster.wait_for_step(&job, 3).await?;
    ask(&queue.cluster, "pause").await?;
    queue.kill("coordinator").await?;
    queue.cluster.wait_for_state(&job, JobState::Paused).await?;
    queue.cluster.wait_for_idle(2).await?;
    let paused = queue.cluster.job(&job).await?;
    ensure!((3..STEPS).contains(&paused.step) && paused.ring.is_none(), "{paused:?}");
    ask(&queue.cluster, "pause").await?;

    // 2. A worker dies while it is paused, and another one while it is being paused again.
    queue.kill("worker-1").await?;
    ask(&queue.cluster, "resume").await?;
    queue.cluster.wait_for_step(&job, paused.step + 2).await?;
    ask(&queue.cluster, "pause").await?;
    queue.kill("worker-2").await?;
    queue.cluster.wait_for_state(&job, JobState::Paused).await?;
    ask(&queue.cluster, "resume").await?;
    queue.cluster.expect_learned(&job, &expected, STEPS).await
}
