//! The loop: step, validate, preview, keep.

use std::future;

use ringtune_shared::ids::ContentHash;

use super::{
    files::TrainingFiles,
    trainee::{Previews, Shown, Trainee, Validation},
};
use crate::{
    rank::{Error, LentRing, Orders, Rank, Work},
    ring::RankRing,
    session::{RankEvent, StepSummary, ended},
    train::Selection,
};

/// A trainee, and what rank 0 writes of it.
#[derive(Debug)]
pub(crate) struct Training<T: Trainee> {
    trainee: T,
    /// Rank 0's.
    files: Option<TrainingFiles>,
    /// After the last finished step of this rank.
    learned: Option<T::Learned>,
}

/// A step and what was found out after it.
struct StepTaken<L> {
    summary: StepSummary,
    learned: L,
    /// It was the last.
    over: bool,
    previews: Vec<(Shown, Previews)>,
}

impl<T: Trainee> Training<T> {
    /// Of a trainee that is prepared.
    pub(crate) fn new(trainee: T) -> Self {
        Self { trainee, files: None, learned: None }
    }
}

impl<T: Trainee> Work for Training<T> {
    fn common(&self) -> Vec<(&'static str, ContentHash)> {
        let origin = self.trainee.origin();
        vec![("model (model.base)", origin.model_hash), ("set of pictures (data.images)", origin.data_hash)]
    }

    async fn begin(&mut self, rank: &Rank, orders: &Orders) -> Result<(), Error> {
        if rank.assignment.rank == 0 {
            let uploads = rank.start_uploads(orders);
            self.files = Some(TrainingFiles::create(rank, &self.trainee, uploads).await?);
        }
        Ok(())
    }

    async fn run(&mut self, rank: &Rank, ring: &mut LentRing, orders: &mut Orders) -> Result<(), Error> {
        let ring = ring.get()?;
        tokio::select! {
            entered = self.trainee.enter(rank, ring) => entered?,
            _ = ended(orders) => return Err(Error::Stopped),
        }
        let (done, total) = (self.trainee.course().done, self.trainee.course().total);
        if done > 0 {
            rank.journal.event(RankEvent::Resumed(done)).await;
        }
        if done > 0 && (done >= total || self.trainee.selection().is_over()) {
            self.learned = Some(self.trainee.learned());
            return tokio::select! {
                ended_again = self.end_again(rank, done, ring) => ended_again,
                _ = ended(orders) => Err(Error::Stopped),
            };
        }
        rank.journal.info(plan(done, total)).await;
        for step in done + 1..=total {
            let taken = tokio::select! {
                taken = take_step(&mut self.trainee, rank, step, ring) => taken?,
                error = upload_failure(&mut self.files) => return Err(error),
                _ = ended(orders) => return Err(Error::Stopped),
            };
            self.learned = Some(taken.learned.clone());
            let over = taken.over;
            self.trainee.settle();
            self.keep_step(rank, taken).await?;
            if over && step < total {
                say_early_stop(rank, step, self.trainee.selection()).await;
                break;
            }
        }
        Ok(())
    }

    fn done(&self) -> &'static str {
        "training is done"
    }

    async fn finish(&mut self, _rank: &Rank, can_go_on: bool) -> Result<(), Error> {
        let Some(files) = &mut self.files else { return Ok(()) };
        let learned = self.learned.take();
        let state = (can_go_on && learned.is_some()).then(|| self.trainee.saved_state());
        files.finish(&self.trainee, learned, state).await
    }
}

impl<T: Trainee> Training<T> {
    /// Goes on from a checkpoint behind which there is no step: its job was stopped before its results were kept.
    async fn end_again(&mut self, rank: &Rank, done: u64, ring: &mut RankRing) -> Result<(), Error> {
        rank.journal.info(format!("resumed after step {done}, the last: nothing is left to train")).await;
        let learned = self.trainee.learned();
        let previews = previews(&mut self.trainee, rank, done, true, &learned, ring).await?;
        if let Some(files) = &mut self.files {
            for (shown, drawn) in previews {
                files.save_previews(shown, drawn.pictures).await?;
            }
        }
        Ok(())
    }

