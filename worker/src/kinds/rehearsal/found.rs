//! What a dry run found, as plain data.

use ringtune_shared::{ids::ContentHash, job::CommonSpec};
use serde::Serialize;

use crate::{
    data::{Target, images::ListedImage},
    engine::ModelInfo,
};

/// What the preparation of a job found: of each sort what there is in a job of its kind.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Found {
    /// What preparation warned of.
    #[serde(skip)]
    pub(crate) warnings: Vec<String>,
    /// Pictures, as they are prepared, in the groups that they are shown in.
    #[serde(skip)]
    pub(crate) pictures: Vec<Vec<(ListedImage, Target)>>,
    pub(crate) sizes: Vec<SizeReport>,
    pub(crate) words: Vec<RehearsedWord>,
    /// Of the first samples; learned tokens stand in brackets.
    pub(crate) prompts: Vec<String>,
    pub(crate) training: Option<TrainingReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) drawing: Option<DrawingReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) language: Option<LanguageReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) texts: Option<TextsReport>,
    pub(crate) model: Option<ModelReport>,
    pub(crate) estimate: Option<Estimate>,
}

/// A placeholder token and what it starts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RehearsedWord {
    /// As it is written in prompts.
    pub(crate) token: String,
    /// One a vector.
    pub(crate) ids: Vec<i64>,
    /// As the job gives it: words, or the file of an embedding.
    pub(crate) initializer: String,
    /// What the model's tokenizer makes of words.
    pub(crate) initializer_ids: Vec<i64>,
}

/// Pictures that are brought to one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SizeReport {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) pictures: usize,
}

/// How long and how fast it learns.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TrainingReport {
    pub(crate) steps: u64,
    pub(crate) global_batch: u64,
    pub(crate) samples: u64,
    /// Samples in which every picture is shown as often as its folder says.
    pub(crate) epoch_samples: u64,
    /// How many such passes the job has.
    pub(crate) epochs: f64,
    pub(crate) learning_rate: f64,
}

/// What is drawn.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct DrawingReport {
    pub(crate) prompts: usize,
    /// Of each prompt.
    pub(crate) count: u32,
    /// All of them.
    pub(crate) pictures: u64,
    /// Passes through the UNet, and pictures in one.
    pub(crate) batches: usize,
    pub(crate) batch: u32,
    pub(crate) scheduler: String,
    pub(crate) steps: u32,
    pub(crate) guidance_scale: f64,
    pub(crate) embeddings: Vec<EmbeddingReport>,
    pub(crate) loras: Vec<LoraReport>,
}

/// A language model, and how it is trained.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LanguageReport {
    pub(crate) base: String,
    /// Of the files below, together.
    pub(crate) sha256: String,
    /// Those that are used.
    pub(crate) files: Vec<String>,
    pub(crate) from_scratch: bool,
    pub(crate) tokens: String,
    pub(crate) steps: u64,
    /// Of all ranks together.
    pub(crate) windows_per_step: u64,
    pub(crate) tokens_per_step: u64,
    pub(crate) learning_rate: f64,
}

/// A language model, and the texts that it is to make.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TextsReport {
    pub(crate) base: String,
    /// Of the files below, together.
    pub(crate) sha256: String,
    /// Those that are used.
    pub(crate) files: Vec<String>,
    /// Tokens of each prompt.
    pub(crate) prompt_tokens: Vec<usize>,
    pub(crate) texts: u32,
    /// Of each, behind its prompt.
    pub(crate) max_new_tokens: u32,
}

/// What a file teaches.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EmbeddingReport {
    pub(crate) token: String,
    pub(crate) vectors: usize,
    pub(crate) sha256: String,
}

/// A file of adapters that stand beside the model's layers.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LoraReport {
    /// The file's, without its ending.
    pub(crate) name: String,
    /// Its product is multiplied by it.
    pub(crate) weight: f64,
    pub(crate) sha256: String,
}

/// The model.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ModelReport {
    pub(crate) base: String,
    pub(crate) sha256: String,
    pub(crate) prediction_type: String,
    pub(crate) text_width: usize,
    pub(crate) vae_factor: usize,
}

/// Measured here; see docs/doctor.md for the rule.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Estimate {
    pub(crate) precision: String,
    pub(crate) threads: usize,
    /// Memory that one rank needs beside the mapped files.
    pub(crate) private_bytes: u64,
    /// All pictures, spread over the ranks; of a job that draws: the words and the VAE of a batch.
    pub(crate) encode_seconds: f64,
    /// One step of a rank; of a job that draws: of a batch.
    pub(crate) step_seconds: f64,
    /// All of a rank's share.
    pub(crate) total_seconds: f64,
    pub(crate) world_size: u32,
}

impl ModelReport {
    pub(in crate::kinds) fn of(common: &CommonSpec, model: &ModelInfo, hash: ContentHash) -> Self {
        Self {
            base: common.model.base.clone(),
            sha256: hash.to_string(),
            prediction_type: model.prediction_type.name().to_owned(),
            text_width: model.text_width,
            vae_factor: model.vae_factor,
        }
    }
}
