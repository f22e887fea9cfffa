//! A coordinator without a will: tests accept its sessions and say what it says.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use crate::{
    cluster::Cluster,
    files::{Files, Keeper},
    history::{History, Steps},
    support::{LIMIT, in_time},
};
use ringtune_proto::{
    convert::spec_to_wire,
    v1::{
        self,
        access_service_server::AccessServiceServer,
        artifact_service_server::ArtifactServiceServer,
        job_service_server::JobServiceServer,
        session_request::Message as Up,
        session_response::Message as Down,
        worker_service_server::{WorkerService, WorkerServiceServer},
    },
};
use ringtune_security::{Caller, Identity, Limits, Listener, Peer, Protection, Refusals};
use ringtune_shared::{
    ids::{ContentHash, JobId},
    job::JobSpec,
    manifest::{Manifest, ManifestFile},
    version::{RE_FORM, VERSION, WORKER_PROTOCOLS},
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, transport::Server};

#[derive(Clone)]
struct Services {
    sessions: mpsc::Sender<Session>,
    language: Language,
    steps: Steps,
}

/// Of a secured cluster, or of one where nobody is asked.
type Guard = Option<Arc<Cluster>>;

/// What a coordinator says of itself in its welcome.
#[derive(Clone)]
pub struct Language {
    pub version: String,
    pub protocol: u32,
    /// It gives running jobs other rings.
    pub re_forms: bool,
    pub heartbeat_seconds: f64,
}

impl Default for Language {
    fn default() -> Self {
        let (version, protocol) = (VERSION.to_owned(), WORKER_PROTOCOLS.max);
        Self { version, protocol, re_forms: false, heartbeat_seconds: 0.1 }
    }
}

pub struct Coordinator {
    pub address: SocketAddr,
    files: Arc<Mutex<Files>>,
    held: watch::Sender<bool>,
    sessions: mpsc::Receiver<Session>,
    /// What workers reported, as far as tests have read it.
    pub steps: Steps,
    guard: Guard,
    server: JoinHandle<()>,
}

