//! Processes that are killed, interrupted, or run out of disk.

use std::{
    fs,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Cluster, Job, Launch, Sandbox,
    files::names_in,
    process::{finish, finish_child, send_signal, signal_process},
    wait::SOON,
};
use rustix::process::Signal;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Child,
};

/// More steps than any test waits for.
fn endless_job() -> Result<Job> {
    Ok(Job::toy()?.set("train.max_train_steps", 1_000_000).set("cluster.world_size", 2))
}

/// Starts `ringtune run` on an endless job and waits until it has made a step.
async fn start_endless_run(sandbox: &Sandbox) -> Result<Child> {
    sandbox.write_job("job.toml", &endless_job()?)?;
    let mut command = sandbox.ringtune(&["run", "job.toml", "-o", "out", "--output", "json"])?;
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.as_mut().context("stdout")?).lines();
    let step = async {
        while let Some(line) = lines.next_line().await? {
            if line.contains("\"event\":\"step\"") {
                return Ok(());
            }
        }
        anyhow::bail!("it ended before its first step")
    };
    let made_a_step = tokio::time::timeout(SOON, step).await.context("no step in time")?;
    if let Err(error) = made_a_step {
        return Err(error.context(finish_child(child).await?.stderr));
    }
    Ok(child)
}

#[tokio::test]
async fn a_killed_run_leaves_no_process_behind_and_what_it_had_can_be_saved() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut run = start_endless_run(&sandbox).await?;
    ensure!(sandbox.processes()?.len() >= 3, "a coordinator and two workers: {:?}", sandbox.processes()?);
    run.kill().await?;
    // The workers keep what they have, as long as the coordinator can take it, and no longer.
    let killed = Instant::now();
    sandbox.expect_no_process().await?;
    ensure!(killed.elapsed() < Duration::from_secs(10), "they were there for {:?}", killed.elapsed());
    ensure!(!checkpoints(&sandbox)?, "nobody is there to save them");

    // The next run says what is left, and a command saves it where the run was to.
    sandbox.write_job("short.toml", &Job::toy()?)?;
    let next = sandbox.finish(&["run", "short.toml", "-o", "other"]).await?.expect_code(0)?;
    next.expect_said(&["ringtune recover", "--set train.resume_from_checkpoint=latest"])?;
    sandbox.finish(&["recover"]).await?.expect_code(0)?.expect_said(&["saved"])?;
    ensure!(checkpoints(&sandbox)?, "no checkpoint was saved");
    let runs = fs::read_dir(sandbox.path("state/ringtune/runs"))?.filter_map(Result::ok);
    let left: Vec<_> = runs.filter(|entry| entry.path().is_dir()).map(|entry| entry.path()).collect();
    ensure!(left.is_empty(), "{left:?} are left");
    sandbox.expect_no_process().await
}

/// Whether the output folder has a checkpoint.
fn checkpoints(sandbox: &Sandbox) -> Result<bool> {
    Ok(names_in(&sandbox.path("out"))?.iter().any(|name| name.starts_with("checkpoint-")))
}

