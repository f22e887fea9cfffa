//! From the packages of the release before: this packaging over the programs of the commit that CHANGELOG.md names.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{Sandbox, places, wait::until};

use crate::{
    COORDINATOR, JOB, LONG, WORKER, debian, learned_here, made, packages, root::Root, service::Service, set,
};

/// Packages of the release before, made once.
fn released(sandbox: &Sandbox) -> Result<PathBuf> {
    let run = |program: &str, arguments: &[&str]| -> Result<String> {
        let mut command = Command::new(places::repository().join(program));
        let done = command.args(arguments).stderr(std::process::Stdio::inherit()).output()?;
        ensure!(done.status.success(), "{program} failed");
        Ok(String::from_utf8(done.stdout)?.trim().to_owned())
    };
    let programs = run("tests/upgrade/release.sh", &[])?;
    let version = PathBuf::from(&programs);
    let version = version.file_name().context("a name")?.to_string_lossy().into_owned();
    let version = version.split('-').next().context("a version")?;
    let output = sandbox.path("released");
    run(
        "deploy/packages/build.sh",
        &["--programs", &programs, "--version", version, "--output", &output.to_string_lossy()],
    )?;
    Ok(output)
}

/// 0.2.0 tells no service manager anything.
async fn start_old(root: &Root, words: &[&str]) -> Result<tokio::process::Child> {
    let mut command = root.command(words);
    let log = fs::File::options().create(true).append(true).open(root.path("/var/log/old.log"))?;
    command.stdout(std::process::Stdio::null()).stderr(log);
    Ok(command.spawn()?)
}

#[tokio::test]
#[ignore = "make packages-test"]
async fn an_upgrade_keeps_the_state_and_the_job_that_runs() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let released = released(&sandbox)?;
    let root = Root::new(&debian()?, Vec::new()).await?;
    let all = ["ringtune", "ringtune-coordinator", "ringtune-worker", "ringtune-libtorch"];
    root.install(&packages(&released, &all)?).await?;
    let said = root.run(&["ringtune", "--version"]).await?.stdout;
    // 1. The release before, on loopback, with a job of two workers.
    for folder in ["/var/lib/ringtune", "/var/lib/ringtune-worker", "/var/lib/w2"] {
        root.folder_of(folder, if folder == "/var/lib/ringtune" { "ringtune" } else { "ringtune-worker" })?;
    }
    let address = ["--listen", "127.0.0.1:7070", "--http-listen", "127.0.0.1:7071"];
    let (owner, _) = root.user("ringtune")?;
    let as_user = format!("--reuid={owner}");
    let old =
        ["setpriv", &as_user, "--clear-groups", "ringtune-coordinator", "--state-dir", "/var/lib/ringtune"];
    let mut coordinator = start_old(&root, &[&old[..], &address].concat()).await?;
    let (owner, _) = root.user("ringtune-worker")?;
    let as_user = format!("--reuid={owner}");
    let mut workers = Vec::new();
    for (state, port) in [("/var/lib/ringtune-worker", 7080), ("/var/lib/w2", 7090)] {
        let (grpc, http) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", port + 1));
        let words =
            ["setpriv", &as_user, "--clear-groups", "ringtune-worker", "--state-dir", state, "--coordinator"];
        let more = ["http://127.0.0.1:7070", "--listen", &grpc, "--http-listen", &http, "--threads", "1"];
        workers.push(start_old(&root, &[&words[..], &more].concat()).await?);
    }
    let ringtune =
        async |arguments: &[&str]| root.run(&[&["ringtune"], arguments].concat()).await?.expect_code(0);
    let joined = || async {
        let listed = root.run(&["ringtune", "workers", "--output", "json"]).await?;
        Ok((listed.stdout.to_lowercase().matches("idle").count() == 2).then_some(()))
    };
    until("the workers of the release before join", LONG, joined).await?;
    let submitted = ringtune(&["submit", JOB]).await?.stdout;
    let job = submitted.lines().next().context("the job's id")?.trim().to_owned();
    let step = || async {
        let status = ringtune(&["status", &job, "--output", "json"]).await?.stdout;
        let status: serde_json::Value = serde_json::from_str(&status)?;
        Ok(status["step"].as_i64().is_some_and(|done| done >= 20).then_some(()))
    };
    until("the job runs", LONG, step).await?;

    // 2. New packages below all of that. The coordinator restarts, as the package asks systemd to.
    root.install(&packages(&made(), &all)?).await?;
    ensure!(root.run(&["ringtune", "--version"]).await?.stdout != said, "nothing was upgraded");
    coordinator.start_kill()?;
    coordinator.wait().await?;
    let coordinator = Service::start(&root, COORDINATOR).await?;
    ringtune(&["watch", &job]).await?;
    ringtune(&["fetch", &job, "-o", "/root/out"]).await?;
    let learned = fs::read(root.path("/root/out/learned_embeds.safetensors"))?;
    // What the release before says of itself is in the file; the numbers are the same.
    let here = learned_here(&sandbox).await?;
    let tensor = |file: &[u8]| -> Result<Vec<u8>> {
        let tensors = safetensors::SafeTensors::deserialize(file)?;
        Ok(tensors.tensor("<green-star>")?.data().to_vec())
    };
    ensure!(tensor(&learned)? == tensor(&here)?, "the upgrade changed what the job learns");

    // 3. Then the workers, now that their job is done, on the state that they have.
    for worker in &mut workers {
        worker.start_kill()?;
        worker.wait().await?;
    }
    set(&root, "/etc/ringtune/worker.toml", &[("compute.threads", "1")])?;
    let worker = Service::start(&root, WORKER).await?;
    let again = || async {
        let listed = root.run(&["ringtune", "workers", "--output", "json"]).await?;
        Ok((listed.stdout.to_lowercase().matches("idle").count() == 1).then_some(()))
    };
    until("the worker comes back", LONG, again).await.with_context(|| worker.log())?;
    let jobs = ringtune(&["list", "--output", "json"]).await?.stdout;
    ensure!(jobs.contains(&job), "the job of the release before is gone: {jobs}");
    worker.stop().await?;
    coordinator.stop().await
}
