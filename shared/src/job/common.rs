//! Fields of all kinds of jobs: a name, a base model, ranks.

use serde::{Deserialize, Serialize};

use super::{ModelLocation, PredictionType, SpecError, Violation, reader::section};

/// Fields of all kinds of jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommonSpec {
    /// A name for people; not unique. Default: the kind.
    pub name: String,
    /// The base model.
    pub model: ModelSpec,
    /// On how many ranks.
    pub cluster: ClusterSpec,
    /// For those who check the numbers.
    pub debug: DebugSpec,
}

/// The base model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Where it is: see [`ModelLocation`].
    pub base: String,
    /// Of a repository: a branch, a tag or a commit. Empty: what `base` says, else "main".
    pub revision: String,
    /// "fp16": weights are read from `diffusion_pytorch_model.fp16.safetensors` and the like. Empty: none. Language models have
    /// none, and do not write it.
    #[serde(default)]
    pub variant: String,
    /// What its UNet predicts; none: what the model says, or is known of its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction_type: Option<PredictionType>,
    /// A folder with another tokenizer than the model's, as every worker sees it; empty: the model's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tokenizer: String,
}

impl ModelSpec {
    /// The model's location.
    ///
    /// # Errors
    /// `base` or `revision` is malformed: those of a [`super::JobSpec`] have been checked.
    pub fn location(&self) -> Result<ModelLocation, SpecError> {
        ModelLocation::parse(&self.base, &self.revision)
            .map_err(|(field, problem)| SpecError { violations: vec![Violation::new(field, problem)] })
    }
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebugSpec {
    /// A folder for each step's inputs, loss and gradients; empty: none are written.
    pub trace_dir: String,
}

section! {
    /// `[model]`, unchecked; see [`ModelSpec`].
    ModelDraft {
        base: String as string,
        revision: String as string,
        variant: String as string,
        prediction_type: String as string,
        tokenizer: String as string,
    }
}

section! {
    /// `[cluster]`, unchecked; see [`ClusterSpec`].
    ClusterDraft {
        world_size: i64 as integer,
        min_world_size: i64 as integer,
        threads_per_rank: i64 as integer,
    }
}

section! {
    /// `[debug]`, unchecked; see [`DebugSpec`].
    DebugDraft {
        trace_dir: String as string,
    }
}

/// The sections of a draft that jobs of all kinds have.
#[derive(Debug, Default)]
pub(super) struct CommonDraft {
    pub(super) name: Option<String>,
    pub(super) model: ModelDraft,
    pub(super) cluster: ClusterDraft,
    pub(super) debug: DebugDraft,
}
