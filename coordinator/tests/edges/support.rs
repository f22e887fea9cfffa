//! A coordinator on a free port, its clients, and a worker that does what a test says.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringtune_coordinator::access::Access;
use ringtune_coordinator::contents::{Contents, Limits};
use ringtune_coordinator::core::Options;
use ringtune_coordinator::metrics::Metrics;
use ringtune_coordinator::network::listen;
use ringtune_coordinator::quotas::Quotas;
use ringtune_coordinator::settings::LimitSettings;
use ringtune_coordinator::store::{SqliteStore, Store};
use ringtune_coordinator::{grpc, service};
use ringtune_proto::v1::{
    self, artifact_service_client::ArtifactServiceClient, job_service_client::JobServiceClient,
    session_request::Message as Up, session_response::Message as Down, watch_job_response::Response,
    worker_service_client::WorkerServiceClient,
};
use ringtune_shared::ids::WorkerId;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::samples;

/// Nothing here takes nearly as long: a test that would hang fails instead.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something that is bound to happen.
pub(crate) async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.unwrap_or_else(|_| panic!("{what} did not happen"))
}

pub(crate) struct Coordinator {
    pub(crate) address: SocketAddr,
    shutdown: CancellationToken,
    server: JoinHandle<Result<(), grpc::Error>>,
    state_loop: JoinHandle<()>,
    /// Its database and files, if nobody else needs them.
    own_folder: Option<tempfile::TempDir>,
}

impl Coordinator {
    /// On a folder of its own.
    pub(crate) async fn fresh(options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("coordinator.db")).await.unwrap();
        let coordinator = Self::start_on(folder.path(), options, Arc::new(store)).await;
        Self { own_folder: Some(folder), ..coordinator }
    }

    /// The same, for those who make jobs of files.
    pub(crate) async fn of_files() -> (Self, JobServiceClient<Channel>, ArtifactServiceClient<Channel>) {
        let coordinator = Self::fresh(Options::default()).await;
        let (jobs, artifacts) = (coordinator.jobs().await, coordinator.artifacts().await);
        (coordinator, jobs, artifacts)
    }

    /// With files in `folder`.
    pub(crate) async fn start_on(folder: &Path, options: Options, store: Arc<dyn Store>) -> Self {
        let limits = Limits { content_bytes: 16 << 20, uploads: 8, ..Limits::default() };
        let contents = Contents::open(&folder.join("artifacts"), limits).unwrap();
        let metrics = Metrics::new().unwrap();
        let settings = service::Settings {
            options,
            store,
            metrics: metrics.clone(),
            notifier: Default::default(),
            tracer: Default::default(),
        };
        let (handle, state_loop) = service::start(settings).await.unwrap();
        let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let listener = listen::grpc(tcp, None, &LimitSettings::default(), metrics.refusals()).unwrap();
        let shutdown = CancellationToken::new();
        let welcome = v1::Welcome { coordinator_version: "test".to_owned(), ..v1::Welcome::default() };
        let options = grpc::Options {
            handle,
            access: Access::plain(metrics.clone(), &LimitSettings::default()),
            quotas: Quotas::none(),
            submitter_priority: 99,
            contents,
            metrics,
            tracer: Default::default(),
            welcome,
            call_limit: PATIENCE,
            calls_per_connection: 256,
            pki: None,
            idle_limit: PATIENCE,
            shutdown: shutdown.clone(),
        };
        let server = tokio::spawn(grpc::serve(listener, options));
        let state_loop = tokio::spawn(async {
            let _ = state_loop.await;
        });
        Self { address, shutdown, server, state_loop, own_folder: None }
    }

    /// Ends as the daemon does, waiting for all of it.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        soon("the end of the server", self.server).await.unwrap().unwrap();
        soon("the end of the loop", self.state_loop).await.unwrap();
        drop(self.own_folder);
    }

    pub(crate) async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    pub(crate) async fn jobs(&self) -> JobServiceClient<Channel> {
        JobServiceClient::new(self.channel().await)
    }

    pub(crate) async fn artifacts(&self) -> ArtifactServiceClient<Channel> {
        ArtifactServiceClient::new(self.channel().await)
    }

    /// A worker that was accepted.
    pub(crate) async fn worker(&self) -> Worker {
        self.worker_like(hello(WorkerId::new(), 1)).await.unwrap()
    }

    /// A worker with the given first words.
    pub(crate) async fn worker_like(&self, hello: v1::Hello) -> Result<Worker, Status> {
        let (up, words) = mpsc::channel(64);
        up.send(v1::SessionRequest { message: Some(Up::Hello(hello.clone())) }).await.unwrap();
        let mut client = WorkerServiceClient::new(self.channel().await);
        let down = soon("a session", client.session(ReceiverStream::new(words))).await?.into_inner();
        let mut worker = Worker { up, down, hello };
        match worker.next().await {
            Down::Welcome(_) => Ok(worker),
            other => panic!("expected a welcome, got {other:?}"),
        }
    }
}

pub(crate) fn hello(worker: WorkerId, incarnation: u64) -> v1::Hello {
    let (worker_id, address) = (worker.to_string(), format!("{worker}:1"));
    v1::Hello { worker_id, incarnation, address, ..samples::hello("node") }
}

