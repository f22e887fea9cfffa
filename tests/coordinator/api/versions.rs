//! Workers of other releases: which are refused, which work, and what they may say that this one does not know.

use bytes::{Buf as _, BufMut as _, Bytes};
use futures::StreamExt as _;
use prost::Message as _;
use ringtune_proto::{
    convert::spec_from_wire,
    v1::{self, JobState, RankPhase, session_request::Message as Up, session_response::Message as Down},
};
use ringtune_shared::version::{VERSION, WORKER_PROTOCOLS};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
};
use tonic_types::StatusExt as _;

use crate::{
    coordinator::Coordinator,
    soon,
    uploads::{chunk, header},
    worker::{Worker, hello, training},
};

/// Sends bytes as they are: what this version's types cannot say. Reads answers with this.
pub(crate) struct Raw<T>(pub(crate) fn(Bytes) -> Result<T, Status>);

impl<T: Send + 'static> Codec for Raw<T> {
    type Encode = Vec<u8>;
    type Decode = T;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self(self.0)
    }

    fn decoder(&mut self) -> Self {
        Self(self.0)
    }
}

impl<T> Encoder for Raw<T> {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl<T> Decoder for Raw<T> {
    type Item = T;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<T>, Status> {
        (self.0)(buffer.copy_to_bytes(buffer.remaining())).map(Some)
    }
}

/// A field of a message that no version has yet, with bytes in it.
fn unknown_field(number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::bytes::encode(number, &b"from the future".to_vec(), &mut bytes);
    bytes
}

/// A request as a newer worker writes it: with one more field in each message that a request can hold.
fn newer(request: &v1::SessionRequest) -> Vec<u8> {
    let encoded = request.encode_to_vec();
    // A request is one field: its key, of one byte, the length of its content, and the content.
    let mut rest = encoded.as_slice();
    let key = rest.get_u8();
    let length = prost::encoding::decode_varint(&mut rest).unwrap();
    assert_eq!(length as usize, rest.len());
    let content = [rest, &unknown_field(900)].concat();
    let mut bytes = vec![key];
    prost::encoding::encode_varint(content.len() as u64, &mut bytes);
    bytes.extend(content);
    bytes.extend(unknown_field(901));
    bytes
}

/// A session of a worker that, beside all it says, says something that this version does not know.
async fn start_newer(coordinator: &Coordinator, hello: v1::Hello) -> Result<(Worker, v1::Welcome), Status> {
    let (up, words) = mpsc::channel::<v1::SessionRequest>(64);
    up.send(v1::SessionRequest { message: Some(Up::Hello(hello.clone())) }).await.unwrap();
    let requests = ReceiverStream::new(words)
        .flat_map(|request| futures::stream::iter([newer(&request), unknown_field(902)]));
    let mut client = Grpc::new(coordinator.channel.clone());
    client.ready().await.unwrap();
    let path = PathAndQuery::from_static("/ringtune.v1.WorkerService/Session");
    let read =
        |bytes| v1::SessionResponse::decode(bytes).map_err(|error| Status::internal(error.to_string()));
    let call = client.streaming(Request::new(requests), path, Raw(read));
    let mut down = soon("a session", call).await?.into_inner();
    let first = soon("a welcome", down.message()).await?.unwrap().message;
    let Some(Down::Welcome(welcome)) = first else { panic!("the first word was {first:?}") };
    Ok((Worker::over(hello, up, down), welcome))
}

fn of_release(version: &str, protocol_min: u32, protocol_max: u32) -> v1::Hello {
    let mut hello = v1::Hello { protocol_min, protocol_max, ..hello("host-a") };
    hello.capabilities.as_mut().unwrap().version = version.to_owned();
    hello
}

async fn refusal(coordinator: &Coordinator, hello: v1::Hello) -> Status {
    Worker::open(coordinator, hello).await.err().expect("it was welcomed")
}

#[tokio::test]
async fn a_worker_of_release_0_1_0_is_told_which_versions_fit_and_what_to_install() {
    let coordinator = Coordinator::fresh().await;
    // Its `protocol = 1` stood in field 7; it knew nothing of a range.
    let status = refusal(&coordinator, of_release("0.1.0", 0, 1)).await;
    assert_eq!(status.code(), Code::FailedPrecondition);
    let expected = format!(
        "the worker is Ringtune 0.1.0 and speaks protocol 1, the coordinator is Ringtune {VERSION} and speaks \
         {WORKER_PROTOCOLS}: workers of Ringtune 0.2.0 and newer fit this coordinator; install Ringtune {VERSION} on the \
         worker (or Ringtune 0.1.0 on the coordinator)"
    );
    assert_eq!(status.message(), expected);
    let violations = status.get_details_precondition_failure().unwrap().violations;
    assert_eq!(
        (violations[0].r#type.as_str(), violations[0].subject.as_str()),
        ("PROTOCOL", "hello.protocol_max")
    );
    coordinator.stop().await;
}

#[tokio::test]
async fn a_worker_of_a_release_that_dropped_this_protocol_is_refused_with_what_to_install() {
    let coordinator = Coordinator::fresh().await;
    let status = refusal(&coordinator, of_release("9.1.0", 7, 9)).await;
    assert_eq!(status.code(), Code::FailedPrecondition);
    for part in ["Ringtune 9.1.0 and speaks protocols 7 to 9", "install Ringtune 9.1.0 on the coordinator"] {
        assert!(status.message().contains(part), "{}", status.message());
    }
    // An invalid range.
    let status = refusal(&coordinator, of_release("0.2.0", 3, 2)).await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "hello.protocol_min: got 3; allowed: at most protocol_max, which is 2");
    let status =
        refusal(&coordinator, v1::Hello { features: vec!["No!".to_owned()], ..hello("host-a") }).await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().starts_with("hello.features: got \"No!\"; allowed: "), "{}", status.message());
    coordinator.stop().await;
}

