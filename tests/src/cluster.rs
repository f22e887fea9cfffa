//! A coordinator and workers as real processes, one by one: to be killed, restarted and misused.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::{
    convert::is_terminal,
    v1::{
        self, JobState, artifact_service_client::ArtifactServiceClient,
        cluster_service_client::ClusterServiceClient, job_service_client::JobServiceClient,
        worker_service_client::WorkerServiceClient,
    },
};
use rustix::process::Signal;
use tokio::process::Command;
use tonic::transport::Channel;

pub use crate::daemon::Daemon;
use crate::{
    Finished, Sandbox,
    daemon::{FAKE_WORKER, Launch, WORKER},
    files::EMBEDDING,
    process::finish,
    wait::{SOON, until},
};

/// File of the workers' token, if the coordinator speaks TLS.
const TOKEN: &str = "join-token";
/// Number of workers that it lets in.
const WORKERS: i32 = 1000;

/// A coordinator and workers of one sandbox.
#[derive(Debug)]
pub struct Cluster<'a> {
    sandbox: &'a Sandbox,
    /// The coordinator.
    pub coordinator: Daemon,
    /// The workers.
    pub workers: Vec<Daemon>,
    /// Launches of the workers that this cluster started, by label.
    launches: BTreeMap<String, Launch>,
}

impl<'a> Cluster<'a> {
    /// Starts a coordinator and waits for `workers` workers to join it.
    pub async fn start(sandbox: &'a Sandbox, workers: usize) -> Result<Self> {
        let mut cluster = Self::start_coordinator(sandbox, Launch::coordinator()).await?;
        cluster.grow(workers).await?;
        Ok(cluster)
    }

    /// As above, with workers on the fake engine.
    pub async fn start_fake(sandbox: &'a Sandbox, workers: usize) -> Result<Self> {
        Self::start_fake_with(sandbox, Launch::coordinator(), workers, |launch| launch).await
    }

    /// As above, with this coordinator and workers that are launched as `with` says.
    pub async fn start_fake_with(
        sandbox: &'a Sandbox,
        coordinator: Launch,
        workers: usize,
        with: impl Fn(Launch) -> Launch,
    ) -> Result<Self> {
        let mut cluster = Self::start_coordinator(sandbox, coordinator).await?;
        for number in 1..=workers {
            let label = format!("worker-{number}");
            cluster.add_worker(with(Launch::worker(&label, FAKE_WORKER, &cluster.coordinator.grpc))).await?;
        }
        cluster.wait_for_idle(workers).await?;
        Ok(cluster)
    }

    /// Starts more workers that compute, until there are so many, and waits until all are free.
    pub async fn grow(&mut self, workers: usize) -> Result<()> {
        for number in self.workers.len() + 1..=workers {
            let label = format!("worker-{number}");
            self.add_worker(Launch::worker(&label, WORKER, &self.coordinator.grpc)).await?;
        }
        self.wait_for_idle(workers).await
    }

    /// A cluster without workers yet.
    pub async fn start_coordinator(sandbox: &'a Sandbox, launch: Launch) -> Result<Self> {
        let coordinator = launch.start(sandbox).await?;
        if launch.tls {
            let token = coordinator.door().worker_token(WORKERS).await.context("a token for workers")?;
            std::fs::write(sandbox.path(TOKEN), token)?;
        }
        let launches = BTreeMap::from([(launch.label.clone(), launch)]);
        Ok(Self { sandbox, coordinator, workers: Vec::new(), launches })
    }

    /// Starts another worker. Does not wait for it to join.
    pub async fn add_worker(&mut self, launch: Launch) -> Result<()> {
        let locked = self.coordinator.door().is_locked() && !launch.tls;
        let launch = if locked { launch.joining(&self.sandbox.path(TOKEN)) } else { launch };
        self.workers.push(launch.start(self.sandbox).await?);
        self.launches.insert(launch.label.clone(), launch);
        Ok(())
    }

    /// Waits until so many workers are free.
    pub async fn wait_for_idle(&self, workers: usize) -> Result<()> {
        let all_idle = || async {
            let listed = self.list_workers().await?;
            let idle = listed.iter().filter(|worker| worker.state() == v1::WorkerState::Idle).count();
            Ok((idle == workers).then_some(()))
        };
        until("the workers join", SOON, all_idle).await
    }