#[tokio::test]
async fn a_closed_terminal_ends_a_run_as_ctrl_c_does() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut run = start_endless_run(&sandbox).await?;
    // Its output is closed, and the signal comes from the shell and from the system.
    drop((run.stdout.take(), run.stderr.take()));
    send_signal(&run, Signal::HUP)?;
    send_signal(&run, Signal::HUP)?;
    let status = tokio::time::timeout(Duration::from_secs(60), run.wait()).await.context("it goes on")??;
    ensure!(status.code() == Some(1), "{status}");
    for name in ["learned_embeds.safetensors", "README.md", "metrics.csv", "job.log"] {
        ensure!(sandbox.path("out").join(name).is_file(), "{name} was not saved");
    }
    ensure!(checkpoints(&sandbox)?, "no checkpoint was saved");
    let runs = fs::read_dir(sandbox.path("state/ringtune/runs"))?.filter_map(Result::ok);
    ensure!(runs.filter(|entry| entry.path().is_dir()).count() == 0, "its folder is left");
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn ctrl_c_cancels_the_job_and_keeps_its_artifacts() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let run = start_endless_run(&sandbox).await?;
    send_signal(&run, Signal::INT)?;
    let run = finish_child(run).await?.expect_code(1)?.expect_said(&["cancelled"])?;
    let results = ["learned_embeds.safetensors", "learned_embeds-emb_params.safetensors", "README.md"];
    for name in results.into_iter().chain(["metrics.csv", "job.toml", "job.log"]) {
        ensure!(sandbox.path("out").join(name).is_file(), "{name} was not kept: {}", run.stderr);
    }
    // And what is needed to go on after its last step.
    let names = names_in(&sandbox.path("out"))?;
    let checkpoint = names.iter().filter(|name| name.starts_with("checkpoint-")).count();
    ensure!(checkpoint == 1, "{checkpoint} checkpoints");
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn a_second_ctrl_c_exits_at_once() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let mut run = start_endless_run(&sandbox).await?;
    // Workers that answer nothing: the job cannot be cancelled in good order.
    for worker in sandbox.processes()?.iter().filter(|process| process.command.contains("ringtune-worker")) {
        signal_process(worker.id, Signal::STOP)?;
    }
    send_signal(&run, Signal::INT)?;
    let mut said = BufReader::new(run.stderr.take().context("stderr")?).lines();
    while let Some(line) = said.next_line().await? {
        if line.contains("Ctrl-C again") {
            break;
        }
    }
    // Signals that come together count as one, so another is sent until it counts.
    let over = async {
        loop {
            tokio::select! {
                status = run.wait() => return anyhow::Ok(status?),
                () = tokio::time::sleep(Duration::from_millis(500)) => (),
            }
            send_signal(&run, Signal::INT)?;
        }
    };
    let status = tokio::time::timeout(Duration::from_secs(20), over).await.context("it went on")??;
    ensure!(status.code() == Some(1), "{status}");
    sandbox.expect_no_process().await
}

/// Steps of the job that loses its workers.
const STEPS: i64 = 120;

/// A job that two workers share and one can do alone. A gradient takes 20 ms, and rank 0 keeps the state so often.
async fn start_shared_job<'a>(sandbox: &'a Sandbox, seconds: &str) -> Result<(Cluster<'a>, String)> {
    let worker = |launch: Launch| {
        let launch = launch.flags(["--gradient-takes=20"]);
        launch.variable("RINGTUNE__TRAINING__RECOVERY_CHECKPOINT_SECONDS", seconds)
    };
    let cluster = Cluster::start_fake_with(sandbox, Launch::coordinator(), 2, worker).await?;
    let job = Job::toy()?
        .set("train.max_train_steps", STEPS)
        .set("train.train_batch_size", 1)
        .set("train.checkpointing_steps", 0)
        .shared_by(2);
    let job_id = cluster.submit(&sandbox.write_job("job.toml", &job)?).await?;
    Ok((cluster, job_id))
}

/// What the job learned, once it has succeeded with every step once.
async fn learned(sandbox: &Sandbox, cluster: &Cluster<'_>, job_id: &str) -> Result<Vec<u8>> {
    let learned = cluster.learned(job_id, "out").await?;
    let numbers: Vec<i64> = cluster.steps(job_id).await?.iter().map(|step| step.step).collect();
    ensure!(numbers == (1..=STEPS).collect::<Vec<_>>(), "{numbers:?}");
    let metrics = fs::read_to_string(sandbox.path("out/metrics.csv"))?;
    let numbers: Vec<&str> = metrics.lines().skip(1).filter_map(|line| line.split(',').next()).collect();
    ensure!(numbers == (1..=STEPS).map(|step| step.to_string()).collect::<Vec<_>>(), "{metrics}");
    Ok(learned)
}