/// The range has ours, and everything that it says has more in it than this version knows.
#[tokio::test]
async fn a_worker_of_the_next_minor_version_does_a_whole_job() {
    let coordinator = Coordinator::fresh().await;
    let features = vec!["feature-of-the-future".to_owned()];
    let next = of_release("0.3.0", WORKER_PROTOCOLS.max, WORKER_PROTOCOLS.max + 1);
    let next = v1::Hello { features, ..next };
    let (mut worker, welcome) = start_newer(&coordinator, next).await.unwrap();
    assert_eq!((welcome.protocol, welcome.features.as_slice()), (WORKER_PROTOCOLS.max, [].as_slice()));
    assert_eq!(welcome.coordinator_version, VERSION);

    let job = coordinator.create(1).await;
    let assignment = worker.take_rank().await;
    assert_eq!(assignment.ring.unwrap().protocol, WORKER_PROTOCOLS.max);
    // The hash tells a worker whether it knows every field of the job.
    let read = spec_from_wire(assignment.spec.unwrap()).unwrap();
    assert_eq!(assignment.spec_sha256, read.hash().unwrap().to_string());
    // A line and a stage that only it knows.
    let (job_id, epoch) = (worker.held.job_id.clone(), worker.held.epoch);
    let line = v1::LogLine { level: 77, rank: Some(0), message: "unheard of".to_owned() };
    worker.say(Up::RankLog(v1::RankLog { job_id: job_id.clone(), epoch, line: Some(line) })).await;
    let progress = v1::RankProgress { rank: 0, stage: 77, done: 1, total: 2 };
    worker
        .say(Up::RankReport(v1::RankReport {
            job_id,
            epoch,
            phase: RankPhase::Preparing.into(),
            progress: Some(progress),
            ..v1::RankReport::default()
        }))
        .await;
    worker.report(RankPhase::Ready, "").await;
    worker.train().await;
    worker.finish().await;
    let done = coordinator.end(&job.job_id).await;
    assert_eq!(done.state(), JobState::Succeeded, "{}", done.state_reason);
    // Everything skipped was counted.
    let metrics = coordinator.http_get("/metrics").await;
    let count = |what: &str| {
        let name = format!("ringtune_unknown_messages_total{{what=\"{what}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap_or_else(|| panic!("no {what} in {metrics}")).parse::<u32>().unwrap()
    };
    assert!(count("message") >= 5, "one with each word");
    assert_eq!((count("log_level"), count("progress_stage")), (1, 1));
    coordinator.stop().await;
}

#[tokio::test]
async fn the_cluster_and_every_step_say_what_they_belong_to() {
    let (coordinator, mut worker, job) = training(|_| ()).await;
    worker.step(1).await;
    let request = v1::ListStepsRequest { job_id: job.job_id.clone(), ..v1::ListStepsRequest::default() };
    let steps = coordinator.jobs().list_steps(request).await.unwrap().into_inner().steps;
    assert_eq!((steps[0].step, steps[0].epoch), (1, worker.held.epoch));
    let cluster = coordinator.cluster().get_cluster(v1::GetClusterRequest {}).await.unwrap().into_inner();
    assert_eq!((cluster.protocol_min, cluster.protocol_max), (WORKER_PROTOCOLS.min, WORKER_PROTOCOLS.max));
    let idle = Worker::start(&coordinator, "host-b").await;
    for (who, rank) in [(&worker, Some(0)), (&idle, None)] {
        let request = v1::GetWorkerRequest { worker_id: who.hello.worker_id.clone() };
        let known = coordinator.cluster().get_worker(request).await.unwrap().into_inner().worker.unwrap();
        assert_eq!(known.rank, rank);
    }
    coordinator.stop().await;
}

/// Expects these counts of messages of other epochs, by kind.
async fn expect_other_epochs(coordinator: &Coordinator, counted: &[(&str, u32)]) {
    let metrics = coordinator.http_get("/metrics").await;
    for (what, count) in counted {
        let name = format!("ringtune_other_epoch_total{{what=\"{what}\"}} ");
        let found = metrics.lines().find_map(|line| line.strip_prefix(&name));
        assert_eq!(found.map_or(Ok(0), str::parse), Ok(*count), "{what} in {metrics}");
    }
}

#[tokio::test]
async fn files_of_another_epoch_than_the_ring_s_are_refused_and_change_nothing() {
    let (coordinator, worker, job) = training(|_| ()).await;
    let upload = |epoch, content: &'static [u8]| {
        let (job_id, name) = (job.job_id.clone(), "a.bin".to_owned());
        let header = v1::UploadHeader { job_id, name, epoch, ..header(content) };
        coordinator.upload(header, vec![chunk(content)])
    };
    let epoch = worker.held.epoch;
    upload(Some(epoch), b"of this ring").await.unwrap();
    for other in [epoch - 1, epoch + 1] {
        let refused = upload(Some(other), b"of another ring").await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        for part in [format!("epoch {other}"), format!("is at epoch {epoch} now"), job.job_id.clone()] {
            assert!(refused.message().contains(&part), "{part}: {}", refused.message());
        }
        let request = v1::DeleteArtifactRequest {
            job_id: job.job_id.clone(),
            name: "a.bin".to_owned(),
            epoch: Some(other),
        };
        let refused = coordinator.artifacts().delete_artifact(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
    }
    let request = v1::ListArtifactsRequest { job_id: job.job_id.clone(), ..Default::default() };
    let listed = coordinator.artifacts().list_artifacts(request).await.unwrap().into_inner().artifacts;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].sha256, header(b"of this ring").sha256);
    // A user's upload is of no epoch.
    upload(None, b"of a user").await.unwrap();
    let counted = ["upload", "deletion", "log"].map(|what| (what, 2 * u32::from(what != "log")));
    expect_other_epochs(&coordinator, &counted).await;
    coordinator.stop().await;
}

