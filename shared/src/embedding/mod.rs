//! Learned embeddings in every form that people keep them in, read from plain bytes, and the names of our own files.
//!
//! diffusers' and kohya's safetensors, and the zip files of `torch.save`: AUTOMATIC1111's `.pt` and diffusers' older
//! `learned_embeds.bin`. Command line and worker read them with this, so that both say the same of a file.
//!
//! Invariant: nothing in a file is ever executed, and no number in it is trusted; see [`pickle`].

mod archive;
mod error;
mod file_names;
mod numbers;
mod pickle;
mod tensors;
mod torch_file;

pub use error::EmbeddingError;
pub use file_names::{FileNames, file_word};

use std::fs::File;
use std::io;
use std::path::Path;

use crate::files;
use crate::ids::ContentHash;

/// Bytes of an embedding's file at most.
pub const LARGEST_FILE: u64 = 64 << 20;
/// The tensor's name in kohya's files, which says nothing of the token.
pub const EMB_PARAMS_KEY: &str = "emb_params";
/// Keys that programs write whatever the word is: kohya's, OneTrainer's, those of the text encoders that larger models have
/// several of, and the star of the paper's own code. The file's name is the word then.
const WORDLESS_KEYS: [&str; 5] = [EMB_PARAMS_KEY, "emp_params", "clip_l", "clip_g", "*"];
/// The metadata entry in which Ringtune's files have their token, whatever the tensor is called.
pub const PLACEHOLDER_ENTRY: &str = "ringtune.placeholder_token";
/// Rows at most: more than a prompt has room for.
const MOST_VECTORS: usize = 1024;
/// Numbers of a row at most: far wider than any text encoder.
const MOST_WIDTH: usize = 1 << 14;

/// An embedding of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct LearnedEmbedding {
    /// The word, if the file names it. None in a file whose key says nothing ([`EMB_PARAMS_KEY`] and its like) and whose
    /// metadata has none, and in AUTOMATIC1111's without a name: both go by the name of the file then.
    pub token: Option<String>,
    /// Numbers of a row: the hidden size of the text encoder it was learned for.
    pub width: usize,
    /// [vectors, width], flat. All of them are finite; fp16 and bf16 are widened exactly.
    pub rows: Vec<f32>,
    /// Of the file.
    pub hash: ContentHash,
}

/// The bytes of a file that is no larger than an embedding's can be. Blocks.
///
/// # Errors
/// It is not there, no plain file, or too large.
pub fn read_file(path: &Path) -> Result<Vec<u8>, EmbeddingError> {
    Ok(files::read_file(path, LARGEST_FILE)?)
}

/// As above, of an opened file. Blocks.
///
/// # Errors
/// It is not open, cannot be read, or is too large.
pub fn read_opened(opened: io::Result<File>) -> Result<Vec<u8>, EmbeddingError> {
    Ok(files::read_opened(opened, LARGEST_FILE)?)
}

impl LearnedEmbedding {
    /// Reads a file. Which form it has is told by its first bytes and not by a name.
    ///
    /// # Errors
    /// Its format is unknown, it is damaged, or it holds something else than one embedding.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EmbeddingError> {
        files::check_bytes(bytes, LARGEST_FILE)?;
        let (token, tensor) = match bytes {
            [b'P', b'K', 3, 4, ..] => torch_file::read(bytes)?,
            // A pickle's first opcode names its protocol, 2 to 5; as the length of a safetensors header that would
            // need the six zeros that follow it there.
            [0x80, 2..=5, rest @ ..] if !rest.starts_with(&[0; 6]) => return Err(EmbeddingError::Legacy),
            _ => tensors::read(bytes)?,
        };
        let (width, rows) = tensor.into_rows()?;
        Ok(Self { token, width, rows, hash: ContentHash::of(bytes) })
    }

    /// Refuses rows that a text encoder of this hidden size cannot take.
    ///
    /// # Errors
    /// Both widths.
    pub fn check_width(&self, wanted: usize) -> Result<(), EmbeddingError> {
        let found = self.width;
        if found == wanted { Ok(()) } else { Err(EmbeddingError::WrongWidth { found, wanted }) }
    }

    /// Number of rows, at least 1.
    pub fn vectors(&self) -> usize {
        self.rows.len() / self.width.max(1)
    }
}

#[cfg(test)]
mod tests;
