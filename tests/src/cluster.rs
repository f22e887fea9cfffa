//! A coordinator and workers as real processes, one by one: to be killed, restarted and misused.

use std::{path::Path, process::Stdio};

use anyhow::{Context as _, Result, bail};
use ringtune_proto::v1::{
    self, JobState, artifact_service_client::ArtifactServiceClient,
    cluster_service_client::ClusterServiceClient, job_service_client::JobServiceClient,
    worker_service_client::WorkerServiceClient,
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdout, Command},
};
use tonic::transport::{Channel, Endpoint};

use crate::{
    Finished, Sandbox, places,
    process::finish,
    wait::{SOON, until},
};

/// The daemon that computes.
const WORKER: &str = "ringtune-worker";
/// The same without libtorch.
const FAKE_WORKER: &str = "fake-worker";

/// A running daemon; killed when dropped, and it ends by itself when this process was killed.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// HOST:PORT of its gRPC services.
    pub grpc: String,
    /// HOST:PORT of its HTTP pages.
    pub http: String,
}

impl Daemon {
    /// Starts a program and waits until it says where it listens. Its log is `LABEL.log` in the sandbox.
    pub async fn start(sandbox: &Sandbox, label: &str, program: &str, arguments: &[&str]) -> Result<Self> {
        Self::start_with(sandbox, label, program, arguments, &[]).await
    }

    /// The same, with variables in its environment.
    pub async fn start_with(
        sandbox: &Sandbox,
        label: &str,
        program: &str,
        arguments: &[&str],
        variables: &[(&str, String)],
    ) -> Result<Self> {
        let log = sandbox.path(&format!("{label}.log"));
        let mut child = Command::new(places::program(program)?)
            .args(arguments)
            .args(["--announce", "--lifeline", "--log-format", "human"])
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::options().create(true).append(true).open(&log)?)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {program}"))?;
        let mut stdout = BufReader::new(child.stdout.take().context("stdout is a pipe")?);
        let mut line = String::new();
        tokio::time::timeout(SOON, stdout.read_line(&mut line))
            .await
            .context("it does not announce itself")??;
        if line.is_empty() {
            let status = child.wait().await?;
            bail!("the {label} ended ({status}):\n{}", std::fs::read_to_string(&log)?);
        }
        let said: serde_json::Value =
            serde_json::from_str(&line).with_context(|| format!("announced {line}"))?;
        let address = |key: &str| said[key].as_str().map(str::to_owned).context("an address");
        Ok(Self { grpc: address("grpc")?, http: address("http")?, child, stdout })
    }

    /// Its process id; none once it has ended.
    pub fn process_id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Ends it with SIGKILL and waits until it is gone.
    pub async fn kill(mut self) -> Result<()> {
        self.child.kill().await?;
        drop(self.stdout);
        Ok(())
    }
}

/// A coordinator and workers of one sandbox.
#[derive(Debug)]
pub struct Cluster<'a> {
    sandbox: &'a Sandbox,
    /// The coordinator.
    pub coordinator: Daemon,
    /// The workers.
    pub workers: Vec<Daemon>,
}

impl<'a> Cluster<'a> {
    /// Starts a coordinator and waits for `workers` workers to join it.
    pub async fn start(sandbox: &'a Sandbox, workers: usize) -> Result<Self> {
        Self::start_on(sandbox, workers, WORKER).await
    }

    /// The same, with workers that compute with the fake engine.
    pub async fn start_fake(sandbox: &'a Sandbox, workers: usize) -> Result<Self> {
        Self::start_on(sandbox, workers, FAKE_WORKER).await
    }

    async fn start_on(sandbox: &'a Sandbox, workers: usize, program: &str) -> Result<Self> {
        let coordinator = start_coordinator(sandbox, "127.0.0.1:0").await?;
        let mut cluster = Self { sandbox, coordinator, workers: Vec::new() };
        for number in 1..=workers {
            let label = format!("worker-{number}");
            let worker = start_program(sandbox, &label, program, &cluster.coordinator.grpc, &[]).await?;
            cluster.workers.push(worker);
        }
        let all_idle = || async {
            let listed = cluster.list_workers().await?;
            let idle = listed.iter().filter(|worker| worker.state() == v1::WorkerState::Idle).count();
            Ok((idle == workers).then_some(()))
        };
        until("the workers join", SOON, all_idle).await?;
        Ok(cluster)
    }

    /// Kills the coordinator and starts it again at the same address, on the same state.
    pub async fn replace_coordinator(self) -> Result<Self> {
        let address = self.coordinator.grpc.clone();
        self.coordinator.kill().await?;
        let coordinator = start_coordinator(self.sandbox, &address).await?;
        Ok(Self { coordinator, ..self })
    }

