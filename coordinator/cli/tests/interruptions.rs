//! The client against a coordinator whose streams break: everything goes on where it stopped.

#![allow(clippy::expect_used, reason = "a test may end with a panic")]

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use ringtune_cli::client::{Client, Content, CoordinatorUrl, WatchNews};
use ringtune_proto::v1::{
    self, JobState,
    artifact_service_server::{ArtifactService, ArtifactServiceServer},
    job_event::Event,
    job_service_server::{JobService, JobServiceServer},
    upload_request::Part,
};
use ringtune_shared::ids::ContentHash;
use tokio::{net::TcpListener, sync::Mutex};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming, transport::Server};
use uuid::Uuid;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Events of the job that the fake coordinator has.
const EVENTS: u64 = 7;
/// Events after which a watch breaks, the first times.
const EVENTS_IN_A_STREAM: usize = 3;

/// A coordinator whose streams break in the middle.
#[derive(Default, Clone)]
struct Flaky {
    calls: Arc<AtomicUsize>,
    uploaded: Arc<Mutex<Vec<u8>>>,
}

impl Flaky {
    async fn serve(&self) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("address").to_string();
        let server = Server::builder()
            .add_service(JobServiceServer::new(self.clone()))
            .add_service(ArtifactServiceServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Client::new(&address.parse::<CoordinatorUrl>().expect("an address"))
    }
}

fn content() -> Vec<u8> {
    (0..3_000_000_u32).map(|index| (index % 251) as u8).collect()
}

fn event(sequence: u64) -> v1::JobEvent {
    let to = if sequence == EVENTS { JobState::Succeeded } else { JobState::Running };
    let change = v1::StateChange { to: to as i32, ..v1::StateChange::default() };
    v1::JobEvent { sequence, event: Some(Event::StateChange(change)), ..v1::JobEvent::default() }
}

#[tonic::async_trait]
impl JobService for Flaky {
    type WatchJobStream = Answers<v1::JobEvent>;

    async fn watch_job(
        &self,
        request: Request<v1::WatchJobRequest>,
    ) -> Result<Response<Self::WatchJobStream>, Status> {
        let events = (request.into_inner().after_sequence + 1..=EVENTS).map(|sequence| Ok(event(sequence)));
        let some = stream::iter(events).take(EVENTS_IN_A_STREAM);
        // Once with an error, then by just ending.
        let end = match self.calls.fetch_add(1, Ordering::Relaxed) {
            0 => vec![Err(Status::unavailable("going down"))],
            _ => Vec::new(),
        };
        Ok(Response::new(some.chain(stream::iter(end)).boxed()))
    }

    async fn create_job(
        &self,
        _: Request<v1::CreateJobRequest>,
    ) -> Result<Response<v1::CreateJobResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
    async fn get_job(&self, _: Request<v1::GetJobRequest>) -> Result<Response<v1::GetJobResponse>, Status> {
        // Away for the first two calls.
        match self.calls.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err(Status::unavailable("not yet")),
            _ => Ok(Response::new(v1::GetJobResponse { job: Some(v1::Job::default()) })),
        }
    }
    async fn list_jobs(
        &self,
        _: Request<v1::ListJobsRequest>,
    ) -> Result<Response<v1::ListJobsResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
    async fn cancel_job(
        &self,
        _: Request<v1::CancelJobRequest>,
    ) -> Result<Response<v1::CancelJobResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
    async fn pause_job(
        &self,
        _: Request<v1::PauseJobRequest>,
    ) -> Result<Response<v1::PauseJobResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
    async fn resume_job(
        &self,
        _: Request<v1::ResumeJobRequest>,
    ) -> Result<Response<v1::ResumeJobResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
    async fn delete_job(
        &self,
        _: Request<v1::DeleteJobRequest>,
    ) -> Result<Response<v1::DeleteJobResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
    async fn list_events(
        &self,
        _: Request<v1::ListEventsRequest>,
    ) -> Result<Response<v1::ListEventsResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
    async fn list_steps(
        &self,
        _: Request<v1::ListStepsRequest>,
    ) -> Result<Response<v1::ListStepsResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

#[tonic::async_trait]
impl ArtifactService for Flaky {
    type DownloadStream = Answers<v1::DownloadResponse>;

