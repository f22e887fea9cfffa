//! Why a model could not be fetched. The texts reach users; none holds a secret.

use std::{io, path::PathBuf};

/// Each names the place, the file or the variable that it is about.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A variable whose value cannot be used.
    #[error("{variable}: {problem}")]
    Variable {
        /// Its name.
        variable: &'static str,
        /// The problem, without the value of secrets.
        problem: String,
    },
    /// The server has no such file, or denies access.
    #[error("{place}: {problem}")]
    Refused {
        /// The repository or bucket.
        place: String,
        /// The answer, and what to do.
        problem: String,
    },
    /// The files are not a usable model.
    #[error("{place}: {problem}")]
    Unsuitable {
        /// The repository or bucket.
        place: String,
        /// The missing file, or what there is instead.
        problem: String,
    },
    /// Nothing may be asked, and the cache lacks something.
    #[error("{place}: HF_HUB_OFFLINE is set, and the cache {} {problem}", cache.display())]
    Offline {
        /// The repository.
        place: String,
        /// The cache's folder.
        cache: PathBuf,
        /// The missing parts.
        problem: String,
    },
    /// The server does not answer, or stopped half-way. Trying again may help.
    #[error("{what}: {problem}")]
    Unreachable {
        /// The place or file.
        what: String,
        /// The problem.
        problem: String,
    },
    /// The server cannot be reached: no name, no route, or no listener. Trying again for long does not help.
    #[error(
        "{what}: {problem}: look whether this machine has a network; a proxy is named by HTTPS_PROXY, another hub by HF_ENDPOINT, \
         and a model in a folder of this machine needs none of them"
    )]
    NotReached {
        /// The place or file.
        what: String,
        /// The address, and the problem.
        problem: String,
    },
    /// The received bytes are not the announced ones.
    #[error("{file}: {problem}")]
    Corrupt {
        /// The file.
        file: String,
        /// The announced and the received digest or size.
        problem: String,
    },
    /// Larger than anything that is allowed.
    #[error("{what}: {problem}")]
    TooLarge {
        /// The place or file.
        what: String,
        /// Its size and the limit.
        problem: String,
    },
    /// A file or folder of this machine.
    #[error("{}: {source}", path.display())]
    Io {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody asked to stop.
    #[error("{what}: stopped; it may be there as a whole, never in part")]
    Stopped {
        /// The file.
        what: String,
    },
    /// A part of the program died.
    #[error("a part of the download ended unexpectedly: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl Error {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    /// The problem, without advice.
    pub(crate) fn brief(&self) -> String {
        match self {
            Self::NotReached { what, problem } => format!("{what}: {problem}"),
            other => other.to_string(),
        }
    }

    /// Whether the other side was not even there.
    pub(crate) fn is_not_reached(&self) -> bool {
        matches!(self, Self::NotReached { .. })
    }

    /// Whether the same request may succeed a little later.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. }) || self.is_not_reached()
    }
}
