//! Files to and from the coordinator, by content. What fails because the coordinator is away is tried again.

use std::{
    collections::BTreeMap,
    future::Future,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use ringtune_proto::v1::{self, artifact_service_client::ArtifactServiceClient};
use ringtune_shared::{
    backoff::Backoff,
    ids::{ContentHash, ContentHasher, Epoch, IdError, JobId},
};
use tokio::{
    fs::File,
    io::{AsyncReadExt as _, AsyncSeekExt as _},
    sync::mpsc,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};
use tracing::warn;

use super::RankError;
use crate::session::link_random;

/// Bytes of one message of an upload.
const CHUNK_BYTES: usize = 512 << 10;
/// Messages between the disk and the network.
const QUEUED_CHUNKS: usize = 4;
/// A call that takes longer is tried again; an upload goes on from where it was.
const TRANSFER_LIMIT: Duration = Duration::from_secs(600);

/// The coordinator's ArtifactService. Cheap to clone; connects when first used.
#[derive(Clone, Debug)]
pub struct ArtifactClient {
    service: ArtifactServiceClient<Channel>,
    backoff: Backoff,
    /// Of the ring whose files these are: those of an older one are refused.
    epoch: Option<Epoch>,
}

impl ArtifactClient {
    /// A client of the coordinator at `url`, `http://HOST:PORT`.
    pub fn new(url: &str) -> Result<Self, tonic::transport::Error> {
        let channel = Endpoint::from_shared(url.to_owned())?
            .connect_timeout(Duration::from_secs(10))
            .tcp_nodelay(true)
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(20))
            .connect_lazy();
        Ok(Self { service: ArtifactServiceClient::new(channel), backoff: Backoff::RECONNECT, epoch: None })
    }

    /// The same, for what a rank of this epoch leaves.
    pub fn at(&self, epoch: Epoch) -> Self {
        Self { epoch: Some(epoch), ..self.clone() }
    }

    /// The calls themselves.
    pub(super) fn service(&self) -> ArtifactServiceClient<Channel> {
        self.service.clone()
    }

    /// How long to wait after what failed.
    pub(super) fn backoff(&self) -> Backoff {
        self.backoff
    }

    /// The files that are kept with a job, by name.
    pub async fn list(&self, job: JobId) -> Result<BTreeMap<String, ContentHash>, RankError> {
        let what = "list the job's artifacts";
        let mut retries = Retries::of(what, self.backoff);
        let (mut kept, mut page_token) = (BTreeMap::new(), String::new());
        loop {
            let request = v1::ListArtifactsRequest {
                job_id: job.to_string(),
                page_size: 500,
                page_token,
                ..Default::default()
            };
            let mut service = self.service.clone();
            let page = match within_limit(service.list_artifacts(request.clone())).await {
                Ok(page) => page.into_inner(),
                Err(status) => {
                    retries.wait_after(status).await?;
                    page_token = request.page_token;
                    continue;
                }
            };
            for artifact in page.artifacts {
                let wrong = |error: IdError| RankError::WrongContent {
                    uri: artifact.uri.clone(),
                    problem: error.to_string(),
                };
                let hash = ContentHash::from_uri(&artifact.uri).map_err(wrong)?;
                kept.insert(artifact.name, hash);
            }
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return Ok(kept);
            }
        }
    }

    /// Keeps a file with a job under its own name. An upload that breaks goes on where it was.
    pub async fn upload(&self, job: JobId, file: &Path) -> Result<(), RankError> {
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let (hash, size) = hash_file(file.to_owned()).await?;
        let header = v1::UploadHeader {
            sha256: hash.to_string(),
            size: i64::try_from(size).unwrap_or(i64::MAX),
            offset: 0,
            job_id: job.to_string(),
            name: name.clone(),
            media_type: media_type(&name).to_owned(),
            epoch: self.epoch.map(|epoch| epoch.0),
        };
        let mut retries = Retries::of(&name, self.backoff);
        loop {
            match within_limit(self.upload_once(file, header.clone())).await {
                Ok(()) => return Ok(()),
                Err(status) => retries.wait_after(status).await?,
            }
        }
    }

    /// Takes a file off a job. One that is not there is no error.
    pub async fn delete(&self, job: JobId, file: &Path) -> Result<(), RankError> {
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let epoch = self.epoch.map(|epoch| epoch.0);
        let request = v1::DeleteArtifactRequest { job_id: job.to_string(), name: name.clone(), epoch };
        let mut retries = Retries::of(&name, self.backoff);
        loop {
            let mut service = self.service.clone();
            let deleted = async { service.delete_artifact(request.clone()).await.map(drop) };
            match within_limit(deleted).await {
                Ok(()) => return Ok(()),
                Err(status) => retries.wait_after(status).await?,
            }
        }
    }

    async fn upload_once(&self, file: &Path, header: v1::UploadHeader) -> Result<(), Status> {
        // 1. How much is there already?
        let ask = tokio_stream::iter([part(v1::upload_request::Part::Header(header.clone()))]);
        let there = self.service.clone().upload(ask).await?.into_inner();
        if there.complete {
            return Ok(());
        }
        // 2. The rest.
        let (size, offset) = (header.size, there.committed_size);
        let header = v1::UploadHeader { offset, ..header };
        let (sender, receiver) = mpsc::channel(QUEUED_CHUNKS);
        let from = u64::try_from(offset).unwrap_or(0);
        let reading = AbortOnDropHandle::new(tokio::spawn(send_file(file.to_owned(), from, header, sender)));
        let answer = self.service.clone().upload(ReceiverStream::new(receiver)).await;
        drop(reading);
        match answer?.into_inner() {
            done if done.complete => Ok(()),
            partial => {
                Err(Status::unavailable(format!("{} of {size} bytes arrived", partial.committed_size)))
            }
        }
    }
}

