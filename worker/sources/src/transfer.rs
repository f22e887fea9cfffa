//! Resumable download of a file into a partial file, and then to its name.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt as _, stream::BoxStream};
use ringtune_shared::files::rename_durably;
use tokio::{
    fs::{File, OpenOptions},
    io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _},
    time::timeout,
};

use crate::{
    Error,
    digest::{Expected, Running},
    progress::FileProgress,
    tries::{Patience, Tries},
};

/// No file of a model is larger: SD 2's largest is 5 GB.
pub(crate) const LARGEST_FILE: u64 = 64 << 30;

/// A remote file.
#[async_trait]
pub(crate) trait Origin: Send + Sync {
    /// Begins to send the file from byte `offset` on, or from an earlier one.
    async fn open(&self, offset: u64) -> Result<Opened, Error>;
}

/// A stream of bytes.
pub(crate) struct Opened {
    /// Offset of the body: the requested one, or 0 if the server sends whole files only.
    pub(crate) offset: u64,
    pub(crate) body: BoxStream<'static, Result<Bytes, Error>>,
}

/// A file to download.
#[derive(Clone, Debug)]
pub(crate) struct Download {
    /// For messages: the file as users know it.
    pub(crate) what: String,
    pub(crate) size: u64,
    pub(crate) expected: Expected,
    /// The partial file, kept until it is complete.
    pub(crate) partial: PathBuf,
    /// Its name once all is there. In the same folder.
    pub(crate) target: PathBuf,
}

/// Fetches what is missing of a file. The target appears only when size and content are right.
///
/// The caller holds the lock on the file.
pub(crate) async fn download(
    origin: &dyn Origin,
    wanted: &Download,
    patience: &Patience,
    progress: &FileProgress,
) -> Result<(), Error> {
    if wanted.size > LARGEST_FILE {
        let problem = format!("has {} bytes; allowed: {LARGEST_FILE}", wanted.size);
        return Err(Error::TooLarge { what: wanted.what.clone(), problem });
    }
    let mut partial = Partial::open(wanted).await?;
    loop {
        let resumed = partial.length > 0;
        fill(origin, &mut partial, wanted, patience, progress).await?;
        match partial.finish(wanted).await {
            // The partial file may have been damaged: once more from the beginning.
            Err(Error::Corrupt { file, problem }) if resumed => {
                tracing::warn!(%file, %problem, "a partial download is damaged: starting over");
                partial = Partial::open(wanted).await?;
            }
            finished => return finished,
        }
    }
}

/// Goes on until all bytes are there, through interruptions.
async fn fill(
    origin: &dyn Origin,
    partial: &mut Partial,
    wanted: &Download,
    patience: &Patience,
    progress: &FileProgress,
) -> Result<(), Error> {
    let mut tries = Tries::new(patience);
    while partial.length < wanted.size {
        let before = partial.length;
        let Err(error) = receive(origin, partial, wanted, patience, progress).await else { break };
        if partial.length > before {
            tries.went_on();
        }
        tries.wait_after(error, progress.of_all()).await?;
    }
    Ok(())
}

/// Receives as much as one connection gives.
async fn receive(
    origin: &dyn Origin,
    partial: &mut Partial,
    wanted: &Download,
    patience: &Patience,
    progress: &FileProgress,
) -> Result<(), Error> {
    let lost = |problem: String| Error::Unreachable { what: wanted.what.clone(), problem };
    let stalled = || lost(format!("no answer for {:.0} seconds", patience.stall.as_secs_f64()));
    let mut opened = timeout(patience.stall, origin.open(partial.length)).await.map_err(|_| stalled())??;
    if opened.offset != partial.length {
        partial.restart(wanted).await?;
    }
    progress.set(partial.length);
    while let Some(bytes) = timeout(patience.stall, opened.body.next()).await.map_err(|_| stalled())? {
        let bytes = bytes?;
        if partial.length + bytes.len() as u64 > wanted.size {
            // The next try starts from scratch.
            partial.restart(wanted).await?;
            let problem = format!("more than the announced {} bytes arrived", wanted.size);
            return Err(Error::Corrupt { file: wanted.what.clone(), problem });
        }
        partial.append(&bytes).await?;
        progress.set(partial.length);
    }
    if partial.length < wanted.size {
        let problem = format!("the connection ended after {} of {} bytes", partial.length, wanted.size);
        return Err(lost(problem));
    }
    Ok(())
}

/// The part of a file that is here, and its digest so far.
struct Partial {
    file: File,
    path: PathBuf,
    length: u64,
    digest: Running,
}

impl Partial {
    /// Opens the partial file of an earlier try, or a new one.
    async fn open(wanted: &Download) -> Result<Self, Error> {
        let path = wanted.partial.clone();
        if let Some(folder) = path.parent() {
            tokio::fs::create_dir_all(folder).await.map_err(Error::io(folder))?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .await
            .map_err(Error::io(&path))?;
        let mut partial = Self { file, path, length: 0, digest: Running::new(&wanted.expected, wanted.size) };
        partial.read_back(wanted).await?;
        Ok(partial)
    }

    /// Takes the bytes that are there into the digest.
    async fn read_back(&mut self, wanted: &Download) -> Result<(), Error> {
        let mut buffer = vec![0; 1 << 20];
        loop {
            let read = self.file.read(&mut buffer).await.map_err(Error::io(&self.path))?;
            let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else { return Ok(()) };
            self.digest.update(bytes);
            self.length += read as u64;
            if self.length > wanted.size {
                return self.restart(wanted).await;
            }
        }
    }

    async fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).await.map_err(Error::io(&self.path))?;
        self.digest.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    async fn restart(&mut self, wanted: &Download) -> Result<(), Error> {
        self.file.set_len(0).await.map_err(Error::io(&self.path))?;
        self.file.rewind().await.map_err(Error::io(&self.path))?;
        self.length = 0;
        self.digest = Running::new(&wanted.expected, wanted.size);
        Ok(())
    }

    /// Checks the content and gives the file its name; a wrong one is removed.
    async fn finish(&mut self, wanted: &Download) -> Result<(), Error> {
        let digest = std::mem::replace(&mut self.digest, Running::Nothing).finish();
        if let Err(problem) = wanted.expected.check(&digest) {
            self.restart(wanted).await?;
            let _ = tokio::fs::remove_file(&self.path).await;
            return Err(Error::Corrupt { file: wanted.what.clone(), problem });
        }
        self.file.flush().await.map_err(Error::io(&self.path))?;
        self.file.sync_all().await.map_err(Error::io(&self.path))?;
        let (from, to) = (self.path.clone(), wanted.target.clone());
        ringtune_shared::tasks::spawn_blocking(move || rename(&from, &to)).await?
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    rename_durably(from, to).map_err(|error| Error::Io { path: error.path, source: error.cause })
}
