//! The job spec: what a user asks for, with every default filled in and every value checked.
//!
//! A job comes as TOML (people) or over gRPC (programs). Both become a [`JobDraft`], in which
//! everything may be missing, and [`JobSpec::from_draft`] alone fills in the defaults and checks
//! the values. What a [`JobSpec`] holds has been checked, also when it was read from JSON: by the checks of its day where
//! it was stored ([`JobSpec::from_stored`]), by today's otherwise.
//!
//! The training options have the names, values and defaults of diffusers'
//! `examples/textual_inversion/textual_inversion.py`, with one exception: `seed`, which has no
//! default there (every run differs), is 0 here, because a job must give the same result when it
//! is run again. Three options that it lacks are those of its `train_text_to_image.py`.

mod choices;
mod concepts;
mod contents;
mod draft;
mod epochs;
mod error;
mod folders;
mod foreign_keys;
mod generate;
mod learning_rates;
mod model_location;
mod paths;
mod queue;
mod read_toml;
mod settings;
mod stored;
#[cfg(test)]
pub(crate) mod tests;
mod validate;
mod validation;

use serde::{Deserialize, Serialize};

pub use choices::{
    JobKind, LearnableProperty, LrScheduler, MixedPrecision, NotAChoice, PredictionType, ReportTo,
};
pub use concepts::{ConceptDraft, ConceptSpec, InitializerEmbedding};
pub use contents::ContentUse;
pub use draft::{ClusterDraft, DataDraft, DebugDraft, JobDraft, ModelDraft, TrainDraft};
pub use error::{SpecError, Violation};
pub use folders::{FolderDraft, FolderSpec, ImageUse};
pub use generate::{EmbeddingPlace, GenerateDraft, GenerateSpec, SCHEDULERS};
pub use learning_rates::LearningRates;
pub use model_location::{DEFAULT_REVISION, HubModel, ModelLocation, S3Model, check_variant, is_plain_name};
pub use queue::{JobRequest, QueueDraft, QueueSpec, check_label, check_label_key};
pub use read_toml::{parse_job_request, parse_job_toml, parse_job_toml_with};
pub use settings::Setting;
pub use stored::{STORED_VERSION, StoredSpecError};
pub use validate::limits;
pub use validation::{PreviewSpec, ValidationSpec};

/// A job as it will be run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "JobDraft")]
pub struct JobSpec {
    /// What is done.
    pub kind: JobKind,
    /// A name for people; not unique. Default: the kind.
    pub name: String,
    /// The checkpoint that is built on.
    pub model: ModelSpec,
    /// What is learned from. Without images for a job that only draws.
    #[serde(skip_serializing_if = "DataSpec::is_unused")]
    pub data: DataSpec,
    /// How it is learned. In a job that only draws, nothing: without words, and with batches of 0.
    #[serde(skip_serializing_if = "TrainSpec::is_unused")]
    pub train: TrainSpec,
    /// What is drawn; for jobs of that kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generate: Option<GenerateSpec>,
    /// On how many ranks.
    pub cluster: ClusterSpec,
    /// For those who check the numbers.
    pub debug: DebugSpec,
    /// What is learned, where it is more than one concept; empty: the one that `data` and `train` describe. Use
    /// [`JobSpec::concepts`], which has the same form for both.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub concepts: Vec<ConceptSpec>,
}

/// The checkpoint that is built on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Where it is: see [`ModelLocation`].
    pub base: String,
    /// Of a repository: a branch, a tag or a commit. Empty: what `base` says, else "main".
    pub revision: String,
    /// "fp16": weights are read from `diffusion_pytorch_model.fp16.safetensors` and the like. Empty: none.
    pub variant: String,
    /// What its UNet predicts; none: what the checkpoint says, or is known of its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction_type: Option<PredictionType>,
    /// A folder with another tokenizer than the checkpoint's, as every worker sees it; empty: the checkpoint's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tokenizer: String,
}

