//! A network that predicts noise, of which something is trained, as a model whose parameters are trained: of all kinds that learn
//! from pictures with captions.

use std::{fmt::Debug, path::Path, sync::Arc};

use ringtune_shared::job::{
    OrdersSpec,
    pictures::{DenoiserSpec, TrainSpec},
};
use serde_json::json;

use super::{Samples, prepare::schedules};
use crate::{
    engine::{EmbeddingRows, EngineError, EngineHandle, Microbatch, PassSummary},
    output::{self, TraceFolder},
    parameters::{LearnedParameters, Model, Outlet, write_results},
    rank::{Error, Rank},
    ring::RankRing,
    session::Assignment,
    train::LrSchedule,
    training::{PreviewPlan, Previews, Sampled, StepJudged},
};

/// What a rank learns, and from what. `R`: what it leaves.
#[derive(Debug)]
pub(crate) struct NetworkModel<R> {
    pub(in crate::kinds) train: TrainSpec,
    pub(in crate::kinds) denoiser: DenoiserSpec,
    pub(in crate::kinds) samples: Samples,
    /// Of each of a step's rates ([`Parameter::rate`](crate::engine::Parameter::rate)).
    pub(in crate::kinds) schedules: [LrSchedule; 3],
    /// The job's own options for the second and the third of them.
    pub(in crate::kinds) rates: [Option<f64>; 2],
    /// None: the steps are only computed again.
    pub(in crate::kinds) previews: Option<PreviewPlan>,
    pub(in crate::kinds) results: R,
    pub(in crate::kinds) trace: Option<Trace>,
}

/// Writes the files of one job. Blocks.
pub(crate) trait NetworkResults: Clone + Debug + Send + Sync + 'static {
    /// See [`Model::draws_best`].
    const DRAWS_BEST: bool = true;

    /// The files say these orders of the job.
    fn amend(&mut self, orders: &OrdersSpec);

    /// What is learned as it is after a step. Gives the files' names.
    fn write_step(
        &self,
        folder: &Path,
        judged: &StepJudged,
        learned: &LearnedParameters,
    ) -> Result<Vec<String>, output::Error>;

    /// The job's results. Adds the names of the files that are good: what went wrong with another one does not keep them back.
    fn write_all(
        &self,
        folder: &Path,
        last: StepJudged,
        learned: &LearnedParameters,
        names: &mut Vec<String>,
    ) -> Result<(), output::Error>;
}

/// Where the inputs of its microbatches are written.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(in crate::kinds) folder: TraceFolder,
    /// The model's layers that adapters can stand beside: a layer's number decides what is drawn for it.
    pub(in crate::kinds) layers: Arc<Vec<String>>,
}

impl<R: NetworkResults> Model for NetworkModel<R> {
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
        let rates = self.schedules.each_ref().map(|schedule| schedule.at(step));
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
        self.samples.hold_out(self.train.validation.validation_loss_samples, ring).await
    }

    async fn held_out(&self, microbatch: u32, count: u32) -> Result<Microbatch, Error> {
        self.samples.held_out(count, microbatch, Arc::default()).await
    }

    async fn loss(engine: &EngineHandle, batch: Microbatch) -> Result<f32, EngineError> {
        engine.picture_loss(batch).await
    }

    fn learning_rate(&self, step: u64) -> f64 {
        self.schedules[0].at(step)
    }

    fn other_rates(&self, step: u64) -> [f64; 2] {
        [self.schedules[1].at(step), self.schedules[2].at(step)]
    }

    fn average_decay(&self, number: u64) -> Option<f64> {
        self.denoiser.average_decay(number)
    }

    fn is_validated_after(&self, step: u64, last: u64) -> bool {
        self.train.validation.is_due(step, last)
    }

    fn is_shown_after(&self, step: u64, last: u64) -> bool {
        self.train.previews.is_due(step, last)
    }

    fn draws(&self) -> bool {
        self.previews.as_ref().is_some_and(PreviewPlan::is_wanted)
    }

    fn draws_best(&self) -> bool {
        R::DRAWS_BEST
    }

    async fn draw(&mut self, engine: &EngineHandle, ring: &mut RankRing) -> Result<Option<Previews>, Error> {
        match &mut self.previews {
            Some(plan) => plan.draw(engine, ring, &[]).await,
            None => Ok(None),
        }
    }

    async fn sample(
        &mut self,
        prompt: &str,
        engine: &EngineHandle,
        ring: &mut RankRing,
    ) -> Result<Option<Sampled>, Error> {
        let Some(plan) = &self.previews else { return Ok(None) };
        let drawn = plan.of("order.prompt", prompt)?.draw(engine, ring, &[]).await?;
        Ok(drawn.map(Sampled::Pictures))
    }

    fn amend(&mut self, job: &Assignment) -> Result<(), Error> {
        self.schedules = schedules(job, &self.train, self.rates)?;
        self.results.amend(&job.spec.common.orders);
        Ok(())
    }

    async fn write_step(
        &self,
        folder: &Path,
        judged: StepJudged,
        learned: LearnedParameters,
    ) -> Result<Vec<String>, Error> {
        let (results, folder) = (self.results.clone(), folder.to_owned());
        let write = move || results.write_step(&folder, &judged, &learned);
        Ok(ringtune_shared::tasks::spawn_blocking(write).await??)
    }

    async fn write_results(
        &self,
        folder: &Path,
        last: StepJudged,
        learned: LearnedParameters,
        names: &mut Vec<String>,
    ) -> Result<(), Error> {
        let (results, folder) = (self.results.clone(), folder.to_owned());
        write_results(names, move |names| results.write_all(&folder, last, &learned, names)).await
    }
}
