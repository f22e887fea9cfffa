//! A coordinator without a will: tests accept its sessions and say what it says.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use ringtune_proto::{
    convert::spec_to_wire,
    v1::{
        self,
        artifact_service_server::{ArtifactService, ArtifactServiceServer},
        download_request::Source,
        session_request::Message as Up,
        session_response::Message as Down,
        worker_service_server::{WorkerService, WorkerServiceServer},
    },
};
use ringtune_shared::{
    ids::{ContentHash, JobId},
    job::JobSpec,
    manifest::{Manifest, ManifestFile},
    version::{RING_PROTOCOLS, VERSION, WORKER_PROTOCOLS},
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{
    Code, Request, Response, Status, Streaming,
    transport::{Server, server::TcpIncoming},
};
use tonic_types::{ErrorDetails, StatusExt as _};

/// Contents by hash, and the files of jobs by name.
#[derive(Default)]
pub struct Files {
    contents: HashMap<ContentHash, Vec<u8>>,
    kept: BTreeMap<(String, String), Vec<u8>>,
    /// Downloads break after so many bytes each.
    cut_downloads_after: Option<usize>,
    /// Where downloads of each content were asked to begin.
    downloads: HashMap<ContentHash, Vec<i64>>,
    /// What an upload is answered instead, by a part of the file's name.
    refused: Option<(&'static str, Status)>,
    /// Every upload is answered once that its file goes on elsewhere than it thought.
    moved: Option<HashSet<String>>,
}

#[derive(Clone)]
struct Services {
    files: Arc<Mutex<Files>>,
    /// Uploads wait as long as it is true.
    held: watch::Sender<bool>,
    sessions: mpsc::Sender<Session>,
    language: Language,
}

/// What a coordinator says of itself in its welcome.
#[derive(Clone)]
pub struct Language {
    pub version: String,
    pub protocol: u32,
}

impl Default for Language {
    fn default() -> Self {
        Self { version: VERSION.to_owned(), protocol: WORKER_PROTOCOLS.max }
    }
}

pub struct Coordinator {
    pub address: SocketAddr,
    files: Arc<Mutex<Files>>,
    held: watch::Sender<bool>,
    sessions: mpsc::Receiver<Session>,
    server: JoinHandle<()>,
}

/// One worker's session.
pub struct Session {
    pub hello: v1::Hello,
    up: Streaming<v1::SessionRequest>,
    down: mpsc::Sender<Result<v1::SessionResponse, Status>>,
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Coordinator {
    pub async fn start() -> Self {
        Self::start_as(Language::default(), SocketAddr::from(([127, 0, 0, 1], 0)), Arc::default()).await
    }

    pub async fn speaking(language: Language) -> Self {
        Self::start_as(language, SocketAddr::from(([127, 0, 0, 1], 0)), Arc::default()).await
    }

    /// As a crash and a restart look to workers: every connection breaks; files are still there.
    pub async fn restart(self) -> Self {
        let (address, files) = (self.address, Arc::clone(&self.files));
        self.stop().await;
        Self::start_as(Language::default(), address, files).await
    }

    /// Everything of it is gone when this returns.
    pub async fn stop(mut self) {
        self.server.abort();
        let _ = (&mut self.server).await;
    }

    async fn start_as(language: Language, address: SocketAddr, files: Arc<Mutex<Files>>) -> Self {
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
        let services = Services { files: Arc::clone(&files), held: held.clone(), sessions: sender, language };
        let server = Server::builder()
            .add_service(WorkerServiceServer::new(services.clone()))
            .add_service(ArtifactServiceServer::new(services));
        // In a runtime of its own, so that stopping it breaks every connection, as a killed process does.
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let listener = listener.into_std().unwrap();
        let thread = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let incoming = TcpIncoming::from(TcpListener::from_std(listener).unwrap());
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
        Self { address, files, held, sessions, server }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next worker that says hello; it has been welcomed.
    pub async fn accept(&mut self) -> Session {
        self.sessions.recv().await.unwrap()
    }

    /// Makes an image folder available; returns data.images.
    pub fn add_images(&self, images: &[(&str, Vec<u8>)]) -> String {
        let mut files = self.files.lock().unwrap();
        let mut entries = Vec::new();
        for (name, content) in images {
            let sha256 = ContentHash::of(content);
            entries.push(ManifestFile {
                name: (*name).to_owned(),
                sha256,
                size: content.len() as u64,
                caption: None,
            });
            files.contents.insert(sha256, content.clone());
        }
        let manifest = Manifest::new(entries).unwrap().to_json().unwrap();
        let hash = ContentHash::of(&manifest);
        files.contents.insert(hash, manifest);
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

    /// The only rank of a job's ring.
    pub async fn assign_alone(&self, job: JobId, spec: &JobSpec) {
        self.assign(Rank { job, epoch: 1, members: &[self.member()], rank: 0, spec }).await;
    }

    pub async fn assign_in(&self, rank: Rank<'_>, precision: &str) {
        self.say(Down::Assignment(v1::Assignment {
            ring: Some(v1::RingView {
                job_id: rank.job.to_string(),
                epoch: rank.epoch,
                members: rank.members.to_vec(),
                protocol: RING_PROTOCOLS.max,
            }),
            rank: rank.rank as i32,
            spec: Some(spec_to_wire(rank.spec)),
            threads_per_rank: 1,
            precision: precision.to_owned(),
            numerics_class: "test".to_owned(),
            version: VERSION.to_owned(),
            spec_sha256: rank.spec.hash().unwrap().to_string(),
            ..v1::Assignment::default()
        }))
        .await;
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
        let reason = "test".to_owned();
        let stop = v1::StopRank { job_id: job.to_string(), epoch: 1, reason, keep_artifacts };
        self.say(Down::StopRank(stop)).await;
    }

    pub async fn stored(&self, job: JobId, step: i64) {
        self.say(Down::StepsStored(v1::StepsStored { job_id: job.to_string(), step, epoch: 1 })).await;
    }

    /// The next message of any kind; `None` when the session has ended.
    pub async fn next(&mut self) -> Option<Up> {
        self.up.message().await.ok().flatten().map(|request| request.message.unwrap())
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
        let mut up = request.into_inner();
        let (down, stream) = mpsc::channel(64);
        let first = up.message().await?.and_then(|first| first.message);
        let Some(Up::Hello(hello)) = first else { return Err(Status::invalid_argument("no hello")) };
        let welcome = v1::Welcome {
            coordinator_version: self.language.version.clone(),
            heartbeat_seconds: 0.1,
            session_timeout_seconds: 5.0,
            protocol: self.language.protocol,
            features: Vec::new(),
        };
        let welcome = v1::SessionResponse { message: Some(Down::Welcome(welcome)) };
        down.send(Ok(welcome)).await.unwrap();
        let _ = self.sessions.send(Session { hello, up, down }).await;
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

#[tonic::async_trait]
impl ArtifactService for Services {
    type DownloadStream = tokio_stream::Iter<std::vec::IntoIter<Result<v1::DownloadResponse, Status>>>;

    async fn upload(
        &self,
        request: Request<Streaming<v1::UploadRequest>>,
    ) -> Result<Response<v1::UploadResponse>, Status> {
        use v1::upload_request::Part;
        let mut stream = request.into_inner();
        let (mut header, mut content) = (None, Vec::new());
        while let Some(message) = stream.next().await {
            match message?.part.unwrap() {
                Part::Header(first) => header = Some(first),
                Part::Chunk(chunk) => content.extend_from_slice(&chunk),
            }
        }
        let header = header.unwrap();
        self.held.subscribe().wait_for(|held| !held).await.unwrap();
        let mut files = self.files.lock().unwrap();
        if let Some((part, answer)) = &files.refused
            && header.name.contains(part)
        {
            return Err(answer.clone());
        }
        let complete = content.len() as i64 == header.size;
        if complete {
            assert_eq!(ContentHash::of(&content).to_string(), header.sha256);
            if files.moved.as_mut().is_some_and(|moved| moved.insert(header.name.clone())) {
                let details = ErrorDetails::with_error_info("UPLOAD_OFFSET", "ringtune", HashMap::new());
                let text = "the file goes on elsewhere";
                return Err(Status::with_error_details(Code::FailedPrecondition, text, details));
            }
            files.kept.insert((header.job_id, header.name), content);
        }
        let response = v1::UploadResponse { committed_size: 0, complete, uri: String::new() };
        Ok(Response::new(response))
    }

    async fn download(
        &self,
        request: Request<v1::DownloadRequest>,
    ) -> Result<Response<Self::DownloadStream>, Status> {
        let v1::DownloadRequest { source, offset, .. } = request.into_inner();
        let Some(Source::Uri(uri)) = source else {
            return Err(Status::invalid_argument("no uri"));
        };
        let hash = ContentHash::from_uri(&uri).unwrap();
        let mut files = self.files.lock().unwrap();
        files.downloads.entry(hash).or_default().push(offset);
        let content = files.contents.get(&hash).ok_or_else(|| Status::not_found("no such content"))?;
        let rest = &content[usize::try_from(offset).unwrap()..];
        let sent = rest.len().min(files.cut_downloads_after.unwrap_or(usize::MAX));
        let mut parts: Vec<_> = rest[..sent]
            .chunks(1000)
            .map(|chunk| Ok(v1::DownloadResponse { artifact: None, chunk: Bytes::copy_from_slice(chunk) }))
            .collect();
        if sent < rest.len() {
            parts.push(Err(Status::unavailable("the coordinator is restarting")));
        }
        Ok(Response::new(tokio_stream::iter(parts)))
    }

    async fn delete_artifact(
        &self,
        _: Request<v1::DeleteArtifactRequest>,
    ) -> Result<Response<v1::DeleteArtifactResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }

    async fn list_artifacts(
        &self,
        _: Request<v1::ListArtifactsRequest>,
    ) -> Result<Response<v1::ListArtifactsResponse>, Status> {
        Err(Status::unimplemented("not needed"))
    }
}
