//! What jobs that learn from pictures have: `[data]`, and of `[train]` all that does not say what is learned.
//!
//! The options of `[train]` have the names, values and defaults of diffusers'
//! `examples/textual_inversion/textual_inversion.py`, with one exception: `seed`, which has no
//! default there (every run differs), is 0 here, because a job must give the same result when it
//! is run again. Three options that it lacks are those of its `train_text_to_image.py`.

mod captioned;
mod check;
pub mod concepts;
mod data;
mod denoiser;
mod facts;
mod foreign_keys;
pub mod limits;
mod passes;
mod train;
mod validation;

pub use data::{CLASS_IMAGES, DataDraft, DataSpec, FolderDraft, FolderSpec, MASKS, PromptDraft, PromptSpec};
pub use denoiser::{DenoiserDraft, DenoiserSpec};
pub use facts::OPTIONS_WITHOUT_EFFECT;
pub use train::{TrainDraft, TrainSpec};
pub use validation::{PreviewDraft, PreviewSpec, ValidationDraft, ValidationSpec};

#[cfg(test)]
pub(super) use captioned::CAPTION;
pub(super) use captioned::{caption_templates, check_captions, checked_data, fill_captioned_defaults};
pub(super) use data::{add_sources, instead_of_images};
pub(super) use denoiser::check_class;
pub(super) use facts::{folder_bytes, lists};
pub(super) use foreign_keys::FOREIGN_KEYS;
