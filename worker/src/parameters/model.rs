//! What is trained, as [`ParameterTrainee`](super::ParameterTrainee) sees it.

use std::{fmt, future::Future, path::Path};

use super::{LearnedParameters, Outlet};
use crate::{
    engine::{EmbeddingRows, EngineError, EngineHandle, PassSummary},
    rank::Error,
    training::StepJudged,
};

/// A model whose parameters the engine holds, and what it learns from. GPT-2 is the only one yet; LoRA and the whole UNet of Stable
/// Diffusion are to be the next, over all that stands beside this trait.
pub(crate) trait Model: fmt::Debug + Send + Sync + 'static {
    /// The section of the job that has its options. Texts that name one begin with it, and so do the names of the state's counters.
    const SECTION: &'static str;

    /// The inputs of a microbatch.
    type Batch: Send + 'static;

    /// The rows of a token table that a step of so many microbatches, over all ranks, looks up. None, of a model that trains no table.
    fn embedding_rows(
        &mut self,
        _step: u64,
        _microbatches: u32,
    ) -> impl Future<Output = Result<EmbeddingRows, Error>> + Send {
        async { Ok(EmbeddingRows::default()) }
    }

    /// Microbatch `microbatch`, of all ranks', of a step.
    fn batch(&self, step: u64, microbatch: u32) -> impl Future<Output = Result<Self::Batch, Error>> + Send;

    /// Its loss, and its gradient in `outlet`, added to what is there where that says so ([`Outlet::adds`]). `looked_up`: of the whole
    /// step.
    fn gradient(
        engine: &EngineHandle,
        batch: Self::Batch,
        looked_up: EmbeddingRows,
        outlet: Outlet,
    ) -> impl Future<Output = Result<PassSummary, EngineError>> + Send;

    /// Microbatch `microbatch` of those that the validation loss is the mean of.
    fn held_out(&self, microbatch: u32) -> impl Future<Output = Result<Self::Batch, Error>> + Send;

    /// Its loss alone.
    fn loss(
        engine: &EngineHandle,
        batch: Self::Batch,
    ) -> impl Future<Output = Result<f32, EngineError>> + Send;

    /// Of step `step`, from 1.
    fn learning_rate(&self, step: u64) -> f64;

    /// Whether the validation loss is to be taken after `step`; `last`: the job's last one.
    fn is_validated_after(&self, step: u64, last: u64) -> bool;

    /// Writes the job's results into `folder`, and adds the names of the files that are good to `names`. `last`: the last step.
    fn write_results(
        &self,
        folder: &Path,
        last: StepJudged,
        learned: LearnedParameters,
        names: &mut Vec<String>,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}
