//! Why a file is not read, or written, as a LoRA.

use super::Format;
use crate::{files::UnreadFile, state::StateError};

/// A file that is no LoRA for Stable Diffusion 1 or 2, or one that cannot be written so.
#[derive(Debug, thiserror::Error)]
pub enum LoraError {
    /// No file, none that can be opened, or one too large.
    #[error(transparent)]
    File(#[from] UnreadFile),
    /// Not a whole safetensors file.
    #[error(
        "it is not a whole safetensors file: {0}. Pickles (.bin, .pt, .ckpt) are not read, because they run code: save it as \
         safetensors with the program that made it"
    )]
    Safetensors(StateError),
    /// For a model of another kind.
    #[error("it is a LoRA for {0}; only those for Stable Diffusion 1 and 2 are read")]
    OtherModel(&'static str),
    /// For a model of the same kind, but another one.
    #[error("it is a LoRA for {base}, and {model} is another model")]
    OtherBase {
        /// What it is for.
        base: &'static str,
        /// What it was to be for.
        model: String,
    },
    /// Keys of no family.
    #[error(
        "{count} of its {all} tensors are none of a LoRA for {model}: {first}. LoHa, LoKr and other forms of LyCORIS are not read"
    )]
    UnknownKeys {
        /// How many.
        count: usize,
        /// Tensors of the file.
        all: usize,
        /// The model that fits no worse than another.
        model: String,
        /// Names of the first few.
        first: String,
    },
    /// No pair at all.
    #[error("it has no LoRA's factors")]
    Empty,
    /// Keys of two families that no program writes together.
    #[error(
        "it mixes the keys of two programs: {kohya:?} is kohya's, {other:?} is not; read them as two files"
    )]
    Mixed {
        /// A key of kohya's.
        kohya: String,
        /// Another one.
        other: String,
    },
    /// A tensor that cannot be what its key says, or one that is missing.
    #[error("{key:?}: {problem}")]
    Tensor {
        /// Its key, or its module.
        key: String,
        /// What is wrong, and what is allowed.
        problem: String,
    },
    /// A module of other widths than in the known models.
    #[error(
        "{module}: it is for {found:?} inputs and outputs, in {model} there are {wanted:?}: the LoRA was made for another model"
    )]
    Widths {
        /// The module.
        module: String,
        /// Inputs and outputs.
        found: (usize, usize),
        /// The model that fits no worse than another.
        model: String,
        /// Its inputs and outputs.
        wanted: (usize, usize),
    },
    /// What the adapter's metadata says of alpha is not understood.
    #[error("metadata \"lora_adapter_metadata\": {0}")]
    Adapter(String),
    /// A family that has no names for some modules.
    #[error(
        "{count} of its modules have no place in files of {}, which hold attention layers alone: {first}. Choose another \
         format",
        format.word()
    )]
    NoPlace {
        /// The family.
        format: Format,
        /// How many modules.
        count: usize,
        /// Names of the first few.
        first: String,
    },
    /// It cannot be written.
    #[error("it cannot be written: {0}")]
    Unwritten(StateError),
}

impl LoraError {
    /// A problem of the tensor `key`.
    pub(super) fn tensor(key: &str, problem: impl Into<String>) -> Self {
        Self::Tensor { key: key.to_owned(), problem: problem.into() }
    }

    /// Whether names or widths are not those of a model.
    pub(super) fn is_of_another_model(&self) -> bool {
        matches!(self, Self::Widths { .. } | Self::UnknownKeys { .. })
    }
}

/// The first few of some names, for messages.
pub(super) fn first_few(names: &[&str]) -> String {
    let shown: Vec<String> = names.iter().take(3).map(|name| format!("{name:.100?}")).collect();
    shown.join(", ") + if names.len() > shown.len() { ", …" } else { "" }
}
