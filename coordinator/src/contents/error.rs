//! What the content store can fail with.

use std::{io, path::PathBuf};

use ringtune_shared::{files::FileError, ids::ContentHash};

/// Each names the content or the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing of this hash is kept.
    #[error("the coordinator does not have {0}")]
    NotFound(ContentHash),
    /// An upload does not go on where the last one ended.
    #[error("offset is {given}, but the coordinator has {committed} bytes of this content: go on from there")]
    Offset {
        /// As given.
        given: u64,
        /// What is safe here.
        committed: u64,
    },
    /// More bytes came than the header said.
    #[error("more bytes were sent than the {size} that the header named")]
    TooLong {
        /// As the header named it.
        size: u64,
    },
    /// The bytes are not those that were named.
    #[error("the content's SHA-256 is {found}, but the header named {expected}; what was sent was dropped")]
    HashMismatch {
        /// As the header named it.
        expected: ContentHash,
        /// As it is.
        found: ContentHash,
    },
    /// What is here under this hash has another length.
    #[error("size is {given}, but this content has {actual} bytes")]
    Size {
        /// As given.
        given: u64,
        /// As it is.
        actual: u64,
    },
    /// A content is larger than is allowed.
    #[error("size is {given}; at most {limit} bytes are allowed")]
    TooLarge {
        /// As given.
        given: u64,
        /// The limit.
        limit: u64,
    },
    /// A range begins behind the end.
    #[error("offset is {offset}, the content has {size} bytes")]
    Range {
        /// As given.
        offset: u64,
        /// The content's.
        size: u64,
    },
    /// Somebody else uploads the same content now.
    #[error("{0} is being uploaded by somebody else now")]
    Busy(ContentHash),
    /// All contents together would take more than they may.
    #[error(
        "{given} bytes more do not fit: the contents kept here take {taken} of the {limit} bytes that the setting \
         storage.content_bytes allows; delete jobs that are over"
    )]
    Quota {
        /// Bytes that were to come.
        given: u64,
        /// Bytes that contents and uploads under way take.
        taken: u64,
        /// The limit.
        limit: u64,
    },
    /// Too little of the disk would stay free.
    #[error(
        "{given} bytes more do not fit: the coordinator's disk has {free} bytes free, of which the setting \
         storage.free_bytes keeps {limit}"
    )]
    TooLittleFree {
        /// Bytes that were to come.
        given: u64,
        /// Bytes that are free, some of them promised to uploads under way.
        free: u64,
        /// Bytes that stay free.
        limit: u64,
    },
    /// As many uploads are under way as may be.
    #[error("{limit} uploads are under way, which is the limit")]
    TooManyUploads {
        /// The limit.
        limit: usize,
    },
    /// The disk has no room.
    #[error("the disk that holds {} is full", .0.display())]
    DiskFull(PathBuf),
    /// Anything else that the file system says.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// "read", "write" …
        action: &'static str,
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// Whether a file that cannot be dealt with now may be later, whatever it holds: it is to be written, or none can be opened.
    pub fn may_pass(&self) -> bool {
        use rustix::io::Errno;
        let Self::Io { action, source, .. } = self else { return false };
        let short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::ROFS].map(Errno::raw_os_error);
        matches!(*action, "write" | "create" | "sync" | "rename")
            || source.raw_os_error().is_some_and(|code| short.contains(&code))
    }

    /// Sorts a full disk out from the other failures.
    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull(path.into()),
            _ => Self::Io { action, path: path.into(), source },
        }
    }
}

impl From<FileError> for Error {
    fn from(error: FileError) -> Self {
        Self::io(error.action, error.path)(error.cause)
    }
}