async fn within_limit<T>(transfer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = || Status::deadline_exceeded(format!("not done within {} s", TRANSFER_LIMIT.as_secs()));
    tokio::time::timeout(TRANSFER_LIMIT, transfer).await.unwrap_or_else(|_| Err(late()))
}

/// Failed tries of one transfer.
pub(super) struct Retries<'a> {
    what: &'a str,
    backoff: Backoff,
    attempt: u32,
}

impl<'a> Retries<'a> {
    pub(super) fn of(what: &'a str, backoff: Backoff) -> Self {
        Self { what, backoff, attempt: 0 }
    }

    /// Waits before the next try, unless the coordinator's answer says that it would fail as well.
    pub(super) async fn wait_after(&mut self, status: Status) -> Result<(), RankError> {
        if is_final(status.code()) {
            return Err(RankError::refused(self.what, &status));
        }
        let wait = self.backoff.delay(self.attempt, link_random());
        let (what, reason) = (self.what, status.message());
        warn!(what, code = %status.code(), reason, "transfer failed; again in {wait:?}");
        self.attempt = self.attempt.saturating_add(1);
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

/// Codes that mean the same answer next time. The rest may be a coordinator that restarts.
fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::DataLoss
            | Code::Unauthenticated
    )
}

fn part(part: v1::upload_request::Part) -> v1::UploadRequest {
    v1::UploadRequest { part: Some(part) }
}

async fn send_file(
    file: PathBuf,
    from: u64,
    header: v1::UploadHeader,
    sender: mpsc::Sender<v1::UploadRequest>,
) -> std::io::Result<()> {
    use v1::upload_request::Part;
    let gone = |_| std::io::ErrorKind::BrokenPipe;
    sender.send(part(Part::Header(header))).await.map_err(gone)?;
    let mut reader = File::open(&file).await?;
    reader.seek(std::io::SeekFrom::Start(from)).await?;
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        let count = reader.read(&mut chunk).await?;
        if count == 0 {
            return Ok(());
        }
        chunk.truncate(count);
        sender.send(part(Part::Chunk(Bytes::from(chunk)))).await.map_err(gone)?;
    }
}

/// The hash and size of a file of any length.
pub(super) async fn hash_file(file: PathBuf) -> Result<(ContentHash, u64), RankError> {
    tokio::task::spawn_blocking(move || hash_file_blocking(&file)).await?
}

/// The same, for a thread that may block.
pub(super) fn hash_file_blocking(file: &Path) -> Result<(ContentHash, u64), RankError> {
    use std::io::Read as _;
    let failed = |source| RankError::Io { path: file.to_owned(), source };
    let mut reader = std::fs::File::open(file).map_err(failed)?;
    let mut hasher = ContentHasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut size = 0;
    loop {
        let count = reader.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            return Ok((hasher.finish(), size));
        }
        hasher.update(&buffer[..count]);
        size += count as u64;
    }
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("png") => "image/png",
        Some("csv") => "text/csv",
        Some("md") => "text/markdown; charset=utf-8",
        Some("toml") => "application/toml",
        Some("log") => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}