    /// A `ringtune` command that talks to this coordinator.
    pub fn ringtune(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = self.sandbox.ringtune(arguments)?;
        command.env("RINGTUNE_COORDINATOR", &self.coordinator.grpc);
        Ok(command)
    }

    /// Runs such a command to its end.
    pub async fn finish(&self, arguments: &[&str]) -> Result<Finished> {
        finish(&mut self.ringtune(arguments)?).await
    }

    /// Submits a job file and returns the job's id.
    pub async fn submit(&self, job: &Path) -> Result<String> {
        let submitted = self.finish(&["submit", &job.to_string_lossy()]).await?.expect_code(0)?;
        Ok(submitted.stdout.trim().to_owned())
    }

    /// A client of the jobs.
    pub async fn jobs(&self) -> Result<JobServiceClient<Channel>> {
        Ok(JobServiceClient::new(self.channel().await?))
    }

    /// A client of the files.
    pub async fn artifacts(&self) -> Result<ArtifactServiceClient<Channel>> {
        Ok(ArtifactServiceClient::new(self.channel().await?))
    }

    /// A client that poses as a worker.
    pub async fn as_worker(&self) -> Result<WorkerServiceClient<Channel>> {
        Ok(WorkerServiceClient::new(self.channel().await?))
    }

    /// The workers that the coordinator lists.
    pub async fn list_workers(&self) -> Result<Vec<v1::Worker>> {
        let mut client = ClusterServiceClient::new(self.channel().await?);
        Ok(client.list_workers(v1::ListWorkersRequest::default()).await?.into_inner().workers)
    }

    /// Reads a job.
    pub async fn job(&self, job_id: &str) -> Result<v1::Job> {
        let request = v1::GetJobRequest { job_id: job_id.to_owned() };
        self.jobs().await?.get_job(request).await?.into_inner().job.context("a job")
    }

    /// Waits until a job has done that many steps.
    pub async fn wait_for_step(&self, job_id: &str, step: i64) -> Result<()> {
        let reached = || async {
            let job = self.job(job_id).await?;
            if matches!(job.state(), JobState::Failed | JobState::Cancelled) {
                bail!("the job is {:?}: {}", job.state(), job.state_reason);
            }
            Ok((job.step >= step).then_some(()))
        };
        until("the job makes steps", SOON, reached).await
    }

    /// Waits until a job is in a state.
    pub async fn wait_for_state(&self, job_id: &str, state: JobState) -> Result<()> {
        let reached = || async { Ok((self.job(job_id).await?.state() == state).then_some(())) };
        until("the job is in another state", SOON, reached).await
    }

    /// Waits until a job has ended, and returns it.
    pub async fn wait_for_end(&self, job_id: &str) -> Result<v1::Job> {
        let ended = || async {
            let job = self.job(job_id).await?;
            let over = matches!(job.state(), JobState::Succeeded | JobState::Failed | JobState::Cancelled);
            Ok(over.then_some(job))
        };
        until("the job ends", SOON, ended).await
    }

    async fn channel(&self) -> Result<Channel> {
        let url = format!("http://{}", self.coordinator.grpc);
        Ok(Endpoint::from_shared(url)?.connect().await?)
    }
}

async fn start_coordinator(sandbox: &Sandbox, listen: &str) -> Result<Daemon> {
    let state = sandbox.path("coordinator").to_string_lossy().into_owned();
    let arguments = ["--state-dir", &state, "--listen", listen, "--http-listen", "127.0.0.1:0"];
    Daemon::start(sandbox, "coordinator", "ringtune-coordinator", &arguments).await
}

/// Starts a worker whose state is `LABEL` in the sandbox.
pub async fn start_worker(sandbox: &Sandbox, label: &str, coordinator: &str) -> Result<Daemon> {
    start_worker_with(sandbox, label, coordinator, &[]).await
}

/// The same, with variables in its environment.
pub async fn start_worker_with(
    sandbox: &Sandbox,
    label: &str,
    coordinator: &str,
    variables: &[(&str, String)],
) -> Result<Daemon> {
    start_program(sandbox, label, WORKER, coordinator, variables).await
}

async fn start_program(
    sandbox: &Sandbox,
    label: &str,
    program: &str,
    coordinator: &str,
    variables: &[(&str, String)],
) -> Result<Daemon> {
    let state = sandbox.path(label).to_string_lossy().into_owned();
    let url = format!("http://{coordinator}");
    let arguments = [
        "--coordinator",
        &url,
        "--state-dir",
        &state,
        "--listen",
        "127.0.0.1:0",
        "--http-listen",
        "127.0.0.1:0",
        "--threads",
        "1",
    ];
    Daemon::start_with(sandbox, label, program, &arguments, variables).await
}