#[tokio::test]
async fn who_claims_a_rank_that_is_another_s_or_speaks_of_another_epoch_changes_nothing() {
    let (coordinator, mut worker, job) = training(|_| ()).await;
    let mut other = Worker::start(&coordinator, "host-b").await;
    other.held = worker.held.clone();
    other.say_step(1).await;
    other.report(RankPhase::Failed, "not mine to say").await;
    assert_eq!(other.stopped(false).await, "the coordinator has no such rank");
    // The holder's own words, but of an epoch that is not.
    let line = v1::LogLine { level: v1::LogLevel::Info.into(), rank: Some(0), message: "stale".to_owned() };
    let stale = v1::RankLog { job_id: job.job_id.clone(), epoch: worker.held.epoch + 1, line: Some(line) };
    worker.say(Up::RankLog(stale)).await;
    worker.held.epoch += 1;
    worker.say_step(1).await;
    worker.report(RankPhase::Failed, "not of this ring").await;
    assert_eq!(worker.stopped(false).await, "the coordinator has no such rank");
    worker.held.epoch -= 1;
    worker.finish().await;
    let done = coordinator.end(&job.job_id).await;
    assert_eq!(done.state(), JobState::Succeeded, "{}", done.state_reason);
    let events = coordinator.watch(&job.job_id, 0).await.rest().await;
    expect_other_epochs(&coordinator, &[("step", 1), ("log", 1), ("report", 1)]).await;
    let stale = |event: &v1::job_event::Event| matches!(event, v1::job_event::Event::Log(line) if line.message == "stale");
    assert!(!events.iter().any(stale));
    coordinator.stop().await;
}

#[tokio::test]
async fn a_worker_that_floods_loses_its_session_and_no_other_does() {
    let (coordinator, mut worker, job) = training(|_| ()).await;
    let (mut flooding, _) = start_newer(&coordinator, hello("host-b")).await.unwrap();
    let heartbeat = v1::SessionRequest { message: Some(Up::Heartbeat(v1::Heartbeat::default())) };
    let up = flooding.up();
    let flood = tokio::spawn(async move { while up.send(heartbeat.clone()).await.is_ok() {} });
    let ended = flooding.end().await;
    assert_eq!(ended.code(), Code::ResourceExhausted);
    assert!(ended.message().contains("25000 at once, or 1000 per second"), "{}", ended.message());
    drop(flooding);
    soon("the flood's end", flood).await.unwrap();
    worker.finish().await;
    assert_eq!(coordinator.end(&job.job_id).await.state(), JobState::Succeeded);
    coordinator.stop().await;
}
