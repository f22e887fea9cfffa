//! Content-addressed uploads that go on where an earlier attempt stopped.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt as _};
use ringtune_proto::v1::{self, upload_request::Part};
use ringtune_shared::ids::ContentHash;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tonic::{Request, Status};

use super::{Client, ClientError, Retries};

/// Bytes in one message of an upload.
const CHUNK_BYTES: usize = 512 * 1024;

/// What to upload: the bytes and what they are.
#[derive(Debug, Clone)]
pub struct Content {
    /// All of it.
    pub bytes: Bytes,
    /// Its hash.
    pub sha256: ContentHash,
    /// For example "image/png".
    pub media_type: &'static str,
}

/// A file to upload, which may be larger than memory.
#[derive(Debug, Clone)]
pub struct FileContent {
    /// Where it is.
    pub path: PathBuf,
    /// Its bytes.
    pub size: u64,
    /// Its hash.
    pub sha256: ContentHash,
    /// For example "image/png".
    pub media_type: &'static str,
}

/// What an upload's messages are made of.
enum Data<'a> {
    Memory(&'a Bytes),
    /// And why it could not be read to its end.
    File(&'a Path, Arc<Mutex<Option<io::Error>>>),
}

impl Client {
    /// Uploads `content` and returns its address, `artifact://sha256/HEX`.
    ///
    /// What the coordinator has already is not sent again.
    pub async fn upload(&self, content: &Content) -> Result<String, ClientError> {
        let size = content.bytes.len() as u64;
        self.upload_data(Data::Memory(&content.bytes), size, content.sha256, content.media_type).await
    }

    /// As above, for a file, which is read while it is sent.
    pub async fn upload_file(&self, content: &FileContent) -> Result<String, ClientError> {
        let data = Data::File(&content.path, Arc::default());
        self.upload_data(data, content.size, content.sha256, content.media_type).await
    }

    async fn upload_data(
        &self,
        data: Data<'_>,
        size: u64,
        sha256: ContentHash,
        media_type: &str,
    ) -> Result<String, ClientError> {
        let doing = "upload a file";
        let mut retries = Retries::new();
        let mut committed = None;
        loop {
            let header = v1::UploadHeader {
                sha256: sha256.to_string(),
                size: i64::try_from(size).unwrap_or(i64::MAX),
                offset: i64::try_from(committed.unwrap_or(0)).unwrap_or(i64::MAX),
                media_type: media_type.to_owned(),
                ..v1::UploadHeader::default()
            };
            // A header alone asks how much is there.
            let rest = committed.map_or(futures::stream::empty().boxed(), |offset| data.chunks_from(offset));
            let sent = self.send_upload(header, rest).await;
            data.check()?;
            match sent {
                Ok(answer) if answer.complete => return Ok(answer.uri),
                Ok(answer) => {
                    let now = u64::try_from(answer.committed_size).unwrap_or(u64::MAX);
                    if now > size || committed.is_some_and(|before| now <= before) {
                        return Err(self.nonsense(
                            doing,
                            format!("{now} of {size} bytes after having been sent the rest"),
                        ));
                    }
                    committed = Some(now);
                }
                Err(status) => {
                    retries.after(status, doing).await.map_err(|status| self.failure(doing, *status))?;
                    // What is there by now is asked again.
                    committed = None;
                }
            }
        }
    }

    async fn send_upload(
        &self,
        header: v1::UploadHeader,
        rest: BoxStream<'static, Bytes>,
    ) -> Result<v1::UploadResponse, Status> {
        let first = v1::UploadRequest { part: Some(Part::Header(header)) };
        let chunks = rest.map(|chunk| v1::UploadRequest { part: Some(Part::Chunk(chunk)) });
        let messages = futures::stream::iter([first]).chain(chunks);
        Ok(self.artifacts().upload(Request::new(messages)).await?.into_inner())
    }
}

impl Data<'_> {
    fn chunks_from(&self, offset: u64) -> BoxStream<'static, Bytes> {
        match self {
            Self::Memory(bytes) => {
                let from = usize::try_from(offset).map_or(bytes.len(), |offset| offset.min(bytes.len()));
                let rest = bytes.slice(from..);
                let chunk = move |start| rest.slice(start..rest.len().min(start + CHUNK_BYTES));
                futures::stream::iter((0..bytes.len() - from).step_by(CHUNK_BYTES).map(chunk)).boxed()
            }
            Self::File(path, problem) => {
                let (path, problem) = (path.to_path_buf(), Arc::clone(problem));
                let begin = async move { open_at(&path, offset).await };
                let all = futures::stream::once(begin).flat_map(|opened| match opened {
                    Ok(file) => futures::stream::unfold(Some(file), next_chunk).boxed(),
                    Err(error) => futures::stream::iter([Err(error)]).boxed(),
                });
                // A stream of messages has no place for an error: it ends, and the error waits to be asked for.
                let readable = move |read: io::Result<Bytes>| match read {
                    Ok(chunk) => Some(chunk),
                    Err(error) => {
                        *lock(&problem) = Some(error);
                        None
                    }
                };
                all.map(readable)
                    .take_while(|chunk| futures::future::ready(chunk.is_some()))
                    .filter_map(futures::future::ready)
                    .boxed()
            }
        }
    }

    /// Whether the last chunks could be read.
    fn check(&self) -> Result<(), ClientError> {
        let Self::File(path, problem) = self else { return Ok(()) };
        match lock(problem).take() {
            Some(source) => Err(ClientError::File { doing: "cannot read", path: path.to_path_buf(), source }),
            None => Ok(()),
        }
    }
}

async fn open_at(path: &Path, offset: u64) -> io::Result<tokio::fs::File> {
    let mut file = tokio::fs::File::open(path).await?;
    file.seek(io::SeekFrom::Start(offset)).await?;
    Ok(file)
}

/// Goes through a file; nothing follows an error.
async fn next_chunk(file: Option<tokio::fs::File>) -> Option<(io::Result<Bytes>, Option<tokio::fs::File>)> {
    let mut file = file?;
    let mut chunk = vec![0; CHUNK_BYTES];
    match file.read(&mut chunk).await {
        Ok(0) => None,
        Ok(count) => {
            chunk.truncate(count);
            Some((Ok(Bytes::from(chunk)), Some(file)))
        }
        Err(error) => Some((Err(error), None)),
    }
}

fn lock(problem: &Mutex<Option<io::Error>>) -> std::sync::MutexGuard<'_, Option<io::Error>> {
    // One value: whole whatever happened to the thread that held it.
    problem.lock().unwrap_or_else(PoisonError::into_inner)
}