/// One worker's session.
pub struct Session {
    pub hello: v1::Hello,
    /// Who it is by its certificate.
    pub caller: Option<Identity>,
    /// Says of each step that it is stored, as a coordinator that gives jobs other rings does.
    pub stores_steps: bool,
    /// What the members of its rings say to each other.
    ring_protocol: u32,
    up: Streaming<v1::SessionRequest>,
    /// When a test has waited for it long enough.
    ends: Instant,
    steps: Steps,
    down: mpsc::Sender<Result<v1::SessionResponse, Status>>,
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Coordinator {
    pub async fn start() -> Self {
        Self::speaking(Language::default()).await
    }

    /// One that lets in whoever has a certificate of the cluster.
    pub async fn of(cluster: &Arc<Cluster>) -> Self {
        let guard = Some(Arc::clone(cluster));
        Self::start_as(Language::default(), SocketAddr::from(([127, 0, 0, 1], 0)), Arc::default(), guard)
            .await
    }

    pub async fn speaking(language: Language) -> Self {
        Self::start_as(language, SocketAddr::from(([127, 0, 0, 1], 0)), Arc::default(), None).await
    }

    /// As a crash and a restart look to workers: every connection breaks; files are still there.
    pub async fn restart(self) -> Self {
        let (address, files, guard) = (self.address, Arc::clone(&self.files), self.guard.clone());
        self.stop().await;
        Self::start_as(Language::default(), address, files, guard).await
    }

    /// Everything of it is gone when this returns.
    pub async fn stop(mut self) {
        self.server.abort();
        let _ = (&mut self.server).await;
    }

    async fn start_as(
        language: Language,
        address: SocketAddr,
        files: Arc<Mutex<Files>>,
        guard: Guard,
    ) -> Self {
        let listener = loop {
            // The port of a coordinator that was just stopped may take a moment to come free.
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let address = listener.local_addr().unwrap();
        let (sender, sessions) = mpsc::channel(16);
        let held = watch::Sender::new(false);
        let steps = Steps::default();
        let services = Services { sessions: sender, language, steps: steps.clone() };
        let keeper = Keeper { files: Arc::clone(&files), held: held.clone() };
        let server = Server::builder()
            .add_service(WorkerServiceServer::new(services))
            .add_service(JobServiceServer::new(History(steps.clone())))
            .add_service(ArtifactServiceServer::new(keeper))
            .add_optional_service(guard.clone().map(AccessServiceServer::from_arc));
        let protection = guard.as_ref().map_or(Protection::Plain, |cluster| cluster.protection());
        // In a runtime of its own, so that stopping it breaks every connection, as a killed process does.
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let listener = listener.into_std().unwrap();
        let thread = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                // Nothing says here when a call begins and ends.
                let hour = std::time::Duration::from_secs(3600);
                let limits = Limits { first_call: hour, idle: hour, ..Limits::default() }.for_loopback();
                let incoming = Listener::start(listener, protection, limits, Refusals::default()).unwrap();
                tokio::select! {
                    served = server.serve_with_incoming(incoming) => served.unwrap(),
                    _ = stopped => (),
                }
            });
            runtime.shutdown_background();
        });
        let server = tokio::spawn(async move {
            let guard = StopOnDrop(Some(stop), Some(thread));
            std::future::pending::<()>().await;
            drop(guard);
        });
        Self { address, files, held, sessions, steps, guard, server }
    }

    pub fn url(&self) -> String {
        let scheme = if self.guard.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The next worker that says hello; it has been welcomed.
    pub async fn accept(&mut self) -> Session {
        in_time(self.sessions.recv()).await.unwrap()
    }

    /// Makes an image folder available; returns data.images.
    pub fn add_images(&self, images: &[(&str, Vec<u8>)]) -> String {
        let mut files = self.files.lock().unwrap();
        let mut entries = Vec::new();
        for (name, content) in images {
            let sha256 = ContentHash::of(content);
            let size = content.len() as u64;
            entries.push(ManifestFile::new((*name).to_owned(), sha256, size, Vec::new()));
            files.contents.insert(sha256, content.clone());
        }
        let manifest = Manifest::new(entries).unwrap().to_json().unwrap();
        let hash = ContentHash::of(&manifest);
        files.contents.insert(hash, manifest);
        hash.uri()
    }

    /// Makes a content available; returns its URI.
    pub fn add(&self, content: Vec<u8>) -> String {
        let hash = ContentHash::of(&content);
        self.files.lock().unwrap().contents.insert(hash, content);
        hash.uri()
    }

    /// Replaces a content by another one: what a damaged disk would give.
    pub fn spoil(&self, uri: &str) {
        let hash = ContentHash::from_uri(uri).unwrap();
        self.files.lock().unwrap().contents.insert(hash, b"spoilt".to_vec());
    }

    /// From now on no download has more than so many bytes, and all longer ones break there.
    pub fn cut_downloads_after(&self, bytes: usize) {
        self.files.lock().unwrap().cut_downloads_after = Some(bytes);
    }

    /// Where the downloads of a content were asked to begin, one after the other.
    pub fn downloads_of(&self, content: &[u8]) -> Vec<i64> {
        let files = self.files.lock().unwrap();
        files.downloads.get(&ContentHash::of(content)).cloned().unwrap_or_default()
    }

    /// Answers uploads of files with `part` in their name like this from now on.
    pub fn refuse(&self, part: &'static str, answer: Status) {
        self.files.lock().unwrap().refused = Some((part, answer));
    }

    /// Answers every upload once as if an earlier try had still been written down meanwhile.
    pub fn move_offsets(&self) {
        self.files.lock().unwrap().moved = Some(HashSet::new());
    }

    /// Lets uploads wait, or go on.
    pub fn hold_uploads(&self, hold: bool) {
        self.held.send_replace(hold);
    }

    /// A file that was uploaded for a job.
    pub fn kept(&self, job: JobId, name: &str) -> Option<Vec<u8>> {
        self.files.lock().unwrap().kept.get(&(job.to_string(), name.to_owned())).cloned()
    }

    pub fn kept_names(&self, job: JobId) -> Vec<String> {
        let files = self.files.lock().unwrap();
        files.kept.keys().filter(|(of, _)| *of == job.to_string()).map(|(_, name)| name.clone()).collect()
    }
}

