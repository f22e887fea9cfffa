//! What one rank trains, and each thing that it does together with the others.

use std::{path::Path, sync::Arc, time::Instant};

use ringtune_shared::job::{kinds::textual_inversion::TextualInversionSpec, pictures::TrainSpec};
use ringtune_sources::LocalModel;

use super::{
    prepare::{Prepared, prepare},
    results::{LearnedRows, Results},
};
use crate::{
    engine::{EngineHandle, Gradient, Microbatch},
    http::Metrics,
    kinds::pictures::{Samples, Tracing, schedule},
    output::{TraceFolder, trace::TracedResult, trace::TracedStep},
    rank::{Durations, Error, Rank},
    rank_state::{RankState, TakenState},
    ring::{self, RankRing},
    session::{Assignment, StepSummary},
    train::{
        LrSchedule, MicrobatchResult, ReducedStep, SavedState, Selection, StepOutcome, TrainState,
        reduce_rows,
    },
    training::{
        Course, Origin, PreviewPlan, Previews, Recovered, Sampled, Shown, StateTogether, StepJudged, Trainee,
        measure, step_summary,
    },
};

/// What is learned by one rank: the rows, their optimizer, and all that microbatches are made of.
#[derive(Debug)]
pub(crate) struct Inverter {
    engine: EngineHandle,
    metrics: Arc<Metrics>,
    train: TrainSpec,
    course: Course,
    origin: Origin,
    samples: Samples,
    schedule: LrSchedule,
    /// Of a microbatch's gradient.
    durations: Durations,
    state: TrainState,
    /// The state before a step of which not all is found out yet.
    before: Option<TrainState>,
    /// None: the steps are only computed again.
    previews: Option<PreviewPlan>,
    results: Results,
    trace: Option<TraceFolder>,
    /// The base model's files: held as long as they may be read.
    _base_model: Arc<LocalModel>,
}

impl Inverter {
    /// Prepares a rank. Every failure names the job's field or the file.
    pub(super) async fn prepare(rank: &Rank, job: TextualInversionSpec) -> Result<Self, Error> {
        // Steps that are only computed again leave nothing.
        let proves = rank.assignment.proof.is_some();
        let trace = Tracing::of(rank)?;
        let prepared = prepare(rank, &job, true).await?;
        let results = Results::new(&rank.assignment, &job, &prepared)?;
        let train = job.train;
        let course = Course::new(&rank.assignment, prepared.done, train.checkpointing_steps, train.report_to);
        let course = Course { save_steps: train.save_steps, ..course };
        let Prepared { material, schedule, state, base_model, origin, previews, .. } = prepared;
        Ok(Self {
            engine: rank.context.engine.clone(),
            metrics: Arc::clone(&rank.context.metrics),
            samples: Samples::new(material, course.total, rank),
            trace: trace.create(rank, results.vectors()).await?,
            train,
            course,
            origin,
            schedule,
            durations: Durations::default(),
            state,
            before: None,
            previews: (!proves).then_some(previews),
            results,
            _base_model: base_model,
        })
    }

    fn rows(&self) -> Arc<Vec<f32>> {
        Arc::clone(self.state.rows())
    }

    async fn trace_microbatch(
        &self,
        step: u64,
        microbatch: u32,
        inputs: Microbatch,
        gradient: &Gradient,
    ) -> Result<(), Error> {
        let Some(trace) = self.trace.clone() else { return Ok(()) };
        let (loss, grad) = (gradient.loss, gradient.grad.clone());
        let write =
            move || trace.write_microbatch(step, microbatch, &inputs, TracedResult { loss, gradient: &grad });
        Ok(ringtune_shared::tasks::spawn_blocking(write).await??)
    }

    async fn trace_step(
        &self,
        step: u64,
        before: Arc<Vec<f32>>,
        reduced: &ReducedStep,
        lr: f64,
    ) -> Result<(), Error> {
        let Some(trace) = self.trace.clone() else { return Ok(()) };
        let (after, gradient) = (self.rows(), reduced.gradient.clone());
        let write = move || {
            let traced = TracedStep { embeds_before: &before, embeds_after: &after, gradient: &gradient, lr };
            trace.write_step(step, traced)
        };
        Ok(ringtune_shared::tasks::spawn_blocking(write).await??)
    }
}

/// Each rank has all of the rows.
impl StateTogether for Inverter {}

impl Trainee for Inverter {
    const IN_PLACE: bool = false;

    type Learned = LearnedRows;

    fn course(&self) -> &Course {
        &self.course
    }

    fn origin(&self) -> &Origin {
        &self.origin
    }

    async fn enter(&mut self, rank: &Rank, ring: &mut RankRing) -> Result<(), Error> {
        self.samples.enter(rank, ring).await
    }

