//! Why spans cannot be sent at all.

use std::path::PathBuf;

use ringtune_shared::user_info::without_user_info;

/// Spans cannot be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file of its roots.
    #[error("traces.ca: {}: {problem}", path.display())]
    Ca {
        /// The file.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// No address.
    #[error("traces.endpoint: {:?} is no address; http://HOST:PORT and https://HOST:PORT are", without_user_info(.0))]
    Endpoint(String),
}
