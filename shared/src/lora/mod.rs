//! LoRA files of Stable Diffusion 1 and 2, in the four families of keys that programs write, from plain bytes and back.
//!
//! A LoRA adds to a module's weight the product of two small factors: `W + alpha / rank · up · down`. diffusers, PEFT, kohya's
//! scripts (and with them A1111 and ComfyUI) and diffusers' older attention processors store the same factors under other
//! names, and their alpha in other places. A conversion keeps each stored number to the bit; only [`LoraFile::resize`]
//! and [`MergedLayer`] compute.
//!
//! `modules` knows the layers of both bases, `keys` what each family calls them: a file is read by looking its keys up among
//! all that could be, because kohya's `_` stands for `.` and for itself.

mod adapter;
mod error;
mod facts;
mod keys;
mod merge;
#[cfg(test)]
mod merge_tests;
mod modules;
mod places;
mod read;
mod resize;
#[cfg(test)]
mod tests;
mod weighted_file;
mod write;

pub use error::LoraError;
pub use keys::{Format, ModelLayers};
pub use merge::MergedLayer;
pub use modules::{Base, Layer, LayerKind, part};
pub use places::{Component, Place};
pub use read::hash_of_tensors;
pub use resize::Resized;
pub use weighted_file::{WeightError, WeightedFile};

use std::{borrow::Cow, collections::BTreeMap};

use crate::{floats::FloatKind, state::Metadata};

/// Bytes of a file at most: many times those of a LoRA of rank 128 for every layer.
pub const LARGEST_FILE: u64 = 4 << 30;
/// Bytes of one that a job names, which is read into memory by the coordinator and by each rank.
pub const LARGEST_OF_A_JOB: u64 = 1 << 30;
/// Ranks at most: beyond the sides of most layers, whose own weights are smaller then.
const MOST_RANK: usize = 4096;

/// A LoRA file, whatever its family. Borrows the numbers of the bytes that it was read from.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraFile<'a> {
    /// The model that its widths fit. A file that fits both (without layers that see prompts) is of the one that its metadata
    /// names, else of Stable Diffusion 1.
    pub base: Base,
    /// How it was stored.
    pub format: Format,
    /// By names as diffusers and PEFT have them: `unet.mid_block.…`, `text_encoder.text_model.…`.
    pub modules: BTreeMap<String, Pair<'a>>,
    /// Texts of its header, but for what is said of `alpha` there.
    pub metadata: Metadata,
}

/// What is added to one module.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair<'a> {
    /// Of the module.
    pub kind: LayerKind,
    /// Rows of `down`, columns of `up`.
    pub rank: usize,
    /// The product is multiplied by alpha / rank. Finite and not 0.
    pub alpha: f64,
    /// [rank, inputs], or [rank, inputs, side, side] of a convolution.
    pub down: Factor<'a>,
    /// [outputs, rank].
    pub up: Factor<'a>,
    /// DoRA's length of each output, [outputs].
    pub dora_scale: Option<Factor<'a>>,
}

/// The numbers of a tensor as they are stored, little-endian. All of them are finite.
#[derive(Debug, Clone, PartialEq)]
pub struct Factor<'a> {
    /// Their type.
    pub kind: FloatKind,
    /// Row after row.
    pub bytes: Cow<'a, [u8]>,
}

impl Factor<'_> {
    fn numbers(&self) -> usize {
        self.bytes.len() / self.kind.bytes()
    }
}
