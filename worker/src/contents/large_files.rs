//! Contents from the coordinator that may be larger than memory: they go to the disk as they come.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use ringtune_proto::v1::{self, download_request::Source};
use ringtune_shared::{
    files::{FileError, NewFile},
    ids::ContentHash,
    state::Hashing,
};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;

use super::{ArtifactClient, Error, cache::ContentCache, downloads::within_idle_limit};

/// Messages between the network and the disk: at most 2 MiB.
const QUEUED_CHUNKS: usize = 4;

/// Path of a content of at most `limit` bytes: cached, or fetched from the coordinator.
pub(crate) async fn one_file_on_disk(
    hash: ContentHash,
    limit: u64,
    client: &ArtifactClient,
    cache: &ContentCache,
) -> Result<PathBuf, Error> {
    let there = cache.clone();
    if let Some(path) = ringtune_shared::tasks::spawn_blocking(move || there.find(hash)).await? {
        return Ok(path);
    }
    let path = cache.path(hash);
    match client.download_to(hash, limit, &path).await {
        // The way here may have done it. What comes twice is what the coordinator has.
        Err(Error::WrongContent { .. }) => client.download_to(hash, limit, &path).await?,
        downloaded => downloaded?,
    }
    Ok(path)
}

impl ArtifactClient {
    /// Writes the whole content of `hash`, of at most `limit` bytes, to a file, which is there when it was checked.
    ///
    /// # Errors
    /// The coordinator refuses, or has another content than it says; the file cannot be written.
    async fn download_to(&self, hash: ContentHash, limit: u64, path: &Path) -> Result<(), Error> {
        let uri = hash.uri();
        let (chunks, queue) = mpsc::channel(QUEUED_CHUNKS);
        let target = path.to_owned();
        let writing = ringtune_shared::tasks::spawn_blocking(move || write_all(&target, queue));
        let mut tries = self.tries(&uri);
        let mut received = 0;
        loop {
            let before = received;
            match self.receive_from(&uri, limit, &mut received, &chunks).await {
                Ok(()) => break,
                // The writer reports the disk's error.
                Err(Broken::Disk) => break,
                Err(Broken::Network(status)) => {
                    if received > before {
                        tries.went_on().await;
                    }
                    tries.wait_after(*status).await?;
                }
            }
        }
        tries.went_on().await;
        drop(chunks);
        let written = writing.await?.map_err(|error| match error {
            WriteError::File(error) => Error::File(error),
            WriteError::Io(source) => Error::Io { path: path.to_owned(), source },
        })?;
        let wrong = |problem| Error::WrongContent { uri: uri.clone(), problem };
        if received > limit {
            return Err(wrong(format!("more than the {limit} bytes that it should have")));
        }
        let (found, bytes) = (written.hash(), written.bytes());
        if found != hash {
            return Err(wrong(format!("{bytes} bytes with the hash {found}")));
        }
        Ok(ringtune_shared::tasks::spawn_blocking(move || written.into_inner().commit()).await??)
    }

    /// Receives the rest in one call.
    async fn receive_from(
        &self,
        uri: &str,
        limit: u64,
        received: &mut u64,
        chunks: &mpsc::Sender<Bytes>,
    ) -> Result<(), Broken> {
        let offset = i64::try_from(*received).unwrap_or(i64::MAX);
        let request =
            v1::DownloadRequest { source: Some(Source::Uri(uri.to_owned())), offset, ..Default::default() };
        let mut service = self.service();
        let stream = within_idle_limit(service.download(request)).await.and_then(|answer| answer);
        hand_on(stream?.into_inner(), limit, received, chunks).await
    }
}

/// Why a call gave less than there is.
#[derive(Debug)]
enum Broken {
    Network(Box<Status>),
    Disk,
}

impl From<Status> for Broken {
    fn from(status: Status) -> Self {
        Self::Network(Box::new(status))
    }
}

/// Hands what comes to the disk, no faster than it takes it, and stops as soon as there is more than there may be.
async fn hand_on(
    mut stream: impl Stream<Item = Result<v1::DownloadResponse, Status>> + Unpin,
    limit: u64,
    received: &mut u64,
    chunks: &mpsc::Sender<Bytes>,
) -> Result<(), Broken> {
    while let Some(part) = within_idle_limit(stream.next()).await? {
        let chunk = part?.chunk;
        *received += chunk.len() as u64;
        chunks.send(chunk).await.map_err(|_| Broken::Disk)?;
        if *received > limit {
            break;
        }
    }
    Ok(())
}

enum WriteError {
    File(FileError),
    Io(std::io::Error),
}

/// Writes what comes until nothing more does. The file has no name yet.
fn write_all(path: &Path, mut chunks: mpsc::Receiver<Bytes>) -> Result<Hashing<NewFile>, WriteError> {
    use std::io::Write as _;
    let mut file = Hashing::new(NewFile::create(path).map_err(WriteError::File)?);
    while let Some(chunk) = chunks.blocking_recv() {
        file.write_all(&chunk).map_err(WriteError::Io)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn part(chunk: &'static [u8]) -> Result<v1::DownloadResponse, Status> {
        Ok(v1::DownloadResponse { artifact: None, chunk: Bytes::from_static(chunk) })
    }

    #[tokio::test]
    async fn what_comes_in_several_calls_is_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("content");
        let (chunks, queue) = mpsc::channel(1);
        let target = path.clone();
        let writing = ringtune_shared::tasks::spawn_blocking(move || write_all(&target, queue));
        let mut received = 0;
        let broken = tokio_stream::iter([part(b"ab"), part(b"cd"), Err(Status::unavailable("gone"))]);
        let outcome = hand_on(broken, 100, &mut received, &chunks).await;
        assert!(matches!(outcome, Err(Broken::Network(status)) if status.code() == Code::Unavailable));
        assert_eq!(received, 4);
        hand_on(tokio_stream::iter([part(b"e")]), 100, &mut received, &chunks).await.unwrap();
        drop(chunks);
        let Ok(written) = writing.await.unwrap() else { panic!("not written") };
        assert_eq!((written.hash(), written.bytes()), (ContentHash::of(b"abcde"), 5));
        assert!(!path.exists());
        written.into_inner().commit().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"abcde");
    }

    #[tokio::test]
    async fn no_more_is_taken_than_there_may_be_and_a_full_disk_ends_it() {
        let endless = || tokio_stream::iter(std::iter::repeat_with(|| part(b"abcd")));
        let (chunks, queue) = mpsc::channel(10);
        let mut received = 0;
        hand_on(endless(), 10, &mut received, &chunks).await.unwrap();
        assert_eq!(received, 12);
        drop(queue);
        assert!(matches!(hand_on(endless(), 100, &mut 0, &chunks).await, Err(Broken::Disk)));
        let nowhere = write_all(Path::new("/no-such-folder/x"), mpsc::channel(1).1);
        assert!(matches!(nowhere, Err(WriteError::File(_))));
    }
}
