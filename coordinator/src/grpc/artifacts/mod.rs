//! ArtifactService.

mod header;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::Stream;
use ringtune_proto::convert::{FieldError, parse, unsigned};
use ringtune_proto::v1::{
    self, artifact_service_server::ArtifactService, download_request::Source, upload_request::Part,
};
use ringtune_shared::files::check_file_name;
use ringtune_shared::ids::{ContentHash, Epoch, JobId};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::access::call_of;
use super::ids::job_id;
use super::status::{FailedRequest, condition_of, shutting_down, too_many};
use super::{Api, blocking, incoming::Parts, outbound, outgoing};
use crate::access::{Call, Denied, Reach, Reason};
use crate::contents::{self, Claim, Committed, Range, Upload};
use crate::core::{ArtifactRecord, OtherEpoch, Time};
use crate::service::Error;
use header::Header;

/// Bytes of an uploaded chunk at most.
const LARGEST_CHUNK: usize = 1 << 20;
/// Bytes of a downloaded chunk.
const DOWNLOAD_CHUNK: usize = 512 << 10;
/// How long an upload waits for another one of the same content.
const BUSY_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct Artifacts(pub(super) Arc<Api>);

type ChunkStream = std::pin::Pin<Box<dyn Stream<Item = Result<v1::DownloadResponse, Status>> + Send>>;

#[tonic::async_trait]
impl ArtifactService for Artifacts {
    type DownloadStream = ChunkStream;

    async fn upload(
        &self,
        request: Request<Streaming<v1::UploadRequest>>,
    ) -> Result<Response<v1::UploadResponse>, Status> {
        let mut job = None;
        let answer = self.take(request, &mut job).await;
        if let Some(job) = job {
            self.note_wait(job, &answer);
        }
        answer
    }

    async fn download(
        &self,
        request: Request<v1::DownloadRequest>,
    ) -> Result<Response<Self::DownloadStream>, Status> {
        let limit = super::DOWNLOADS;
        let permit =
            self.0.downloads.clone().try_acquire_owned().map_err(|_| too_many("downloads", limit))?;
        let (artifact, range) = self.open(&call_of(&request), request.into_inner()).await?;
        let download =
            Download { range, artifact: Some(artifact), shutdown: self.0.shutdown.clone(), _permit: permit };
        let chunks = futures::stream::unfold(Some(download), Download::next);
        Ok(Response::new(Box::pin(outgoing::to_reader(chunks, self.0.idle_limit))))
    }

    async fn delete_artifact(
        &self,
        request: Request<v1::DeleteArtifactRequest>,
    ) -> Result<Response<v1::DeleteArtifactResponse>, Status> {
        let call = call_of(&request);
        let v1::DeleteArtifactRequest { job_id: job, name, epoch } = request.into_inner();
        let job = job_id(&job)?;
        check_file_name(&name)
            .map_err(|error| FailedRequest::from(FieldError::new("name", error.to_string())))?;
        call.about(format_args!("{job} {name}"));
        self.check_place(&call, job, epoch.map(Epoch)).await?;
        self.0.references.drop_artifact(job, name, epoch.map(Epoch)).await.map_err(FailedRequest::from)?;
        Ok(Response::new(v1::DeleteArtifactResponse {}))
    }

    async fn list_artifacts(
        &self,
        request: Request<v1::ListArtifactsRequest>,
    ) -> Result<Response<v1::ListArtifactsResponse>, Status> {
        let call = call_of(&request);
        Ok(Response::new(self.page_of_artifacts(&call, request.into_inner()).await?))
    }
}

