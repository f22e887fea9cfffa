//! Downloads of artifacts: resumed, checked, and never half-written under their own name.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use ringtune_proto::v1::{self, download_request::Source};
use ringtune_shared::files::{TEMPORARY_SUFFIX, check_saved_name};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;
use tonic::{Request, Status};

use super::{Client, ClientError, Retries};

/// An artifact that is on this machine now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedArtifact {
    /// Its name, which is also the file's.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Lower-case hex of its SHA-256.
    pub sha256: String,
    /// In bytes.
    pub size: u64,
}

impl Client {
    /// Saves an artifact in `folder` under its own name; a file of that name is replaced at once or not
    /// at all.
    pub async fn download(
        &self,
        artifact: &v1::Artifact,
        folder: &Path,
    ) -> Result<SavedArtifact, ClientError> {
        let doing = "download an artifact";
        if let Err(error) = check_saved_name(&artifact.name) {
            return Err(self.nonsense(doing, format!("a file name: {error}")));
        }
        let path = folder.join(&artifact.name);
        let cannot_write = |source| ClientError::File { doing: "cannot write", path: path.clone(), source };

        // 1. Into a temporary file of the same folder, so that the rename stays within one file system.
        let temporary = tempfile::Builder::new()
            .prefix(".ringtune-")
            .suffix(TEMPORARY_SUFFIX)
            .permissions(Permissions::from_mode(0o666)) // less the user's umask, as for any new file
            .tempfile_in(folder)
            .map_err(cannot_write)?;
        let mut file = tokio::fs::File::from_std(temporary.reopen().map_err(cannot_write)?);
        let mut received = Received { hash: Sha256::new(), size: 0 };
        let mut retries = Retries::new();
        loop {
            match self.receive(artifact, &mut file, &mut received).await {
                Ok(()) => break,
                Err(ReceiveError::Write(source)) => return Err(cannot_write(source)),
                Err(ReceiveError::Status(status)) => {
                    retries.after(*status, doing).await.map_err(|status| self.failure(doing, *status))?;
                }
            }
        }

        // 2. Check it, then let it have its name.
        let sha256 = hex::encode(received.hash.finalize());
        if sha256 != artifact.sha256 {
            return Err(self.nonsense(
                doing,
                format!("bytes of {} whose hash is {sha256} instead of {}", artifact.name, artifact.sha256),
            ));
        }
        file.flush().await.map_err(cannot_write)?;
        file.sync_all().await.map_err(cannot_write)?;
        temporary.persist(&path).map_err(|error| cannot_write(error.error))?;
        fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(cannot_write)?;
        Ok(SavedArtifact { name: artifact.name.clone(), path, sha256, size: received.size })
    }

    async fn receive(
        &self,
        artifact: &v1::Artifact,
        file: &mut tokio::fs::File,
        received: &mut Received,
    ) -> Result<(), ReceiveError> {
        let request = v1::DownloadRequest {
            source: Some(Source::Uri(artifact.uri.clone())),
            offset: i64::try_from(received.size).unwrap_or(i64::MAX),
            ..v1::DownloadRequest::default()
        };
        let mut stream = self.artifacts().download(Request::new(request)).await?.into_inner();
        while let Some(message) = stream.message().await? {
            file.write_all(&message.chunk).await.map_err(ReceiveError::Write)?;
            received.hash.update(&message.chunk);
            received.size += message.chunk.len() as u64;
        }
        Ok(())
    }
}

struct Received {
    hash: Sha256,
    size: u64,
}

enum ReceiveError {
    Status(Box<Status>),
    Write(io::Error),
}

impl From<Status> for ReceiveError {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}
