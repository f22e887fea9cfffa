//! Files in and out.

use std::time::Duration;

use bytes::Bytes;
use ringtune_proto::v1::{self, download_request::Source, upload_request::Part};
use ringtune_shared::ids::ContentHash;
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::requests::fields;
use crate::{coordinator::Coordinator, soon};

pub(crate) fn header(content: &[u8]) -> v1::UploadHeader {
    v1::UploadHeader {
        sha256: ContentHash::of(content).to_string(),
        size: content.len() as i64,
        ..v1::UploadHeader::default()
    }
}

pub(crate) fn chunk(bytes: &[u8]) -> Part {
    Part::Chunk(Bytes::copy_from_slice(bytes))
}

fn part(part: Part) -> v1::UploadRequest {
    v1::UploadRequest { part: Some(part) }
}

impl Coordinator {
    pub(crate) async fn upload(
        &self,
        header: v1::UploadHeader,
        parts: Vec<Part>,
    ) -> Result<v1::UploadResponse, Status> {
        let all: Vec<_> = [Part::Header(header)].into_iter().chain(parts).map(part).collect();
        let mut artifacts = self.artifacts();
        let call = artifacts.upload(tokio_stream::iter(all));
        Ok(soon("an upload", call).await?.into_inner())
    }

    pub(crate) async fn download(
        &self,
        request: v1::DownloadRequest,
    ) -> Result<(v1::Artifact, Vec<u8>), Status> {
        let mut messages = self.artifacts().download(request).await?.into_inner();
        let (mut artifact, mut bytes) = (None, Vec::new());
        while let Some(message) = soon("a chunk", messages.message()).await? {
            artifact = artifact.or(message.artifact);
            bytes.extend_from_slice(&message.chunk);
        }
        Ok((artifact.expect("the first message carries it"), bytes))
    }
}

#[tokio::test]
async fn an_upload_that_ends_early_goes_on_where_it_was() {
    let state = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(state.path()).await;
    let content = b"hello world";
    let unknown = coordinator.upload(header(content), vec![]).await.unwrap();
    assert_eq!((unknown.committed_size, unknown.complete), (0, false));
    let half = coordinator.upload(header(content), vec![chunk(b"hello")]).await.unwrap();
    assert_eq!((half.committed_size, half.complete, half.uri.as_str()), (5, false, ""));

    // Also across a restart.
    coordinator.stop().await;
    let coordinator = Coordinator::start(state.path()).await;
    let wrong = coordinator.upload(header(content), vec![chunk(b"hello")]).await.unwrap_err();
    assert_eq!(wrong.code(), Code::FailedPrecondition);
    assert_eq!(wrong.get_details_error_info().unwrap().metadata["committed_size"], "5");
    let rest = v1::UploadHeader { offset: 5, ..header(content) };
    let whole = coordinator.upload(rest, vec![chunk(b" wor"), chunk(b"ld")]).await.unwrap();
    assert_eq!((whole.committed_size, whole.complete), (11, true));
    assert_eq!(whole.uri, ContentHash::of(content).uri());
    let known = coordinator.upload(header(content), vec![]).await.unwrap();
    assert!(known.complete, "nothing need be sent twice");
    coordinator.stop().await;
}

type Call = JoinHandle<Result<tonic::Response<v1::UploadResponse>, Status>>;

