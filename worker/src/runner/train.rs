//! The steps of one rank.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use ringtune_shared::job::kinds::textual_inversion::ValidationSpec;
use tracing::debug;

use super::{
    Context, RankError, agreement,
    journal::Journal,
    prepare::Prepared,
    preview::{PreviewPlan, Previews},
};
use crate::{
    engine::{EngineHandle, Gradient, Microbatch},
    http::Metrics,
    output::{TraceFolder, trace::TracedResult, trace::TracedStep},
    ring::{self, RankRing},
    session::{Assignment, StepSummary},
    train::{
        LrSchedule, MicrobatchBuilder, MicrobatchResult, ReducedStep, SavedState, Selection, StepOutcome,
        TrainState, mean_loss, reduce_rows,
    },
};

/// One rank in the middle of its job. Dropping a step half-way leaves the state of the step before.
#[derive(Debug)]
pub(super) struct Training {
    engine: EngineHandle,
    metrics: Arc<Metrics>,
    ring: RankRing,
    builder: Arc<Mutex<MicrobatchBuilder>>,
    schedule: LrSchedule,
    state: TrainState,
    /// The state before a step of which not all is found out yet.
    before: Option<TrainState>,
    validation: ValidationSpec,
    previews: Option<PreviewPlan>,
    trace: Option<TraceFolder>,
}

impl Training {
    /// Does what a prepared rank has still to do together with the ring, whose ranks [`agree`]. What is returned puts
    /// it there for good, which cannot fail: until then the caller keeps the ring, to leave it when all is said.
    pub(super) async fn begin(
        assignment: &Assignment,
        validation: ValidationSpec,
        prepared: Prepared,
        context: &Context,
        ring: &mut RankRing,
        journal: &Journal,
    ) -> Result<impl FnOnce(RankRing) -> Self + use<>, RankError> {
        let images = prepared.latents.complete(ring, context, journal).await?;
        let vectors = prepared.concepts.iter().map(|concept| concept.num_vectors).sum();
        let trace = create_trace(&assignment.spec.common.debug.trace_dir, vectors).await?;
        let inputs = prepared.inputs;
        let builder = tokio::task::spawn_blocking(move || inputs.into_builder(images)).await??;
        let (engine, metrics) = (context.engine.clone(), Arc::clone(&context.metrics));
        Ok(move |ring| Self {
            engine,
            metrics,
            ring,
            builder: Arc::new(Mutex::new(builder)),
            schedule: prepared.schedule,
            state: prepared.state,
            before: None,
            validation,
            previews: prepared.previews,
            trace,
        })
    }

    /// Leaves the ring after the last step. All that this rank had to give is given: a neighbour that goes wrong
    /// from here on is not its concern.
    pub(super) async fn leave(self) {
        if let Err(error) = self.ring.close().await {
            debug!(%error, "the ring broke after the last step");
        }
    }

    /// The learned rows after the last finished step.
    pub(super) fn rows(&self) -> Arc<Vec<f32>> {
        Arc::clone(self.state.rows())
    }

    /// All that the steps after the last settled one depend on.
    pub(super) fn saved_state(&self) -> SavedState {
        let mut saved = SavedState::default();
        self.before.as_ref().unwrap_or(&self.state).save(&mut saved);
        saved
    }

    /// Takes step `step`, from 1, together with all other ranks.
    pub(super) async fn step(&mut self, step: u64) -> Result<StepSummary, RankError> {
        let started = Instant::now();
        let before = self.rows();
        // 1. This rank's microbatches, one after the other.
        let mut own = Vec::new();
        let mut compute_seconds = 0.0;
        for microbatch in self.ring.microbatches() {
            let inputs = self.build(step, microbatch).await?;
            let traced = self.trace.is_some().then(|| inputs.clone());
            let gradient = self.engine.gradient(inputs).await?;
            let seconds = gradient.forward_seconds + gradient.backward_seconds;
            compute_seconds += seconds;
            if let Some(inputs) = traced {
                self.trace_microbatch(step, microbatch, inputs, &gradient).await?;
            }
            let result = MicrobatchResult {
                loss: gradient.loss,
                gradient: gradient.grad,
                compute_seconds: seconds as f32,
            };
            own.push(result.into_row());
        }
        // 2. Everybody's, in microbatch order.
        let gathered = self.ring.gather(own).await?;
        // 3. The same update on every rank.
        let learning_rate = self.schedule.at(step);
        let (rows, mut state) = (gathered.rows, self.state.clone());
        let update = move || {
            let reduced = reduce_rows(&rows, state.rows().len()).ok_or(RankError::Ring(ring::Error::Rows))?;
            let outcome = state.apply(step, &reduced, learning_rate)?;
            Ok::<_, RankError>((reduced, state, outcome))
        };
        let (reduced, state, outcome) = tokio::task::spawn_blocking(update).await??;
        self.before = Some(std::mem::replace(&mut self.state, state));
        if self.ring.rank() == 0 {
            self.trace_step(step, before, &reduced, learning_rate).await?;
        }
        let summary = StepSummary {
            step,
            loss: reduced.loss,
            learning_rate,
            step_seconds: started.elapsed().as_secs_f64(),
            compute_seconds,
            exchange_seconds: gathered.exchange_seconds,
            wait_seconds: gathered.wait_seconds,
            skipped: outcome == StepOutcome::Skipped,
            world_size: self.ring.world_size(),
            validation_loss: None,
            validation_seconds: 0.0,
            preview_seconds: 0.0,
        };
        self.measure(&summary);
        Ok(summary)
    }

