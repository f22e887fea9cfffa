//! What one rank trains, and each thing that it does together with the others.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use ringtune_shared::{
    job::{PathUse, ReportTo, kinds::textual_inversion::TextualInversionSpec, pictures::TrainSpec},
    version::ON_DEMAND_RING_PROTOCOL,
};
use ringtune_sources::LocalModel;

use super::{
    prepare::{Inputs, Prepared, prepare},
    results::{LearnedRows, Results},
};
use crate::{
    access,
    engine::{EngineHandle, Gradient, Microbatch},
    fault::Refusal,
    http::Metrics,
    inputs::Posteriors,
    journal::Journal,
    output::{TraceFolder, trace::TracedResult, trace::TracedStep},
    rank::{Context, Durations, Error, Rank},
    rank_state::{RankState, TakenState},
    ring::{self, RankRing},
    session::StepSummary,
    train::{
        self, LrSchedule, MicrobatchBuilder, MicrobatchResult, ReducedStep, SavedState, Selection,
        StepOutcome, TrainState, reduce_rows,
    },
    training::{
        Course, Origin, PreviewPlan, Previews, Recovered, Shown, StateTogether, StepJudged, Trainee, measure,
        step_summary,
    },
};

/// What is learned by one rank: the rows, their optimizer, and all that microbatches are made of.
#[derive(Debug)]
pub(crate) struct Inverter {
    engine: EngineHandle,
    metrics: Arc<Metrics>,
    context: Context,
    journal: Journal,
    train: TrainSpec,
    course: Course,
    origin: Origin,
    posteriors: Posteriors,
    inputs: Inputs,
    /// Makes microbatches, once all posteriors are known.
    builder: Option<Arc<Mutex<MicrobatchBuilder>>>,
    schedule: LrSchedule,
    /// Of a microbatch's gradient.
    durations: Durations,
    state: TrainState,
    /// The state before a step of which not all is found out yet.
    before: Option<TrainState>,
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
        let trace_dir = if proves { "" } else { rank.assignment.spec.common.debug.trace_dir.as_str() };
        check_trace(rank, trace_dir)?;
        let prepared = prepare(rank, &job, true).await?;
        let results = Results::new(&rank.assignment, &job, &prepared)?;
        let train = job.train;
        let course = Course {
            done: prepared.done,
            total: train.max_train_steps,
            save_steps: train.save_steps,
            checkpointing_steps: train.checkpointing_steps,
            checkpoints_total_limit: train.checkpoints_total_limit,
            tensorboard: train.report_to == ReportTo::Tensorboard,
            proof: rank.assignment.proof,
        };
        let Prepared { posteriors, inputs, schedule, state, base_model, origin, previews, .. } = prepared;
        Ok(Self {
            engine: rank.context.engine.clone(),
            metrics: Arc::clone(&rank.context.metrics),
            context: rank.context.clone(),
            journal: rank.journal.clone(),
            trace: create_trace(rank, trace_dir, results.vectors()).await?,
            train,
            course,
            origin,
            posteriors,
            inputs,
            builder: None,
            schedule,
            durations: Durations::default(),
            state,
            before: None,
            previews: previews.filter(|_| !proves),
            results,
            _base_model: base_model,
        })
    }

    fn builder(&self) -> Result<Arc<Mutex<MicrobatchBuilder>>, Error> {
        let problem = || "not all posteriors are known yet".to_owned();
        Ok(self.builder.clone().ok_or_else(|| train::Error::Posterior { problem: problem() })?)
    }

    fn rows(&self) -> Arc<Vec<f32>> {
        Arc::clone(self.state.rows())
    }

    /// Has encoded what a step shows. All ranks draw the same, so that they need not ask each other.
    ///
    /// Where there are some, those of the next steps come along, ever more of them.
    async fn encode_for(&mut self, step: u64, ring: &mut RankRing) -> Result<(), Error> {
        if self.posteriors.is_complete() {
            return Ok(());
        }
        let builder = self.builder()?;
        let shown_in = |step| builder.lock().unwrap_or_else(PoisonError::into_inner).shown(step);
        let mut shown = shown_in(step);
        let mut missing = self.posteriors.missing(&shown);
        if missing.is_empty() {
            self.posteriors.were_known();
            return Ok(());
        }
        let ahead = self.posteriors.ahead();
        let steps = step + 1..=self.course.total.min(step.saturating_add(ahead as u64));
        for next in steps {
            if missing.len() >= ahead {
                break;
            }
            shown.extend(shown_in(next));
            missing = self.posteriors.missing(&shown);
        }
        self.posteriors.encode(&missing, ring, &self.context, &self.journal).await
    }

    async fn encode_held_out(&mut self, count: u32, ring: &mut RankRing) -> Result<(), Error> {
        if self.posteriors.is_complete() {
            return Ok(());
        }
        let shown = self.builder()?.lock().unwrap_or_else(PoisonError::into_inner).held_out_shown(count);
        let missing = self.posteriors.missing(&shown);
        self.posteriors.encode(&missing, ring, &self.context, &self.journal).await
    }

    /// Drawing normal numbers is computing, and posteriors may be on the disk: off the runtime's threads.
    async fn build(&self, step: u64, microbatch: u32, ring: &RankRing) -> Result<Microbatch, Error> {
        let (builder, rows) = (self.builder()?, self.rows());
        let own = ring.microbatches();
        let (next_step, next) =
            if microbatch + 1 < own.end { (step, microbatch + 1) } else { (step + 1, own.start) };
        let build = move || {
            let mut builder = builder.lock().unwrap_or_else(PoisonError::into_inner);
            let built = builder.build(step, microbatch, rows);
            // While this one is computed on.
            builder.expect(next_step, next);
            built
        };
        Ok(ringtune_shared::tasks::spawn_blocking(build).await??)
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
        let at_once = rank.assignment.ring_protocol < ON_DEMAND_RING_PROTOCOL;
        let images = self.posteriors.enter(ring, at_once, &rank.context, &rank.journal).await?;
        if self.builder.is_none() {
            let inputs = self.inputs.clone();
            let builder =
                ringtune_shared::tasks::spawn_blocking(move || inputs.into_builder(images)).await??;
            self.builder = Some(Arc::new(Mutex::new(builder)));
        }
        Ok(())
    }

    async fn step(&mut self, step: u64, ring: &mut RankRing) -> Result<StepSummary, Error> {
        let started = Instant::now();
        self.encode_for(step, ring).await?;
        let before = self.rows();
        // 1. This rank's microbatches, one after the other.
        let mut own = Vec::new();
        let mut compute_seconds = 0.0;
        for microbatch in ring.microbatches() {
            let inputs = self.build(step, microbatch, ring).await?;
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
        let count = {
            let builder = self.builder()?;
            let builder = builder.lock().unwrap_or_else(PoisonError::into_inner);
            builder.held_out_microbatches(self.train.validation.validation_loss_samples)
        };
        self.encode_held_out(count, ring).await?;
        Ok(count)
    }

    async fn held_out_loss(&mut self, microbatch: u32, count: u32) -> Result<f32, Error> {
        let (builder, rows) = (self.builder()?, self.rows());
        let build = move || {
            builder.lock().unwrap_or_else(PoisonError::into_inner).build_held_out(count, microbatch, rows)
        };
        let inputs = ringtune_shared::tasks::spawn_blocking(build).await??;
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
        let Some(plan) = &self.previews else { return Ok(None) };
        let rows = match (shown, &learned.best) {
            (Shown::Best(_), Some(best)) => &best.rows,
            _ => &learned.last,
        };
        Ok(Some(plan.draw(&self.engine, ring, rows).await?))
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

/// The job's field for traces.
const TRACE_DIR: &str = "debug.trace_dir";

/// Traces are written only where the worker's configuration lets jobs do so.
fn check_trace(rank: &Rank, folder: &str) -> Result<(), Error> {
    let refused = |problem: &str| Err(Refusal::of(TRACE_DIR, format!("{folder:?}: {problem}")).into());
    match folder {
        "" => Ok(()),
        _ if !rank.context.allow_trace_dir => {
            let problem =
                "this worker writes no traces unless debug.allow_trace_dir is set in its configuration";
            let problem = format!("{folder:?}: {problem}");
            Err(access::Refused { field: TRACE_DIR.to_owned(), problem }.into())
        }
        relative if !Path::new(relative).is_absolute() => refused("it must be an absolute path"),
        _ => Ok(()),
    }
}

/// Where the job wants its steps written down, if it does.
async fn create_trace(rank: &Rank, folder: &str, vectors: usize) -> Result<Option<TraceFolder>, Error> {
    if folder.is_empty() {
        return Ok(None);
    }
    let (access, given) = (rank.context.access.clone(), folder.to_owned());
    let create = move || {
        let place = access.place(PathUse::Trace, TRACE_DIR, &given)?;
        Ok::<_, Error>(TraceFolder::create(&place, vectors)?)
    };
    Ok(Some(ringtune_shared::tasks::spawn_blocking(create).await??))
}