struct StopOnDrop(Option<tokio::sync::oneshot::Sender<()>>, Option<JoinHandle<()>>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        drop(self.0.take());
        self.1.take();
    }
}

/// A rank to hand out.
pub struct Rank<'a> {
    pub job: JobId,
    pub epoch: u64,
    pub members: &'a [v1::RingMember],
    pub rank: usize,
    pub spec: &'a JobSpec,
}

impl Session {
    pub fn member(&self) -> v1::RingMember {
        v1::RingMember { worker_id: self.hello.worker_id.clone(), address: self.hello.address.clone() }
    }

    pub async fn say(&self, message: Down) {
        self.down.send(Ok(v1::SessionResponse { message: Some(message) })).await.unwrap();
    }

    /// A message that no version has yet: one whose only field is unknown.
    pub async fn say_something_unknown(&self) {
        self.down.send(Ok(v1::SessionResponse { message: None })).await.unwrap();
    }

    pub async fn assign(&self, rank: Rank<'_>) {
        self.assign_in(rank, "no").await;
    }

    /// A place in a later ring than this one, of which it is not.
    pub async fn join(&self, rank: Rank<'_>) {
        let mut joins = self.assignment(rank, "no");
        (joins.rank, joins.joins) = (-1, true);
        self.say(Down::Assignment(joins)).await;
    }

    /// The only rank of a job's ring.
    pub async fn assign_alone(&self, job: JobId, spec: &JobSpec) {
        self.assign(Rank { job, epoch: 1, members: &[self.member()], rank: 0, spec }).await;
    }

    /// The same of a job whose steps up to this one were done before, and are only computed again.
    pub async fn assign_proof(&self, job: JobId, spec: &JobSpec, last_step: i64) {
        let members = [self.member()];
        let mut proves = self.assignment(Rank { job, epoch: 1, members: &members, rank: 0, spec }, "no");
        proves.proof = Some(v1::Proof { last_step });
        self.say(Down::Assignment(proves)).await;
    }

    pub async fn assign_in(&self, rank: Rank<'_>, precision: &str) {
        self.say(Down::Assignment(self.assignment(rank, precision))).await;
    }

    fn assignment(&self, rank: Rank<'_>, precision: &str) -> v1::Assignment {
        v1::Assignment {
            ring: Some(v1::RingView {
                job_id: rank.job.to_string(),
                epoch: rank.epoch,
                members: rank.members.to_vec(),
                protocol: self.ring_protocol,
            }),
            rank: rank.rank as i32,
            spec: Some(spec_to_wire(rank.spec)),
            threads_per_rank: 1,
            precision: precision.to_owned(),
            numerics_class: "test".to_owned(),
            version: VERSION.to_owned(),
            spec_sha256: rank.spec.hash().unwrap().to_string(),
            ..v1::Assignment::default()
        }
    }

    pub async fn start(&self, job: JobId) {
        self.say(Down::StartRank(v1::StartRank { job_id: job.to_string(), epoch: 1 })).await;
    }

    /// Starts training once the rank is prepared.
    pub async fn start_when_ready(&mut self, job: JobId) {
        self.until(v1::RankPhase::Ready).await;
        self.start(job).await;
    }

    pub async fn stop(&self, job: JobId, keep_artifacts: bool) {
        self.stop_at(job, 1, keep_artifacts).await;
    }

    pub async fn stop_at(&self, job: JobId, epoch: u64, keep_artifacts: bool) {
        let reason = "test".to_owned();
        let stop = v1::StopRank { job_id: job.to_string(), epoch, reason, keep_artifacts };
        self.say(Down::StopRank(stop)).await;
    }

    pub async fn stored(&self, job: JobId, step: i64) {
        self.say(Down::StepsStored(v1::StepsStored { job_id: job.to_string(), step, epoch: 1 })).await;
    }

