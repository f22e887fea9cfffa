//! Why a file is not read as an embedding.

use crate::files::UnreadFile;

/// A file that is not an embedding, or none that can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EmbeddingError {
    /// No file, none that can be opened, or one too large.
    #[error(transparent)]
    File(#[from] UnreadFile),
    /// A pickle without a zip file around it.
    #[error(
        "it is a bare pickle, as torch.save wrote it before PyTorch 1.6; only the zip files of newer ones are read. To \
         convert it: python -c 'import torch; torch.save(torch.load(\"OLD.pt\", weights_only=True), \"NEW.pt\")'"
    )]
    Legacy,
    /// Not a whole safetensors file.
    #[error("it is neither a safetensors file nor a zip file of torch.save: {0}")]
    Safetensors(String),
    /// A zip file that torch.save does not write.
    #[error("it is not a zip file as torch.save writes it: {0}")]
    Archive(String),
    /// Its pickle is damaged, or made of something else than torch.save writes.
    #[error("its data.pkl, at byte {at}: {problem}")]
    Pickle {
        /// Offset in the pickle.
        at: usize,
        /// The problem.
        problem: String,
    },
    /// Its pickle wants code to be called.
    #[error(
        "its data.pkl asks for {name:?}, which no embedding needs; Python would run whatever that is. Nothing was run \
         here; do not load this file with other programs unless you know where it comes from"
    )]
    Code {
        /// The refused name.
        name: String,
    },
    /// For a text encoder of another width.
    #[error(
        "its rows are {found} wide, this model's text encoder takes {wanted}: it was learned for another model"
    )]
    WrongWidth {
        /// Numbers of a row.
        found: usize,
        /// The text encoder's hidden size.
        wanted: usize,
    },
    /// It can be read and holds something else.
    #[error("{0}")]
    NotAnEmbedding(String),
}
