//! The command of one release and the coordinator of the other.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Cluster, Finished, Launch, Sandbox,
    daemon::WORKER,
    job::text,
    released::Released,
    wait::{SOON, until},
};

use crate::stage::{job, of_release, with_model};

/// Everything that people do with a cluster; `ask` runs one command.
async fn use_all(sandbox: &Sandbox, ask: impl AsyncFn(&[&str]) -> Result<Finished>) -> Result<()> {
    let json = async |arguments: &[&str]| {
        ask(&[arguments, &["--output", "json"]].concat()).await?.expect_code(0)?.json_lines()
    };
    let file = text(&sandbox.write_job("job.toml", &job("commanded", 3, 1)?)?);
    let submitted = json(&["submit", &file, "--request-id", "once", "--label", "team=red"]).await?;
    let id = submitted[0]["job_id"].as_str().context("a job id")?.to_owned();
    let watched = json(&["watch", &id]).await?;
    ensure!(watched.last().is_some_and(|event| event["state"] == "SUCCEEDED"), "{watched:?}");
    ensure!(watched.iter().filter(|event| event["event"] == "step").count() == 3, "{watched:?}");
    let shown = json(&["status", &id]).await?;
    ensure!(shown[0]["step"] == 3 && shown[0]["labels"]["team"] == "red", "{shown:?}");
    let listed = json(&["list", "--state", "succeeded", "--filter", "name=commanded"]).await?;
    ensure!(listed.len() == 1, "{listed:?}");
    ensure!(!json(&["workers"]).await?.is_empty());
    let out = sandbox.path("fetched");
    json(&["fetch", &id, "-o", &text(&out)]).await?;
    ensure!(fs::read_to_string(out.join("metrics.csv"))?.lines().count() == 4);

    let endless = text(&sandbox.write_job("endless.toml", &job("endless", 1_000_000, 1)?)?);
    let submitted = ask(&["submit", &endless]).await?.expect_code(0)?;
    let id = submitted.stdout.trim();
    until("it makes a step", SOON, || async {
        Ok(json(&["status", id]).await?[0]["step"].as_i64().filter(|step| *step >= 1))
    })
    .await?;
    ask(&["cancel", id]).await?.expect_code(0)?;
    let watched = json_of_failed(ask(&["watch", id, "--output", "json"]).await?)?;
    ensure!(watched.last().is_some_and(|event| event["state"] == "CANCELLED"), "{watched:?}");
    let refused = ask(&["submit", &file, "--set", "train.num_vectors=0"]).await?;
    refused.expect_code(2)?.expect_said(&["train.num_vectors"])?;
    Ok(())
}

fn json_of_failed(finished: Finished) -> Result<Vec<serde_json::Value>> {
    finished.expect_code(1)?.json_lines()
}

#[tokio::test]
#[ignore = "needs the last release's programs: make upgrade-test"]
async fn the_command_of_the_last_release_uses_this_coordinator() -> Result<()> {
    let released = Released::find().await?;
    let sandbox = Sandbox::new()?;
    let mut cluster = Cluster::start_coordinator(&sandbox, Launch::coordinator()).await?;
    let launch = Launch::worker("worker", WORKER, &cluster.coordinator.grpc);
    cluster.add_worker(with_model(launch, &sandbox)?).await?;
    let url = format!("http://{}", cluster.coordinator.grpc);
    use_all(&sandbox, async |arguments| released.finish(&sandbox, &url, arguments).await).await
}

#[tokio::test]
#[ignore = "needs the last release's programs: make upgrade-test"]
async fn this_command_uses_the_coordinator_of_the_last_release_and_says_what_it_lacks() -> Result<()> {
    let released = Released::find().await?;
    let sandbox = Sandbox::new()?;
    let cluster = of_release(&sandbox, &released).await?;
    use_all(&sandbox, async |arguments| cluster.finish(arguments).await).await?;
    let worker = cluster.workers[0].id.clone();
    for command in ["drain", "undrain"] {
        let refused = cluster.finish(&[command, &worker]).await?.expect_code(1)?;
        let reason = format!("cannot {command} the worker");
        refused.expect_said(&[&reason, "older than this command", "upgrade the coordinator"])?;
    }
    Ok(())
}
