//! Quotas of owners on the disk.

use futures::future::join_all;
use ringtune_coordinator::core::OwnerLimits;
use ringtune_proto::v1::{
    self, access_service_client::AccessServiceClient, artifact_service_client::ArtifactServiceClient,
    upload_request::Part,
};
use ringtune_security::Role;
use ringtune_shared::ids::ContentHash;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::{
    soon,
    stage::{Client, NODE, Stage, spec},
    workers::Worker,
};

/// A hundred bytes, in five files.
const LIMITS: OwnerLimits = OwnerLimits { bytes: 100, files: 5 };

/// Somebody who sends files.
struct User {
    files: ArtifactServiceClient<Client>,
    access: AccessServiceClient<Client>,
}

/// A content of `size` bytes, different for each letter.
fn content(letter: u8, size: usize) -> Vec<u8> {
    vec![letter; size]
}

fn header(bytes: &[u8]) -> v1::UploadHeader {
    v1::UploadHeader {
        sha256: ContentHash::of(bytes).to_string(),
        size: bytes.len() as i64,
        ..v1::UploadHeader::default()
    }
}

fn file_of(job_id: &str, name: &str, bytes: &[u8], epoch: Option<u64>) -> v1::UploadHeader {
    v1::UploadHeader { job_id: job_id.to_owned(), name: name.to_owned(), epoch, ..header(bytes) }
}

fn parts(header: v1::UploadHeader, bytes: &[u8]) -> Vec<v1::UploadRequest> {
    let chunk = (!bytes.is_empty()).then(|| Part::Chunk(bytes.to_vec().into()));
    let parts = [Part::Header(header)].into_iter().chain(chunk);
    parts.map(|part| v1::UploadRequest { part: Some(part) }).collect()
}

impl User {
    async fn new(stage: &Stage, role: Role, name: &str) -> Self {
        let client = stage.known(role, name).await;
        Self { files: ArtifactServiceClient::new(client.clone()), access: AccessServiceClient::new(client) }
    }

    async fn send(&mut self, header: v1::UploadHeader, bytes: &[u8]) -> Result<v1::UploadResponse, Status> {
        let call = self.files.upload(tokio_stream::iter(parts(header, bytes)));
        Ok(soon("an upload", call).await?.into_inner())
    }

    /// A whole file for a job to come.
    async fn upload(&mut self, bytes: &[u8]) -> Result<v1::UploadResponse, Status> {
        self.send(header(bytes), bytes).await
    }

    /// Files and bytes, as the coordinator counts them.
    async fn used(&mut self) -> (i64, i64) {
        let me = self.access.who_am_i(v1::WhoAmIRequest {}).await.unwrap().into_inner();
        let usage = me.usage.unwrap();
        (usage.files, usage.bytes)
    }
}

/// Asserts a permanent refusal that names the setting.
fn assert_over(refused: Result<impl std::fmt::Debug, Status>, setting: &str, said: &[&str]) {
    let status = refused.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let details = status.get_error_details();
    assert_eq!(details.quota_failure().unwrap().violations[0].subject, setting, "{status}");
    assert!(details.retry_info().is_none(), "waiting does not help");
    for part in said.iter().chain([&setting]) {
        assert!(status.message().contains(part), "{part}: {status}");
    }
}

