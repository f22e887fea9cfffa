//! `ringtune delete`: jobs that are gone, and those that are not let go.

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::JobState;
use ringtune_tests::{Cluster, Job, Sandbox};

#[tokio::test]
async fn ended_jobs_are_deleted_and_others_are_refused_with_what_to_do() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cluster = Cluster::start_fake(&sandbox, 1).await?;
    let file = |name: &str, steps: i64| {
        sandbox.write_job(name, &Job::toy()?.set("name", name).set("train.max_train_steps", steps))
    };
    let mut ended = Vec::new();
    for name in ["one", "two", "three"] {
        let id = cluster.submit(&file(name, 2)?).await?;
        cluster.wait_for_success(&id).await?;
        ended.push(id);
    }
    let [one, two, three] = ended.as_slice() else { anyhow::bail!("{ended:?}") };
    let running = cluster.submit(&file("running", 1_000_000)?).await?;
    cluster.wait_for_step(&running, 1).await?;

    // 1. One that runs holds up none of the others, and goes on.
    let unknown = "018f0000-0000-7000-8000-000000000000";
    let some = cluster.finish(&["delete", one, &running, unknown, two]).await?.expect_code(1)?;
    ensure!(some.stdout == format!("{one}\n{two}\n"), "{}", some.stdout);
    for word in [running.as_str(), "cancel it first", unknown] {
        ensure!(some.stderr.contains(word), "no {word:?}: {}", some.stderr);
    }
    cluster.wait_for_step(&running, cluster.job(&running).await?.step + 1).await?;
    for gone in [one, two] {
        cluster.finish(&["status", gone]).await?.expect_code(2)?;
        let fetch = cluster.finish(&["fetch", gone, "-o", "out"]).await?;
        fetch.expect_code(2)?;
    }
    // 2. Twice is once too often.
    let again = cluster.finish(&["delete", one]).await?.expect_code(2)?;
    ensure!(again.stdout.is_empty() && again.stderr.contains(one.as_str()), "{}", again.stderr);
    // 3. As JSON, and what was cancelled.
    cluster.finish(&["cancel", &running]).await?.expect_code(0)?;
    cluster.wait_for_state(&running, JobState::Cancelled).await?;
    let rest = cluster.finish(&["delete", three, &running, "--output", "json"]).await?.expect_code(0)?;
    let lines = rest.json_lines()?;
    let ids: Vec<&str> = lines.iter().filter_map(|line| line["job_id"].as_str()).collect();
    ensure!(
        ids == [three, running.as_str()] && lines.iter().all(|line| line["type"] == "deleted"),
        "{lines:?}"
    );
    let left = cluster.finish(&["list"]).await?.expect_code(0)?.stdout;
    ensure!(ended.iter().all(|id| !left.contains(id.as_str())), "{left}");
    cluster.finish(&["delete"]).await?.expect_code(2)?.stderr.contains("JOB").then_some(()).context("JOB")
}
