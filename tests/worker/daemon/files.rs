//! The files of a coordinator without a will.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use ringtune_proto::v1::{self, artifact_service_server::ArtifactService, download_request::Source};
use ringtune_shared::ids::ContentHash;
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::support::not_needed;

type Answer<T> = Result<Response<T>, Status>;
/// Contents by hash, and the files of jobs by name.
#[derive(Default)]
pub struct Files {
    pub contents: HashMap<ContentHash, Vec<u8>>,
    pub kept: BTreeMap<(String, String), Vec<u8>>,
    /// Downloads break after so many bytes each.
    pub cut_downloads_after: Option<usize>,
    /// Where downloads of each content were asked to begin.
    pub downloads: HashMap<ContentHash, Vec<i64>>,
    /// What an upload is answered instead, by a part of the file's name.
    pub refused: Option<(&'static str, Status)>,
    /// Every upload is answered once that its file goes on elsewhere than it thought.
    pub moved: Option<HashSet<String>>,
}

/// Serves them.
pub struct Keeper {
    pub files: Arc<Mutex<Files>>,
    /// Uploads wait as long as it is true.
    pub held: watch::Sender<bool>,
}

#[tonic::async_trait]
impl ArtifactService for Keeper {
    type DownloadStream = tokio_stream::Iter<std::vec::IntoIter<Result<v1::DownloadResponse, Status>>>;

    async fn upload(&self, request: Request<Streaming<v1::UploadRequest>>) -> Answer<v1::UploadResponse> {
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
            files.contents.insert(ContentHash::of(&content), content.clone());
            files.kept.insert((header.job_id, header.name), content);
        }
        let response = v1::UploadResponse { committed_size: 0, complete, uri: String::new() };
        Ok(Response::new(response))
    }

    async fn download(&self, request: Request<v1::DownloadRequest>) -> Answer<Self::DownloadStream> {
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

    not_needed! {
        delete_artifact(v1::DeleteArtifactRequest) -> v1::DeleteArtifactResponse;
    }

    async fn list_artifacts(
        &self,
        request: Request<v1::ListArtifactsRequest>,
    ) -> Answer<v1::ListArtifactsResponse> {
        let job = request.into_inner().job_id;
        let files = self.files.lock().unwrap();
        let of_job = files.kept.iter().filter(|((of, _), _)| *of == job);
        let artifacts = of_job.map(|((_, name), content)| v1::Artifact {
            name: name.clone(),
            uri: ContentHash::of(content).uri(),
            ..v1::Artifact::default()
        });
        let artifacts = artifacts.collect();
        Ok(Response::new(v1::ListArtifactsResponse { artifacts, ..v1::ListArtifactsResponse::default() }))
    }
}