    /// The next message of any kind; `None` when the session has ended.
    pub async fn next(&mut self) -> Option<Up> {
        let message = timeout_at(self.ends, self.up.message()).await.expect("the test hangs");
        let message = message.ok().flatten().map(|request| request.message.unwrap());
        if let Some(Up::RankStep(step)) = &message {
            self.steps.keep(step);
            if self.stores_steps {
                let (job_id, epoch) = (step.job_id.clone(), step.epoch);
                let step = step.step.as_ref().unwrap().step;
                let stored = Down::StepsStored(v1::StepsStored { job_id, step, epoch });
                Box::pin(self.say(stored)).await;
            }
        }
        message
    }

    /// Reads on until the rank reports this phase; returns the report and the steps on the way.
    pub async fn until(&mut self, phase: v1::RankPhase) -> (v1::RankReport, Vec<v1::StepReport>) {
        let mut steps = Vec::new();
        loop {
            match self.next().await.expect("the session ended") {
                Up::RankReport(report) if report.phase() == phase => return (report, steps),
                Up::RankReport(report) if report.phase() == v1::RankPhase::Failed => {
                    panic!("the rank failed: {}", report.reason)
                }
                Up::RankStep(step) => steps.push(step.step.unwrap()),
                _ => (),
            }
        }
    }

    /// Lets the rank go and reads on until nothing is held.
    pub async fn let_go(&mut self, job: JobId) {
        self.stop(job, false).await;
        self.until_free().await;
    }

    /// Reads on until a step is done; returns its number.
    pub async fn until_step(&mut self) -> i64 {
        loop {
            if let Up::RankStep(step) = self.next().await.expect("the session ended") {
                return step.step.unwrap().step;
            }
        }
    }

    /// Reads on until the rank's log has an error.
    pub async fn until_error(&mut self) {
        loop {
            if let Up::RankLog(log) = self.next().await.expect("the session ended")
                && log.line.unwrap().level == i32::from(v1::LogLevel::Error)
            {
                return;
            }
        }
    }

    /// Reads on until the next heartbeat; returns what is held.
    pub async fn until_beat(&mut self) -> Vec<v1::HeldRank> {
        loop {
            if let Up::Heartbeat(beat) = self.next().await.expect("the session ended") {
                return beat.held;
            }
        }
    }

    /// Reads on until a heartbeat shows that nothing is held.
    pub async fn until_free(&mut self) {
        loop {
            if let Up::Heartbeat(beat) = self.next().await.expect("the session ended")
                && beat.held.is_empty()
            {
                return;
            }
        }
    }
}

#[tonic::async_trait]
impl WorkerService for Services {
    type SessionStream = ReceiverStream<Result<v1::SessionResponse, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let caller = match request.extensions().get::<Peer>().map(|peer| peer.caller.clone()) {
            Some(Caller::Known(identity)) => Some(identity),
            Some(Caller::Refused(reason)) => return Err(Status::unauthenticated(reason.to_string())),
            _ => None,
        };
        let mut up = request.into_inner();
        let (down, stream) = mpsc::channel(64);
        let first = up.message().await?.and_then(|first| first.message);
        let Some(Up::Hello(hello)) = first else { return Err(Status::invalid_argument("no hello")) };
        let welcome = v1::Welcome {
            coordinator_version: self.language.version.clone(),
            heartbeat_seconds: self.language.heartbeat_seconds,
            session_timeout_seconds: 5.0,
            protocol: self.language.protocol,
            features: self.language.re_forms.then(|| RE_FORM.to_owned()).into_iter().collect(),
        };
        let welcome = v1::SessionResponse { message: Some(Down::Welcome(welcome)) };
        down.send(Ok(welcome)).await.unwrap();
        let stores_steps = self.language.re_forms;
        let (ring_protocol, steps) = (self.language.protocol, self.steps.clone());
        let ends = Instant::now() + LIMIT;
        let session = Session { hello, caller, stores_steps, ring_protocol, up, ends, steps, down };
        let _ = self.sessions.send(session).await;
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