/// An upload whose first million of bytes has arrived: where to send the rest, and the call.
async fn begun(coordinator: &Coordinator, content: &[u8]) -> (mpsc::Sender<v1::UploadRequest>, Call) {
    let (parts, stream) = mpsc::channel(4);
    parts.send(part(Part::Header(header(content)))).await.unwrap();
    parts.send(part(chunk(&content[..1_000_000]))).await.unwrap();
    let mut artifacts = coordinator.artifacts();
    let call = tokio::spawn(async move { artifacts.upload(ReceiverStream::new(stream)).await });
    let arrived = async {
        while coordinator.upload(header(content), vec![]).await.unwrap().committed_size < 1_000_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("the first chunk", arrived).await;
    (parts, call)
}

#[tokio::test]
async fn an_upload_whose_stream_breaks_keeps_what_came() {
    let coordinator = Coordinator::fresh().await;
    let content = vec![7; 1_500_000];
    let (parts, broken) = begun(&coordinator, &content).await;
    // One at a time: the second waits for the first.
    let rest = v1::UploadHeader { offset: 1_000_000, ..header(&content) };
    let mut second = Box::pin(coordinator.upload(rest, vec![chunk(&content[1_000_000..])]));
    assert!(futures::poll!(second.as_mut()).is_pending());
    broken.abort();
    assert!(broken.await.unwrap_err().is_cancelled());
    assert!(second.await.unwrap().complete);
    drop(parts);
    coordinator.stop().await;
}

#[tokio::test]
async fn two_uploads_of_one_content_at_the_same_time_both_succeed() {
    let coordinator = Coordinator::fresh().await;
    let content = vec![7; 1_500_000];
    let (parts, first) = begun(&coordinator, &content).await;
    // Somebody else comes with all of it, before the first has sent the rest.
    let whole = content.chunks(1 << 20).map(chunk).collect();
    let mut second = Box::pin(coordinator.upload(header(&content), whole));
    // On the same connection, others are answered meanwhile.
    for _ in 0..20 {
        assert!(futures::poll!(second.as_mut()).is_pending());
        coordinator.upload(header(b"other"), vec![]).await.unwrap();
    }
    parts.send(part(chunk(&content[1_000_000..]))).await.unwrap();
    drop(parts);
    assert!(soon("the first upload", first).await.unwrap().unwrap().into_inner().complete);
    assert!(second.await.unwrap().complete);
    coordinator.stop().await;
}

#[tokio::test]
async fn what_does_not_fit_its_header_is_refused() {
    let coordinator = Coordinator::fresh_with(|settings| settings.limits.upload_bytes = 16 << 20).await;
    let field = |status: Status| {
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        status.get_details_bad_request().unwrap().field_violations[0].field.clone()
    };
    let other = coordinator.upload(header(b"right"), vec![chunk(b"wrong")]).await.unwrap_err();
    assert_eq!(field(other), "header.sha256");
    let nothing = coordinator.upload(header(b"right"), vec![]).await.unwrap();
    assert_eq!(nothing.committed_size, 0, "wrong bytes are not kept");
    let longer = coordinator.upload(header(b"right"), vec![chunk(b"right!")]).await.unwrap_err();
    assert_eq!(field(longer), "chunk");
    let twice = vec![chunk(b"ri"), Part::Header(header(b"right"))];
    assert_eq!(field(coordinator.upload(header(b"right"), twice).await.unwrap_err()), "header");
    let nameless = v1::UploadHeader { job_id: "x".to_owned(), ..header(b"right") };
    assert_eq!(field(coordinator.upload(nameless, vec![]).await.unwrap_err()), "header.name");
    let outside = v1::UploadHeader { name: "../passwd".to_owned(), job_id: "x".to_owned(), ..header(b"a") };
    assert_eq!(field(coordinator.upload(outside, vec![]).await.unwrap_err()), "header.name");

    let large = vec![1; 8 << 20];
    let chunk_of = |size: usize| vec![chunk(&large[..size])];
    let over = coordinator.upload(header(&large), chunk_of((1 << 20) + 1)).await.unwrap_err();
    assert_eq!(field(over), "chunk");
    let over = coordinator.upload(header(&large), chunk_of(5 << 20)).await.unwrap_err();
    assert_eq!(over.code(), Code::OutOfRange, "a message has 4 MiB at most");
    let huge = v1::UploadHeader { size: 17 << 20, ..header(&large) };
    let over = coordinator.upload(huge, chunk_of(1)).await.unwrap_err();
    assert_eq!(over.code(), Code::ResourceExhausted);
    coordinator.stop().await;
}

#[tokio::test]
async fn ranges_are_downloaded() {
    let coordinator = Coordinator::fresh().await;
    // More than one message each way.
    let content: Vec<u8> = (0..3_000_000_u32).map(|index| (index % 251) as u8).collect();
    let parts = content.chunks(1 << 20).map(chunk).collect();
    let uri = coordinator.upload(header(&content), parts).await.unwrap().uri;
    let range = |offset, length| {
        let source = Some(Source::Uri(uri.clone()));
        v1::DownloadRequest { source, offset, length }
    };
    for (offset, length, end) in
        [(0, 0, 3_000_000), (10, 5, 15), (600_000, 1_000_000, 1_600_000), (2_999_999, 99, 3_000_000)]
    {
        let (artifact, bytes) = coordinator.download(range(offset, length)).await.unwrap();
        assert_eq!(bytes, content[offset as usize..end], "from {offset}, {length} bytes");
        assert_eq!((artifact.uri.as_str(), artifact.size), (uri.as_str(), 3_000_000));
    }
    let (_, none) = coordinator.download(range(3_000_000, 0)).await.unwrap();
    assert_eq!(none.len(), 0);
    let beyond = coordinator.download(range(3_000_001, 0)).await.unwrap_err();
    assert_eq!(beyond.code(), Code::OutOfRange);
    let negative = coordinator.download(range(-1, 0)).await.unwrap_err();
    assert_eq!(negative.code(), Code::InvalidArgument);
    let absent = ContentHash::of(b"never uploaded").uri();
    let absent = v1::DownloadRequest { source: Some(Source::Uri(absent)), ..Default::default() };
    assert_eq!(coordinator.download(absent).await.unwrap_err().code(), Code::NotFound);
    let nothing = coordinator.download(v1::DownloadRequest::default()).await.unwrap_err();
    assert_eq!(fields(&nothing), ["source"]);
    let nobodys = v1::JobFile { job_id: "seven".to_owned(), name: "a".to_owned() };
    let nobodys = v1::DownloadRequest { source: Some(Source::JobFile(nobodys)), ..Default::default() };
    assert_eq!(fields(&coordinator.download(nobodys).await.unwrap_err()), ["job_file.job_id"]);
    coordinator.stop().await;
}
