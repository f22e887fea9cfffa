//! A sweep whose worse half ends early, on libtorch: whoever dies meanwhile, the same jobs go on, and the best learns what it learns
//! alone.

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::{self, JobReason, JobState};
use ringtune_tests::{Cluster, Job, Sandbox, files::expect_same};

/// Steps of each job, and where they are compared.
const STEPS: i64 = 40;
const RUNGS: [(i64, i32); 2] = [(10, 2), (20, 1)];

async fn sweep(cluster: &Cluster<'_>, id: &str) -> Result<v1::Sweep> {
    let request = v1::GetSweepRequest { sweep_id: id.to_owned() };
    cluster.jobs().await?.get_sweep(request).await?.into_inner().sweep.context("no sweep")
}

/// The validation loss of a job after a step that it has come to.
async fn loss(cluster: &Cluster<'_>, job: &str, step: i64) -> Result<f64> {
    let steps = cluster.steps(job).await?;
    let found = steps.iter().find(|one| one.step == step).and_then(|one| one.validation_loss);
    found.with_context(|| format!("job {job} has no validation loss after step {step}"))
}

#[tokio::test]
async fn the_best_of_a_sweep_goes_on_and_learns_what_it_learns_alone() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut cluster = Cluster::start(&sandbox, 2).await?;
    let job = Job::toy()?
        .set("train.max_train_steps", STEPS)
        .set("train.validation_loss_steps", 10)
        .set("train.checkpointing_steps", 0)
        .set("sweep.halving", true)
        .set("sweep.train.learning_rate", vec![0.0005, 0.02])
        .set("sweep.train.seed", "7..8");
    let file = sandbox.write_job("sweep.toml", &job)?;
    // 1. One job is not what the file makes.
    let run = cluster.finish(&["submit", &file.display().to_string(), "--watch", "-o", "out"]).await?;
    run.expect_code(2)?.expect_said(&["--output-dir"])?;
    let id = cluster.submit(&file).await?;
    let made = sweep(&cluster, &id).await?;
    let rungs: Vec<(i64, i32)> = made.rungs.iter().map(|rung| (rung.step, rung.keep)).collect();
    ensure!(rungs == RUNGS && made.points.len() == 4, "{made:?}");
    // 2. Somebody dies while the first ones learn, and while others wait at their rung.
    cluster.wait_for_step(&made.points[0].job_id, 3).await?;
    cluster.daemon("worker-1")?.end().await?;
    cluster.start_again("worker-1").await?;
    cluster.wait_for_step(&made.points[0].job_id, 10).await?;
    cluster.daemon("coordinator")?.end().await?;
    cluster.start_again("coordinator").await?;
    for point in &made.points {
        cluster.wait_for_end(&point.job_id).await?;
    }
    // 3. Those with the lower losses went on, and only they.
    let ended = sweep(&cluster, &id).await?;
    let mut left: Vec<&v1::SweepPoint> = ended.points.iter().collect();
    for (step, keep) in RUNGS {
        let mut losses = Vec::new();
        for point in left {
            losses.push((loss(&cluster, &point.job_id, step).await?, point));
        }
        losses.sort_by(|one, other| one.0.total_cmp(&other.0));
        let dropped = losses.split_off(usize::try_from(keep)?);
        for (_, point) in dropped {
            ensure!(point.reason_code() == JobReason::OutOfSweep, "{point:?}");
        }
        left = losses.into_iter().map(|(_, point)| point).collect();
    }
    ensure!(left[0].state() == JobState::Succeeded && left[0].job_id == ended.best_job_id, "{ended:?}");
    // 4. The command shows it, and the same job alone has the same files.
    let shown = cluster.finish(&["sweep", &ended.best_job_id]).await?.expect_code(0)?;
    let best = format!("* point {}, train.learning_rate=", left[0].point);
    shown.expect_said(&[&best])?;
    let together = cluster.result(&left[0].job_id, "out-together").await?;
    let again = cluster.finish(&["submit", "--again", &left[0].job_id]).await?.expect_code(0)?;
    let alone = cluster.result(again.stdout.trim(), "out-alone").await?;
    expect_same(&together, &alone, &["learned_embeds.safetensors", "README.md", "job.toml"])?;
    Ok(())
}
