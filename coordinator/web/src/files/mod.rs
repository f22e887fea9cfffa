//! `GET /api/files/JOB/NAME`, `GET /api/files/JOB` and `GET /api/contents/SHA256`: files, whole or in part, or all of a job.

mod archive;
mod kind;
mod range;
mod tar;

use std::ops::Range;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _};
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use ringtune_proto::v1::{self, artifact_service_client::ArtifactServiceClient, download_request::Source};
use ringtune_shared::ids::ContentHash;
use tonic::{Status, Streaming};

pub(crate) use self::archive::archive;
use self::range::Part;
use crate::caller::Caller;
use crate::{Calls, Gateway, answer, calls};

/// No script in a file may run.
const POLICY: HeaderValue = HeaderValue::from_static("sandbox; default-src 'none'");

pub(crate) async fn file(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Path((job_id, name)): Path<(String, String)>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    let source = Source::JobFile(v1::JobFile { job_id, name: name.clone() });
    // Another file can get the name.
    answer(&gateway, &caller, &method, &headers, Wanted { source, name, cached: "private, no-cache" }).await
}

pub(crate) async fn content(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Path(hash): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    let Ok(content) = hash.parse::<ContentHash>() else {
        let text = format!("the hash: got {hash:?}; allowed: 64 lower-case hex digits");
        return answer::error(&Status::invalid_argument(text));
    };
    let wanted = Wanted {
        source: Source::Uri(content.uri()),
        name: hash,
        cached: "private, max-age=31536000, immutable",
    };
    answer(&gateway, &caller, &method, &headers, wanted).await
}

/// What is asked for.
struct Wanted {
    source: Source,
    name: String,
    cached: &'static str,
}

async fn answer(
    gateway: &Gateway,
    caller: &Caller,
    method: &Method,
    asked: &HeaderMap,
    wanted: Wanted,
) -> Response {
    match found(&gateway.options.calls, caller, method, asked, wanted).await {
        Ok(response) => response,
        Err(status) => caller.failed(&status),
    }
}

async fn found(
    calls: &Calls,
    caller: &Caller,
    method: &Method,
    asked: &HeaderMap,
    wanted: Wanted,
) -> Result<Response, Status> {
    // 1. What is it? Where not all of it is wanted, its first bytes tell.
    let is_part = range::is_asked(asked);
    let look = is_part || method == Method::HEAD || asked.contains_key(IF_NONE_MATCH);
    let length = if look { kind::DECIDING as u64 } else { 0 };
    let mut file = File::open(calls, caller, wanted.source.clone(), 0..length).await?;
    let size = u64::try_from(file.artifact.size).unwrap_or(0);
    let etag = HeaderValue::try_from(format!("\"{}\"", file.artifact.sha256))
        .map_err(|_| Status::internal("the file's hash is none"))?;
    let picture = kind::picture(&file.first().await?);
    // 2. What goes with it.
    let mut response = described(wanted.cached, &etag);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(picture.unwrap_or("application/octet-stream")));
    if picture.is_none() {
        headers.insert(CONTENT_DISPOSITION, kind::attachment(&wanted.name));
    }
    // 3. Which part of it.
    match chosen(response, asked, size)? {
        Chosen::All(response) => Ok(response),
        Chosen::Bytes(mut response, bytes) => {
            if method != Method::HEAD && !bytes.is_empty() {
                if look {
                    file = File::open(calls, caller, wanted.source, bytes).await?;
                }
                *response.body_mut() = Body::from_stream(file.bytes());
            }
            Ok(response)
        }
    }
}

/// An answer without its bytes.
fn described(cached: &'static str, etag: &HeaderValue) -> Response {
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(cached));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(ETAG, etag.clone());
    response
}

/// What is answered.
enum Chosen {
    /// This is all.
    All(Response),
    /// These bytes belong to it.
    Bytes(Response, Range<u64>),
}

/// Which part of something of this size is asked for; `response` is [`described`].
fn chosen(mut response: Response, asked: &HeaderMap, size: u64) -> Result<Chosen, Status> {
    let etag = response.headers()[ETAG].clone();
    if asked.get(IF_NONE_MATCH).is_some_and(|known| *known == etag) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return Ok(Chosen::All(response));
    }
    let bytes = match range::part(asked, size, &etag) {
        Part::Whole => 0..size,
        Part::Some(bytes) => {
            let text = format!("bytes {}-{}/{size}", bytes.start, bytes.end - 1);
            insert(&mut response, CONTENT_RANGE, text)?;
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            bytes
        }
        Part::Outside => {
            let text = format!("Range: got {:?}; the file has {size} bytes", asked.get(http::header::RANGE));
            let mut response =
                answer::with_status(StatusCode::RANGE_NOT_SATISFIABLE, &Status::out_of_range(text));
            insert(&mut response, CONTENT_RANGE, format!("bytes */{size}"))?;
            return Ok(Chosen::All(response));
        }
    };
    insert(&mut response, CONTENT_LENGTH, (bytes.end - bytes.start).to_string())?;
    Ok(Chosen::Bytes(response, bytes))
}

fn insert(response: &mut Response, name: http::HeaderName, value: String) -> Result<(), Status> {
    let value = HeaderValue::try_from(value).map_err(|error| Status::internal(error.to_string()))?;
    response.headers_mut().insert(name, value);
    Ok(())
}

/// A file that is being read.
struct File {
    artifact: v1::Artifact,
    /// Bytes received and not yet passed on.
    here: Bytes,
    rest: Streaming<v1::DownloadResponse>,
}

impl File {
    /// These bytes of it; to its end where `bytes` is empty.
    async fn open(calls: &Calls, caller: &Caller, source: Source, bytes: Range<u64>) -> Result<Self, Status> {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let (offset, length) = (signed(bytes.start), signed(bytes.end.saturating_sub(bytes.start)));
        let request = caller.call(v1::DownloadRequest { source: Some(source), offset, length })?;
        let mut service =
            ArtifactServiceClient::new(calls.clone()).max_decoding_message_size(calls::LARGEST_ANSWER);
        let mut rest = service.download(request).await?.into_inner();
        let first = rest.message().await?.unwrap_or_default();
        let artifact = first.artifact.ok_or_else(|| Status::internal("a download without its file"))?;
        Ok(Self { artifact, here: first.chunk, rest })
    }

    /// Its first bytes, as many as decide what it is, or all.
    async fn first(&mut self) -> Result<Bytes, Status> {
        while self.here.len() < kind::DECIDING {
            let Some(more) = self.rest.message().await? else { break };
            let mut both = BytesMut::from(&self.here[..]);
            both.extend_from_slice(&more.chunk);
            self.here = both.freeze();
        }
        Ok(self.here.slice(..self.here.len().min(kind::DECIDING)))
    }

    /// All of it. One that breaks off ends the connection, so that it does not pass for whole.
    fn bytes(self) -> impl Stream<Item = Result<Bytes, Status>> + Send + 'static {
        let here = futures::stream::once(std::future::ready(Ok(self.here)));
        here.chain(self.rest.map(|part| part.map(|part| part.chunk)))
    }
}