    /// A daemon by its label.
    pub fn daemon(&mut self, label: &str) -> Result<&mut Daemon> {
        std::iter::once(&mut self.coordinator)
            .chain(&mut self.workers)
            .find(|daemon| daemon.label == label)
            .with_context(|| format!("there is no {label}"))
    }

    /// Sends a daemon a signal.
    pub fn signal(&mut self, label: &str, signal: Signal) -> Result<()> {
        self.daemon(label)?.signal(signal)
    }

    /// Tells daemons to end, one after the other, each once the one before has ended.
    pub async fn terminate(&mut self, labels: &[&str]) -> Result<()> {
        for label in labels {
            self.signal(label, Signal::TERM)?;
            self.daemon(label)?.ended().await?;
        }
        Ok(())
    }

    /// Starts a daemon that has ended again, on the same state. The coordinator comes back at its addresses.
    pub async fn start_again(&mut self, label: &str) -> Result<()> {
        let mut launch =
            self.launches.get(label).cloned().with_context(|| format!("there was no {label}"))?;
        if self.coordinator.label == label {
            launch.listen = self.coordinator.grpc.clone();
            launch.http_listen = self.coordinator.http.clone();
        }
        *self.daemon(label)? = launch.start(self.sandbox).await?;
        Ok(())
    }

    /// Kills daemons, and starts them again once all are gone.
    pub async fn replace_all(&mut self, labels: &[&str]) -> Result<()> {
        for label in labels {
            self.daemon(label)?.end().await?;
        }
        for label in labels {
            self.start_again(label).await?;
        }
        Ok(())
    }

    /// Starts a daemon that has ended again, with another program from now on.
    pub async fn start_again_as(&mut self, label: &str, program: &str) -> Result<()> {
        let launch = self.launches.get_mut(label).with_context(|| format!("there was no {label}"))?;
        program.clone_into(&mut launch.program);
        self.start_again(label).await
    }

    /// Kills the coordinator and starts it again at the same address, on the same state.
    pub async fn replace_coordinator(mut self) -> Result<Self> {
        self.coordinator.end().await?;
        let label = self.coordinator.label.clone();
        self.start_again(&label).await?;
        Ok(self)
    }

    /// A `ringtune` command that talks to this coordinator.
    pub fn ringtune(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = self.sandbox.ringtune(arguments)?;
        command.envs(self.coordinator.door().variables());
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
        Ok(JobServiceClient::new(self.channel()?))
    }

    /// A client of the files.
    pub async fn artifacts(&self) -> Result<ArtifactServiceClient<Channel>> {
        Ok(ArtifactServiceClient::new(self.channel()?))
    }

    /// A client that poses as a worker.
    pub async fn as_worker(&self) -> Result<WorkerServiceClient<Channel>> {
        Ok(WorkerServiceClient::new(self.channel()?))
    }

    /// The workers that the coordinator lists.
    pub async fn list_workers(&self) -> Result<Vec<v1::Worker>> {
        let mut client = ClusterServiceClient::new(self.channel()?);
        Ok(client.list_workers(v1::ListWorkersRequest::default()).await?.into_inner().workers)
    }

    /// The coordinator's summary.
    pub async fn summary(&self) -> Result<v1::GetClusterResponse> {
        let mut client = ClusterServiceClient::new(self.channel()?);
        Ok(client.get_cluster(v1::GetClusterRequest {}).await?.into_inner())
    }

    /// Reads a job.
    pub async fn job(&self, job_id: &str) -> Result<v1::Job> {
        let request = v1::GetJobRequest { job_id: job_id.to_owned(), ..Default::default() };
        self.jobs().await?.get_job(request).await?.into_inner().job.context("a job")
    }

    /// Waits until a job is as wanted; fails as soon as it has ended otherwise.
    async fn wait_until(
        &self,
        job_id: &str,
        what: &str,
        is_met: impl Fn(&v1::Job) -> bool,
    ) -> Result<v1::Job> {
        let met = || async {
            let job = self.job(job_id).await?;
            let met = is_met(&job);
            ensure!(met || !is_terminal(job.state()), "the job is {:?}: {}", job.state(), job.state_reason);
            Ok(met.then_some(job))
        };
        until(what, SOON, met).await
    }

