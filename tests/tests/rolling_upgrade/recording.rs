//! Writes down what a coordinator and workers of the last release say to each other: RINGTUNE_RECORD=1 make upgrade-test.

use anyhow::{Result, ensure};
use ringtune_proto::v1::JobState;
use ringtune_tests::{
    Cluster, Job, Sandbox,
    job::text,
    recorder::Recorder,
    released::Released,
    wait::{SOON, until},
};

use crate::stage::{job, with_model};

/// A coordinator and workers of the release with a recorder between them.
struct Recorded<'a> {
    sandbox: &'a Sandbox,
    released: &'a Released,
    cluster: Cluster<'a>,
    recorders: Vec<Recorder>,
}

impl<'a> Recorded<'a> {
    async fn start(sandbox: &'a Sandbox, released: &'a Released, workers: usize) -> Result<Self> {
        // Few heartbeats: what they say is in the reports too.
        let coordinator = released.coordinator().variable("RINGTUNE__SESSION__HEARTBEAT_SECONDS", "1");
        let mut cluster = Cluster::start_coordinator(sandbox, coordinator).await?;
        let mut recorders = Vec::new();
        for number in 0..workers {
            let node = format!("node-{number}");
            let recorder = Recorder::start(&cluster.coordinator.grpc, &node, &text(sandbox.folder())).await?;
            let launch = released.worker(&node, &recorder.address());
            cluster.add_worker(with_model(launch, sandbox)?).await?;
            recorders.push(recorder);
        }
        cluster.wait_for_idle(workers).await?;
        Ok(Self { sandbox, released, cluster, recorders })
    }

    async fn ask(&self, arguments: &[&str]) -> Result<String> {
        let url = format!("http://{}", self.cluster.coordinator.grpc);
        let asked = self.released.finish(self.sandbox, &url, arguments).await?;
        Ok(asked.expect_code(0)?.stdout.trim().to_owned())
    }

    async fn submit(&self, job: &Job) -> Result<String> {
        let file = text(&self.sandbox.write_job("job.toml", job)?);
        self.ask(&["submit", &file]).await
    }

    /// Waits until the job has ended in `state` and the workers are free, and writes the recordings.
    async fn keep(self, name: &str, id: &str, state: JobState) -> Result<()> {
        let ended = self.cluster.wait_for_end(id).await?;
        ensure!(ended.state() == state, "{name} is {:?}: {}", ended.state(), ended.state_reason);
        self.cluster.wait_for_idle(self.recorders.len()).await?;
        for recorder in &self.recorders {
            let recording = recorder.recording();
            let rank = recording.assignment()?.rank;
            let name = if rank == 0 { name.to_owned() } else { format!("{name}-{rank}") };
            recording.write(&self.released.version, &name)?;
        }
        Ok(())
    }
}

#[tokio::test]
#[ignore = "needs the last release's programs: make upgrade-test"]
async fn the_sessions_of_the_last_release() -> Result<()> {
    if std::env::var_os("RINGTUNE_RECORD").is_none() {
        return Ok(());
    }
    let released = Released::find().await?;

    // 1. A short job with checkpoints, to its end.
    let saving = |name, steps, ranks| {
        let job: Job = job(name, steps, ranks)?;
        anyhow::Ok(job.set("train.save_steps", 2).set("train.checkpointing_steps", 2))
    };
    let sandbox = Sandbox::new()?;
    let stage = Recorded::start(&sandbox, &released, 1).await?;
    let id = stage.submit(&saving("succeeded", 4, 1)?).await?;
    stage.keep("succeeded", &id, JobState::Succeeded).await?;

    // 2. On two ranks.
    let sandbox = Sandbox::new()?;
    let stage = Recorded::start(&sandbox, &released, 2).await?;
    let id = stage.submit(&saving("pair", 4, 2)?).await?;
    stage.keep("pair", &id, JobState::Succeeded).await?;

    // 3. The session breaks in the middle.
    let sandbox = Sandbox::new()?;
    let stage = Recorded::start(&sandbox, &released, 1).await?;
    let id = stage.submit(&job("reconnected", 20, 1)?).await?;
    stage.cluster.wait_for_step(&id, 3).await?;
    stage.recorders[0].cut();
    until("the worker is back", SOON, || async {
        let recording = stage.recorders[0].recording();
        Ok((recording.happened().filter(|happened| is_opening(happened)).count() >= 2).then_some(()))
    })
    .await?;
    stage.keep("reconnected", &id, JobState::Succeeded).await?;

    // 4. It is cancelled.
    let sandbox = Sandbox::new()?;
    let stage = Recorded::start(&sandbox, &released, 1).await?;
    let id = stage.submit(&job("cancelled", 1000, 1)?).await?;
    stage.cluster.wait_for_step(&id, 2).await?;
    stage.recorders[0].job_is_cancelled();
    stage.ask(&["cancel", &id]).await?;
    stage.keep("cancelled", &id, JobState::Cancelled).await?;

    // 5. It fails by its own fault, which a worker sees.
    let sandbox = Sandbox::new()?;
    let stage = Recorded::start(&sandbox, &released, 1).await?;
    let id = stage.submit(&job("failed", 4, 1)?.set("train.initializer_token", "not one token")).await?;
    stage.keep("failed", &id, JobState::Failed).await
}

fn is_opening(happened: &ringtune_recordings::Happened) -> bool {
    matches!(happened, ringtune_recordings::Happened::Opened(_))
}