    async fn upload(
        &self,
        request: Request<Streaming<v1::UploadRequest>>,
    ) -> Result<Response<v1::UploadResponse>, Status> {
        let mut parts = request.into_inner();
        let Some(Part::Header(header)) = parts.message().await?.and_then(|message| message.part) else {
            return Err(Status::invalid_argument("no header"));
        };
        let mut uploaded = self.uploaded.lock().await;
        let mut chunks = 0;
        while let Some(message) = parts.message().await? {
            let Some(Part::Chunk(chunk)) = message.part else {
                return Err(Status::invalid_argument("no chunk"));
            };
            if chunks == 0 && usize::try_from(header.offset) != Ok(uploaded.len()) {
                return Err(Status::failed_precondition("not where it stopped"));
            }
            chunks += 1;
            uploaded.extend_from_slice(&chunk);
            // The first real attempt breaks after two chunks.
            if chunks == 2 && self.calls.fetch_add(1, Ordering::Relaxed) == 0 {
                return Err(Status::unavailable("going down"));
            }
        }
        let complete = uploaded.len() as i64 == header.size;
        let uri = if complete { ContentHash::of(&uploaded).uri() } else { String::new() };
        Ok(Response::new(v1::UploadResponse { committed_size: uploaded.len() as i64, complete, uri }))
    }

    async fn download(
        &self,
        request: Request<v1::DownloadRequest>,
    ) -> Result<Response<Self::DownloadStream>, Status> {
        let offset = usize::try_from(request.into_inner().offset).expect("an offset");
        let rest = content().split_off(offset);
        let message = |chunk: &[u8]| {
            Ok(v1::DownloadResponse {
                chunk: Bytes::copy_from_slice(chunk),
                ..v1::DownloadResponse::default()
            })
        };
        let mut messages: Vec<_> = rest.chunks(1_000_000).map(message).collect();
        if self.calls.fetch_add(1, Ordering::Relaxed) == 0 {
            messages.truncate(1);
            messages.push(Err(Status::unavailable("going down")));
        }
        Ok(Response::new(stream::iter(messages).boxed()))
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
        Err(Status::unimplemented("not here"))
    }
}

#[tokio::test]
async fn a_watch_sees_every_event_once_and_tells_of_outages() {
    let client = Flaky::default().serve().await;
    let mut watch = client.watch(Uuid::nil());
    let (mut sequences, mut outages, mut returns) = (Vec::new(), 0, 0);
    while let Some(news) = watch.next().await.expect("it goes on") {
        match news {
            WatchNews::Event(event) => sequences.push(event.sequence),
            WatchNews::Away(_) => outages += 1,
            WatchNews::Back => returns += 1,
        }
    }
    assert_eq!(sequences, (1..=EVENTS).collect::<Vec<_>>());
    assert_eq!((outages, returns), (2, 2));
}

#[tokio::test]
async fn a_call_is_repeated_while_the_coordinator_is_away() {
    let client = Flaky::default().serve().await;
    client.get_job(Uuid::nil()).await.expect("the third time");
}

#[tokio::test]
async fn an_upload_goes_on_where_it_stopped() {
    let flaky = Flaky::default();
    let client = flaky.serve().await;
    let bytes = Bytes::from(content());
    let sha256 = ContentHash::of(&bytes);
    let upload = Content { bytes: bytes.clone(), sha256, media_type: "image/png" };
    assert_eq!(client.upload(&upload).await.expect("uploaded"), sha256.uri());
    assert_eq!(*flaky.uploaded.lock().await, bytes, "every byte is there once");
}

#[tokio::test]
async fn a_download_goes_on_where_it_stopped_and_leaves_one_whole_file() {
    let client = Flaky::default().serve().await;
    let folder = tempfile::tempdir().expect("folder");
    let artifact = |content: &[u8]| v1::Artifact {
        name: "x.bin".to_owned(),
        sha256: ContentHash::of(content).to_string(),
        ..v1::Artifact::default()
    };
    let saved = client.download(&artifact(&content()), folder.path()).await.expect("downloaded");
    assert_eq!(saved.size, 3_000_000);
    assert_eq!(std::fs::read(&saved.path).expect("saved"), content());

    // Bytes of another hash are not let in, and the file that was there stays.
    client.download(&artifact(b"other"), folder.path()).await.expect_err("the hash is wrong");
    assert_eq!(std::fs::read(&saved.path).expect("still there"), content());
    assert_eq!(std::fs::read_dir(folder.path()).expect("folder").count(), 1, "a half file is left");
}
