//! The daemon as a process: how it starts, and how it ends.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ringtune_proto::v1::{self, job_service_client::JobServiceClient};
use tonic::transport::Channel;

use crate::support::{create, soon, spec};

fn command(state: &Path) -> Command {
    command_on("127.0.0.1:0", state)
}

fn command_on(http: &str, state: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringtune-coordinator"));
    command.args(["--listen", "127.0.0.1:0", "--http-listen", http, "--state-dir"]).arg(state);
    command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

async fn connect(url: String) -> JobServiceClient<Channel> {
    JobServiceClient::new(Channel::from_shared(url).unwrap().connect().await.unwrap())
}

/// Killed when dropped, so that a failed test leaves no process.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Daemon {
    /// Started and listening; returns its gRPC address.
    fn start(state: &Path) -> (Self, String) {
        let mut child = command(state).args(["--announce", "--lifeline"]).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let daemon = Self(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["event"], "listening");
        (daemon, format!("http://{}", line["grpc"].as_str().unwrap()))
    }

    async fn exit_code(mut self) -> Option<i32> {
        soon("the end of the process", tokio::task::spawn_blocking(move || self.0.wait().unwrap().code()))
            .await
            .unwrap()
    }
}

/// Runs to its end; its exit code and what it wrote to stderr.
fn refused(mut command: Command) -> (Option<i32>, String) {
    let mut daemon = Daemon(command.spawn().unwrap());
    let mut text = String::new();
    daemon.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    (daemon.0.wait().unwrap().code(), text)
}

#[tokio::test]
async fn a_signal_ends_it_although_a_watch_is_open_and_jobs_are_there_again_after() {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, url) = Daemon::start(folder.path());
    let mut jobs = connect(url).await;
    let job = create(&mut jobs, spec()).await;
    let request = v1::WatchJobRequest { job_id: job.job_id.clone(), after_sequence: 0 };
    let mut watch = jobs.watch_job(request).await.unwrap().into_inner();
    soon("an event", watch.message()).await.unwrap().unwrap();
    let killed = Command::new("kill").args(["-TERM", &daemon.0.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert!(soon("the end of the watch", watch.message()).await.is_err());
    assert_eq!(daemon.exit_code().await, Some(0));

    // kill -9 this time.
    let (daemon, url) = Daemon::start(folder.path());
    let mut jobs = connect(url).await;
    let other = create(&mut jobs, spec()).await;
    drop(daemon);
    let (mut daemon, url) = Daemon::start(folder.path());
    let mut jobs = connect(url).await;
    let listed = jobs.list_jobs(v1::ListJobsRequest::default()).await.unwrap().into_inner().jobs;
    let ids: Vec<String> = listed.into_iter().map(|job| job.job_id).collect();
    assert_eq!(ids, [other.job_id, job.job_id]);
    // The parent is gone.
    drop(daemon.0.stdin.take());
    assert_eq!(daemon.exit_code().await, Some(0));
}

#[tokio::test]
async fn what_cannot_work_is_refused_with_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let (_daemon, _) = Daemon::start(folder.path());
    let (code, text) = refused(command(folder.path()));
    assert_eq!(code, Some(2));
    assert!(text.contains(folder.path().to_str().unwrap()), "{text}");

    let free = tempfile::tempdir().unwrap();
    let mut beyond = Command::new(env!("CARGO_BIN_EXE_ringtune-coordinator"));
    beyond.args(["--listen", "0.0.0.0:0", "--insecure", "--state-dir"]).arg(free.path());
    beyond.env_clear().env("RINGTUNE__SECURITY__TLS", "on");
    beyond.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let (code, text) = refused(beyond);
    assert_eq!(code, Some(2));
    assert!(text.contains("security.tls") && text.contains("security.insecure"), "{text}");

    let mut elsewhere = command(free.path());
    for (key, file) in [("CERTIFICATE", "chain.pem"), ("KEY", "key.pem"), ("CA", "ca.pem")] {
        elsewhere.env(format!("RINGTUNE__SECURITY__{key}"), free.path().join(file));
    }
    let (code, text) = refused(elsewhere);
    assert_eq!(code, Some(2));
    assert!(text.contains("chain.pem"), "{text}");

    let file = free.path().join("settings.toml");
    std::fs::write(&file, "[grpc]\nlisen = \"127.0.0.1:0\"\n").unwrap();
    let mut unknown = command(free.path());
    unknown.arg("--config").arg(&file);
    let (code, text) = refused(unknown);
    assert_eq!(code, Some(2));
    assert!(text.contains("grpc.lisen"), "{text}");
}

#[tokio::test]
async fn insecure_beyond_this_machine_is_said_at_each_start() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut insecure = command_on("0.0.0.0:0", folder.path());
        insecure.args(["--insecure", "--announce", "--lifeline"]);
        let mut daemon = Daemon(insecure.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(daemon.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        drop(daemon.0.stdin.take());
        let mut log = String::new();
        daemon.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert!(log.contains("WARN") && log.contains("--insecure"), "{log}");
        assert_eq!(daemon.exit_code().await, Some(0));
    }
    assert!(!folder.path().join("authority").exists());
}
