//! What an engine can fail with.

use std::error::Error as StdError;

/// An error of the library that computes. Its text is all that is said, so it names the file, tensor or field.
type LibraryError = Box<dyn StdError + Send + Sync>;

/// Every message names the file, tensor or field. The engine knows whose fault it is, as it alone knows its library.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Of the job: a model or an input with which every engine fails.
    #[error(transparent)]
    OfJob(LibraryError),
    /// Of this machine: a file that is not there, or may not be read. Another one may have it.
    #[error(transparent)]
    OfMachine(LibraryError),
    /// Of this node: a disk that fails, memory that is not there. Another one may do better.
    #[error(transparent)]
    OfNode(LibraryError),
    /// A call that needs a loaded model came before one was loaded.
    #[error("no model is loaded")]
    NothingLoaded,
    /// The engine panicked in a call; it goes on with the next one.
    #[error("the engine failed: {0}")]
    Panicked(String),
    /// Whoever asked for pictures went away before they were drawn.
    #[error("nobody wants the pictures any more")]
    Unwanted,
    /// The state cannot change: somebody reads it.
    #[error("the state is held: whoever reads it has to let it go before it may change")]
    Held,
    /// The engine's thread has ended.
    #[error("the engine's thread has ended")]
    Gone,
    /// The operating system refused a thread.
    #[error("cannot start the engine's thread: {0}")]
    Spawn(std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("unet/config.json: cannot be read")]
    struct Unreadable(#[source] std::io::Error);

    #[test]
    fn what_the_library_says_is_all_that_is_said() {
        let unreadable = || Unreadable(std::io::Error::from(std::io::ErrorKind::NotFound));
        let (job, node) = (EngineError::OfJob(unreadable().into()), EngineError::OfNode(unreadable().into()));
        for error in [job, node] {
            assert_eq!(error.to_string(), unreadable().to_string());
            // No link of the chain says it again.
            let causes: Vec<String> = std::iter::successors(error.source(), |cause| StdError::source(*cause))
                .map(ToString::to_string)
                .collect();
            assert_eq!(causes, [unreadable().0.to_string()]);
        }
    }
}
