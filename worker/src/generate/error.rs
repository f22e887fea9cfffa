//! Errors of `generate`.

use std::path::PathBuf;

use crate::{base_model, data, engine::EngineError};

/// Each message names the option or the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option's value does not fit the others or the model.
    #[error("{option}: {problem}")]
    Option {
        /// As it is typed.
        option: &'static str,
        /// The given and the allowed value.
        problem: String,
    },
    /// The tokenizer is not the text encoder's.
    #[error(
        "the model's tokenizer has {} tokens and prompts of {}, its text encoder {} and {}",
        tokenizer.0, tokenizer.1, text_encoder.0, text_encoder.1
    )]
    Vocabulary {
        /// Tokens, and length of a prompt.
        tokenizer: (usize, usize),
        /// Those of the text encoder.
        text_encoder: (usize, usize),
    },
    /// The engine gave too few pixels.
    #[error("a picture has fewer than {width} x {height} pixels")]
    Short {
        /// Pixels.
        width: usize,
        /// Pixels.
        height: usize,
    },
    /// The model's files cannot be read.
    #[error(transparent)]
    Model(#[from] base_model::Error),
    /// The model could not be fetched.
    #[error("--model {0}")]
    Source(#[from] ringtune_sources::Error),
    /// An embeddings file cannot be read.
    #[error("--embeds {file}: {problem}")]
    Embeds {
        /// The file, as it was named.
        file: String,
        /// The problem.
        problem: String,
    },
    /// A LoRA's file cannot be used.
    #[error("--lora {file}: {problem}")]
    Lora {
        /// The file, as it was named.
        file: String,
        /// The problem.
        problem: String,
    },
    /// The tokenizer or the training pictures.
    #[error(transparent)]
    Data(#[from] data::Error),
    /// The model or libtorch.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A picture cannot be encoded.
    #[error("cannot encode {}: {source}", file.display())]
    Encode {
        /// The file it was for.
        file: PathBuf,
        /// Why.
        source: png::EncodingError,
    },
    /// A picture cannot be written.
    #[error(transparent)]
    File(#[from] ringtune_shared::files::FileError),
    /// A part of the program ended before its answer.
    #[error("a part of the program ended unexpectedly: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// A folder cannot be made.
    #[error("cannot write {}: {source}", file.display())]
    Write {
        /// The folder.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl Error {
    /// Whether what was asked for cannot be: another try needs another command line.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Option { .. } | Self::Embeds { .. } | Self::Lora { .. })
    }

    /// Blames the option that was typed: both sides come from --size where `by_size`.
    pub(super) fn blaming_size(self, by_size: bool) -> Self {
        match self {
            Self::Option { option: "--width" | "--height", problem } if by_size => {
                Self::Option { option: "--size", problem }
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_that_was_typed_is_blamed() {
        let width = || Error::Option { option: "--width", problem: "is 63".to_owned() };
        assert_eq!(width().blaming_size(true).to_string(), "--size: is 63");
        assert_eq!(width().blaming_size(false).to_string(), "--width: is 63");
        assert!(width().is_usage());
    }
}