#[tokio::test]
async fn who_has_too_much_is_refused_and_others_are_not() {
    let stage = Stage::limited(LIMITS).await;
    let mut ada = User::new(&stage, Role::Submitter, "ada").await;
    let mut bob = User::new(&stage, Role::Submitter, "bob").await;
    assert!(ada.upload(&content(b'a', 60)).await.unwrap().complete);
    let more = content(b'b', 50);
    // 1. Refused by the header alone, before anything is sent, and with all that is sent at once.
    let said = ["header.size: \"ada\" has 60 bytes", "would have 110; allowed: 100", "delete jobs"];
    assert_over(ada.send(header(&more), b"").await, "limits.owner_bytes", &said);
    assert_over(ada.upload(&more).await, "limits.owner_bytes", &said);
    assert_eq!((ada.used().await, stage.over_quota("bytes")), ((1, 60), 2));
    // 2. Nobody else is concerned.
    assert!(bob.upload(&more).await.unwrap().complete);
    assert_eq!(bob.used().await, (1, 50));
    // 3. What is there for another one is not free, what one has is.
    assert_over(ada.send(header(&more), b"").await, "limits.owner_bytes", &said);
    assert!(ada.send(header(&content(b'a', 60)), b"").await.unwrap().complete);
    assert!(ada.upload(&content(b'a', 60)).await.unwrap().complete);
    assert!(bob.upload(&content(b'a', 50)).await.unwrap().complete);
    assert_eq!((ada.used().await, bob.used().await), ((1, 60), (2, 100)));
    // 4. Files are counted too.
    for letter in b'c'..b'g' {
        assert!(ada.upload(&content(letter, 1)).await.unwrap().complete);
    }
    assert_over(
        ada.upload(&content(b'g', 1)).await,
        "limits.owner_files",
        &["has 5 files", "have 6; allowed: 5"],
    );
    assert_eq!(stage.over_quota("files"), 1);
    // 5. Workers have nothing.
    let mut worker = User::new(&stage, Role::Worker, NODE).await;
    assert!(worker.access.who_am_i(v1::WhoAmIRequest {}).await.unwrap().into_inner().usage.is_none());
    stage.stop().await;
}

#[tokio::test]
async fn an_upload_counts_from_its_first_byte_also_where_it_breaks_off_and_after_a_restart() {
    let stage = Stage::limited(LIMITS).await;
    let mut ada = User::new(&stage, Role::Submitter, "ada").await;
    let whole = content(b'a', 80);
    assert!(!ada.send(header(&whole), b"").await.unwrap().complete);
    assert_eq!(ada.used().await, (0, 0), "a question costs nothing");
    assert!(!ada.send(header(&whole), &whole[..30]).await.unwrap().complete);
    assert_eq!(ada.used().await, (1, 80));
    assert_over(ada.upload(&content(b'b', 30)).await, "limits.owner_bytes", &["has 80 bytes"]);

    let stage = stage.restarted(LIMITS).await;
    let mut ada = User::new(&stage, Role::Submitter, "ada").await;
    assert_eq!(ada.used().await, (1, 80));
    assert_over(ada.upload(&content(b'b', 30)).await, "limits.owner_bytes", &["has 80 bytes"]);
    let rest = v1::UploadHeader { offset: 30, ..header(&whole) };
    assert!(ada.send(rest, &whole[30..]).await.unwrap().complete);
    assert_eq!(ada.used().await, (1, 80));
    // Of what is thrown away nothing stays.
    let wrong = ada.send(header(&content(b'c', 20)), &content(b'd', 20)).await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument);
    assert_eq!(ada.used().await, (1, 80));
    stage.stop().await;
}

