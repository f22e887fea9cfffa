//! What one rank trains, and each thing that it does together with the others.

use std::{
    future::Future,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use ringtune_shared::{
    ring::{Element, Reach, Spread},
    state::TensorInfo,
};
use ringtune_sources::LocalModel;
use tokio::task::JoinHandle;

use super::{
    LearnedParameters, Model, Options, Outlet,
    exchange::{Exchange, Spares, StepSums},
    sharding::Sharding,
    shares::Held,
    state::{RestoreError, State},
    step::{Computed, Passed, StepBegun},
    unnamed_file::UnnamedFile,
};
use crate::{
    engine::{AlignedFloats, Applied, EmbeddingRows, EngineError, EngineHandle, OptimizerStep},
    http::Metrics,
    rank::{Durations, Error, Rank},
    rank_state::{RankState, TakenState},
    ring::{self, RankRing},
    session::{Assignment, StepSummary},
    train::{self, AdamWOptions, Selection, mean_loss},
    training::{
        Course, Origin, Previews, Recovered, Sampled, Shown, StepJudged, Trainee, measure, step_summary,
    },
};

/// What is learned by one rank. The parameters are the engine's.
#[derive(Debug)]
pub(crate) struct ParameterTrainee<M> {
    pub(super) model: M,
    pub(super) options: Options,
    pub(super) engine: EngineHandle,
    pub(super) metrics: Arc<Metrics>,
    pub(super) course: Course,
    pub(super) origin: Origin,
    /// Numbers of an embedding row.
    pub(super) width: usize,
    /// What chunks of buckets begin at multiples of.
    pub(super) granule: usize,
    pub(super) spares: Spares,
    pub(super) state: State,
    /// With what was found out after the last step, which the next step takes into the state.
    pub(super) judged: Selection,
    /// A step whose update has begun, and is not taken into the counters yet.
    pub(super) applying: Option<Applying>,
    /// Another rank's state, which is not taken into the counters yet.
    pub(super) restoring: Option<Restoring>,
    /// A step that is taken, and that nobody was told of yet.
    pub(super) untold: Option<StepSummary>,
    /// Of a job whose ranks have the optimizer together.
    pub(super) sharding: Option<Sharding>,
    /// Buckets with parameters that other ranks lack.
    pub(super) unshared: Vec<AlignedFloats>,
    /// All moments of a step.
    pub(super) collected: Option<(u64, Arc<UnnamedFile>)>,
    /// Of a microbatch's gradient.
    pub(super) durations: Durations,
    /// The engine may be in the middle of a round.
    pub(super) in_round: bool,
    /// Where large files are put that nobody else sees.
    pub(super) folder: PathBuf,
    /// The base model's files, and those that it learns from: held as long as they may be read.
    pub(super) _held: Vec<Arc<LocalModel>>,
}

/// An update on its way: it comes to its end, whoever waits for it.
#[derive(Debug)]
pub(super) struct Applying {
    /// Of the step, but for whether it was skipped.
    summary: StepSummary,
    began: Instant,
    /// Of the whole gradient, where this rank has a part of it alone.
    squared_norm: Option<f64>,
    update: JoinHandle<Result<Updated, Error>>,
}

/// A state on its way into the engine: it comes to its end, whoever waits for it.
#[derive(Debug)]
pub(super) struct Restoring {
    /// After which it is.
    step: u64,
    work: JoinHandle<Result<State, RestoreError>>,
}

/// What an update leaves.
#[derive(Debug)]
struct Updated {
    state: State,
    applied: Applied,
    buckets: Vec<AlignedFloats>,
    /// Of the optimizer.
    seconds: f64,
}

impl<M: Model> ParameterTrainee<M> {
    /// This rank's microbatches, one after the other, while what is done of them travels.
    async fn gradients(&mut self, step: u64, ring: &mut RankRing) -> Result<Computed, Error> {
        let total = ring.all_microbatches();
        let microbatches = u32::try_from(total).unwrap_or(u32::MAX);
        let looked_up = match self.options.rounds {
            None => {
                self.model.begin_step(step, ring).await?;
                self.model.embedding_rows(step, microbatches).await?
            }
            // Rows of the table that a round looks up have moved with it.
            Some(rounds) => {
                for local in rounds.steps_of(step) {
                    self.model.begin_step(local, ring).await?;
                }
                EmbeddingRows::default()
            }
        };
        ring.begin_step();
        let spares = self.spares.of_step(looked_up.count() * self.width);
        let mut sums = StepSums::new(&spares, self.options.exchange, total, self.spread());
        let own = ring.microbatches();
        let (mut rows, mut compute_seconds, mut computed) = (Vec::new(), 0.0, Instant::now());
        for microbatch in own.clone() {
            let (outlet, given) = sums.outlet();
            let index = microbatch as usize;
            let passing = self.pass([step, total as u64], microbatch, looked_up.clone(), outlet);
            let passed = if microbatch + 1 < own.end {
                both(passing, sums.add(index, given)).await?
            } else {
                both(passing, sums.add_last(index, given, ring)).await?
            };
            computed = passed.ended;
            compute_seconds += passed.seconds;
            rows.push(vec![passed.loss, passed.seconds as f32]);
        }
        let buckets = sums.into_whole().ok_or(Error::Ring(ring::Error::Rows))?;
        Ok(Computed { looked_up, buckets, rows, compute_seconds, computed })
    }

    /// One microbatch of a step, or the round of its replica: `outlet` takes the gradient.
    async fn pass(
        &mut self,
        [step, microbatches]: [u64; 2],
        microbatch: u32,
        looked_up: EmbeddingRows,
        outlet: Outlet,
    ) -> Result<Passed, Error> {
        if let Some(rounds) = self.options.rounds {
            return self.round(rounds, [step, microbatches], microbatch, outlet).await;
        }
        let batch = self.model.batch(step, microbatch).await?;
        let gradient = M::gradient(&self.engine, batch, looked_up, outlet);
        let gradient = self.durations.timed(&self.engine, gradient).await?;
        let seconds = gradient.forward_seconds + gradient.backward_seconds;
        Ok(Passed { loss: gradient.loss, seconds, ended: Instant::now() })
    }

    /// Of one microbatch, for rates of step `step`. `number`: of the optimizer's steps.
    pub(super) fn optimizer_step(&self, step: u64, number: u64) -> OptimizerStep {
        let AdamWOptions { beta1, beta2, epsilon, weight_decay } = self.options.adamw;
        OptimizerStep {
            number,
            learning_rate: self.model.learning_rate(step),
            other_rates: self.model.other_rates(step),
            average_decay: None,
            beta1,
            beta2,
            epsilon,
            weight_decay,
            max_grad_norm: self.options.max_grad_norm,
            divide_by: 1,
        }
    }

    /// Which ranks get which sums.
    fn spread(&self) -> Spread {
        let reach = if self.sharding.is_some() { Reach::Two } else { Reach::All };
        Spread { granule: self.granule, reach }
    }

    /// Begins the update. From here on the step is taken to its end. `squared_norm`: of the whole gradient, where this rank has a
    /// part of it alone.
    pub(super) fn begin(&mut self, begun: StepBegun, computed: Computed, squared_norm: Option<f64>) {
        let StepBegun { optimizer: step, summary, began } = begun;
        self.collected = None;
        let mut state = self.state.clone();
        let (judged, folder, rounds) = (self.judged.clone(), self.folder.clone(), self.options.rounds);
        let held = match &self.sharding {
            Some(Sharding { cutting, held: Held::Share { rank, ranks }, .. }) => {
                cutting.shares(*rank, *ranks)
            }
            Some(Sharding { cutting, .. }) => cutting.nothing(),
            None => self.spares.plan.everything(),
        };
        let plan = Arc::clone(&self.spares.plan);
        let update = async move {
            // 1. The parameters that were found to be the best so far are about to change.
            let is_best = judged.best().map(|best| best.step) != state.selection.best().map(|best| best.step);
            if is_best && state.keeps_best {
                let tensors = state.tensors.clone();
                let keep = move || tensors.keep_best(&folder);
                let best = ringtune_shared::tasks::spawn_blocking(keep).await??;
                state.tensors = state.tensors.with_best(Some(Arc::new(best)));
            }
            state.selection = judged;
            // 2. They change.
            let began = Instant::now();
            let (engine, Computed { looked_up, buckets, .. }) = (&state.tensors.engine, computed);
            let applied = match (rounds, squared_norm) {
                (Some(rounds), _) => engine.apply_round(rounds.outer_step(&step), buckets).await,
                (None, None) => engine.apply(step, looked_up, buckets).await,
                (None, Some(squared_norm)) => {
                    engine.apply_share(step, squared_norm, buckets, held.clone()).await
                }
            };
            let (applied, buckets) = applied.map_err(Error::of_engine)?;
            let seconds = began.elapsed().as_secs_f64();
            if let Err(mut error) = state.count_step(summary.step, applied.skipped, summary.loss) {
                if let train::Error::NotFinite { gradients, .. } = &mut error {
                    // The job's last word is worth a look at all of them.
                    let look = move || state.tensors.gradients_of(&plan.not_finite(&buckets, &held));
                    *gradients = ringtune_shared::tasks::spawn_blocking(look).await?;
                }
                return Err(error.into());
            }
            Ok(Updated { state, applied, buckets, seconds })
        };
        let update = ringtune_shared::tasks::spawn(update);
        self.applying = Some(Applying { summary, began, squared_norm, update });
    }

    /// Waits for the end of an update that has begun.
    pub(super) async fn applied(&mut self) -> Result<Option<StepSummary>, Error> {
        let Some(applying) = &mut self.applying else { return Ok(None) };
        let updated = (&mut applying.update).await;
        let Some(Applying { mut summary, began, squared_norm, .. }) = self.applying.take() else {
            return Ok(None);
        };
        let Updated { state, applied, buckets, seconds } = updated??;
        match squared_norm {
            None => self.put_back(buckets),
            Some(squared_norm) => {
                self.share_was_applied(summary.step, squared_norm, applied.skipped, buckets)
            }
        }
        self.judged = state.selection.clone();
        self.state = state;
        summary.skipped = applied.skipped;
        summary.compute_seconds += seconds;
        summary.step_seconds = began.elapsed().as_secs_f64();
        Ok(Some(summary))
    }

    /// Waits for the end of a restoration that has begun, and gives the step of the state.
    async fn restored(&mut self) -> Result<Option<u64>, Error> {
        let Some(restoring) = &mut self.restoring else { return Ok(None) };
        let restored = (&mut restoring.work).await;
        let Some(Restoring { step, .. }) = self.restoring.take() else { return Ok(None) };
        let state = restored?.map_err(|error| error.of_state(M::SECTION))?;
        self.judged = state.selection.clone();
        self.state = state;
        Ok(Some(step))
    }

    /// A step that is taken, if there is one that nobody was told of yet.
    pub(super) fn tell(&mut self) -> Option<StepSummary> {
        let summary = self.untold.take()?;
        measure(&self.metrics, &summary);
        Some(summary)
    }
}

/// Both, side by side; the first error ends both. That nobody wants the gradient any more is said by whoever ended it.
async fn both<T>(
    computing: impl Future<Output = Result<T, Error>>,
    travelling: impl Future<Output = Result<(), Error>>,
) -> Result<T, Error> {
    tokio::try_join!(computing, travelling).map(|(computed, ())| computed)
}

impl<M: Model> Trainee for ParameterTrainee<M> {
    const IN_PLACE: bool = true;

    type Learned = LearnedParameters;

    fn course(&self) -> &Course {
        &self.course
    }

    fn origin(&self) -> &Origin {
        &self.origin
    }

    async fn enter(&mut self, rank: &Rank, ring: &mut RankRing) -> Result<(), Error> {
        let (ranks, spec) = (ring.world_size(), &rank.assignment.spec);
        let wanted = spec.common.cluster.world_size;
        if ranks != wanted as usize && spec.ring_decides() && rank.assignment.is_first() {
            let warning = format!(
                "NOT BIT-EXACT: {}.exchange is \"{}\", and this ring has {ranks} rank(s), not {wanted}: from its first step \
                 on the result differs slightly from that of a ring of {wanted}",
                M::SECTION,
                self.options.exchange
            );
            rank.journal.warn(warning).await;
        }
        self.model.enter(rank, ring).await
    }

    async fn step(&mut self, step: u64, ring: &mut RankRing) -> Result<StepSummary, Error> {
        let began = Instant::now();
        // 1. Gradients, and their sums over all ranks.
        let mut computed = self.gradients(step, ring).await?;
        // 2. Everybody's losses.
        let gathered = ring.gather(std::mem::take(&mut computed.rows)).await?;
        let losses: Vec<Vec<f32>> =
            gathered.rows.iter().map(|row| row.iter().take(1).copied().collect()).collect();
        let loss = mean_loss(&losses)?;
        let seconds: Vec<f32> = gathered.rows.iter().filter_map(|row| row.last().copied()).collect();
        let exchanged = ring.step_exchanged(computed.computed, &seconds);
        // 3. The same update on every rank.
        let rate = self.model.learning_rate(step);
        let mut summary = step_summary(step, ring, exchanged, loss, rate);
        summary.compute_seconds = computed.compute_seconds;
        let optimizer = OptimizerStep {
            average_decay: self.model.average_decay(self.state.count + 1),
            divide_by: u32::try_from(ring.all_microbatches()).unwrap_or(u32::MAX),
            ..self.optimizer_step(step, self.state.count + 1)
        };
        optimizer.check().map_err(|error| Error::of_engine(EngineError::OfJob(Box::new(error))))?;
        let begun = StepBegun { optimizer, summary, began };
        if self.sharding.is_some() {
            return self.share_step(begun, computed, ring).await;
        }
        // A checkpoint of the state before it may still be on its way to the disk.
        self.state.tensors.holds.all_let_go().await;
        self.begin(begun, computed, None);
        self.untold = self.applied().await?;
        self.tell().ok_or(Error::Ring(ring::Error::Replaced))
    }

    fn is_validated_after(&self, step: u64) -> bool {
        self.model.is_validated_after(step, self.course.total)
    }

    async fn hold_out(&mut self, ring: &mut RankRing) -> Result<u32, Error> {
        self.model.hold_out(ring).await
    }

    async fn held_out_loss(&mut self, microbatch: u32, count: u32) -> Result<f32, Error> {
        let batch = self.model.held_out(microbatch, count).await?;
        self.show_result().await?;
        M::loss(&self.engine, batch).await.map_err(Error::of_engine)
    }

    fn take_in(&mut self, step: u64, loss: f32) -> bool {
        // Taken again after a ring was lost, it is the same.
        let mut judged = self.state.selection.clone();
        let is_best = judged.take_in(step, loss, &Arc::default());
        self.judged = judged;
        is_best
    }

    fn is_shown_after(&self, step: u64) -> bool {
        self.model.is_shown_after(step, self.course.total)
    }

    async fn draw(
        &mut self,
        shown: Shown,
        learned: &LearnedParameters,
        ring: &mut RankRing,
    ) -> Result<Option<Previews>, Error> {
        if !self.model.draws() {
            return Ok(None);
        }
        match shown {
            Shown::Step(_) => self.show_result().await?,
            Shown::Best(_) if !self.model.draws_best() => return Ok(None),
            Shown::Best(_) => self.show_best(learned).await?,
        }
        self.model.draw(&self.engine, ring).await
    }

    async fn sample(&mut self, prompt: &str, ring: &mut RankRing) -> Result<Option<Sampled>, Error> {
        self.show_result().await?;
        self.model.sample(prompt, &self.engine, ring).await
    }

    fn amend(&mut self, job: &Assignment) -> Result<(), Error> {
        self.course.total = job.spec.total_steps();
        self.model.amend(job)
    }

    fn settle(&mut self) {}

    async fn recover(&mut self) -> Result<Option<Recovered>, Error> {
        self.give_up_round().await?;
        if let Some(step) = self.restored().await? {
            self.untold = None;
            return Ok(Some(Recovered::State(step)));
        }
        if let Some(taken) = self.applied().await? {
            self.untold = Some(taken);
        }
        Ok(self.tell().map(Recovered::Step))
    }

    async fn restore(&mut self, state: TakenState, step: u64) -> Result<(), Error> {
        let (own, folder) = (self.state.clone(), self.folder.clone());
        own.tensors.holds.all_let_go().await;
        self.give_up_round().await?;
        // Moments that ranks have together are brought when a ring is entered.
        let restore = move || own.restored(state, folder).map(|(state, _)| state);
        let work = ringtune_shared::tasks::spawn_blocking(restore);
        self.restoring = Some(Restoring { step, work });
        self.restored().await.map(drop)
    }

    fn selection(&self) -> &Selection {
        &self.judged
    }

    fn learned(&self) -> LearnedParameters {
        LearnedParameters::of(&self.state, &self.judged)
    }

    fn best_step(learned: &LearnedParameters) -> Option<u64> {
        learned.best_step()
    }

    fn state(&self) -> RankState {
        self.state.to_state()
    }

    fn most_state_bytes(&self) -> u64 {
        // With the best parameters, whether or not there are any yet.
        self.state.to_state().most_bytes().saturating_add(self.state.tensors.layout.bytes())
    }

    fn step_bytes(&self) -> u64 {
        // A gradient is as large as what it is of.
        let bytes = self.state.tensors.layout.parameters.iter().map(TensorInfo::bytes);
        let bytes = bytes.fold(0, u64::saturating_add);
        match self.options.exchange {
            Exchange::Fast(Element::Bf16) => bytes / 2,
            Exchange::Exact | Exchange::Fast(Element::Fp32) => bytes,
        }
    }

    fn is_hashed_after(&self, step: u64) -> bool {
        let is_here = self.sharding.as_ref().is_none_or(|sharding| !sharding.incomplete);
        is_here && (step.is_multiple_of(self.options.compare_interval.max(1)) || step == self.course.total)
    }

    async fn write_step(
        &self,
        folder: &Path,
        judged: StepJudged,
        learned: &LearnedParameters,
    ) -> Result<Vec<String>, Error> {
        self.model.write_step(folder, judged, learned.clone()).await
    }

    async fn write_results(
        &self,
        folder: &Path,
        last: StepJudged,
        learned: LearnedParameters,
        names: &mut Vec<String>,
    ) -> Result<(), Error> {
        self.model.write_results(folder, last, learned, names).await
    }
}