impl ModelSpec {
    /// Where the checkpoint is.
    ///
    /// # Errors
    /// `base` or `revision` has not been checked: what a [`JobSpec`] holds has.
    pub fn location(&self) -> Result<ModelLocation, SpecError> {
        ModelLocation::parse(&self.base, &self.revision)
            .map_err(|(field, problem)| SpecError { violations: vec![Violation::new(field, problem)] })
    }
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
    /// number of images (see [`JobSpec::resolve_epochs`]) and is 0 until they are counted. Never 0 in a job that a
    /// coordinator has accepted.
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
    /// Shift the checkpoint's schedule so that its last step is pure noise (Lin et al. 2023). Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rescale_betas_zero_snr: bool,
    /// How often all images are gone through, where `max_train_steps` is not given. Default: not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_train_epochs: Option<u64>,
    /// How often each image counts in one of `num_train_epochs`. Default 100.
    pub repeats: u32,
    /// The whole state is kept every so many steps, to go on from; 0: never. Default 500.
    pub checkpointing_steps: u64,
    /// So many of a job's checkpoints are kept, the newest; 0: all. Default 0 (diffusers: none, all).
    pub checkpoints_total_limit: u64,
    /// Where the job goes on (see [`crate::checkpoint::ResumeFrom`]); empty: it starts at step 1. Default empty.
    pub resume_from_checkpoint: String,
    /// Leave a whole checkpoint with the learned word in it, too. Default false.
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
    /// Whether the tags of captions, parted by commas, come in another order in every sample. Default false.
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

/// On how many ranks a job runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterSpec {
    /// Ranks wanted; fixes the global batch. Default 1.
    pub world_size: u32,
    /// The smallest ring the job may run on; the result is the same. Default: `world_size`.
    pub min_world_size: u32,
    /// Compute threads of a rank; 0: decided at the first assignment, and kept. Default 0.
    pub threads_per_rank: u32,
}

/// For those who check the numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebugSpec {
    /// A folder for each step's inputs, loss and gradients; empty: none are written.
    pub trace_dir: String,
}

impl DataSpec {
    /// Whether this is what a job has that learns nothing.
    fn is_unused(&self) -> bool {
        self.images.is_empty() && self.folders.is_empty()
    }
}

impl TrainSpec {
    /// Whether this is what a job has that learns nothing.
    fn is_unused(&self) -> bool {
        self.train_batch_size == 0
    }
}

impl JobSpec {
    /// Fills in the defaults and checks every value; names all that is wrong, not only the first.
    pub fn from_draft(draft: JobDraft) -> Result<Self, SpecError> {
        validate::validate(draft)
    }

    /// The job as a job file that [`parse_job_toml`] reads back to the same spec.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// M: microbatches in a step over all ranks, whatever the ring's size;
    /// `world_size * gradient_accumulation_steps`.
    pub fn global_microbatches(&self) -> u32 {
        self.cluster.world_size.saturating_mul(self.train.gradient_accumulation_steps)
    }

    /// Samples in a step over all ranks: `global_microbatches * train_batch_size`.
    pub fn global_batch(&self) -> u64 {
        u64::from(self.global_microbatches()) * u64::from(self.train.train_batch_size)
    }

    /// The learning rate that the schedule starts from: with `scale_lr` it is multiplied by the
    /// global batch, so by `world_size` and never by the ring's size.
    pub fn effective_learning_rate(&self) -> f64 {
        self.train.learning_rate * self.learning_rate_scale()
    }

    /// What `scale_lr` multiplies every learning rate with; 1 without it.
    pub fn learning_rate_scale(&self) -> f64 {
        // At most 2^36 samples (see `limits`): exact in f64.
        if self.train.scale_lr { self.global_batch() as f64 } else { 1.0 }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl TryFrom<JobDraft> for JobSpec {
    type Error = SpecError;

    fn try_from(draft: JobDraft) -> Result<Self, SpecError> {
        Self::from_draft(draft)
    }
}
