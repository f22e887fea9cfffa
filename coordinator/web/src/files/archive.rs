//! `GET /api/files/JOB`: all files of a job as one archive.
//!
//! What is in it is decided when it is asked for: names, hashes and sizes are listed then, and each file is read by its hash once its
//! turn has come. So the archive's length is known before its first byte, and a part of it can be asked for.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use ringtune_proto::v1::{
    self, artifact_service_client::ArtifactServiceClient, download_request::Source,
    job_service_client::JobServiceClient,
};
use ringtune_shared::files::check_saved_name;
use sha2::{Digest as _, Sha256};
use tokio::sync::OwnedSemaphorePermit;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::tar::{self, Entry};
use super::{Chosen, File, chosen, described, kind};
use crate::caller::Caller;
use crate::{ARCHIVES, Calls, Gateway, calls};

/// Files of an archive.
const MOST_FILES: usize = 20_000;
/// Files that are listed at a time.
const PAGE: i32 = 500;
/// Characters of a job's name in the archive's.
const LONGEST_NAME: usize = 60;
/// A file is asked for so often, as many seconds apart, while as many are read as may be at a time.
const TRIES: usize = 30;

pub(crate) async fn archive(
    State(gateway): State<Arc<Gateway>>,
    caller: Caller,
    Path(job_id): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    match found(&gateway, &caller, &method, &headers, job_id).await {
        Ok(response) => response,
        Err(status) => caller.failed(&status),
    }
}

async fn found(
    gateway: &Gateway,
    caller: &Caller,
    method: &Method,
    asked: &HeaderMap,
    job_id: String,
) -> Result<Response, Status> {
    let place = gateway.archives.clone().try_acquire_owned().map_err(|_| {
        let text = format!("{ARCHIVES} archives are being read, which is the limit; try again later");
        let details = ErrorDetails::with_retry_info(Some(Duration::from_secs(5)));
        Status::with_error_details(Code::Unavailable, text, details)
    })?;
    // 1. What is in it?
    let calls = &gateway.options.calls;
    let mut jobs = JobServiceClient::new(calls.clone()).max_decoding_message_size(calls::LARGEST_ANSWER);
    let request = caller.call(v1::GetJobRequest { job_id, ..Default::default() })?;
    let job = jobs.get_job(request).await?.into_inner().job.unwrap_or_default();
    let folder = folder(&job);
    let archive = Archive::of(&folder, &list(calls, caller, job.job_id).await?)?;
    // 2. What goes with it, and which part of it is wanted.
    let mut response = described("private, no-cache", &archive.etag()?);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    response.headers_mut().insert(CONTENT_DISPOSITION, kind::attachment(&format!("{folder}.tar")));
    match chosen(response, asked, archive.size)? {
        Chosen::All(response) => Ok(response),
        Chosen::Bytes(mut response, bytes) => {
            if *method != Method::HEAD {
                let body = archive.bytes(bytes, calls.clone(), caller.clone(), place);
                *response.body_mut() = Body::from_stream(body);
            }
            Ok(response)
        }
    }
}

/// The files of a job that may be written into a folder, as they are now.
async fn list(calls: &Calls, caller: &Caller, job_id: String) -> Result<Vec<v1::Artifact>, Status> {
    let mut service =
        ArtifactServiceClient::new(calls.clone()).max_decoding_message_size(calls::LARGEST_ANSWER);
    let (mut files, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = v1::ListArtifactsRequest {
            job_id: job_id.clone(),
            page_size: PAGE,
            page_token,
            ..Default::default()
        };
        let page = service.list_artifacts(caller.call(request)?).await?.into_inner();
        files.extend(page.artifacts.into_iter().filter(|file| check_saved_name(&file.name).is_ok()));
        if files.len() > MOST_FILES {
            let text =
                format!("the job has more than {MOST_FILES} files; `ringtune fetch {job_id}` saves them");
            return Err(Status::failed_precondition(text));
        }
        if page.next_page_token.is_empty() {
            return Ok(files);
        }
        page_token = page.next_page_token;
    }
}

/// The folder within the archive, which is its name, too: the job's name with nothing in it that means something to a shell or a
/// file system, and the end of its id, by which jobs of one name are told apart.
fn folder(job: &v1::Job) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    let name: String = job.name.chars().map(|letter| if plain(letter) { letter } else { '_' }).collect();
    let name: String =
        name.trim_matches(|letter| "-._".contains(letter)).chars().take(LONGEST_NAME).collect();
    let id: String = job.job_id.chars().filter(char::is_ascii_hexdigit).collect();
    let id = &id[id.len().saturating_sub(8)..];
    if name.is_empty() { format!("job-{id}") } else { format!("{name}-{id}") }
}

/// A piece of an archive.
#[derive(Debug, Clone)]
enum Piece {
    Written(Bytes),
    Content { uri: String, size: u64 },
}

impl Piece {
    fn size(&self) -> u64 {
        match self {
            Self::Written(bytes) => bytes.len() as u64,
            Self::Content { size, .. } => *size,
        }
    }
}

/// All pieces of an archive.
#[derive(Debug)]
struct Archive {
    pieces: Vec<Piece>,
    size: u64,
}

