//! A job before its defaults are filled in and its values are checked.

use serde::{Deserialize, Serialize};

use super::{ConceptDraft, FolderDraft, GenerateDraft};

/// A job as it was asked for: everything may be missing, nothing has been checked.
///
/// TOML files and the wire's messages both become one, so that defaults and limits are written
/// down once, in [`super::JobSpec::from_draft`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobDraft {
    /// Required.
    pub kind: Option<String>,
    /// See [`super::JobSpec::name`].
    pub name: Option<String>,
    /// `[model]`
    pub model: ModelDraft,
    /// `[data]`
    pub data: DataDraft,
    /// `[train]`
    pub train: TrainDraft,
    /// `[generate]`
    pub generate: GenerateDraft,
    /// `[cluster]`
    pub cluster: ClusterDraft,
    /// `[debug]`
    pub debug: DebugDraft,
    /// `[[concepts]]`
    pub concepts: Vec<ConceptDraft>,
}

/// `[model]`, unchecked; see [`super::ModelSpec`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "documented in ModelSpec")]
pub struct ModelDraft {
    pub base: Option<String>,
    pub revision: Option<String>,
    pub variant: Option<String>,
    pub prediction_type: Option<String>,
    pub tokenizer: Option<String>,
}

/// `[data]`, unchecked; see [`super::DataSpec`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "documented in DataSpec")]
pub struct DataDraft {
    pub images: Option<String>,
    pub folders: Option<Vec<FolderDraft>>,
}

/// `[train]`, unchecked; see [`super::TrainSpec`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "documented in TrainSpec")]
pub struct TrainDraft {
    pub placeholder_token: Option<String>,
    pub initializer_token: Option<String>,
    pub initializer_embedding: Option<String>,
    pub learnable_property: Option<String>,
    pub num_vectors: Option<i64>,
    pub resolution: Option<i64>,
    pub train_batch_size: Option<i64>,
    pub gradient_accumulation_steps: Option<i64>,
    pub max_train_steps: Option<i64>,
    pub learning_rate: Option<f64>,
    pub learning_rates: Option<String>,
    pub scale_lr: Option<bool>,
    pub lr_scheduler: Option<String>,
    pub lr_warmup_steps: Option<i64>,
    pub seed: Option<i64>,
    pub mixed_precision: Option<String>,
    pub center_crop: Option<bool>,
    pub templates: Option<Vec<String>>,
    pub save_steps: Option<i64>,
    pub adam_beta1: Option<f64>,
    pub adam_beta2: Option<f64>,
    pub adam_weight_decay: Option<f64>,
    pub adam_epsilon: Option<f64>,
    pub lr_num_cycles: Option<i64>,
    pub max_grad_norm: Option<f64>,
    pub snr_gamma: Option<f64>,
    pub noise_offset: Option<f64>,
    pub rescale_betas_zero_snr: Option<bool>,
    pub num_train_epochs: Option<i64>,
    pub repeats: Option<i64>,
    pub checkpointing_steps: Option<i64>,
    pub checkpoints_total_limit: Option<i64>,
    pub resume_from_checkpoint: Option<String>,
    pub save_as_full_pipeline: Option<bool>,
    pub validation_loss_steps: Option<i64>,
    pub validation_loss_samples: Option<i64>,
    pub select_best: Option<bool>,
    pub early_stop_patience: Option<i64>,
    pub validation_prompt: Option<String>,
    pub num_validation_images: Option<i64>,
    pub validation_steps: Option<i64>,
    pub report_to: Option<String>,
    pub caption_dropout: Option<f64>,
    pub shuffle_tags: Option<bool>,
    pub keep_tags: Option<i64>,
    pub enable_bucket: Option<bool>,
    pub min_bucket_reso: Option<i64>,
    pub max_bucket_reso: Option<i64>,
    pub bucket_reso_steps: Option<i64>,
    pub bucket_no_upscale: Option<bool>,
}

/// `[cluster]`, unchecked; see [`super::ClusterSpec`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "documented in ClusterSpec")]
pub struct ClusterDraft {
    pub world_size: Option<i64>,
    pub min_world_size: Option<i64>,
    pub threads_per_rank: Option<i64>,
}

/// `[debug]`, unchecked; see [`super::DebugSpec`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "documented in DebugSpec")]
pub struct DebugDraft {
    pub trace_dir: Option<String>,
}