impl Artifacts {
    /// Takes an upload, or says how much of it is here. `of`: is set to the job that it is for, once that is known to be the
    /// caller's.
    async fn take(
        &self,
        request: Request<Streaming<v1::UploadRequest>>,
        of: &mut Option<JobId>,
    ) -> Result<Response<v1::UploadResponse>, Status> {
        let call = call_of(&request);
        let mut parts = Parts::new(request.into_inner(), self.0.idle_limit, self.0.shutdown.clone());
        let Some(Part::Header(header)) = parts.next().await? else {
            return Err(FailedRequest::from(FieldError::new("header", "must be the first part")).into());
        };
        let header = Header::read(header).map_err(FailedRequest::from)?;
        let owner = match &header.place {
            Some((job, name)) => {
                call.about(format_args!("{job} {name}"));
                let owner = self.check_active(&call, *job, header.epoch).await?;
                *of = Some(*job);
                owner
            }
            None => self.check_unlisted(&call)?,
        };
        // What is found or becomes whole here does not go before its job has it.
        let claim = self.0.references.hold(header.hash).await;
        let received = match parts.next().await? {
            None => self.question(&header, &owner).await,
            Some(part) => self.receive(&header, &owner, part, &mut parts).await,
        };
        let committed = match received {
            Ok(committed) => committed,
            Err(status) => {
                drop(claim);
                self.settle(&header, &owner).await;
                return Err(status);
            }
        };
        if committed.complete {
            self.keep(&header, claim).await?;
        }
        Ok(Response::new(v1::UploadResponse {
            committed_size: i64::try_from(committed.size).unwrap_or(i64::MAX),
            complete: committed.complete,
            uri: if committed.complete { header.hash.uri() } else { String::new() },
        }))
    }

    /// What ranks of a job are told to wait for, the job says too, until something of it is taken.
    fn note_wait(&self, job: JobId, answer: &Result<Response<v1::UploadResponse>, Status>) {
        let waits = self.0.handle.waits();
        match answer {
            Ok(answer) if answer.get_ref().complete => waits.went_on(job),
            Ok(_) => {}
            Err(status) => {
                if let Some(condition) = condition_of(status) {
                    waits.told(job, condition, status.message());
                }
            }
        }
    }

    /// Refuses a file for an ended job, or from a ring that is no more, before its bytes come. Whose the job is.
    async fn check_active(
        &self,
        call: &Call,
        job: JobId,
        epoch: Option<Epoch>,
    ) -> Result<String, FailedRequest> {
        let Some(active) = self.0.handle.cluster().job(job).cloned() else {
            // It ended, or there never was one.
            let job = self.0.job(call, job).await?;
            return Err(Error::AlreadyEnded { job: job.id, state: job.state }.into());
        };
        if matches!(call.reach(), Reach::Owner(_) | Reach::Nothing) {
            self.0.check_reach(call, job).await?;
        }
        // Of a worker the epoch first: one that its ring left behind hears of that in a moment.
        active.check_epoch(epoch).map_err(|refusal| {
            self.0.metrics.other_epoch(OtherEpoch::Upload);
            Error::Refused(refusal)
        })?;
        self.0.check_files(call, job).await?;
        Ok(active.queue.owner.clone())
    }

    /// Refuses to take a file off a job for a caller without access to it.
    async fn check_place(&self, call: &Call, job: JobId, epoch: Option<Epoch>) -> Result<(), FailedRequest> {
        if let Reach::Worker(_) = call.reach()
            && let Some(active) = self.0.handle.cluster().job(job).cloned()
        {
            // The epoch first: see above.
            active.check_epoch(epoch).map_err(|refusal| {
                self.0.metrics.other_epoch(OtherEpoch::Deletion);
                Error::Refused(refusal)
            })?;
        }
        self.0.check_files(call, job).await
    }

    /// Files of no job are for jobs to come, which workers do not submit. Whose such a file is.
    fn check_unlisted(&self, call: &Call) -> Result<String, FailedRequest> {
        if !matches!(call.reach(), Reach::Worker(_)) {
            return Ok(call.caller().known().map(|known| known.name.clone()).unwrap_or_default());
        }
        let text = "header.job_id: is missing; workers send files of jobs in which they have a place";
        Err(self.0.deny(Denied::new(Reason::Worker, text)))
    }

