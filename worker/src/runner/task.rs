//! The phases of one rank's work.

use std::{ops::Deref, path::PathBuf, sync::Arc};

use ringtune_shared::{
    job::{self, kinds::textual_inversion::TextualInversionSpec},
    version::VERSION,
};
use tokio::sync::{mpsc, watch};

use super::{
    Context, RankError, draw,
    ending::{ended, upload_failure},
    files::{JobFiles, LearnedRows, Left, make_work_folder},
    journal::{Journal, LOG_FILE},
    prepare::{Prepared, prepare},
    preview::{Previews, Shown},
    train::{Training, Validation, agree},
    uploads::Uploads,
};
use crate::{
    ring::{self, RankRing, Seat},
    session::{Assignment, RankEvent, RankKey, RankOrders, StepSummary},
    train::Selection,
};

/// Does the work and says how it ended; nothing else is ever the last word.
pub(super) async fn run(
    assignment: Assignment,
    context: Context,
    orders: watch::Receiver<RankOrders>,
    events: mpsc::Sender<(RankKey, RankEvent)>,
) {
    let key = assignment.key();
    let rank = assignment.rank;
    let folder = context.rank_folder(key);
    let made = folder.clone();
    let folder_made = match tokio::task::spawn_blocking(move || make_work_folder(&made)).await {
        Ok(made) => made,
        Err(error) => Err(RankError::Task(error)),
    };
    let log = (rank == 0 && folder_made.is_ok()).then(|| folder.join(LOG_FILE));
    let journal = Journal::new(key, rank, log, events);
    let work = Work { assignment, context, journal: journal.clone(), folder: folder.clone() };
    // In a task of its own, so that a panic is a reason too. Dropped with this one.
    let working = tokio::spawn(async move {
        let mut progress = InProgress::default();
        let outcome = match (folder_made, work.assignment.spec.work.clone()) {
            (Err(error), _) => Err(error),
            (Ok(()), job::Work::TextualInversion(job)) => {
                Box::pin(TrainingWork { work, job }.run(orders, &mut progress)).await
            }
            (Ok(()), job::Work::Generate(spec)) => draw::run(work, spec, orders).await,
        };
        (outcome, progress)
    });
    let (outcome, progress) = match tokio_util::task::AbortOnDropHandle::new(working).await {
        Ok((outcome, progress)) => (outcome, Some(progress)),
        Err(error) => (Err(RankError::Task(error)), None),
    };
    let last_word = match outcome {
        Ok(()) => RankEvent::Finished,
        Err(RankError::Stopped) => RankEvent::Stopped,
        Err(error) if error.is_loss_of_a_neighbour() => RankEvent::NeighbourLost(error.to_string()),
        Err(error) => RankEvent::Failed { reason: error.to_string(), fault: error.fault() },
    };
    // A temporary folder that stays is removed by the worker's next start.
    let _ = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(folder)).await;
    journal.event(last_word).await;
    // Not before: a neighbour that loses this rank has no better reason to give than that.
    drop(progress);
}

/// What a rank has when its training ends, however it ends.
#[derive(Default)]
struct InProgress {
    /// Its place, until it is connected.
    seat: Option<Seat>,
    /// The connected ring of a training that could not begin.
    ring: Option<RankRing>,
    training: Option<Training>,
    learned: Option<LearnedRows>,
}

/// A step and what was found out after it.
struct StepTaken {
    summary: StepSummary,
    rows: LearnedRows,
    /// It was the last.
    over: bool,
    previews: Vec<(Shown, Previews)>,
}

impl InProgress {
    /// What is kept. A job that fails over its own numbers would only fail again: its state is not.
    fn left(&mut self, trained: &Result<(), RankError>) -> Left {
        let can_go_on = !matches!(trained, Ok(()) | Err(RankError::Train(_)));
        let training = self.training.as_ref().filter(|_| can_go_on && self.learned.is_some());
        Left { state: training.map(Training::saved_state), rows: self.learned.take() }
    }
}

