//! Files to and from the coordinator, by content. What fails because the coordinator is away is tried again.

use std::{
    collections::BTreeMap,
    future::Future,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use ringtune_proto::v1::{
    self, artifact_service_client::ArtifactServiceClient, job_service_client::JobServiceClient,
};
use ringtune_security::Trust;
use ringtune_shared::ids::{ContentHash, ContentHasher, Epoch, IdError, JobId};
use tokio::{
    fs::File,
    io::{AsyncReadExt as _, AsyncSeekExt as _},
    sync::{mpsc, watch},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use super::{
    Error,
    retry::{Tries, until_answered},
};
use crate::{coordinator::connector, journal::Journal, session::RankOrders, while_wanted};

/// Bytes of one message of an upload.
const CHUNK_BYTES: usize = 512 << 10;
/// Step reports in one answer.
const STEPS_AT_ONCE: i32 = 10_000;
/// Messages between the disk and the network.
const QUEUED_CHUNKS: usize = 4;
/// A call that takes longer is tried again; an upload goes on from where it was.
const TRANSFER_LIMIT: Duration = Duration::from_secs(600);

/// The coordinator's ArtifactService, and its list of steps. Cheap to clone; connects when first used.
#[derive(Clone, Debug)]
pub struct ArtifactClient {
    service: ArtifactServiceClient<Channel>,
    jobs: JobServiceClient<Channel>,
    /// Of the ring whose files these are: those of an older one are refused.
    epoch: Option<OwnEpoch>,
    /// Of the rank that all is for, which says what is waited for.
    journal: Option<Journal>,
}

/// The epoch of a rank's ring, which grows during its life.
#[derive(Clone, Debug)]
struct OwnEpoch {
    first: Epoch,
    orders: watch::Receiver<RankOrders>,
}

impl OwnEpoch {
    /// Of the newest ring in which the rank has a place.
    fn now(&self) -> u64 {
        let orders = self.orders.borrow();
        let newest = orders.ring.as_ref().filter(|ring| ring.rank.is_some());
        newest.map_or(self.first, |ring| ring.view.epoch.max(self.first)).0
    }
}

impl ArtifactClient {
    /// A client of the coordinator at `url`, `http://HOST:PORT`, or with https in a secured cluster; `trust`: whom this
    /// worker believes there.
    pub fn new(url: &str, trust: Option<&Trust>) -> Result<Self, tonic::transport::Error> {
        let channel = Endpoint::from_shared(url.to_owned())?
            .connect_timeout(Duration::from_secs(10))
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(20))
            .connect_with_connector_lazy(connector(trust));
        let jobs = JobServiceClient::new(channel.clone());
        Ok(Self { service: ArtifactServiceClient::new(channel), jobs, epoch: None, journal: None })
    }

    /// As above, for a rank's files in the ring of this epoch and later ones.
    pub(crate) fn from(&self, first: Epoch, orders: watch::Receiver<RankOrders>) -> Self {
        Self { epoch: Some(OwnEpoch { first, orders }), ..self.clone() }
    }

    /// As above, for a rank whose journal tells what is waited for.
    pub(crate) fn for_rank(&self, journal: Journal) -> Self {
        Self { journal: Some(journal), ..self.clone() }
    }

    /// The tries of one download.
    pub(super) fn tries<'a>(&'a self, what: &'a str) -> Tries<'a> {
        Tries::of(self.journal.as_ref(), what)
    }

    fn epoch(&self) -> Option<u64> {
        self.epoch.as_ref().map(OwnEpoch::now)
    }

    /// The next steps of a job after this one, in their order, as they are stored; none: there is no later one.
    pub(crate) async fn steps(&self, job: JobId, after_step: i64) -> Result<Vec<v1::StepReport>, Error> {
        let request = v1::ListStepsRequest {
            job_id: job.to_string(),
            after_step,
            page_size: STEPS_AT_ONCE,
            ..v1::ListStepsRequest::default()
        };
        let ask = || {
            let (mut jobs, request) = (self.jobs.clone(), request.clone());
            within_limit(async move { jobs.list_steps(request).await })
        };
        Ok(until_answered(self.journal.as_ref(), "list the job's steps", ask).await?.into_inner().steps)
    }

    /// The calls themselves.
    pub(crate) fn service(&self) -> ArtifactServiceClient<Channel> {
        self.service.clone()
    }

    /// The files that are kept with a job, by name.
    pub async fn list(&self, job: JobId) -> Result<BTreeMap<String, ContentHash>, Error> {
        let (mut kept, mut page_token) = (BTreeMap::new(), String::new());
        loop {
            let request = v1::ListArtifactsRequest {
                job_id: job.to_string(),
                page_size: 500,
                page_token,
                ..Default::default()
            };
            let ask = || {
                let (mut service, request) = (self.service.clone(), request.clone());
                within_limit(async move { service.list_artifacts(request).await })
            };
            let page =
                until_answered(self.journal.as_ref(), "list the job's artifacts", ask).await?.into_inner();
            for artifact in page.artifacts {
                let wrong = |error: IdError| Error::WrongContent {
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
    pub async fn upload(&self, job: JobId, file: &Path) -> Result<(), Error> {
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let (hash, size) = hash_file(file.to_owned()).await?;
        let header = v1::UploadHeader {
            sha256: hash.to_string(),
            size: i64::try_from(size).unwrap_or(i64::MAX),
            offset: 0,
            job_id: job.to_string(),
            name: name.clone(),
            media_type: media_type(&name).to_owned(),
            epoch: None,
        };
        // The ring may be another one by the next try.
        let header = || v1::UploadHeader { epoch: self.epoch(), ..header.clone() };
        until_answered(self.journal.as_ref(), &name, || within_limit(self.upload_once(file, header()))).await
    }

    /// Takes a file off a job. One that is not there is no error.
    pub async fn delete(&self, job: JobId, file: &Path) -> Result<(), Error> {
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let delete = || {
            let request = v1::DeleteArtifactRequest {
                job_id: job.to_string(),
                name: name.clone(),
                epoch: self.epoch(),
            };
            let mut service = self.service.clone();
            within_limit(async move { service.delete_artifact(request).await.map(drop) })
        };
        until_answered(self.journal.as_ref(), &name, delete).await
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
        let reading = AbortOnDropHandle::new(ringtune_shared::tasks::spawn(send_file(
            file.to_owned(),
            from,
            header,
            sender,
        )));
        let answer = self.service.clone().upload(ReceiverStream::new(receiver)).await?.into_inner();
        if answer.complete {
            return Ok(());
        }
        let committed = answer.committed_size;
        Err(match reading.await {
            Ok(Err(error)) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Status::internal(format!("{} cannot be read: {error}", file.display()))
            }
            // The coordinator stopped in the middle of it.
            _ => Status::unavailable(format!("{committed} of {size} bytes arrived")),
        })
    }
}

async fn within_limit<T>(transfer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let late = || Status::deadline_exceeded(format!("not done within {} s", TRANSFER_LIMIT.as_secs()));
    tokio::time::timeout(TRANSFER_LIMIT, transfer).await.unwrap_or_else(|_| Err(late()))
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
async fn hash_file(file: PathBuf) -> Result<(ContentHash, u64), Error> {
    while_wanted::spawn_blocking(move |still| hash_file_blocking(&file, still)).await?
}

/// As above, blocking, as long as `still` is not cancelled.
pub(crate) fn hash_file_blocking(
    file: &Path,
    still: &CancellationToken,
) -> Result<(ContentHash, u64), Error> {
    let opened = std::fs::File::open(file);
    hash_opened(opened.map_err(|source| Error::Io { path: file.to_owned(), source })?, file, still)
}

/// As above, of an open file at its beginning. `file`: for messages.
pub(crate) fn hash_opened(
    mut reader: std::fs::File,
    file: &Path,
    still: &CancellationToken,
) -> Result<(ContentHash, u64), Error> {
    use std::io::Read as _;
    let failed = |source| Error::Io { path: file.to_owned(), source };
    let mut hasher = ContentHasher::new();
    // It stays in a core's own cache.
    let mut buffer = vec![0; 128 << 10];
    let mut size = 0;
    loop {
        // Files may have many gigabytes.
        if still.is_cancelled() {
            return Err(failed(std::io::Error::other("nobody waits for its hash any more")));
        }
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