    /// Takes a content off accounts that was refused or thrown away.
    async fn settle(&self, header: &Header, owner: &str) {
        if self.0.quotas.counts(owner) {
            // What fails here the sweep does again.
            let _ = self.0.references.settle(&[header.hash], SystemTime::now()).await;
        }
    }

    /// A header alone: how much is there? All bytes of an upload that only lacks its check count too.
    /// What is whole becomes the owner's, and what is not is refused before it comes where it would be too much.
    async fn question(&self, header: &Header, owner: &str) -> Result<Committed, Status> {
        let committed = self.look(header).await?;
        let (quotas, content) = (&self.0.quotas, (header.hash, header.size));
        let accounted = match committed.complete {
            true => quotas.upload(owner, content).await,
            false => quotas.check_upload(owner, content).await,
        };
        accounted.map_err(FailedRequest::from)?;
        Ok(committed)
    }

    async fn look(&self, header: &Header) -> Result<Committed, FailedRequest> {
        let (contents, hash, of_rank) = (self.0.contents.clone(), header.hash, header.epoch.is_some());
        let look = move || {
            let committed = contents.committed(&hash)?;
            if !(committed.complete && of_rank) {
                return Ok(committed);
            }
            // A rank that makes a file again may do so because the one that is here was damaged.
            match contents.remove_damaged(hash) {
                Ok(()) => contents.committed(&hash),
                // Somebody else is at it, or the next upload finds it.
                Err(contents::Error::Busy(_) | contents::Error::TooManyUploads { .. }) => Ok(committed),
                Err(error) => Err(error),
            }
        };
        let committed = blocking(look).await??;
        if !committed.complete && committed.size != header.size {
            return Ok(committed);
        }
        // The size is compared, too.
        let upload = self.begin(header, committed.size).await?;
        Ok(blocking(move || upload.close()).await??)
    }

    /// Begins an upload; where somebody else is at the same content, when that one ends: then the content is here, or
    /// the client is told where to go on.
    async fn begin(&self, header: &Header, offset: u64) -> Result<Upload, FailedRequest> {
        let deadline = Instant::now() + BUSY_PATIENCE;
        let (hash, size) = (header.hash, header.size);
        loop {
            let ended = self.0.contents.upload_ended().notified();
            tokio::pin!(ended);
            // From here on no end is missed.
            ended.as_mut().enable();
            let contents = self.0.contents.clone();
            match blocking(move || contents.upload(hash, size, offset)).await? {
                Err(busy @ contents::Error::Busy(_)) => {
                    if tokio::time::timeout_at(deadline, ended).await.is_err() {
                        return Err(busy.into());
                    }
                }
                begun => return Ok(begun?),
            }
        }
    }

    async fn receive(
        &self,
        header: &Header,
        owner: &str,
        first: Part,
        parts: &mut Parts,
    ) -> Result<Committed, Status> {
        // Before the first byte, so that uploads at the same time count for each other, and those that break off too.
        self.0.contents.check_size(header.size).map_err(FailedRequest::from)?;
        let content = (header.hash, header.size);
        self.0.quotas.upload(owner, content).await.map_err(FailedRequest::from)?;
        let mut upload = self.begin(header, header.offset).await?;
        let mut part = Some(first);
        while let Some(next) = part {
            upload = self.write(upload, next).await?;
            // Dropped on an error, the upload keeps what came.
            part = parts.next().await?;
        }
        Ok(blocking(move || upload.close()).await?.map_err(FailedRequest::from)?)
    }

    async fn write(&self, mut upload: Upload, part: Part) -> Result<Upload, FailedRequest> {
        let Part::Chunk(chunk) = part else {
            return Err(FieldError::new("header", "came twice; allowed: first and once").into());
        };
        if chunk.len() > LARGEST_CHUNK {
            let problem = format!("{} bytes; allowed: at most {LARGEST_CHUNK}", chunk.len());
            return Err(FieldError::new("chunk", problem).into());
        }
        self.0.metrics.uploaded_bytes.inc_by(chunk.len() as u64);
        let written = move || {
            upload.write(&chunk)?;
            Ok::<_, crate::contents::Error>(upload)
        };
        Ok(blocking(written).await??)
    }