/// What a rank's work of any kind has.
pub(super) struct Work {
    pub(super) assignment: Assignment,
    pub(super) context: Context,
    pub(super) journal: Journal,
    /// Where it writes; there already.
    pub(super) folder: PathBuf,
}

impl Work {
    /// Files are on their way from now on.
    pub(super) fn start_uploads(&self, orders: &watch::Receiver<RankOrders>) -> Uploads {
        let ring = &self.assignment.ring;
        Uploads::start(ring.job, self.context.artifacts.at(ring.epoch), orders.clone())
    }

    /// The first lines of its log.
    pub(super) async fn introduce(&self) {
        let Assignment { ring, rank, spec, threads, precision, numerics_class, .. } = &self.assignment;
        let wanted = spec.mixed_precision().as_str();
        let (journal, members) = (&self.journal, ring.members.len());
        journal.info(format!("ringtune-worker {VERSION}, {}", self.context.about)).await;
        journal
            .info(format!(
                "rank {rank} of {members}, epoch {}, {threads} threads, class {numerics_class}",
                ring.epoch
            ))
            .await;
        journal.info(format!("computing in {precision} (the job asked for \"{wanted}\")")).await;
    }
}

/// The work of a rank that trains.
struct TrainingWork {
    work: Work,
    job: TextualInversionSpec,
}

impl Deref for TrainingWork {
    type Target = Work;

    fn deref(&self) -> &Work {
        &self.work
    }
}

impl TrainingWork {
    async fn run(
        self,
        mut orders: watch::Receiver<RankOrders>,
        progress: &mut InProgress,
    ) -> Result<(), RankError> {
        let journal = &self.journal;
        self.introduce().await;
        self.check_trace()?;
        // 1. A place in the ring, so that a neighbour that is ready first finds it. It is given up last, after
        //    the reason for leaving has been said.
        progress.seat = Some(self.context.rings.take_seat(&self.assignment)?);
        // 2. Prepare, and wait for the others.
        let prepared = tokio::select! {
            prepared = prepare(&self.assignment, &self.job, &self.context, journal) => match prepared {
                Ok(prepared) => prepared,
                Err(error) => {
                    journal.error(format!("preparation failed: {error}")).await;
                    return Err(error);
                }
            },
            _ = ended(&mut orders) => return Err(RankError::Stopped),
        };
        journal.event(RankEvent::Ready).await;
        match orders.wait_for(|orders| orders.train || orders.end.is_some()).await {
            Ok(orders) if orders.end.is_none() => (),
            _ => return Err(RankError::Stopped),
        }
        let _held = Arc::clone(&prepared.base_model);
        // 3. Train, and leave something whatever happens.
        let mut files = self.begin_files(&prepared, &orders).await?;
        let trained = self.train(prepared, &mut files, progress, &mut orders).await;
        let left = progress.left(&trained);
        if trained.is_ok()
            && let Some(training) = progress.training.take()
        {
            training.leave().await;
        }
        // What else there is of the ring is kept up meanwhile: the neighbours wait for the last word.
        self.finish(trained, files, left, orders).await
    }

    fn check_trace(&self) -> Result<(), RankError> {
        let folder = &self.assignment.spec.common.debug.trace_dir;
        let field = |problem: &str| {
            Err(RankError::Field { field: "debug.trace_dir", problem: format!("{folder:?}: {problem}") })
        };
        match folder.as_str() {
            "" => Ok(()),
            _ if !self.context.allow_trace_dir => {
                field("this worker writes no traces unless debug.allow_trace_dir is set in its configuration")
            }
            relative if !std::path::Path::new(relative).is_absolute() => field("it must be an absolute path"),
            _ => Ok(()),
        }
    }

