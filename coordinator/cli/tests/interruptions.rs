//! The client against a coordinator whose streams break: everything goes on where it stopped.

#![allow(clippy::expect_used, reason = "a test may end with a panic")]

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use ringtune_cli::client::{Client, Content, CoordinatorUrl, ManyNews, WatchNews};
use ringtune_proto::v1::{
    self, JobState,
    artifact_service_server::{ArtifactService, ArtifactServiceServer},
    job_event::Event,
    job_service_server::{JobService, JobServiceServer},
    upload_request::Part,
    watch_job_response::Response as Said,
    watch_jobs_response::Response as ManySaid,
};
use ringtune_shared::ids::ContentHash;
use tokio::{net::TcpListener, sync::Mutex};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, Response, Status, Streaming, transport::Server};
use tonic_types::{ErrorDetails, StatusExt as _};
use uuid::Uuid;

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

/// Events of the job that the fake coordinator has.
const EVENTS: u64 = 7;
/// Events after which a watch breaks, the first times.
const EVENTS_IN_A_STREAM: usize = 3;

/// The jobs that are listed.
const LISTED: [&str; 3] = [
    "01a22026-cdf3-728e-bdef-20f441b7eb6d",
    "01a22026-aaaa-728e-bdef-20f4beefeb6d",
    "01a22026-bbbb-728e-bdef-20f441b7cafe",
];

/// A coordinator whose streams break in the middle.
#[derive(Default, Clone)]
struct Flaky {
    calls: Arc<AtomicUsize>,
    /// Of the jobs that were asked for.
    request_ids: Arc<Mutex<Vec<String>>>,
    uploaded: Arc<Mutex<Vec<u8>>>,
}

impl Flaky {
    async fn serve(&self) -> Client {
        Client::new(&self.listen().await.parse::<CoordinatorUrl>().expect("an address"))
    }

    /// Returns its address.
    async fn listen(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("address").to_string();
        let server = Server::builder()
            .add_service(JobServiceServer::new(self.clone()))
            .add_service(ArtifactServiceServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        address
    }
}

fn content() -> Vec<u8> {
    (0..3_000_000_u32).map(|index| (index % 251) as u8).collect()
}

fn not_here<T>() -> Answer<T> {
    Err(Status::unimplemented("not here"))
}

fn ask_again(code: Code) -> Status {
    let details = ErrorDetails::with_retry_info(Some(Duration::from_millis(10)));
    Status::with_error_details(code, "not now", details)
}

fn event(sequence: u64) -> v1::JobEvent {
    let to = if sequence == EVENTS { JobState::Succeeded } else { JobState::Running };
    let change = v1::StateChange { to: to as i32, ..v1::StateChange::default() };
    v1::JobEvent { sequence, event: Some(Event::StateChange(change)), ..v1::JobEvent::default() }
}

#[tonic::async_trait]
impl JobService for Flaky {
    type WatchJobStream = Streamed<v1::WatchJobResponse>;
    type WatchJobsStream = Streamed<v1::WatchJobsResponse>;

    async fn watch_job(&self, request: Request<v1::WatchJobRequest>) -> Answer<Self::WatchJobStream> {
        let answer = |response| Ok(v1::WatchJobResponse { response: Some(response) });
        let events = (request.into_inner().after_sequence + 1..=EVENTS)
            .map(move |sequence| answer(Said::Event(event(sequence))));
        let some = stream::iter(events).take(EVENTS_IN_A_STREAM);
        // What is not an event counts for nothing.
        let others = [Said::Alive(v1::SignOfLife::default()), Said::Progress(v1::RingProgress::default())];
        let some = stream::iter(others.map(answer)).chain(some);
        // Once with an error, then by just ending.
        let end = match self.calls.fetch_add(1, Ordering::Relaxed) {
            0 => vec![Err(Status::unavailable("going down"))],
            _ => Vec::new(),
        };
        Ok(Response::new(some.chain(stream::iter(end)).boxed()))
    }

    /// Each job as it is, and then one event of the first: in the end the last one.
    async fn watch_jobs(&self, request: Request<v1::WatchJobsRequest>) -> Answer<Self::WatchJobsStream> {
        let ids = request.into_inner().job_ids;
        let sequence = EVENTS - 2 + self.calls.fetch_add(1, Ordering::Relaxed) as u64;
        let job = |id: &String| {
            let last_sequence = sequence - 1;
            ManySaid::Job(v1::Job { job_id: id.clone(), last_sequence, ..Default::default() })
        };
        let mut answers: Vec<_> = ids.iter().map(job).collect();
        answers.push(ManySaid::Event(v1::JobEvent { job_id: ids[0].clone(), ..event(sequence) }));
        let answer = |response| Ok(v1::WatchJobsResponse { response: Some(response) });
        Ok(Response::new(stream::iter(answers.into_iter().map(answer)).boxed()))
    }

