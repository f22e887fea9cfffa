//! Why a worker does not get into its cluster, and what to do.

use std::{io, path::PathBuf};

use ringtune_security::{CredentialsError, Role, TokenError, TrustError};
use ringtune_shared::ids::WorkerId;

/// A token that cannot be used. None of them quotes it.
#[derive(Debug, thiserror::Error)]
pub enum TokenTextError {
    /// Its file.
    #[error("--join-file {}: {source}", path.display())]
    File {
        /// As given.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is more than a line.
    #[error("--join-file {}: it is longer than any token: it should hold one line that begins with rtj1.", path.display())]
    Long {
        /// As given.
        path: PathBuf,
    },
    /// stdin is spoken for.
    #[error("--join-file: - is stdin, which --lifeline needs: name a file")]
    Lifeline,
    /// The program cannot begin again without it.
    #[error("the token cannot be hidden from the list of processes ({0}): give it by --join-file FILE")]
    Hide(#[source] io::Error),
    /// It is malformed or truncated.
    #[error("the join token: {0}")]
    Token(#[from] TokenError),
    /// It is for somebody else.
    #[error(
        "the join token is for the role {0}, and a worker needs one of its own: run `ringtune token create --role worker`"
    )]
    Role(Role),
}

/// Why a worker of a secured cluster does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// The token itself.
    #[error(transparent)]
    Token(#[from] TokenTextError),
    /// A token, and nothing to use it for.
    #[error(
        "a join token is for a coordinator with TLS, and coordinator.url is {url}: give --coordinator https://HOST:PORT"
    )]
    NoTls {
        /// The coordinator's.
        url: String,
    },
    /// Neither a certificate nor a token.
    #[error(
        "{because}, so this worker needs a certificate of the cluster, and it has none. To let it in:\n  \
         1. where the coordinator runs:  ringtune token create --role worker\n  \
         2. here, once, with that token: ringtune-worker --join TOKEN --coordinator {url}\n     \
         (and its other flags, such as --state-dir {state})\n  \
         3. from then on the same without --join: {folder} has what it needs\n\
         On a network where everybody may do everything, --insecure goes without all that.",
        state = state.display(), folder = state.join("credentials").display()
    )]
    NoCredentials {
        /// Why TLS is spoken.
        because: String,
        /// The coordinator's, with https.
        url: String,
        /// The worker's.
        state: PathBuf,
    },
    /// The certificate is over, and there is no token for another one.
    #[error(
        "the certificate in {} ended at {until}: the worker was away for too long to renew it. Run `ringtune token create --role worker` where the coordinator runs, and start this worker once with --join TOKEN",
        folder.display()
    )]
    Expired {
        /// Its folder.
        folder: PathBuf,
        /// When.
        until: String,
    },
    /// A certificate that came with somebody else's folder.
    #[error(
        "the certificate in {} is that of {theirs}, and this is worker {ours}: remove that folder, and join with a token of its own",
        folder.display()
    )]
    OtherWorker {
        /// Its folder.
        folder: PathBuf,
        /// The worker that it names.
        theirs: String,
        /// This one.
        ours: WorkerId,
    },
    /// A certificate from elsewhere that is not a worker's.
    #[error("security.certificate: {}: {problem}", path.display())]
    Brought {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The coordinator will not have it.
    #[error("cannot join at {url}: {reason}")]
    Refused {
        /// The coordinator's.
        url: String,
        /// The coordinator's reason.
        reason: String,
    },
    /// Files.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// Credentials of no cluster, or of another one.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// A part of the worker died.
    #[error("a part of the worker ended unexpectedly: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl MembershipError {
    /// The user has to change a flag, a setting or the token: exit code 2.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Token(_) | Self::NoTls { .. } | Self::NoCredentials { .. } | Self::Brought { .. }
        )
    }
}
