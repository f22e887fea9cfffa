//! A standing cluster and its clients: the command, and one that knows no .proto file.

use std::{fs, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Cluster, Job, Sandbox,
    job::text,
    process::{finish_child, send_signal},
    reference,
    wait::SOON,
};
use rustix::process::Signal;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};

#[tokio::test]
async fn up_serves_the_client_commands_until_ctrl_c() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut command = sandbox.ringtune(&["up", "--workers", "2", "--output", "json"])?;
    let mut up = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(up.stdout.as_mut().context("stdout")?).lines();
    let line = tokio::time::timeout(SOON, lines.next_line()).await.context("up is not ready")??;
    let ready: Value = serde_json::from_str(&line.context("up ended")?)?;
    let url = ready["coordinator"].as_str().context("an address")?.to_owned();
    let ask = async |arguments: &[&str]| {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--coordinator", &url, "--output", "json"]);
        sandbox.finish(&arguments).await?.expect_code(0)?.json_lines()
    };

    // 1. Two idle workers, no job.
    let workers = ask(&["workers"]).await?;
    ensure!(workers.len() == 2 && workers.iter().all(|worker| worker["state"] == "IDLE"), "{workers:?}");
    ensure!(ask(&["list"]).await?.is_empty());

    // 2. A second `up` is refused.
    sandbox.finish(&["up"]).await?.expect_code(1)?.expect_said(&["another `ringtune up`"])?;

    // 3. A job, twice with one request id.
    let file = text(&sandbox.write_job("job.toml", &Job::toy()?.set("cluster.world_size", 2))?);
    let once =
        ["submit", file.as_str(), "--request-id", "once", "--label", "team=red", "--set", "queue.owner=ada"];
    let submitted = ask(&once).await?;
    let job_id = submitted[0]["job_id"].as_str().context("a job id")?.to_owned();
    ensure!(ask(&once).await?[0]["job_id"] == job_id.as_str());
    let watched = ask(&["watch", &job_id]).await?;
    ensure!(watched.last().is_some_and(|event| event["state"] == "SUCCEEDED"), "{watched:?}");
    ensure!(ask(&["status", &job_id]).await?[0]["step"] == 3);
    ensure!(ask(&["list", "--state", "succeeded"]).await?.len() == 1);
    ensure!(ask(&["list", "--state", "failed"]).await?.is_empty());
    let mine =
        ask(&["list", "--filter", "owner=ada", "--label", "team=red", "--order-by", "name desc"]).await?;
    ensure!(mine.len() == 1 && mine[0]["labels"]["team"] == "red", "{mine:?}");
    ensure!(mine[0]["reason_code"] == "COMPLETED", "{mine:?}");
    ensure!(ask(&["list", "--label", "team=blue"]).await?.is_empty());
    let refused = sandbox.finish(&["list", "--filter", "colour=red", "--coordinator", &url]).await?;
    refused.expect_code(2)?.expect_said(&["filter", "colour", "labels.KEY"])?;

    // 4. Its artifacts, all and one; a file that is there is replaced.
    let out = text(&sandbox.path("out"));
    fs::create_dir(&out)?;
    fs::write(sandbox.path("out/metrics.csv"), "old")?;
    let saved = ask(&["fetch", &job_id, "-o", &out, "--name", "metrics.csv"]).await?;
    ensure!(saved.len() == 1 && fs::read_to_string(sandbox.path("out/metrics.csv"))?.starts_with("step,"));
    let saved = ask(&["fetch", &job_id, "-o", &out]).await?;
    ensure!(saved.iter().any(|file| file["name"] == "learned_embeds.safetensors"), "{saved:?}");
    let refused = sandbox.finish(&["fetch", &job_id, "--name", "none", "--coordinator", &url]).await?;
    refused.expect_code(2)?.expect_said(&["none", "metrics.csv"])?;
    let nobody = "00000000-0000-4000-8000-000000000000";
    sandbox
        .finish(&["status", nobody, "--coordinator", &url])
        .await?
        .expect_code(2)?
        .expect_said(&[nobody])?;

    // 5. Ctrl-C ends it; another `up` finds the job.
    send_signal(&up, Signal::INT)?;
    finish_child(up).await?.expect_code(0)?;
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn a_client_without_the_proto_files_does_everything_by_reflection() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cluster = Cluster::start(&sandbox, 1).await?;
    let ask = async |arguments: &[&str]| {
        let arguments: Vec<&str> =
            std::iter::once(cluster.coordinator.grpc.as_str()).chain(arguments.iter().copied()).collect();
        reference::run_script("grpc_client.py", &arguments).await
    };

    // 1. The services.
    let services = ask(&["services"]).await?.expect_code(0)?.stdout;
    for service in ["JobService", "ClusterService", "ArtifactService", "WorkerService"] {
        ensure!(services.contains(&format!("ringtune.v1.{service}")), "{service} is missing in {services}");
    }
    ensure!(services.contains("grpc.health.v1.Health"), "{services}");

    // 2. Submit and watch to the end.
    let file = text(&sandbox.write_job("job.toml", &Job::toy()?)?);
    let submitted = ask(&["submit", &file]).await?.expect_code(0)?;
    let job_id = find_job_id(&submitted.json_lines()?).context(submitted.stdout)?;
    let watched = ask(&["watch", &job_id]).await?.expect_code(0)?.stdout;
    ensure!(watched.contains("JOB_STATE_SUCCEEDED"), "{watched}");
    let listed =
        ask(&["list", "--filter", "state=succeeded", "--order-by", "name"]).await?.expect_code(0)?.stdout;
    ensure!(listed.contains(&job_id) && listed.contains("JOB_REASON_COMPLETED"), "{listed}");
    let steps = ask(&["events", &job_id, "--filter", "type=step"]).await?.expect_code(0)?.stdout;
    ensure!(steps.matches("\"step\": {").count() == 3, "{steps}");

    // 3. Submit one that goes on for ever, and cancel it.
    let file =
        text(&sandbox.write_job("endless.toml", &Job::toy()?.set("train.max_train_steps", 1_000_000))?);
    let submitted = ask(&["submit", &file]).await?.expect_code(0)?;
    let job_id = find_job_id(&submitted.json_lines()?).context(submitted.stdout)?;
    cluster.wait_for_step(&job_id, 1).await?;
    ask(&["cancel", &job_id]).await?.expect_code(0)?;
    let watched = ask(&["watch", &job_id]).await?.expect_code(0)?.stdout;
    ensure!(watched.contains("JOB_STATE_CANCELLED"), "{watched}");

    // 4. What is wrong is named field by field.
    let wrong =
        ask(&["call", "ringtune.v1.JobService/CreateJob", "{\"spec\": {\"train\": {\"num_vectors\": 0}}}"])
            .await?;
    let wrong = wrong.expect_code(1)?.stdout;
    for part in ["INVALID_ARGUMENT", "train.num_vectors", "model.base"] {
        ensure!(wrong.contains(part), "{part} is missing in {wrong}");
    }
    Ok(())
}

/// The job id in an answer, at the top or within "job".
fn find_job_id(answers: &[Value]) -> Option<String> {
    answers.iter().find_map(|answer| {
        let id = answer.get("job_id").or_else(|| answer.get("job")?.get("job_id"))?;
        id.as_str().map(str::to_owned)
    })
}
