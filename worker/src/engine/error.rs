//! What an engine can fail with.

/// Every message names the file, tensor or field; the cause is the model library's own error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The checkpoint, an input or libtorch itself.
    #[error(transparent)]
    Model(#[from] ringtune_model::Error),
    /// A call that needs a loaded checkpoint came before one was loaded.
    #[error("no model is loaded")]
    NothingLoaded,
    /// The fake engine was told to fail here.
    #[error("{0}")]
    Scripted(String),
    /// The engine panicked in a command; it goes on with the next one.
    #[error("the engine failed: {0}")]
    Panicked(String),
    /// Whoever asked for pictures went away before they were drawn.
    #[error("nobody wants the pictures any more")]
    Unwanted,
    /// The engine's thread has ended.
    #[error("the engine's thread has ended")]
    Gone,
    /// The operating system refused a thread.
    #[error("cannot start the engine's thread: {0}")]
    Spawn(std::io::Error),
}
