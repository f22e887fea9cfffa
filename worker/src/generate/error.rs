//! What `generate` can fail with.

use std::path::PathBuf;

use crate::{data, engine::EngineError};

/// Each message names the option or the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option's value does not fit the others or the checkpoint.
    #[error("{option}: {problem}")]
    Option {
        /// As it is typed.
        option: &'static str,
        /// What was given and what is allowed.
        problem: String,
    },
    /// An embeddings file cannot be read.
    #[error("--embeds {}: {problem}", file.display())]
    Embeds {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The tokenizer or the training pictures.
    #[error(transparent)]
    Data(#[from] data::Error),
    /// The checkpoint or libtorch.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A picture cannot be encoded.
    #[error("cannot encode {}: {source}", file.display())]
    Encode {
        /// The file it was for.
        file: PathBuf,
        /// Why.
        source: image::ImageError,
    },
    /// A picture cannot be written.
    #[error(transparent)]
    File(#[from] ringtune_shared::files::FileError),
    /// A folder cannot be made.
    #[error("cannot write {}: {source}", file.display())]
    Write {
        /// The folder.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}
