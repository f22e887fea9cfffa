//! Textual inversion: the embedding of a new word is learned from a few pictures (Gal et al. 2022).
//!
//! The training options have the names, values and defaults of diffusers'
//! `examples/textual_inversion/textual_inversion.py`, with one exception: `seed`, which has no
//! default there (every run differs), is 0 here, because a job must give the same result when it
//! is run again. Three options that it lacks are those of its `train_text_to_image.py`.

mod check;
mod choices;
mod concepts;
mod draft;
mod facts;
mod folders;
pub mod limits;
mod passes;
mod train;
mod validation;

use serde::{Deserialize, Serialize};

pub use choices::LearnableProperty;
pub use concepts::{ConceptDraft, ConceptSpec, InitializerEmbedding};
pub use draft::{DataDraft, TrainDraft};
pub use facts::TRAIN_OPTIONS_WITHOUT_EFFECT;
pub use folders::{FolderDraft, FolderSpec};
pub use train::TrainSpec;
pub use validation::{PreviewSpec, ValidationSpec};

pub(super) use check::check;

use super::super::ClusterSpec;

/// The sections of a job file that jobs of this kind have and not all others.
pub(super) const SECTIONS: [&str; 3] = ["data", "train", "concepts"];

/// What is learned, and from what.
#[derive(Debug, Clone, PartialEq)]
pub struct TextualInversionSpec {
    /// What is learned from.
    pub data: DataSpec,
    /// How it is learned.
    pub train: TrainSpec,
    /// What is learned, where it is more than one concept; empty: the one that `data` and `train` describe. Use
    /// [`TextualInversionSpec::concepts`], which has the same form for both.
    pub concepts: Vec<ConceptSpec>,
}

/// What is learned from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataSpec {
    /// `artifact://sha256/HEX` of an image manifest (see [`crate::manifest`]), or a folder as every
    /// worker sees it. Empty in a job of several concepts, which have their own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub images: String,
    /// Several such folders instead, whose pictures count differently often.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folders: Vec<FolderSpec>,
}

impl DataSpec {
    /// Whether the pictures are those of listed concepts.
    pub(in crate::job) fn is_unused(&self) -> bool {
        self.images.is_empty() && self.folders.is_empty()
    }
}

impl TextualInversionSpec {
    /// M: microbatches in a step over all ranks, whatever the ring's size;
    /// `world_size * gradient_accumulation_steps`.
    pub fn global_microbatches(&self, cluster: &ClusterSpec) -> u32 {
        cluster.world_size.saturating_mul(self.train.gradient_accumulation_steps)
    }

    /// Samples in a step over all ranks: `global_microbatches * train_batch_size`.
    pub fn global_batch(&self, cluster: &ClusterSpec) -> u64 {
        u64::from(self.global_microbatches(cluster)) * u64::from(self.train.train_batch_size)
    }

    /// The learning rate that the schedule starts from: with `scale_lr` it is multiplied by the
    /// global batch, so by `world_size` and never by the ring's size.
    pub fn effective_learning_rate(&self, cluster: &ClusterSpec) -> f64 {
        self.train.learning_rate * self.learning_rate_scale(cluster)
    }

    /// What `scale_lr` multiplies every learning rate with; 1 without it.
    pub fn learning_rate_scale(&self, cluster: &ClusterSpec) -> f64 {
        // At most 2^36 samples (see `limits`): exact in f64.
        if self.train.scale_lr { self.global_batch(cluster) as f64 } else { 1.0 }
    }
}