#[tokio::test]
async fn a_job_without_checkpoints_outlives_all_its_workers() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let (cluster, job_id) = start_shared_job(&sandbox, "60").await?;
    let whole = learned(&sandbox, &cluster, &job_id).await?;
    let files = names_in(&sandbox.path("out"))?;
    drop(cluster);
    let sandbox = Sandbox::new()?;
    let (mut cluster, job_id) = start_shared_job(&sandbox, "0.1").await?;
    cluster.wait_for_step(&job_id, 40).await?;
    cluster.replace_all(&["worker-1", "worker-2"]).await?;
    let recovered = learned(&sandbox, &cluster, &job_id).await?;
    ensure!(recovered == whole, "it learned something else after all its workers died");
    let left = names_in(&sandbox.path("out"))?;
    ensure!(left == files, "other files are left: {left:?}");
    let log = fs::read_to_string(sandbox.path("out/job.log"))?;
    ensure!(log.contains("resumed after step "), "it began anew: {log}");
    Ok(())
}

/// Whether this machine lets us mount file systems of our own.
async fn may_mount() -> bool {
    let mut command = tokio::process::Command::new("unshare");
    command.args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"]);
    finish(&mut command).await.is_ok_and(|tried| tried.code == Some(0))
}

/// Runs a short job with a small file system mounted at a folder of the sandbox.
async fn run_on_a_small_disk(
    sandbox: &Sandbox,
    folder: &str,
    size: &str,
) -> Result<ringtune_tests::Finished> {
    let job = Job::toy()?.set("train.num_vectors", 16).set("train.max_train_steps", 40);
    sandbox.write_job("job.toml", &job)?;
    fs::create_dir_all(sandbox.path(folder))?;
    let script = format!(
        "mount -t tmpfs -o size={size} none {folder} && {{ \"$0\" run job.toml -o out; code=$?; ls -A out >&2; exit $code; }}"
    );
    let ringtune = ringtune_tests::places::program("ringtune")?;
    let mut command = tokio::process::Command::new("unshare");
    command
        .args(["-m", "sh", "-c", &script])
        .arg(ringtune)
        .current_dir(sandbox.folder())
        .env("XDG_STATE_HOME", sandbox.path("state"));
    finish(&mut command).await
}

#[tokio::test]
async fn a_full_disk_is_an_error_that_names_the_file_and_leaves_no_half() -> Result<()> {
    if !may_mount().await {
        eprintln!("SKIPPED: mounting a small file system needs root");
        return Ok(());
    }
    // The output folder has one page, and the artifacts take several.
    let sandbox = Sandbox::new()?;
    let run = run_on_a_small_disk(&sandbox, "out", "4k").await?.expect_code(1)?;
    let run = run.expect_said(&["cannot write", "No space left on device"])?;
    ensure!(!run.stderr.contains(".tmp"), "a half-written file is left: {}", run.stderr);
    sandbox.expect_no_process().await?;
    // The results are kept in the coordinator's folder, which the text names.
    let kept =
        run.stderr.split_whitespace().find(|word| word.contains("/kept-")).map(std::path::PathBuf::from);
    let kept = kept.with_context(|| format!("nothing is said to be kept: {}", run.stderr))?;
    ensure!(kept.join("coordinator/contents").is_dir(), "{} has no contents", kept.display());
    Ok(())
}

/// Where the daemons keep their state less is free than the coordinator keeps free. The command asks again for a minute, as it is
/// told to.
#[tokio::test]
async fn a_state_folder_without_room_is_an_error_that_names_the_setting() -> Result<()> {
    if !may_mount().await {
        eprintln!("SKIPPED: mounting a small file system needs root");
        return Ok(());
    }
    let sandbox = Sandbox::new()?;
    let run = run_on_a_small_disk(&sandbox, "state", "1200k").await?.expect_code(1)?;
    run.expect_said(&["do not fit: the coordinator's disk has", "storage.free_bytes"])?;
    sandbox.expect_no_process().await
}
