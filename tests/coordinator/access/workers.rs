//! Rights of workers: speak for themselves, and send files of their jobs.

use ringtune_proto::v1::{
    self, artifact_service_client::ArtifactServiceClient, download_request::Source,
    job_service_client::JobServiceClient, session_request::Message as Up, session_response::Message as Down,
    upload_request::Part, worker_service_client::WorkerServiceClient,
};
use ringtune_security::{Revoked, Role};
use ringtune_shared::ids::{ContentHash, JobId};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::{
    soon,
    stage::{Client, NODE, Stage, spec},
};

/// A worker with the certificate of [`NODE`].
pub(crate) struct Worker {
    down: Streaming<v1::SessionResponse>,
    _up: mpsc::Sender<v1::SessionRequest>,
}

/// Another worker's UUID.
const OTHER: &str = "0193f2a4-5b6c-7d8e-9f00-112233445588";

fn hello(worker_id: &str) -> v1::Hello {
    // Unique per worker.
    let address = format!("host-{}:7080", worker_id.get(24..).unwrap_or_default());
    v1::Hello { worker_id: worker_id.to_owned(), address, ..crate::samples::hello("host-a") }
}

async fn open(client: Client, worker_id: &str) -> Result<Worker, Status> {
    let (up, words) = mpsc::channel(64);
    up.send(v1::SessionRequest { message: Some(Up::Hello(hello(worker_id))) }).await.unwrap();
    let mut workers = WorkerServiceClient::new(client);
    let down = soon("a session", workers.session(ReceiverStream::new(words))).await?.into_inner();
    let mut worker = Worker { down, _up: up };
    assert!(matches!(worker.next().await, Down::Welcome(_)));
    Ok(worker)
}

impl Worker {
    pub(crate) async fn start(stage: &Stage) -> Self {
        open(stage.known(Role::Worker, NODE).await, NODE).await.unwrap()
    }

    async fn next(&mut self) -> Down {
        soon("a message", self.down.message()).await.unwrap().unwrap().message.unwrap()
    }

    /// Waits until it has a rank of a job; the epoch.
    pub(crate) async fn assigned(&mut self, job: &str) -> u64 {
        loop {
            if let Down::Assignment(given) = self.next().await {
                let ring = given.ring.unwrap();
                assert_eq!(ring.job_id, job);
                return ring.epoch;
            }
        }
    }
}

#[tokio::test]
async fn a_session_and_a_watch_end_with_the_certificate_and_say_so() {
    let stage = Stage::new().await;
    let mut worker = open(stage.ending(Role::Worker, NODE).await, NODE).await.unwrap();
    let mut staying = open(stage.known(Role::Worker, OTHER).await, OTHER).await.unwrap();
    let mut jobs = JobServiceClient::new(stage.ending(Role::Observer, "olga").await);
    let mut watch = jobs.watch_jobs(v1::WatchJobsRequest::default()).await.unwrap().into_inner();
    let session = soon("the end of the session", async {
        loop {
            if let Err(status) = worker.down.message().await {
                return status;
            }
        }
    });
    let session = session.await;
    assert_eq!(session.code(), Code::Unavailable, "{session}");
    let says = format!("the certificate of worker {NODE} ended at 20");
    assert!(session.message().starts_with(&says), "{session}");
    let watch = soon("the end of the watch", async {
        loop {
            if let Err(status) = watch.message().await {
                return status;
            }
        }
    });
    let watch = watch.await;
    assert!(watch.message().starts_with("the certificate of observer olga ended at 20"), "{watch}");
    // Another one's is still good: it is told of a change.
    assert!(matches!(staying.next().await, Down::Trust(_)));
    stage.pki.set_revoked(Revoked { serials: ["0a".to_owned()].into(), ..Revoked::default() });
    assert!(matches!(staying.next().await, Down::Trust(_)));
    // It may open another session with the next certificate.
    Worker::start(&stage).await;
}

#[tokio::test]
async fn a_worker_speaks_for_itself_alone() {
    let stage = Stage::new().await;
    let other = "0193f2a4-5b6c-7d8e-9f00-112233445577";
    let denied = open(stage.known(Role::Worker, NODE).await, other).await.map(drop).unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
    assert!(denied.message().contains("hello.worker_id") && denied.message().contains(NODE), "{denied}");
    assert_eq!(stage.denied("worker"), 1);
    assert!(open(stage.known(Role::Worker, NODE).await, NODE).await.is_ok());
    let person = open(stage.known(Role::Admin, "root").await, NODE).await.map(drop).unwrap_err();
    assert_eq!(person.code(), Code::PermissionDenied);
    stage.stop().await;
}

