//! Why something about tokens and certificates is not done.

use ringtune_security::{AuthorityError, IssueError, Unpredictable};

use super::caller::Denied;
use crate::network::authority::PkiError;
use crate::store;

/// Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nobody to be let in or kept out.
    #[error(
        "nothing is authenticated here (loopback or --insecure): everybody may do everything, and no token is needed; \
         for a network start the coordinator with --listen"
    )]
    NothingAuthenticated,
    /// Somebody else makes the certificates.
    #[error(
        "this cluster's certificates come from elsewhere (security.certificate of the coordinator): it gives none itself, \
         and has no join tokens"
    )]
    FromElsewhere,
    /// The caller may not, or the token is wrong.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// A field of the request.
    #[error("{field}: {problem}")]
    Field {
        /// Which.
        field: &'static str,
        /// What was given, and what is allowed.
        problem: String,
    },
    /// There are as many as may be.
    #[error("there are {most} {what}, which is the limit: {instead}")]
    TooMany {
        /// The limit.
        most: u32,
        /// Of what.
        what: &'static str,
        /// What would make room.
        instead: &'static str,
    },
    /// Somebody needs the older root.
    #[error(
        "certificates that only the older root signed are in use, by {holders}: wait until they are renewed, which happens by \
         itself, or force it, which shuts their holders out"
    )]
    InUse {
        /// Five of them at most.
        holders: String,
    },
    /// The roots are not as they have to be.
    #[error(transparent)]
    Roots(AuthorityError),
    /// Something about keys or certificates that should not happen.
    #[error("the authority failed: {0}")]
    Pki(#[source] PkiError),
    /// There are no random bytes.
    #[error(transparent)]
    Unpredictable(#[from] Unpredictable),
    /// It could not be stored or read.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A part of the coordinator died.
    #[error("the change was interrupted")]
    Interrupted,
}

impl Error {
    pub(super) fn field(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Field { field, problem: problem.into() }
    }
}

impl From<PkiError> for Error {
    fn from(error: PkiError) -> Self {
        match error {
            PkiError::FromElsewhere => Self::FromElsewhere,
            PkiError::Issue(IssueError::Holder(problem)) => Self::field("name", problem.to_string()),
            PkiError::Issue(
                problem @ (IssueError::Unreadable
                | IssueError::TooLong { .. }
                | IssueError::NotSigned
                | IssueError::OtherKey),
            ) => Self::field("csr", problem.to_string()),
            PkiError::Authority(roots @ (AuthorityError::Rotating { .. } | AuthorityError::Alone { .. })) => {
                Self::Roots(roots)
            }
            other => Self::Pki(other),
        }
    }
}