#[tokio::test]
async fn uploads_at_the_same_time_count_for_each_other() {
    let stage = Stage::limited(LIMITS).await;
    let mut ada = User::new(&stage, Role::Submitter, "ada").await;
    // 1. One is under way.
    let first = content(b'a', 60);
    let (sender, stream) = mpsc::channel(4);
    for part in parts(header(&first), &first[..10]) {
        sender.send(part).await.unwrap();
    }
    let mut files = ada.files.clone();
    let under_way = tokio::spawn(async move { files.upload(ReceiverStream::new(stream)).await });
    let begun = async {
        while ada.used().await != (1, 60) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    soon("the upload's begin", begun).await;
    assert_over(ada.upload(&content(b'b', 50)).await, "limits.owner_bytes", &["has 60 bytes"]);
    let rest = Part::Chunk(first[10..].to_vec().into());
    sender.send(v1::UploadRequest { part: Some(rest) }).await.unwrap();
    drop(sender);
    assert!(under_way.await.unwrap().unwrap().into_inner().complete);
    // 2. Of many that come at once, as many pass as fit.
    let mut bobs = Vec::new();
    for _ in 0..8 {
        bobs.push(User::new(&stage, Role::Submitter, "bob").await);
    }
    let sent = bobs
        .iter_mut()
        .zip(b'a'..)
        .map(|(bob, letter)| async move { bob.upload(&content(letter, 30)).await.is_ok() });
    let passed = join_all(sent).await.into_iter().filter(|passed| *passed).count();
    assert_eq!((passed, bobs[0].used().await), (3, (3, 90)));
    stage.stop().await;
}

#[tokio::test]
async fn files_of_a_job_are_its_owners_until_they_or_the_job_are_deleted() {
    let stage = Stage::limited(LIMITS).await;
    let mut ring = Worker::start(&stage).await;
    let mut jobs = stage.jobs(Role::Submitter, "ada").await;
    let request = |id: &str| v1::CreateJobRequest {
        spec: Some(spec()),
        request_id: id.to_owned(),
        ..Default::default()
    };
    let mut create =
        async |id: &str| jobs.create_job(request(id)).await.unwrap().into_inner().job.unwrap().job_id;
    let (job, waiting) = (create("first").await, create("second").await);
    let epoch = Some(ring.assigned(&job).await);
    let mut ada = User::new(&stage, Role::Submitter, "ada").await;
    let mut worker = User::new(&stage, Role::Worker, NODE).await;

    // 1. Whoever sends a job's file, it is its owner's.
    let kept = content(b'a', 70);
    assert!(worker.send(file_of(&job, "a.bin", &kept, epoch), &kept).await.unwrap().complete);
    assert_eq!(ada.used().await, (1, 70));
    let more = content(b'b', 40);
    let said = ["header.size: \"ada\" has 70 bytes"];
    for name in ["b.bin", ".recovery-7.safetensors"] {
        assert_over(worker.send(file_of(&job, name, &more, epoch), &more).await, "limits.owner_bytes", &said);
    }
    assert_over(ada.upload(&more).await, "limits.owner_bytes", &said);
    // 2. In two jobs it is one file.
    assert!(ada.send(file_of(&waiting, "a.bin", &kept, None), &kept).await.unwrap().complete);
    assert_eq!(ada.used().await, (1, 70));
    let delete = |job_id: &str, epoch| v1::DeleteArtifactRequest {
        job_id: job_id.to_owned(),
        name: "a.bin".to_owned(),
        epoch,
    };
    worker.files.delete_artifact(delete(&job, epoch)).await.unwrap();
    assert_eq!(ada.used().await, (1, 70));
    // 3. It goes with the last job that has it.
    jobs.cancel_job(v1::CancelJobRequest { job_id: waiting.clone(), ..Default::default() }).await.unwrap();
    jobs.delete_job(v1::DeleteJobRequest { job_id: waiting }).await.unwrap();
    assert_eq!(ada.used().await, (0, 0));
    assert!(worker.send(file_of(&job, "b.bin", &more, epoch), &more).await.unwrap().complete);
    assert!(ada.upload(&content(b'c', 60)).await.unwrap().complete);
    // 4. Who has too much makes no job; a request that came before has its answer, and others are not concerned.
    drop(ring);
    let stage = stage.restarted(OwnerLimits { bytes: 99, files: 5 }).await;
    let mut jobs = stage.jobs(Role::Submitter, "ada").await;
    let said = ["queue.owner: \"ada\" has 100 bytes", "allowed: 99"];
    assert_over(jobs.create_job(request("third")).await, "limits.owner_bytes", &said);
    let again = jobs.create_job(request("first")).await.unwrap().into_inner().job.unwrap();
    assert_eq!(again.job_id, job);
    let mut admin = stage.jobs(Role::Admin, "root").await;
    let queue = Some(v1::QueueSpec { owner: "ada".to_owned(), ..Default::default() });
    let for_ada = v1::CreateJobRequest { queue, ..request("") };
    assert_over(admin.create_job(for_ada).await, "limits.owner_bytes", &said);
    assert!(admin.create_job(request("")).await.is_ok());
    stage.stop().await;
}
