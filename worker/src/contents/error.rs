//! Why something does not come from the coordinator, or does not get there.

use std::path::PathBuf;

use ringtune_shared::files::FileError;
use tonic::{Code, Status};

use crate::fault::{Blame, Fault};

/// Each names the content, the file or the call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file of the worker's cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Reading or writing a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The coordinator gave a file that is not what was asked for.
    #[error("{uri}: the coordinator sent {problem}")]
    WrongContent {
        /// The URI.
        uri: String,
        /// The problem of the answer.
        problem: String,
    },
    /// The coordinator refused, and would again.
    #[error("{what}: the coordinator answered {code}: {message}")]
    Refused {
        /// The call.
        what: String,
        /// gRPC code.
        code: Code,
        /// The coordinator's words.
        message: String,
    },
    /// The job's bucket does not take a file.
    #[error("output.url: {0}")]
    Output(#[from] ringtune_sources::Error),
    /// A task of this worker died.
    #[error("a part of the worker ended unexpectedly: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl Error {
    pub(super) fn refused(what: &str, status: &Status) -> Self {
        Self::Refused { what: what.to_owned(), code: status.code(), message: status.message().to_owned() }
    }
}

impl Blame for Error {
    fn fault(&self) -> Fault {
        match self {
            Self::Refused { code, .. } => refusal_fault(*code),
            Self::Output(error) => error.fault(),
            // It came twice as it should not be: what the coordinator has is damaged, and every worker would get it.
            Self::WrongContent { .. } => Fault::Job,
            Self::File(_) | Self::Io { .. } | Self::Task(_) => Fault::Node,
        }
    }
}

/// What the coordinator refuses by its rules is refused to every worker; what it could not do is its own fault, and what this
/// worker may not is this worker's. (What passes by itself was waited for.)
fn refusal_fault(code: Code) -> Fault {
    match code {
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange => Fault::Job,
        Code::PermissionDenied | Code::Unauthenticated => Fault::Node,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unavailable => Fault::Coordinator,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_considered_refusal_is_the_jobs_fault_and_a_failure_the_coordinators() {
        let refused = |code| Error::Refused { what: "a.png".to_owned(), code, message: "no".to_owned() };
        for code in [Code::ResourceExhausted, Code::NotFound] {
            assert_eq!(refused(code).fault(), Fault::Job);
        }
        assert_eq!(refused(Code::Internal).fault(), Fault::Coordinator);
        assert_eq!(refused(Code::Unauthenticated).fault(), Fault::Node);
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert_eq!(Error::Io { path: PathBuf::from("f"), source: full }.fault(), Fault::Node);
        let damaged = Error::WrongContent { uri: "artifact://x".to_owned(), problem: "7 bytes".to_owned() };
        assert_eq!(damaged.fault(), Fault::Job);
    }
}
