//! Adapters, as a model whose parameters are trained.

use std::{path::Path, sync::Arc};

use ringtune_shared::job::kinds::lora::LoraSpec;
use serde_json::json;

use super::results::Results;
use crate::{
    engine::{EmbeddingRows, EngineError, EngineHandle, Microbatch, PassSummary},
    kinds::pictures::{Samples, above_zero, adamw},
    output::TraceFolder,
    parameters::{Exchange, LearnedParameters, Model, Options, Outlet},
    rank::{Error, Rank},
    ring::RankRing,
    train::LrSchedule,
    training::{PreviewPlan, Previews, StepJudged},
};

/// What a rank learns, and from what.
#[derive(Debug)]
pub(crate) struct LoraModel {
    pub(super) job: LoraSpec,
    pub(super) samples: Samples,
    pub(super) schedule: LrSchedule,
    /// The text encoder's.
    pub(super) text_schedule: LrSchedule,
    /// That of learned rows.
    pub(super) rows_schedule: LrSchedule,
    pub(super) previews: Option<PreviewPlan>,
    pub(super) results: Results,
    pub(super) trace: Option<Trace>,
}

/// Where the inputs of its microbatches are written.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(super) folder: TraceFolder,
    /// The model's layers that adapters can stand beside: a layer's number decides what is drawn for it.
    pub(super) layers: Arc<Vec<String>>,
}

/// How the job's adapters are trained. `compare_interval`: see [`Options`].
pub(super) fn options(job: &LoraSpec, compare_interval: u64) -> Options {
    let train = &job.train;
    Options {
        exchange: Exchange::Exact,
        shard_optimizer: false,
        adamw: adamw(train),
        max_grad_norm: above_zero(train.max_grad_norm),
        compare_interval,
        early_stop_patience: train.validation.early_stop_patience,
        select_best: train.validation.select_best,
    }
}

impl Model for LoraModel {
    const SECTION: &'static str = "train";

    type Batch = Microbatch;

    async fn enter(&mut self, rank: &Rank, ring: &mut RankRing) -> Result<(), Error> {
        self.samples.enter(rank, ring).await
    }

    async fn begin_step(&mut self, step: u64, ring: &mut RankRing) -> Result<(), Error> {
        self.samples.encode_for(step, ring).await
    }

    async fn batch(&self, step: u64, microbatch: u32) -> Result<Microbatch, Error> {
        let batch = self.samples.build(step, microbatch, Arc::default()).await?;
        let Some(Trace { folder, layers }) = self.trace.clone() else { return Ok(batch) };
        let rates = [self.schedule.at(step), self.text_schedule.at(step), self.rows_schedule.at(step)];
        let write = move || {
            let about = json!({ "rates": rates, "layers": *layers });
            folder.write_inputs(step, microbatch, &batch, &about)?;
            Ok(batch)
        };
        ringtune_shared::tasks::spawn_blocking(write).await?
    }

    async fn gradient(
        engine: &EngineHandle,
        batch: Microbatch,
        _looked_up: EmbeddingRows,
        outlet: Outlet,
    ) -> Result<PassSummary, EngineError> {
        let add = outlet.adds();
        engine.picture_gradient(batch, add, outlet).await.map(|(pass, _outlet)| pass)
    }

    async fn hold_out(&mut self, ring: &mut RankRing) -> Result<u32, Error> {
        self.samples.hold_out(self.job.train.validation.validation_loss_samples, ring).await
    }

    async fn held_out(&self, microbatch: u32, count: u32) -> Result<Microbatch, Error> {
        self.samples.held_out(count, microbatch, Arc::default()).await
    }

    async fn loss(engine: &EngineHandle, batch: Microbatch) -> Result<f32, EngineError> {
        engine.picture_loss(batch).await
    }

    fn learning_rate(&self, step: u64) -> f64 {
        self.schedule.at(step)
    }

    fn other_rates(&self, step: u64) -> [f64; 2] {
        [self.text_schedule.at(step), self.rows_schedule.at(step)]
    }

    fn average_decay(&self, number: u64) -> Option<f64> {
        self.job.denoiser.average_decay(number)
    }

    fn is_validated_after(&self, step: u64, last: u64) -> bool {
        self.job.train.validation.is_due(step, last)
    }

    fn is_shown_after(&self, step: u64, last: u64) -> bool {
        self.job.train.previews.is_due(step, last)
    }

    fn draws(&self) -> bool {
        self.previews.is_some()
    }

    async fn draw(&mut self, engine: &EngineHandle, ring: &mut RankRing) -> Result<Option<Previews>, Error> {
        match &mut self.previews {
            Some(plan) => plan.draw(engine, ring, &[]).await.map(Some),
            None => Ok(None),
        }
    }

    async fn write_step(
        &self,
        folder: &Path,
        judged: StepJudged,
        learned: LearnedParameters,
    ) -> Result<Vec<String>, Error> {
        self.results.write_step(folder, judged, learned).await
    }

    async fn write_results(
        &self,
        folder: &Path,
        last: StepJudged,
        learned: LearnedParameters,
        names: &mut Vec<String>,
    ) -> Result<(), Error> {
        self.results.write(folder, last, learned, names).await
    }
}