    async fn begin_files(
        &self,
        prepared: &Prepared,
        orders: &watch::Receiver<RankOrders>,
    ) -> Result<Option<JobFiles>, RankError> {
        if self.assignment.rank != 0 {
            return Ok(None);
        }
        let uploads = self.start_uploads(orders);
        Ok(Some(JobFiles::create(&self.folder, &self.assignment, &self.job, prepared, uploads).await?))
    }

    async fn train(
        &self,
        prepared: Prepared,
        files: &mut Option<JobFiles>,
        progress: &mut InProgress,
        orders: &mut watch::Receiver<RankOrders>,
    ) -> Result<(), RankError> {
        let Some(seat) = progress.seat.take() else { return Err(RankError::Ring(ring::Error::Replaced)) };
        let mut ring = tokio::select! {
            ring = seat.connect() => ring?,
            _ = ended(orders) => return Err(RankError::Stopped),
        };
        let done = prepared.done.steps;
        let agreed = tokio::select! {
            agreed = agree(&mut ring, &prepared) => agreed,
            _ = ended(orders) => Err(RankError::Stopped),
        };
        if let Err(error) = agreed {
            match &error {
                // All ranks see a disagreement; none is to take another's leaving for the reason.
                RankError::Disagreement { .. } => drop(ring.close().await),
                _ => progress.ring = Some(ring),
            }
            return Err(error);
        }
        let begun = tokio::select! {
            begun = Training::begin(
                &self.assignment,
                self.job.train.validation,
                prepared,
                &self.context,
                &mut ring,
                &self.journal,
            ) => begun,
            _ = ended(orders) => Err(RankError::Stopped),
        };
        let training = match begun {
            Ok(begin) => progress.training.insert(begin(ring)),
            Err(error) => {
                progress.ring = Some(ring);
                return Err(error);
            }
        };
        let total = self.job.train.max_train_steps;
        if done > 0 {
            self.journal.event(RankEvent::Resumed(done)).await;
        }
        if done > 0 && (done >= total || training.selection().is_over()) {
            progress.learned = Some(self.learned_rows(training));
            return tokio::select! {
                ended_again = self.end_again(done, training, files) => ended_again,
                _ = ended(orders) => Err(RankError::Stopped),
            };
        }
        self.journal.info(plan(done, total)).await;
        for step in done + 1..=total {
            let taken = tokio::select! {
                taken = self.take_step(step, training) => taken?,
                error = upload_failure(files) => return Err(error),
                _ = ended(orders) => return Err(RankError::Stopped),
            };
            progress.learned = Some(taken.rows.clone());
            let over = taken.over;
            training.settle();
            self.keep_step(taken, training, files).await?;
            if over && step < total {
                self.say_early_stop(step, training.selection()).await;
                break;
            }
        }
        Ok(())
    }

    /// Goes on from a checkpoint behind which there is no step: its job was stopped before its results were kept.
    async fn end_again(
        &self,
        done: u64,
        training: &mut Training,
        files: &mut Option<JobFiles>,
    ) -> Result<(), RankError> {
        self.journal.info(format!("resumed after step {done}, the last: nothing is left to train")).await;
        let rows = self.learned_rows(training);
        let previews = self.previews(done, true, &rows, training).await?;
        if let Some(files) = files {
            for (shown, drawn) in previews {
                files.save_previews(shown, drawn.pictures).await?;
            }
        }
        Ok(())
    }

    fn learned_rows(&self, training: &Training) -> LearnedRows {
        let select_best = self.job.train.validation.select_best;
        let best = training.selection().best().filter(|_| select_best).cloned();
        LearnedRows { last: training.rows(), best }
    }