    async fn create_job(&self, request: Request<v1::CreateJobRequest>) -> Answer<v1::CreateJobResponse> {
        let request = request.into_inner();
        self.request_ids.lock().await.push(request.request_id);
        if request.spec.is_some_and(|spec| spec.name == "late") {
            return Err(Status::deadline_exceeded("the call took longer than 30 s"));
        }
        // Its queue is full for the first two calls.
        match self.calls.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err(ask_again(Code::ResourceExhausted)),
            _ => Ok(Response::new(v1::CreateJobResponse { job: Some(v1::Job::default()) })),
        }
    }
    async fn verify_job(&self, _request: Request<v1::VerifyJobRequest>) -> Answer<v1::VerifyJobResponse> {
        not_here()
    }

    async fn get_job(&self, _: Request<v1::GetJobRequest>) -> Answer<v1::GetJobResponse> {
        // Away for the first two calls.
        match self.calls.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err(Status::unavailable("not yet")),
            _ => {
                Ok(Response::new(v1::GetJobResponse { job: Some(v1::Job::default()), ..Default::default() }))
            }
        }
    }
    /// Three pages, a job on each, whose names are all the same; the newest is a verification.
    async fn list_jobs(&self, request: Request<v1::ListJobsRequest>) -> Answer<v1::ListJobsResponse> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let page: usize = request.into_inner().page_token.parse().unwrap_or(0);
        let (job_id, name) = (LISTED[page].to_owned(), "star".to_owned());
        let verification = (page == 0).then(v1::Verification::default);
        let job = v1::Job { job_id, name, verification, ..v1::Job::default() };
        let next = (page + 1 < LISTED.len()).then(|| (page + 1).to_string());
        let answer = v1::ListJobsResponse { jobs: vec![job], next_page_token: next.unwrap_or_default() };
        Ok(Response::new(answer))
    }
    async fn cancel_job(&self, request: Request<v1::CancelJobRequest>) -> Answer<v1::CancelJobResponse> {
        let job = v1::Job { job_id: request.into_inner().job_id, ..v1::Job::default() };
        Ok(Response::new(v1::CancelJobResponse { job: Some(job) }))
    }
    async fn create_sweep(&self, _: Request<v1::CreateSweepRequest>) -> Answer<v1::CreateSweepResponse> {
        not_here()
    }
    async fn get_sweep(&self, _: Request<v1::GetSweepRequest>) -> Answer<v1::GetSweepResponse> {
        not_here()
    }
    async fn cancel_sweep(&self, _: Request<v1::CancelSweepRequest>) -> Answer<v1::CancelSweepResponse> {
        not_here()
    }
    async fn pause_job(&self, _: Request<v1::PauseJobRequest>) -> Answer<v1::PauseJobResponse> {
        not_here()
    }
    async fn order_job(&self, _: Request<v1::OrderJobRequest>) -> Answer<v1::OrderJobResponse> {
        not_here()
    }
    async fn resume_job(&self, _: Request<v1::ResumeJobRequest>) -> Answer<v1::ResumeJobResponse> {
        not_here()
    }
    async fn delete_job(&self, _: Request<v1::DeleteJobRequest>) -> Answer<v1::DeleteJobResponse> {
        not_here()
    }
    async fn list_events(&self, _: Request<v1::ListEventsRequest>) -> Answer<v1::ListEventsResponse> {
        not_here()
    }
    async fn list_steps(&self, _: Request<v1::ListStepsRequest>) -> Answer<v1::ListStepsResponse> {
        not_here()
    }
}

#[tonic::async_trait]
impl ArtifactService for Flaky {
    type DownloadStream = Streamed<v1::DownloadResponse>;

