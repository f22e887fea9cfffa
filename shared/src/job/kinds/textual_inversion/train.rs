//! `[train]`: how it is learned.

use serde::{Deserialize, Serialize};

use super::{LearnableProperty, PreviewSpec, ValidationSpec};
use crate::job::{LearningRates, LrScheduler, MixedPrecision, ReportTo};

/// How it is learned. Names, values and defaults are diffusers', but for `seed`; `max_grad_norm`, `snr_gamma` and
/// `noise_offset` are those of its `train_text_to_image.py`, and off where not given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainSpec {
    /// The new word, as it will be written in prompts. Empty in a job of several concepts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub placeholder_token: String,
    /// The known word or words whose embeddings the new one's rows start from: one after the other, and again from the
    /// first where there are more rows than tokens. Empty in a job of several concepts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub initializer_token: String,
    /// A learned embedding whose rows are the start, instead of `initializer_token`: a file, or a content URI once it is
    /// uploaded. It has `num_vectors` rows.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub initializer_embedding: String,
    /// Which of the two lists of prompts is used where `templates` is empty.
    pub learnable_property: LearnableProperty,
    /// Rows learned for the placeholder. Default 1.
    pub num_vectors: u32,
    /// Side of the square training pictures, in pixels. Default 512.
    pub resolution: u32,
    /// Samples in a microbatch. Default 16.
    pub train_batch_size: u32,
    /// Microbatches that a rank of a full ring adds up in a step. Default 1.
    pub gradient_accumulation_steps: u32,
    /// Optimizer updates. Default 5000; where `num_train_epochs` is given and this is not, it follows from the
    /// number of images (see [`super::TextualInversionSpec::count_steps`]) and is 0 until they are counted. Never 0 in
    /// a job that a coordinator has accepted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub max_train_steps: u64,
    /// Before `scale_lr` and the schedule. Default 1e-4; the first of `learning_rates` where these are given.
    pub learning_rate: f64,
    /// The rate of every step, before `scale_lr`, instead of `learning_rate` and its schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rates: Option<LearningRates>,
    /// Multiply the learning rate by the global batch. Default false.
    pub scale_lr: bool,
    /// The schedule of the learning rate. Default constant.
    pub lr_scheduler: LrScheduler,
    /// Steps over which the learning rate rises from 0, in the schedules that warm up. Default 500.
    pub lr_warmup_steps: u64,
    /// What all draws of the job are derived from. Default 0 (diffusers: none, every run differs).
    pub seed: u64,
    /// What the ranks are to compute in. Default no, that is fp32.
    pub mixed_precision: MixedPrecision,
    /// Cut the pictures to their central square instead of squashing them to one. Default false.
    pub center_crop: bool,
    /// Prompts with a mark for the token (see [`crate::templates`]), instead of `learnable_property`'s; empty: those.
    pub templates: Vec<String>,
    /// An embedding is kept every so many steps; 0: only the last. Default 500.
    pub save_steps: u64,
    /// How much of the gradients' running mean AdamW keeps. Default 0.9.
    pub adam_beta1: f64,
    /// How much of the squared gradients' running mean AdamW keeps. Default 0.999.
    pub adam_beta2: f64,
    /// Share of the weights, times the learning rate, that AdamW takes away in a step. Default 0.01.
    pub adam_weight_decay: f64,
    /// Added to AdamW's denominator. Default 1e-8.
    pub adam_epsilon: f64,
    /// Times that the schedule `cosine_with_restarts` falls to 0. Default 1.
    pub lr_num_cycles: u64,
    /// A step's gradient that is longer than this is shortened to it; 0: never. Default 0.
    pub max_grad_norm: f64,
    /// Gamma of the min-SNR loss weights (Hang et al. 2023); 0: all samples weigh the same. Default 0.
    pub snr_gamma: f64,
    /// Share of one more normal draw for each sample and channel in its noise; 0: none. Default 0.
    pub noise_offset: f64,
    /// Shift the model's noise schedule so that its last step is pure noise (Lin et al. 2023). Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rescale_betas_zero_snr: bool,
    /// How often all images are gone through, where `max_train_steps` is not given. Default: not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_train_epochs: Option<u64>,
    /// How often each image is shown in one of `num_train_epochs` passes. Default 100.
    pub repeats: u32,
    /// The whole state is kept every so many steps, to go on from; 0: never. Default 500.
    pub checkpointing_steps: u64,
    /// So many of a job's checkpoints are kept, the newest; 0: all. Default 0 (diffusers: none, all).
    pub checkpoints_total_limit: u64,
    /// Where the job goes on (see [`crate::checkpoint::ResumeFrom`]); empty: it starts at step 1. Default empty.
    pub resume_from_checkpoint: String,
    /// Leave a whole model with the learned word in it, too. Default false.
    pub save_as_full_pipeline: bool,
    /// How the embedding is judged.
    #[serde(flatten)]
    pub validation: ValidationSpec,
    /// Pictures while training goes on.
    #[serde(flatten)]
    pub previews: PreviewSpec,
    /// Who gets a file of events besides metrics.csv. Default tensorboard.
    pub report_to: ReportTo,
    /// Share of the samples whose caption is left empty. Default 0.
    pub caption_dropout: f64,
    /// Whether the tags of captions, separated by commas, come in another order in every sample. Default false.
    pub shuffle_tags: bool,
    /// The first so many tags stay where they are. Default 0.
    pub keep_tags: u32,
    /// Whether each picture is trained at its own aspect ratio, in a bucket of at most `resolution`² pixels. Default
    /// false: all are squares.
    pub enable_bucket: bool,
    /// The shortest side of a bucket, in pixels. Default 256.
    pub min_bucket_reso: u32,
    /// The longest side of a bucket, in pixels. Default 1024.
    pub max_bucket_reso: u32,
    /// A bucket's sides are multiples of it, in pixels. Default 64.
    pub bucket_reso_steps: u32,
    /// Whether small pictures keep their size; the two limits count for nothing then. Default false.
    pub bucket_no_upscale: bool,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