    /// Writes down what a step gave, and says that it is done.
    async fn keep_step(&mut self, rank: &Rank, taken: StepTaken<T::Learned>) -> Result<(), Error> {
        let StepTaken { summary, learned, previews, .. } = taken;
        if let Some(files) = &mut self.files {
            let step = summary.step;
            files.record(&summary)?;
            if self.trainee.course().saves_after(step) {
                files.save_step(&self.trainee, &learned).await?;
            }
            if files.checkpoint_is_due(step) {
                files.save_checkpoint(step, self.trainee.saved_state()).await?;
            }
            for (shown, drawn) in previews {
                files.save_previews(shown, drawn.pictures).await?;
            }
        }
        rank.journal.event(RankEvent::Step(summary)).await;
        Ok(())
    }
}

/// One step and what is found out after it, together with all other ranks.
async fn take_step<T: Trainee>(
    trainee: &mut T,
    rank: &Rank,
    step: u64,
    ring: &mut RankRing,
) -> Result<StepTaken<T::Learned>, Error> {
    // 1. The update.
    let mut summary = trainee.step(step, ring).await?;
    if summary.skipped {
        rank.journal.warn(format!("step {step} skipped: loss or gradient not finite")).await;
    }
    // 2. How good it is.
    if trainee.is_validated_after(step) {
        let judged = trainee.validate(step, ring).await?;
        (summary.validation_loss, summary.validation_seconds) = (Some(judged.loss), judged.seconds);
        say_validation(rank, step, &judged).await;
    }
    let learned = trainee.learned();
    let over = step == trainee.course().total || trainee.selection().is_over();
    // 3. What it looks like.
    let previews = previews(trainee, rank, step, over, &learned, ring).await?;
    // Not sum(): of nothing, that is -0, and is written so.
    summary.preview_seconds = previews.iter().fold(0.0, |sum, (_, drawn)| sum + drawn.seconds);
    Ok(StepTaken { summary, learned, over, previews })
}

/// The pictures that are due after `step`; at the end also those of the best state.
async fn previews<T: Trainee>(
    trainee: &mut T,
    rank: &Rank,
    step: u64,
    over: bool,
    learned: &T::Learned,
    ring: &mut RankRing,
) -> Result<Vec<(Shown, Previews)>, Error> {
    let mut wanted = Vec::new();
    if trainee.is_shown_after(step) || over {
        wanted.push(Shown::Step(step));
    }
    wanted.extend(T::best_step(learned).filter(|best| over && *best < step).map(Shown::Best));
    let mut previews = Vec::new();
    for shown in wanted {
        // One that fails is told and left out: training does not depend on it.
        let Some(drawn) = trainee.draw(shown, learned, ring).await? else { continue };
        for failure in &drawn.failures {
            rank.journal.warn(format!("step {step}: {failure}")).await;
        }
        previews.push((shown, drawn));
    }
    Ok(previews)
}

/// Why rank 0's files no longer get to the coordinator. Never ends while they do.
async fn upload_failure(files: &mut Option<TrainingFiles>) -> Error {
    match files {
        Some(files) => files.upload_failure().await,
        None => future::pending().await,
    }
}

/// All ranks know it; one says it.
async fn say_validation(rank: &Rank, step: u64, judged: &Validation) {
    if rank.assignment.rank == 0 {
        let best = if judged.is_best { ", the lowest so far" } else { "" };
        rank.journal.info(format!("step {step}: validation loss {:.6}{best}", judged.loss)).await;
    }
}

async fn say_early_stop(rank: &Rank, step: u64, selection: &Selection) {
    if rank.assignment.rank == 0 {
        let best =
            selection.best().map(|best| format!("; the lowest is {:.6} after step {}", best.loss, best.step));
        let best = best.unwrap_or_default();
        let since = selection.without_improvement();
        rank.journal
            .info(format!(
                "stopping early after step {step}: no lower validation loss in {since} validations{best}"
            ))
            .await;
    }
}

/// "training: 9 steps", or from where.
fn plan(done: u64, total: u64) -> String {
    match done {
        0 => format!("training: {total} steps"),
        _ => format!("resumed after step {done}; training: steps {} to {total}", done + 1),
    }
}