    /// Waits until a job has done that many steps.
    pub async fn wait_for_step(&self, job_id: &str, step: i64) -> Result<()> {
        self.wait_until(job_id, "the job makes steps", |job| job.step >= step).await.map(drop)
    }

    /// Waits until a job is in a state.
    pub async fn wait_for_state(&self, job_id: &str, state: JobState) -> Result<()> {
        self.wait_until(job_id, "the job is in another state", |job| job.state() == state).await.map(drop)
    }

    /// Waits until the coordinator has a file of a job.
    pub async fn wait_for_artifact(&self, job_id: &str, name: &str) -> Result<()> {
        let kept =
            || async { Ok(self.files(job_id).await?.iter().any(|file| file.name == name).then_some(())) };
        until("a file is kept", SOON, kept).await.with_context(|| name.to_owned())
    }

    /// Waits until a job has ended, and returns it.
    pub async fn wait_for_end(&self, job_id: &str) -> Result<v1::Job> {
        self.wait_until(job_id, "the job ends", |job| is_terminal(job.state())).await
    }

    /// As above, and it has to succeed.
    pub async fn wait_for_success(&self, job_id: &str) -> Result<v1::Job> {
        self.wait_until(job_id, "the job succeeds", |job| job.state() == JobState::Succeeded).await
    }

    /// The steps of a job that are stored, a thousand of them at most.
    pub async fn steps(&self, job_id: &str) -> Result<Vec<v1::StepReport>> {
        let request =
            v1::ListStepsRequest { job_id: job_id.to_owned(), page_size: 1000, ..Default::default() };
        Ok(self.jobs().await?.list_steps(request).await?.into_inner().steps)
    }

    /// The files of a job that the coordinator has.
    pub async fn files(&self, job_id: &str) -> Result<Vec<v1::Artifact>> {
        let request = v1::ListArtifactsRequest { job_id: job_id.to_owned(), ..Default::default() };
        Ok(self.artifacts().await?.list_artifacts(request).await?.into_inner().artifacts)
    }

    /// Has a job done to its end, and gives the folder of the sandbox in which its files are then.
    pub async fn complete(&self, job_file: &Path, out: &str) -> Result<PathBuf> {
        self.result(&self.submit(job_file).await?, out).await
    }

    /// Waits until a job has succeeded, and gives the folder of the sandbox in which its files are then.
    pub async fn result(&self, job_id: &str, out: &str) -> Result<PathBuf> {
        self.wait_for_success(job_id).await?;
        self.fetch(job_id, out).await
    }

    /// The embedding of a job that has succeeded, whose files are in that folder of the sandbox then.
    pub async fn learned(&self, job_id: &str, out: &str) -> Result<Vec<u8>> {
        std::fs::read(self.result(job_id, out).await?.join(EMBEDDING)).context("the learned embedding")
    }

    /// Waits until a job has succeeded; it has to have done each of so many steps once, and learned these bytes.
    pub async fn expect_learned(&self, job_id: &str, expected: &[u8], steps: i64) -> Result<()> {
        let learned = self.learned(job_id, &format!("output-{job_id}")).await?;
        ensure!(learned == expected, "other bytes");
        let done = self.steps(job_id).await?;
        ensure!(done.iter().map(|step| step.step).eq(1..=steps), "{done:?}");
        Ok(())
    }

    /// Saves the files of a job in a folder of the sandbox.
    pub async fn fetch(&self, job_id: &str, out: &str) -> Result<PathBuf> {
        self.finish(&["fetch", job_id, "-o", out]).await?.expect_code(0)?;
        Ok(self.sandbox.path(out))
    }

    fn channel(&self) -> Result<Channel> {
        self.coordinator.door().channel()
    }
}

/// Starts a worker whose state is `LABEL` in the sandbox, with variables in its environment.
pub async fn start_worker_with(
    sandbox: &Sandbox,
    label: &str,
    coordinator: &str,
    variables: &[(&str, String)],
) -> Result<Daemon> {
    let launch = Launch::worker(label, WORKER, coordinator);
    variables.iter().fold(launch, |launch, (name, value)| launch.variable(name, value)).start(sandbox).await
}