    /// Takes the loss on the held-out samples with the rows as they are after `step`, together with all other ranks:
    /// the same bits on each, for any number of them.
    pub(super) async fn validate(&mut self, step: u64) -> Result<Validation, RankError> {
        let started = Instant::now();
        let count = self.held_out_microbatches();
        let mut own = Vec::new();
        for microbatch in self.ring.share_of(count as usize) {
            let inputs = self.build_held_out(count, microbatch as u32).await?;
            own.push(vec![self.engine.loss(inputs).await?]);
        }
        let gathered = self.ring.gather_of(count as usize, 1, own).await?;
        let loss = mean_loss(&gathered.rows)?;
        let is_best = self.state.judge(step, loss);
        self.metrics.validation_loss.set(f64::from(loss));
        Ok(Validation { loss, is_best, seconds: started.elapsed().as_secs_f64() })
    }

    /// Draws the job's pictures with `rows`, together with all other ranks. None where the job wants none.
    pub(super) async fn draw_previews(&mut self, rows: &[f32]) -> Result<Option<Previews>, RankError> {
        let Some(plan) = &self.previews else { return Ok(None) };
        Ok(Some(plan.draw(&self.engine, &mut self.ring, rows).await?))
    }

    /// All of the last step is found out: it will be kept.
    pub(super) fn settle(&mut self) {
        self.before = None;
    }

    /// What the validations so far say.
    pub(super) fn selection(&self) -> &Selection {
        self.state.selection()
    }

    fn held_out_microbatches(&self) -> u32 {
        let builder = self.builder.lock().unwrap_or_else(PoisonError::into_inner);
        builder.held_out_microbatches(self.validation.validation_loss_samples)
    }

    async fn build_held_out(&self, count: u32, microbatch: u32) -> Result<Microbatch, RankError> {
        let (builder, rows) = (Arc::clone(&self.builder), self.rows());
        let build = move || {
            builder.lock().unwrap_or_else(PoisonError::into_inner).build_held_out(count, microbatch, rows)
        };
        Ok(tokio::task::spawn_blocking(build).await??)
    }

    /// Drawing normal numbers is computing, and posteriors may be on the disk: off the runtime's threads.
    async fn build(&self, step: u64, microbatch: u32) -> Result<Microbatch, RankError> {
        let (builder, rows) = (Arc::clone(&self.builder), self.rows());
        let own = self.ring.microbatches();
        let (next_step, next) =
            if microbatch + 1 < own.end { (step, microbatch + 1) } else { (step + 1, own.start) };
        let build = move || {
            let mut builder = builder.lock().unwrap_or_else(PoisonError::into_inner);
            let built = builder.build(step, microbatch, rows);
            // While this one is computed on.
            builder.expect(next_step, next);
            built
        };
        Ok(tokio::task::spawn_blocking(build).await??)
    }

    async fn trace_microbatch(
        &self,
        step: u64,
        microbatch: u32,
        inputs: Microbatch,
        gradient: &Gradient,
    ) -> Result<(), RankError> {
        let Some(trace) = self.trace.clone() else { return Ok(()) };
        let (loss, grad) = (gradient.loss, gradient.grad.clone());
        let write =
            move || trace.write_microbatch(step, microbatch, &inputs, TracedResult { loss, gradient: &grad });
        Ok(tokio::task::spawn_blocking(write).await??)
    }

    async fn trace_step(
        &self,
        step: u64,
        before: Arc<Vec<f32>>,
        reduced: &ReducedStep,
        lr: f64,
    ) -> Result<(), RankError> {
        let Some(trace) = self.trace.clone() else { return Ok(()) };
        let (after, gradient) = (self.rows(), reduced.gradient.clone());
        let write = move || {
            let traced = TracedStep { embeds_before: &before, embeds_after: &after, gradient: &gradient, lr };
            trace.write_step(step, traced)
        };
        Ok(tokio::task::spawn_blocking(write).await??)
    }

    fn measure(&self, step: &StepSummary) {
        let metrics = &self.metrics;
        metrics.step_seconds.observe(step.step_seconds);
        metrics.compute_seconds.observe(step.compute_seconds);
        metrics.exchange_seconds.observe(step.exchange_seconds + step.wait_seconds);
        metrics.steps.inc();
        metrics.skipped_steps.inc_by(u64::from(step.skipped));
        metrics.loss.set(f64::from(step.loss));
        metrics.step.set(i64::try_from(step.step).unwrap_or(i64::MAX));
    }
}

/// Where the job wants its steps written down, if it does.
async fn create_trace(folder: &str, vectors: usize) -> Result<Option<TraceFolder>, RankError> {
    if folder.is_empty() {
        return Ok(None);
    }
    let folder = PathBuf::from(folder);
    let create = move || TraceFolder::create(&folder, vectors);
    Ok(Some(tokio::task::spawn_blocking(create).await??))
}

/// See [`agreement::check`].
pub(super) async fn agree(ring: &mut RankRing, prepared: &Prepared) -> Result<(), RankError> {
    let common =
        [("model (model.base)", prepared.model_hash), ("set of pictures (data.images)", prepared.data_hash)];
    agreement::check(ring, &common).await
}

/// A loss on the held-out samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Validation {
    /// Their mean.
    pub(super) loss: f32,
    /// It is the lowest so far.
    pub(super) is_best: bool,
    /// How long it took.
    pub(super) seconds: f64,
}