async fn upload(
    files: &mut ArtifactServiceClient<Client>,
    job_id: &str,
    epoch: Option<u64>,
) -> Result<v1::UploadResponse, Status> {
    let bytes = b"a file of a rank".to_vec();
    let header = v1::UploadHeader {
        sha256: ContentHash::of(&bytes).to_string(),
        size: bytes.len() as i64,
        job_id: job_id.to_owned(),
        name: if job_id.is_empty() { String::new() } else { "a.bin".to_owned() },
        epoch,
        ..v1::UploadHeader::default()
    };
    let parts = [Part::Header(header), Part::Chunk(bytes.into())];
    let requests = parts.map(|part| v1::UploadRequest { part: Some(part) });
    Ok(files.upload(tokio_stream::iter(requests)).await?.into_inner())
}

#[tokio::test]
async fn a_worker_sends_and_reads_files_of_jobs_in_which_it_has_a_place() {
    let stage = Stage::new().await;
    let mut worker = Worker::start(&stage).await;
    let mut ada = stage.jobs(Role::Submitter, "ada").await;
    let mut create = async || {
        let request = v1::CreateJobRequest { spec: Some(spec()), ..Default::default() };
        ada.create_job(request).await.unwrap().into_inner().job.unwrap().job_id
    };
    let (job, waiting) = (create().await, create().await);
    let epoch = worker.assigned(&job).await;
    let mut files = ArtifactServiceClient::new(stage.known(Role::Worker, NODE).await);

    assert!(upload(&mut files, &job, Some(epoch)).await.unwrap().complete);
    // Another job; none; one that there is not; an epoch that is over.
    let code = |outcome: Result<v1::UploadResponse, Status>| outcome.unwrap_err().code();
    assert_eq!(code(upload(&mut files, &waiting, None).await), Code::PermissionDenied);
    assert_eq!(code(upload(&mut files, "", None).await), Code::PermissionDenied);
    assert_eq!(code(upload(&mut files, &JobId::new().to_string(), None).await), Code::NotFound);
    assert_eq!(code(upload(&mut files, &job, Some(epoch + 1)).await), Code::FailedPrecondition);
    assert_eq!(stage.denied("worker"), 2);

    let by_name = |job_id: &str| {
        let source = Source::JobFile(v1::JobFile { job_id: job_id.to_owned(), name: "a.bin".to_owned() });
        v1::DownloadRequest { source: Some(source), ..Default::default() }
    };
    assert!(files.download(by_name(&job)).await.is_ok());
    assert_eq!(files.download(by_name(&waiting)).await.unwrap_err().code(), Code::NotFound);

    // Anyone who knows the hash may read the content, without learning its owner.
    let uri = ContentHash::of(b"a file of a rank").uri();
    let request = v1::DownloadRequest { source: Some(Source::Uri(uri)), ..Default::default() };
    let name = async |client: Client| {
        let mut answer =
            ArtifactServiceClient::new(client).download(request.clone()).await.unwrap().into_inner();
        answer.message().await.unwrap().unwrap().artifact.unwrap().name
    };
    assert_eq!(name(stage.known(Role::Submitter, "ada").await).await, "a.bin");
    assert_eq!(name(stage.known(Role::Submitter, "bob").await).await, "");

    let delete = |job_id: &str, epoch| v1::DeleteArtifactRequest {
        job_id: job_id.to_owned(),
        name: "a.bin".to_owned(),
        epoch,
    };
    let refused = files.delete_artifact(delete(&waiting, None)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let refused = files.delete_artifact(delete(&job, Some(epoch + 1))).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(files.delete_artifact(delete(&job, Some(epoch))).await.is_ok());

    // A user sends files of their own jobs, and of none.
    let mut hers = ArtifactServiceClient::new(stage.known(Role::Submitter, "ada").await);
    let mut his = ArtifactServiceClient::new(stage.known(Role::Submitter, "bob").await);
    assert!(upload(&mut hers, &waiting, None).await.is_ok());
    assert_eq!(code(upload(&mut his, &waiting, None).await), Code::NotFound);
    assert!(upload(&mut his, "", None).await.unwrap().complete);
    stage.stop().await;
}