    /// Lists a complete file with its job, if it names one. Else it is for a job to come: it stays for a day, also where
    /// it was here before.
    async fn keep(&self, header: &Header, claim: Claim) -> Result<(), FailedRequest> {
        let Some((job, name)) = header.place.clone() else {
            let (contents, hash) = (self.0.contents.clone(), header.hash);
            let touch = move || {
                let touched = contents.touch(&hash);
                drop(claim);
                touched
            };
            return Ok(blocking(touch).await??);
        };
        let record = ArtifactRecord {
            job,
            name,
            hash: header.hash,
            size: header.size,
            media_type: header.media_type.clone(),
            // The core puts the time in.
            created: Time::default(),
            epoch: header.epoch,
        };
        Ok(self.0.references.keep(record, claim).await?)
    }

    /// Whoever knows the hash of a content may read it.
    async fn open(
        &self,
        call: &Call,
        request: v1::DownloadRequest,
    ) -> Result<(v1::Artifact, Range), FailedRequest> {
        let offset = unsigned("offset", request.offset)?;
        let length: u64 = unsigned("length", request.length)?;
        let store = self.0.handle.store();
        let (hash, listed) = match request.source {
            None => {
                let problem = "is missing; allowed: uri, or job_file with a job_id and a name";
                return Err(FieldError::new("source", problem).into());
            }
            Some(Source::JobFile(v1::JobFile { job_id, name })) => {
                let job = parse("job_file.job_id", &job_id)?;
                let job = self.0.job(call, job).await?.id;
                let artifact =
                    store.artifact(job, &name).await?.ok_or(Error::NoSuchArtifact { job, name })?;
                (artifact.hash, Some(artifact))
            }
            Some(Source::Uri(uri)) => {
                let hash =
                    ContentHash::from_uri(&uri).map_err(|error| FieldError::new("uri", error.to_string()))?;
                let listed = store.artifact_of_content(hash).await?;
                // In which job it is listed, and as what, is for those who reach that job.
                let listed = match listed {
                    Some(artifact) if self.0.check_reach(call, artifact.job).await.is_err() => None,
                    listed => listed,
                };
                (hash, listed)
            }
        };
        let contents = self.0.contents.clone();
        let length = (length > 0).then_some(length);
        let range = blocking(move || contents.read(&hash, offset, length)).await??;
        let unlisted = v1::Artifact {
            uri: hash.uri(),
            sha256: hash.to_string(),
            size: i64::try_from(range.content_size).unwrap_or(i64::MAX),
            ..v1::Artifact::default()
        };
        Ok((listed.map_or(unlisted, |record| outbound::artifact(&record)), range))
    }
}

/// A file on its way out: read when the client wants more, so that a slow one holds no thread.
struct Download {
    range: Range,
    /// Goes with the first message.
    artifact: Option<v1::Artifact>,
    shutdown: tokio_util::sync::CancellationToken,
    _permit: OwnedSemaphorePermit,
}

impl Download {
    async fn next(this: Option<Self>) -> Option<(Result<v1::DownloadResponse, Status>, Option<Self>)> {
        let mut this = this?;
        if this.shutdown.is_cancelled() {
            return Some((Err(shutting_down()), None));
        }
        let read = move || {
            let chunk = this.range.next_chunk(DOWNLOAD_CHUNK)?;
            Ok::<_, crate::contents::Error>((this, chunk))
        };
        let failed = |failed: FailedRequest| Some((Err(Status::from(failed)), None));
        let (mut this, chunk) = match blocking(read).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => return failed(error.into()),
            Err(error) => return failed(error),
        };
        let artifact = this.artifact.take();
        if chunk.is_empty() && artifact.is_none() {
            return None;
        }
        Some((Ok(v1::DownloadResponse { artifact, chunk: chunk.into() }), Some(this)))
    }
}
