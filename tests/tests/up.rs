//! `ringtune up` when its daemons are killed.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Job, Sandbox,
    job::text,
    process::{finish_child, send_signal, signal_process},
    wait::{SOON, until},
};
use rustix::process::Signal;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Child,
};

/// Starts `up` with one worker; returns what it says once the worker has joined.
async fn start(sandbox: &Sandbox) -> Result<(Child, Value)> {
    let mut command = sandbox.ringtune(&["up", "--workers", "1", "--output", "json"])?;
    let mut up = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(up.stdout.as_mut().context("stdout")?).lines();
    let line = tokio::time::timeout(SOON, lines.next_line()).await.context("up is not ready")??;
    let ready = serde_json::from_str(&line.context("up ended")?)?;
    Ok((up, ready))
}

/// Ends the daemon of that program with SIGKILL.
fn kill(sandbox: &Sandbox, program: &str) -> Result<()> {
    let processes = sandbox.processes()?;
    let daemon = processes.iter().find(|process| process.command.contains(program));
    signal_process(daemon.with_context(|| format!("no {program} in {processes:?}"))?.id, Signal::KILL)
}

#[tokio::test]
async fn up_starts_killed_daemons_again_and_jobs_go_on() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let (up, ready) = start(&sandbox).await?;
    let url = ready["coordinator"].as_str().context("an address")?.to_owned();
    let worker_id = ready["workers"][0]["worker_id"].as_str().context("a worker")?.to_owned();
    let ask = async |arguments: &[&str]| {
        let mut arguments = arguments.to_vec();
        arguments.extend(["--coordinator", &url, "--output", "json"]);
        sandbox.finish(&arguments).await?.expect_code(0)?.json_lines()
    };

    // 1. A worker that was killed comes back as the same one, and takes the job that waited for it.
    kill(&sandbox, "ringtune-worker")?;
    let file = text(&sandbox.write_job("job.toml", &Job::toy()?)?);
    let submitted = ask(&["submit", &file]).await?;
    let first = submitted[0]["job_id"].as_str().context("a job")?.to_owned();
    let second = ask(&["submit", &file]).await?[0]["job_id"].as_str().context("a job")?.to_owned();
    let events = ask(&["watch", &first, &second]).await?;
    let succeeded = events.iter().filter(|line| line["state"] == "SUCCEEDED").count();
    ensure!(succeeded == 2, "{events:?}");

    // 2. The coordinator comes back where it was, and knows its jobs; the worker finds it.
    kill(&sandbox, "ringtune-coordinator")?;
    let back = || async {
        let listed = sandbox.finish(&["workers", "--coordinator", &url, "--output", "json"]).await?;
        let workers = if listed.code == Some(0) { listed.json_lines()? } else { Vec::new() };
        let idle = |worker: &Value| worker["worker_id"] == worker_id.as_str() && worker["state"] == "IDLE";
        Ok(workers.iter().any(idle).then_some(()))
    };
    until("the worker is idle again", SOON, back).await?;
    ensure!(ask(&["list", "--state", "succeeded"]).await?.len() == 2);

    // 3. It says what it did, and ends as ever.
    send_signal(&up, Signal::INT)?;
    let said = finish_child(up).await?.expect_code(0)?;
    let said = said.expect_said(&["starting the worker-1 again", "the worker-1 is back"])?;
    said.expect_said(&["starting the coordinator again", "the coordinator is back"])?;
    sandbox.expect_no_process().await
}
