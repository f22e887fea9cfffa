//! What is trained, as [`ParameterTrainee`](super::ParameterTrainee) sees it.

use std::{fmt, future::Future, path::Path};

use super::{LearnedParameters, Outlet};
use crate::{
    engine::{EmbeddingRows, EngineError, EngineHandle, PassSummary},
    rank::{Error, Rank},
    ring::RankRing,
    session::Assignment,
    training::{Previews, Sampled, StepJudged},
};

/// A model whose parameters the engine holds, and what it learns from.
pub(crate) trait Model: fmt::Debug + Send + Sync + 'static {
    /// The section of the job that has its options. Texts that name one begin with it, and so do the names of the state's counters.
    const SECTION: &'static str;

    /// The inputs of a microbatch.
    type Batch: Send + 'static;

    /// Does what is to be done together before the first step in a ring.
    fn enter(
        &mut self,
        _rank: &Rank,
        _ring: &mut RankRing,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        async { Ok(()) }
    }

    /// Does what is to be done together before the first microbatch of a step.
    fn begin_step(
        &mut self,
        _step: u64,
        _ring: &mut RankRing,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        async { Ok(()) }
    }

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

    /// Gets ready for a validation loss together, and gives how many microbatches it is the mean of.
    fn hold_out(&mut self, ring: &mut RankRing) -> impl Future<Output = Result<u32, Error>> + Send;

    /// Microbatch `microbatch` of those `count`.
    fn held_out(
        &self,
        microbatch: u32,
        count: u32,
    ) -> impl Future<Output = Result<Self::Batch, Error>> + Send;

    /// Its loss alone.
    fn loss(
        engine: &EngineHandle,
        batch: Self::Batch,
    ) -> impl Future<Output = Result<f32, EngineError>> + Send;

    /// Of step `step`, from 1.
    fn learning_rate(&self, step: u64) -> f64;

    /// Those of parameters of the other rates ([`Parameter::rate`](crate::engine::Parameter::rate)), of step `step`.
    fn other_rates(&self, _step: u64) -> [f64; 2] {
        [0.0; 2]
    }

    /// The share of the parameters' average that optimizer step `number`, from 1, keeps. None: no average is kept.
    fn average_decay(&self, _number: u64) -> Option<f64> {
        None
    }

    /// Whether the validation loss is to be taken after `step`; `last`: the job's last one.
    fn is_validated_after(&self, step: u64, last: u64) -> bool;

    /// Whether pictures are to be drawn after `step`, if the job wants any at all; `last`: the job's last step.
    fn is_shown_after(&self, _step: u64, _last: u64) -> bool {
        false
    }

    /// Whether the job wants pictures.
    fn draws(&self) -> bool {
        false
    }

    /// Whether the engine can show other values than it holds: then pictures of the best state are drawn, too.
    fn draws_best(&self) -> bool {
        true
    }

    /// Draws pictures with what the engine shows. None where the job wants none.
    fn draw(
        &mut self,
        _engine: &EngineHandle,
        _ring: &mut RankRing,
    ) -> impl Future<Output = Result<Option<Previews>, Error>> + Send {
        async { Ok(None) }
    }

    /// Shows with a prompt what the model that the engine shows has learned. None: another rank has it.
    ///
    /// # Errors
    /// The ring's; a prompt of which nothing can be made.
    fn sample(
        &mut self,
        prompt: &str,
        engine: &EngineHandle,
        ring: &mut RankRing,
    ) -> impl Future<Output = Result<Option<Sampled>, Error>> + Send;

    /// Goes on by the orders that the job has now.
    ///
    /// # Errors
    /// The job cannot be so.
    fn amend(&mut self, job: &Assignment) -> Result<(), Error>;

    /// Writes what is learned after a step into `folder`, where the job keeps that. Gives the files' names.
    fn write_step(
        &self,
        _folder: &Path,
        _judged: StepJudged,
        _learned: LearnedParameters,
    ) -> impl Future<Output = Result<Vec<String>, Error>> + Send {
        async { Ok(Vec::new()) }
    }

    /// Writes the job's results into `folder`, and adds the names of the files that are good to `names`. `last`: the last step.
    fn write_results(
        &self,
        folder: &Path,
        last: StepJudged,
        learned: LearnedParameters,
        names: &mut Vec<String>,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}