    /// One step and what is found out after it, together with all other ranks.
    async fn take_step(&self, step: u64, training: &mut Training) -> Result<StepTaken, RankError> {
        let train = &self.job.train;
        let total = train.max_train_steps;
        // 1. The update.
        let mut summary = training.step(step).await?;
        if summary.skipped {
            self.journal.warn(format!("step {step} skipped: loss or gradient not finite")).await;
        }
        // 2. How good it is.
        if train.validation.is_due(step, total) {
            let judged = training.validate(step).await?;
            (summary.validation_loss, summary.validation_seconds) = (Some(judged.loss), judged.seconds);
            self.say_validation(step, &judged).await;
        }
        let rows = self.learned_rows(training);
        let over = step == total || training.selection().is_over();
        // 3. What it looks like.
        let previews = self.previews(step, over, &rows, training).await?;
        // Not sum(): of nothing, that is -0, and is written so.
        summary.preview_seconds = previews.iter().fold(0.0, |sum, (_, drawn)| sum + drawn.seconds);
        Ok(StepTaken { summary, rows, over, previews })
    }

    /// The pictures that are due after `step`; at the end also what the best embedding looks like.
    async fn previews(
        &self,
        step: u64,
        over: bool,
        rows: &LearnedRows,
        training: &mut Training,
    ) -> Result<Vec<(Shown, Previews)>, RankError> {
        let train = &self.job.train;
        let mut previews = Vec::new();
        if train.previews.is_due(step, train.max_train_steps) || over {
            previews.extend(self.preview(step, Shown::Step(step), &rows.last, training).await?);
        }
        if let Some(best) = rows.best.as_ref().filter(|best| over && best.step < step) {
            previews.extend(self.preview(step, Shown::Best(best.step), &best.rows, training).await?);
        }
        Ok(previews)
    }

    /// Draws the job's pictures, if it wants some. One that fails is told and left out: training does not depend on it.
    async fn preview(
        &self,
        step: u64,
        shown: Shown,
        rows: &[f32],
        training: &mut Training,
    ) -> Result<Option<(Shown, Previews)>, RankError> {
        let Some(drawn) = training.draw_previews(rows).await? else { return Ok(None) };
        for failure in &drawn.failures {
            self.journal.warn(format!("step {step}: {failure}")).await;
        }
        Ok(Some((shown, drawn)))
    }

    /// Writes down what a step gave, and says that it is done.
    async fn keep_step(
        &self,
        taken: StepTaken,
        training: &Training,
        files: &mut Option<JobFiles>,
    ) -> Result<(), RankError> {
        let StepTaken { summary, rows, previews, .. } = taken;
        if let Some(files) = files {
            let (step, train) = (summary.step, &self.job.train);
            files.record(&summary)?;
            if train.save_steps > 0 && step.is_multiple_of(train.save_steps) && step < train.max_train_steps {
                files.save_step(step, rows.last).await?;
            }
            if files.checkpoint_is_due(step) {
                files.save_checkpoint(step, training.saved_state()).await?;
            }
            for (shown, drawn) in previews {
                files.save_previews(shown, drawn.pictures).await?;
            }
        }
        self.journal.event(RankEvent::Step(summary)).await;
        Ok(())
    }

    /// All ranks know it; one says it.
    async fn say_validation(&self, step: u64, judged: &Validation) {
        if self.assignment.rank == 0 {
            let best = if judged.is_best { ", the lowest so far" } else { "" };
            self.journal.info(format!("step {step}: validation loss {:.6}{best}", judged.loss)).await;
        }
    }

    async fn say_early_stop(&self, step: u64, selection: &Selection) {
        if self.assignment.rank == 0 {
            let best = selection
                .best()
                .map(|best| format!("; the lowest is {:.6} after step {}", best.loss, best.step));
            let best = best.unwrap_or_default();
            let since = selection.without_improvement();
            self.journal
                .info(format!(
                    "stopping early after step {step}: no lower validation loss in {since} validations{best}"
                ))
                .await;
        }
    }
}

/// "training: 9 steps", or from where.
fn plan(done: u64, total: u64) -> String {
    match done {
        0 => format!("training: {total} steps"),
        _ => format!("resumed after step {done}; training: steps {} to {total}", done + 1),
    }
}