impl Archive {
    fn of(folder: &str, files: &[v1::Artifact]) -> Result<Self, Status> {
        let mut pieces = Vec::new();
        for file in files {
            let size = u64::try_from(file.size).map_err(|_| Status::internal("a file's size is none"))?;
            let modified = file.create_time.as_ref().and_then(|time| u64::try_from(time.seconds).ok());
            let path = format!("{folder}/{}", file.name);
            let entry = Entry { path: &path, size, modified: modified.unwrap_or(0) };
            pieces.push(Piece::Written(tar::before(entry).into()));
            pieces.push(Piece::Content { uri: file.uri.clone(), size });
            pieces.push(Piece::Written(Bytes::from_static(tar::behind(size))));
        }
        pieces.push(Piece::Written(Bytes::from_static(tar::END)));
        pieces.retain(|piece| piece.size() > 0);
        let size = pieces.iter().map(Piece::size).fold(0, u64::saturating_add);
        Ok(Self { pieces, size })
    }

    /// Archives are the same to the byte where this is the same.
    fn etag(&self) -> Result<HeaderValue, Status> {
        let mut hash = Sha256::new();
        for piece in &self.pieces {
            match piece {
                Piece::Written(bytes) => hash.update(bytes),
                Piece::Content { uri, .. } => hash.update(uri),
            }
        }
        let text = format!("\"{}\"", hex::encode(hash.finalize()));
        HeaderValue::try_from(text).map_err(|_| Status::internal("the archive's hash is none"))
    }

    /// The pieces of a part, each with the part of it that is wanted.
    fn part(self, wanted: Range<u64>) -> Vec<(Piece, Range<u64>)> {
        let (mut begins, mut found) = (0, Vec::new());
        for piece in self.pieces {
            let ends = begins + piece.size();
            let (from, to) = (wanted.start.max(begins), wanted.end.min(ends));
            if from < to {
                found.push((piece, from - begins..to - begins));
            }
            begins = ends;
        }
        found
    }

    /// A part of it; one file is read at a time. Where one cannot be read the connection ends, so that it does not pass for whole.
    fn bytes(
        self,
        wanted: Range<u64>,
        calls: Calls,
        caller: Caller,
        place: OwnedSemaphorePermit,
    ) -> impl Stream<Item = Result<Bytes, Status>> + Send + 'static {
        let pieces = stream::iter(self.part(wanted)).map(Ok);
        let read = pieces.and_then(move |(piece, wanted)| read(calls.clone(), caller.clone(), piece, wanted));
        read.try_flatten().inspect(move |_| _ = &place)
    }
}

async fn read(
    calls: Calls,
    caller: Caller,
    piece: Piece,
    wanted: Range<u64>,
) -> Result<BoxStream<'static, Result<Bytes, Status>>, Status> {
    let uri = match piece {
        Piece::Written(bytes) => {
            let place = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).min(bytes.len());
            let part = bytes.slice(place(wanted.start)..place(wanted.end));
            return Ok(stream::once(std::future::ready(Ok(part))).boxed());
        }
        Piece::Content { uri, .. } => uri,
    };
    for _ in 1..TRIES {
        match File::open(&calls, &caller, Source::Uri(uri.clone()), wanted.clone()).await {
            Err(busy) if busy.code() == Code::ResourceExhausted => {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            opened => return Ok(opened?.bytes().boxed()),
        }
    }
    Ok(File::open(&calls, &caller, Source::Uri(uri), wanted).await?.bytes().boxed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> v1::Job {
        let job_id = "01a20770-6ab6-73a6-bccb-b21ae4f37fa8".to_owned();
        v1::Job { job_id, name: name.to_owned(), ..Default::default() }
    }

    #[test]
    fn a_folder_leads_nowhere_else_and_hides_nothing() {
        for (name, expected) in [
            ("green star", "green_star-e4f37fa8"),
            ("../../etc/passwd", "etc_passwd-e4f37fa8"),
            (".bashrc", "bashrc-e4f37fa8"),
            ("-rf *", "rf-e4f37fa8"),
            ("a\r\nb\u{202e}", "a__b-e4f37fa8"),
            ("", "job-e4f37fa8"),
            ("..", "job-e4f37fa8"),
        ] {
            assert_eq!(folder(&job(name)), expected, "{name:?}");
        }
        assert!(folder(&job(&"x".repeat(1000))).len() < 80);
    }

    #[test]
    fn any_part_of_an_archive_is_that_part() {
        let file = |name: &str, size: i64| v1::Artifact {
            name: name.to_owned(),
            uri: format!("artifact://sha256/{name}"),
            size,
            ..Default::default()
        };
        let archive = || Archive::of("stars-1", &[file("a", 700), file("b", 0), file("c", 512)]).unwrap();
        let whole = archive().size;
        assert_eq!(whole, 512 + 1024 + 512 + 512 + 512 + 1024);
        let length = |wanted: Range<u64>| -> u64 {
            archive().part(wanted).iter().map(|(_, part)| part.end - part.start).sum()
        };
        for wanted in [0..whole, 0..1, 511..513, 600..700, 512..512 + 700, whole - 1..whole] {
            assert_eq!(length(wanted.clone()), wanted.end - wanted.start, "{wanted:?}");
        }
        let [(Piece::Content { uri, .. }, part)] = &archive().part(522..532)[..] else { panic!("one file") };
        assert_eq!((uri.as_str(), part.clone()), ("artifact://sha256/a", 10..20));
        let other = Archive::of("stars-1", &[file("a", 700), file("b", 0), file("d", 512)]).unwrap();
        assert_ne!(archive().etag().unwrap(), other.etag().unwrap());
        assert_eq!(archive().etag().unwrap(), archive().etag().unwrap());
    }
}