/// One end of a session; says only what a test makes it say.
pub(crate) struct Worker {
    up: mpsc::Sender<v1::SessionRequest>,
    down: Streaming<v1::SessionResponse>,
    pub(crate) hello: v1::Hello,
}

impl Worker {
    pub(crate) async fn say(&self, message: Up) {
        self.up.send(v1::SessionRequest { message: Some(message) }).await.unwrap();
    }

    /// What it is told next.
    pub(crate) async fn next(&mut self) -> Down {
        let told = soon("a message to the worker", self.down.message()).await;
        told.unwrap().expect("the session ended").message.unwrap()
    }

    /// How its session ends, whatever it is told before.
    pub(crate) async fn end(mut self) -> Option<Status> {
        loop {
            match soon("the end of the session", self.down.message()).await {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    }

    pub(crate) async fn assignment(&mut self) -> v1::Assignment {
        match self.next().await {
            Down::Assignment(assignment) => assignment,
            other => panic!("expected an assignment, got {other:?}"),
        }
    }

    pub(crate) async fn start_rank(&mut self) {
        match self.next().await {
            Down::StartRank(_) => {}
            other => panic!("expected StartRank, got {other:?}"),
        }
    }

    pub(crate) async fn steps_stored(&mut self) -> i64 {
        match self.next().await {
            Down::StepsStored(stored) => stored.step,
            other => panic!("expected StepsStored, got {other:?}"),
        }
    }

    pub(crate) async fn report(&self, assignment: &v1::Assignment, phase: v1::RankPhase, reason: &str) {
        let ring = assignment.ring.clone().unwrap();
        self.say(Up::RankReport(v1::RankReport {
            job_id: ring.job_id,
            epoch: ring.epoch,
            rank: assignment.rank,
            phase: phase.into(),
            reason: reason.to_owned(),
            ..v1::RankReport::default()
        }))
        .await;
    }

    pub(crate) async fn step(&self, assignment: &v1::Assignment, number: i64) {
        let ring = assignment.ring.clone().unwrap();
        let step =
            v1::StepReport { step: number, loss: 1.0 / number as f64, world_size: 1, ..Default::default() };
        let report = v1::RankStep { job_id: ring.job_id, epoch: ring.epoch, step: Some(step) };
        self.say(Up::RankStep(report)).await;
    }

    /// Takes an assignment and gets to the first step.
    pub(crate) async fn train(&mut self) -> v1::Assignment {
        let assignment = self.assignment().await;
        self.report(&assignment, v1::RankPhase::Preparing, "").await;
        self.report(&assignment, v1::RankPhase::Ready, "").await;
        self.start_rank().await;
        self.report(&assignment, v1::RankPhase::Training, "").await;
        assignment
    }
}

/// The rank of an assignment as a worker that comes back tells it.
pub(crate) fn held(assignment: &v1::Assignment, phase: v1::RankPhase) -> v1::HeldRank {
    let ring = assignment.ring.clone().unwrap();
    v1::HeldRank {
        job_id: ring.job_id,
        epoch: ring.epoch,
        rank: assignment.rank,
        phase: phase.into(),
        ..v1::HeldRank::default()
    }
}

/// A small job for one rank.
pub(crate) fn spec() -> v1::JobSpec {
    let mut spec = samples::spec(1);
    spec.train.as_mut().unwrap().max_train_steps = Some(3);
    spec
}

pub(crate) async fn create(jobs: &mut JobServiceClient<Channel>, spec: v1::JobSpec) -> v1::Job {
    let request = v1::CreateJobRequest { spec: Some(spec), ..Default::default() };
    jobs.create_job(request).await.unwrap().into_inner().job.unwrap()
}

pub(crate) async fn get(jobs: &mut JobServiceClient<Channel>, job_id: &str) -> v1::Job {
    let request = v1::GetJobRequest { job_id: job_id.to_owned(), ..Default::default() };
    jobs.get_job(request).await.unwrap().into_inner().job.unwrap()
}

/// All events after `after`, until the job ends.
pub(crate) async fn watch_to_end(
    jobs: &mut JobServiceClient<Channel>,
    job_id: &str,
    after: u64,
) -> Vec<v1::JobEvent> {
    let request = v1::WatchJobRequest { job_id: job_id.to_owned(), after_sequence: after };
    let mut stream = jobs.watch_job(request).await.unwrap().into_inner();
    let mut events = Vec::new();
    while let Some(event) = next_event(&mut stream).await.unwrap() {
        events.push(event);
    }
    events
}

/// The next event of a watch, whatever else it says before.
pub(crate) async fn next_event(
    watch: &mut Streaming<v1::WatchJobResponse>,
) -> Result<Option<v1::JobEvent>, Status> {
    loop {
        match soon("an event", watch.message()).await?.map(|answer| answer.response) {
            None => return Ok(None),
            Some(Some(Response::Event(event))) => return Ok(Some(event)),
            Some(_) => {}
        }
    }
}

/// The job's last state and its reason, once it ended.
pub(crate) async fn ending(jobs: &mut JobServiceClient<Channel>, job_id: &str) -> (v1::JobState, String) {
    watch_to_end(jobs, job_id, 0).await;
    let job = get(jobs, job_id).await;
    (job.state(), job.state_reason)
}