    async fn upload(&self, request: Request<Streaming<v1::UploadRequest>>) -> Answer<v1::UploadResponse> {
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
            // The first real attempt breaks after two chunks; the next one comes while somebody else sends the file.
            if chunks == 2 {
                match self.calls.fetch_add(1, Ordering::Relaxed) {
                    0 => return Err(Status::unavailable("going down")),
                    1 => return Err(ask_again(Code::Aborted)),
                    _ => {}
                }
            }
        }
        let complete = uploaded.len() as i64 == header.size;
        let uri = if complete { ContentHash::of(&uploaded).uri() } else { String::new() };
        Ok(Response::new(v1::UploadResponse { committed_size: uploaded.len() as i64, complete, uri }))
    }

    async fn download(&self, request: Request<v1::DownloadRequest>) -> Answer<Self::DownloadStream> {
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
    ) -> Answer<v1::DeleteArtifactResponse> {
        not_here()
    }

    async fn list_artifacts(
        &self,
        _: Request<v1::ListArtifactsRequest>,
    ) -> Answer<v1::ListArtifactsResponse> {
        not_here()
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
            WatchNews::Progress(ranks) => assert!(ranks.is_empty()),
            WatchNews::Timings(_) => panic!("nobody said it"),
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
async fn a_watch_of_many_begins_anew_and_tells_each_thing_once() {
    let client = Flaky::default().serve().await;
    let ids = [Uuid::from_u128(1), Uuid::from_u128(2)];
    let mut watch = client.watch_many(&ids);
    let (mut jobs, mut events) = (Vec::new(), Vec::new());
    // The first job ends; the second never does, so that the watch would go on.
    while events.last() != Some(&EVENTS) {
        match watch.next().await.expect("it goes on").expect("a job is left") {
            ManyNews::Job(job) => jobs.push((job.job_id, job.last_sequence)),
            ManyNews::Event(event) => events.push(event.sequence),
            ManyNews::Away(_) | ManyNews::Back => {}
        }
    }
    assert_eq!(events, [EVENTS - 2, EVENTS - 1, EVENTS]);
    let [first, second] = ids.map(|id| id.to_string());
    // Of the first all is known from its events; of the second there is news each time.
    let news =
        |id: &String| jobs.iter().filter(|(job, _)| job == id).map(|(_, last)| *last).collect::<Vec<_>>();
    assert_eq!(news(&first), [EVENTS - 3]);
    assert_eq!(news(&second), [EVENTS - 3, EVENTS - 2, EVENTS - 1]);
}

#[tokio::test]
async fn a_call_is_repeated_as_the_coordinator_asks() {
    let flaky = Flaky::default();
    let client = flaky.serve().await;
    client
        .create_job(v1::JobSpec::default(), v1::QueueSpec::default(), "once")
        .await
        .expect("the third time");
    assert_eq!(*flaky.request_ids.lock().await, ["once"; 3]);
}

#[tokio::test]
async fn a_submission_without_an_answer_says_how_to_repeat_it() {
    let flaky = Flaky::default();
    let address = flaky.listen().await;
    let folder = tempfile::tempdir().expect("folder");
    let images = ContentHash::of(b"images").uri();
    let job = format!(
        "kind = \"textual_inversion\"\nname = \"late\"\n[model]\nbase = \"hf://a/b\"\n[data]\nimages = \"{images}\"\n\
         [train]\nplaceholder_token = \"<star>\"\ninitializer_token = \"star\"\n"
    );
    std::fs::write(folder.path().join("job.toml"), job).expect("written");
    let submit = tokio::process::Command::new(env!("CARGO_BIN_EXE_ringtune"))
        .args(["submit", "job.toml", "--coordinator", &address])
        .current_dir(folder.path())
        .output();
    let output = submit.await.expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    let asked = flaky.request_ids.lock().await;
    assert_eq!((output.status.code(), asked.len()), (Some(3), 1), "{said}");
    assert!(said.contains(&format!("--request-id {}", asked[0])), "{said}");
    assert!(said.contains("gave no answer in time") && !said.contains("cannot reach"), "{said}");
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

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_found_by_any_piece_of_its_id_on_any_page() {
    let flaky = Flaky::default();
    let address = flaky.listen().await;
    let cancel = async |job: &str| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_ringtune"));
        command.args(["cancel", job, "--output", "json", "--coordinator", &address]);
        let output = command.env_remove("RINGTUNE_CREDENTIALS").output().await.expect("it runs");
        (
            output.status.code(),
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text")),
        )
    };
    // Who asks for TLS where there is none is not sent to look for credentials.
    let mut tls = tokio::process::Command::new(env!("CARGO_BIN_EXE_ringtune"));
    tls.args(["list", "--coordinator", &format!("https://{address}")]);
    tls.env("XDG_CONFIG_HOME", "/nowhere").env_remove("RINGTUNE_CREDENTIALS").env_remove("RINGTUNE_TOKEN");
    let output = tls.output().await.expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && stderr.contains(&format!("write http://{address}")),
        "{stderr}"
    );
    // A whole id is not looked up.
    let (code, [stdout, stderr]) = cancel(LISTED[1]).await;
    assert!(code == Some(0) && stdout.contains(LISTED[1]), "{stderr}");
    assert_eq!(flaky.calls.load(Ordering::Relaxed), 0);
    for (given, means) in [("cafe", 2), ("…41b7cafe", 2), ("01a22026-aa", 1), ("last", 1)] {
        let (code, [stdout, stderr]) = cancel(given).await;
        assert!(code == Some(0) && stdout.contains(LISTED[means]), "{given}: {stdout} {stderr}");
    }
    let (code, [_, stderr]) = cancel("star").await;
    assert_eq!(code, Some(2), "{stderr}");
    assert!(LISTED[1..].iter().all(|id| stderr.contains(id)) && !stderr.contains(LISTED[0]), "{stderr}");
    let (code, [_, stderr]) = cancel("moon").await;
    assert!(code == Some(2) && stderr.contains("there is no job \"moon\""), "{stderr}");
}
