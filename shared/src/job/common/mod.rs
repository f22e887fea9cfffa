//! What jobs of all kinds have: a name, a base model, ranks.

mod check;

use std::collections::BTreeSet;

use super::{
    Constraint, ModelLocation, OrdersSpec, PredictionType, S3Model, SpecError, Topology, Violation, limits,
    section::section,
};

/// What jobs of all kinds have.
#[derive(Debug, Clone, PartialEq)]
pub struct CommonSpec {
    /// A name for people; not unique. Default: the kind.
    pub name: String,
    /// The base model.
    pub model: ModelSpec,
    /// On how many ranks.
    pub cluster: ClusterSpec,
    /// For those who check the numbers.
    pub debug: DebugSpec,
    /// Where its files go besides the coordinator.
    pub output: OutputSpec,
    /// What changes while it learns.
    pub orders: OrdersSpec,
}

section! {
    /// The base model.
    #[derive(Eq)]
    ModelSpec from draft: ModelDraft, model_keys {
        /// Where it is: see [`ModelLocation`].
        base: String = string.base(),
        /// Of a repository: a branch, a tag or a commit. Empty: what `base` says, else "main".
        revision: String = string.text(),
        /// "fp16": weights are read from `diffusion_pytorch_model.fp16.safetensors` and the like. Empty: none. Language models have
        /// none, and do not write it.
        #[serde(default)]
        variant: String = string.variant(),
        /// What its UNet predicts; none: what the model says, or is known of its kind.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prediction_type: Option<PredictionType> = string.prediction_type(),
        /// A folder with another tokenizer than the model's, as every worker sees it; empty: the model's.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        tokenizer: String = string.own_folder(),
    }
}

impl ModelSpec {
    /// Where the model is.
    ///
    /// # Errors
    /// `base` or `revision` has not been checked: what a [`super::JobSpec`] holds has.
    pub fn location(&self) -> Result<ModelLocation, SpecError> {
        ModelLocation::parse(&self.base, &self.revision)
            .map_err(|(field, problem)| SpecError { violations: vec![Violation::new(field, problem)] })
    }
}

section! {
    /// On how many ranks a job runs.
    #[derive(Default, Eq)]
    ClusterSpec from draft: ClusterDraft, cluster_keys {
        /// Ranks wanted; fixes the global batch. Default 1.
        world_size: u32 = integer.count(1, 1..=limits::WORLD_SIZE),
        /// The smallest ring the job may run on; the result is the same. Default: `world_size`.
        min_world_size: u32 = integer.count(world_size, 1..=limits::WORLD_SIZE),
        /// Compute threads of a rank; 0: decided at the first assignment, and kept. Default 0.
        threads_per_rank: u32 = integer.count(0, 0..=limits::THREADS_PER_RANK),
        /// What every worker of it has: labels, as in `pool=blue`, and flags of its processor, as in `amx_bf16`. At most 16. Decides
        /// no bit.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        constraints: Vec<String> = strings.constraints(),
        /// `pack:KEY`: on workers of as few values of label KEY as may be; `spread:KEY`: of as many. Empty: any. Decides no bit.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        topology: String = string.topology(),
    }
}

impl ClusterSpec {
    /// Its constraints, each once.
    pub fn needs(&self) -> BTreeSet<Constraint> {
        // A stored job's were checked when it came.
        self.constraints.iter().filter_map(|text| text.parse().ok()).collect()
    }

    /// Its topology, if it wants one.
    pub fn wanted_topology(&self) -> Option<Topology> {
        self.topology.parse().ok()
    }
}

section! {
    /// Where a job's files go besides the coordinator.
    #[derive(Default, Eq)]
    OutputSpec from draft: OutputDraft, output_keys {
        /// `s3://BUCKET/PREFIX`, below which rank 0 puts each file under its name; empty: nowhere.
        url: String = string.output_url(),
    }
}

impl OutputSpec {
    /// Where it leads; none: nowhere.
    pub fn place(&self) -> Option<S3Model> {
        match ModelLocation::parse(&self.url, "") {
            Ok(ModelLocation::S3(place)) => Some(place),
            _ => None,
        }
    }
}

section! {
    /// For those who check the numbers.
    #[derive(Default, Eq)]
    DebugSpec from draft: DebugDraft, debug_keys {
        /// A folder for each step's inputs, loss and gradients; empty: none are written.
        trace_dir: String = string.own_folder(),
    }
}
