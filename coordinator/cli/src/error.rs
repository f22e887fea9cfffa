//! What can go wrong in the command, and the exit code that each failure means.

use std::{io, path::PathBuf};

use ringtune_shared::model_folder::ModelFolderError;
use tonic::Code;

use crate::{
    checkpoints::ResumeError,
    client::ClientError,
    cloud_tool::CloudError,
    cluster::{ClusterError, WaitError},
    credentials::AccessError,
    images::{ImageFolderError, UploadError},
    job_file::JobFileError,
    kubernetes::KubernetesError,
};

/// A failed command. Its text says what was wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line asks for something impossible.
    #[error("{0}")]
    Usage(String),
    /// The job file cannot be used.
    #[error(transparent)]
    JobFile(#[from] JobFileError),
    /// The image folder cannot be used.
    #[error(transparent)]
    Images(#[from] ImageFolderError),
    /// The checkpoint cannot be gone on from.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The coordinator did not do what was asked, or could not be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Credentials are missing, or cannot be used.
    #[error(transparent)]
    Access(AccessError),
    /// The coordinator did not say whether it made the job.
    #[error(
        "{source}\n  it may have made the job: run the same command with --request-id {request_id}: it makes no second job"
    )]
    MaybeSubmitted {
        /// What happened to the answer.
        source: ClientError,
        /// The name of the request.
        request_id: String,
    },
    /// A daemon started by `run` or `up` failed.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The job ended, but not well.
    #[error("{0}")]
    JobEnded(String),
    /// A file or folder of this machine.
    #[error("{doing} {}: {source}", path.display())]
    File {
        /// For example "cannot write".
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A folder with a model.
    #[error(transparent)]
    ModelFolder(#[from] ModelFolderError),
    /// Nobody reads the output any more, or it cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    /// A bucket does not take files.
    #[error("--output-dir: {0}")]
    Bucket(#[from] ringtune_sources::Error),
    /// A cloud, or its command.
    #[error(transparent)]
    Cloud(#[from] CloudError),
    /// A Secret of Kubernetes.
    #[error(transparent)]
    Kubernetes(#[from] KubernetesError),
    /// The user ended the command.
    #[error("{0}")]
    Interrupted(String),
    /// The user ended a command that followed a job, which goes on.
    #[error("{0}")]
    Detached(String),
}

/// The exit codes: 0 is success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// The job failed or was cancelled, or the command failed while it worked.
    Failed = 1,
    /// The command line, the job file, the image folder or the credentials cannot be used, or do not allow this.
    Usage = 2,
    /// The coordinator cannot be reached.
    Unreachable = 3,
    /// The job goes on, and nobody follows it any more.
    Detached = 4,
}

impl Error {
    /// The exit code for this failure.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Usage(_)
            | Self::JobFile(_)
            | Self::Images(_)
            | Self::Resume(_)
            | Self::Kubernetes(KubernetesError::NoPod(_) | KubernetesError::NoSecret { .. })
            | Self::ModelFolder(ModelFolderError::Unusable { .. }) => ExitStatus::Usage,
            Self::Cloud(error) if error.is_usage() => ExitStatus::Usage,
            Self::Access(AccessError::File { .. } | AccessError::Given(_)) => ExitStatus::Failed,
            Self::Access(_) => ExitStatus::Usage,
            Self::Client(error) | Self::MaybeSubmitted { source: error, .. } => match error.code() {
                Some(
                    Code::InvalidArgument
                    | Code::NotFound
                    | Code::AlreadyExists
                    | Code::OutOfRange
                    | Code::Unauthenticated
                    | Code::PermissionDenied,
                ) => ExitStatus::Usage,
                Some(Code::Unavailable | Code::DeadlineExceeded) => ExitStatus::Unreachable,
                _ => ExitStatus::Failed,
            },
            Self::Detached(_) => ExitStatus::Detached,
            Self::Cluster(_)
            | Self::JobEnded(_)
            | Self::File { .. }
            | Self::Bucket(_)
            | Self::Cloud(_)
            | Self::Kubernetes(_)
            | Self::ModelFolder(_)
            | Self::Output(_)
            | Self::Interrupted(_) => ExitStatus::Failed,
        }
    }

    /// Whether the reader of our output went away (`ringtune list | head -1`), which is not a failure.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl From<AccessError> for Error {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Client(error) => error.into(),
            other => Self::Access(other),
        }
    }
}

impl From<WaitError> for Error {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::Cluster(error) => error.into(),
            WaitError::Client(error) => error.into(),
        }
    }
}

impl From<UploadError> for Error {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::Folder(error) => error.into(),
            UploadError::Client(error) => error.into(),
        }
    }
}
