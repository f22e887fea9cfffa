//! Why a pickle is not read to its end.

use crate::embedding::EmbeddingError;

/// Why the machine does not go on.
pub(super) enum Stop {
    /// It would have to run code.
    Code(EmbeddingError),
    /// Anything else.
    Problem(String),
}

impl From<&str> for Stop {
    fn from(problem: &str) -> Self {
        Self::Problem(problem.to_owned())
    }
}