    async fn step(&mut self, step: u64, ring: &mut RankRing) -> Result<StepSummary, Error> {
        let started = Instant::now();
        self.samples.encode_for(step, ring).await?;
        let before = self.rows();
        // 1. This rank's microbatches, one after the other.
        let mut own = Vec::new();
        let mut compute_seconds = 0.0;
        for microbatch in ring.microbatches() {
            let inputs = self.samples.build(step, microbatch, self.rows()).await?;
            let traced = self.trace.is_some().then(|| inputs.clone());
            let gradient = self.durations.timed(&self.engine, self.engine.gradient(inputs)).await?;
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
        let computed = Instant::now();
        ring.begin_step();
        let gathered = ring.gather(own).await?;
        let seconds: Vec<f32> = gathered.rows.iter().filter_map(|row| row.last().copied()).collect();
        let exchanged = ring.step_exchanged(computed, &seconds);
        // 3. The same update on every rank.
        let learning_rate = self.schedule.at(step);
        let (rows, mut state) = (gathered.rows, self.state.clone());
        let update = move || {
            let reduced = reduce_rows(&rows, state.rows().len()).ok_or(Error::Ring(ring::Error::Rows))?;
            let outcome = state.apply(step, &reduced, learning_rate)?;
            Ok::<_, Error>((reduced, state, outcome))
        };
        let (reduced, state, outcome) = ringtune_shared::tasks::spawn_blocking(update).await??;
        self.before = Some(std::mem::replace(&mut self.state, state));
        if ring.rank() == 0 {
            self.trace_step(step, before, &reduced, learning_rate).await?;
        }
        let mut summary = step_summary(step, ring, exchanged, reduced.loss, learning_rate);
        (summary.step_seconds, summary.compute_seconds) = (started.elapsed().as_secs_f64(), compute_seconds);
        summary.skipped = outcome == StepOutcome::Skipped;
        measure(&self.metrics, &summary);
        Ok(summary)
    }

    fn is_validated_after(&self, step: u64) -> bool {
        self.train.validation.is_due(step, self.course.total)
    }

    async fn hold_out(&mut self, ring: &mut RankRing) -> Result<u32, Error> {
        self.samples.hold_out(self.train.validation.validation_loss_samples, ring).await
    }

    async fn held_out_loss(&mut self, microbatch: u32, count: u32) -> Result<f32, Error> {
        let inputs = self.samples.held_out(count, microbatch, self.rows()).await?;
        self.engine.loss(inputs).await.map_err(Error::of_engine)
    }

    fn take_in(&mut self, step: u64, loss: f32) -> bool {
        self.state.judge(step, loss)
    }

    fn is_shown_after(&self, step: u64) -> bool {
        self.train.previews.is_due(step, self.course.total)
    }

    async fn draw(
        &mut self,
        shown: Shown,
        learned: &LearnedRows,
        ring: &mut RankRing,
    ) -> Result<Option<Previews>, Error> {
        let Some(plan) = &mut self.previews else { return Ok(None) };
        let rows = match (shown, &learned.best) {
            (Shown::Best(_), Some(best)) => &best.rows,
            _ => &learned.last,
        };
        plan.draw(&self.engine, ring, rows).await
    }

    async fn sample(&mut self, prompt: &str, ring: &mut RankRing) -> Result<Option<Sampled>, Error> {
        let Some(plan) = &self.previews else { return Ok(None) };
        let drawn = plan.of("order.prompt", prompt)?.draw(&self.engine, ring, &self.rows()).await?;
        Ok(drawn.map(Sampled::Pictures))
    }

    fn amend(&mut self, job: &Assignment) -> Result<(), Error> {
        self.course.total = job.spec.total_steps();
        self.schedule = schedule(&job.spec, &self.train, None)?;
        self.results.amend(&job.spec.common.orders);
        Ok(())
    }

    fn settle(&mut self) {
        self.before = None;
    }

    async fn recover(&mut self) -> Result<Option<Recovered>, Error> {
        if let Some(before) = self.before.take() {
            self.state = before;
        }
        Ok(None)
    }

    async fn restore(&mut self, state: TakenState, _step: u64) -> Result<(), Error> {
        let mut state = ringtune_shared::tasks::spawn_blocking(move || state.into_saved()).await??;
        self.before = None;
        self.state = self.state.clone().restored(&mut state)?;
        Ok(state.finish()?)
    }

    fn selection(&self) -> &Selection {
        self.state.selection()
    }

    fn learned(&self) -> LearnedRows {
        let select_best = self.train.validation.select_best;
        let best = self.selection().best().filter(|_| select_best).cloned();
        LearnedRows { last: self.rows(), best }
    }

    fn best_step(learned: &LearnedRows) -> Option<u64> {
        learned.best.as_ref().map(|best| best.step)
    }

    fn state(&self) -> RankState {
        let mut saved = SavedState::default();
        self.before.as_ref().unwrap_or(&self.state).save(&mut saved);
        RankState::small(saved)
    }

    fn most_state_bytes(&self) -> u64 {
        self.state().most_bytes()
    }

    fn is_hashed_after(&self, _step: u64) -> bool {
        true
    }

    async fn write_step(
        &self,
        folder: &Path,
        judged: StepJudged,
        learned: &LearnedRows,
    ) -> Result<Vec<String>, Error> {
        self.results.write_step(folder, judged, &learned.last).await
    }

    async fn write_results(
        &self,
        folder: &Path,
        last: StepJudged,
        learned: LearnedRows,
        names: &mut Vec<String>,
    ) -> Result<(), Error> {
        self.results.write(folder, last, learned, names).await
    }
}
