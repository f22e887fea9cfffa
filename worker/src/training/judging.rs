//! A step, and what is found out after it: how good it is, and what it looks like.

use std::time::Instant;

use ringtune_traces::Open;

use super::trainee::{Previews, Shown, Trainee};
use crate::{
    http::Metrics,
    rank::{Error, Rank},
    ring::{RankRing, StepExchange},
    session::StepSummary,
    train::{Selection, mean_loss},
};

/// A step and what was found out after it.
pub(super) struct StepTaken<L> {
    pub(super) summary: StepSummary,
    pub(super) learned: L,
    pub(super) previews: Vec<(Shown, Previews)>,
}

/// A loss on the held-out samples.
pub(super) struct Validation {
    /// Their mean.
    loss: f32,
    /// It is the lowest so far.
    is_best: bool,
    /// How long it took.
    seconds: f64,
}

/// The update itself.
pub(super) async fn update<T: Trainee>(
    trainee: &mut T,
    rank: &Rank,
    span: &Open,
    step: u64,
    ring: &mut RankRing,
) -> Result<StepSummary, Error> {
    let summary = trainee.step(step, ring).await?;
    if let Some((at, took)) = ring.exchanged() {
        let mut exchange = rank.past_span_below(span, "exchange", (at, took));
        exchange.set("exchange_seconds", summary.exchange_seconds);
        exchange.set("wait_seconds", summary.wait_seconds);
        exchange.set("hidden_exchange_seconds", summary.traffic.hidden_seconds);
    }
    if summary.skipped {
        rank.journal.warn(format!("step {step} skipped: loss or gradient not finite")).await;
    }
    Ok(summary)
}

/// What is found out after a step, together with all other ranks.
pub(super) async fn judge<T: Trainee>(
    trainee: &mut T,
    rank: &Rank,
    span: &Open,
    mut summary: StepSummary,
    ring: &mut RankRing,
) -> Result<StepTaken<T::Learned>, Error> {
    let step = summary.step;
    // 1. How good it is.
    if trainee.is_validated_after(step) {
        let _span = rank.span_below(span, "validation");
        let judged = validate(trainee, rank, step, ring).await?;
        (summary.validation_loss, summary.validation_seconds) = (Some(judged.loss), judged.seconds);
        say_validation(rank, step, &judged).await;
    }
    let learned = trainee.learned();
    let over = step == trainee.course().total || trainee.selection().is_over();
    // 2. What it looks like.
    let drawing = (trainee.is_shown_after(step) || over).then(|| rank.span_below(span, "preview"));
    let previews = previews(trainee, rank, step, over, &learned, ring).await?;
    drop(drawing);
    // Not sum(): of nothing, that is -0, and is written so.
    summary.preview_seconds = previews.iter().fold(0.0, |sum, (_, drawn)| sum + drawn.seconds);
    Ok(StepTaken { summary, learned, previews })
}

/// Takes the loss on the held-out samples after `step`: the same bits on each rank, for any number of them.
pub(super) async fn validate<T: Trainee>(
    trainee: &mut T,
    rank: &Rank,
    step: u64,
    ring: &mut RankRing,
) -> Result<Validation, Error> {
    let started = Instant::now();
    let count = trainee.hold_out(ring).await?;
    let mut own = Vec::new();
    for microbatch in ring.share_of(count as usize) {
        own.push(vec![trainee.held_out_loss(microbatch as u32, count).await?]);
    }
    let gathered = ring.gather_of(count as usize, 1, own).await?;
    let loss = mean_loss(&gathered.rows)?;
    let is_best = trainee.take_in(step, loss);
    rank.context.metrics.validation_loss.set(f64::from(loss));
    Ok(Validation { loss, is_best, seconds: started.elapsed().as_secs_f64() })
}

/// The pictures that are due after `step`; at the end also those of the best state.
pub(super) async fn previews<T: Trainee>(
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

/// All ranks know it; one says it.
async fn say_validation(rank: &Rank, step: u64, judged: &Validation) {
    if rank.assignment.is_first() {
        let best = if judged.is_best { ", the lowest so far" } else { "" };
        rank.journal.info(format!("step {step}: validation loss {:.6}{best}", judged.loss)).await;
    }
}

/// A step whose losses have come together in a ring. What it took else, and whether it is skipped, its trainee says; what is found out
/// after it comes later.
pub(crate) fn step_summary(
    step: u64,
    ring: &RankRing,
    exchanged: StepExchange,
    loss: f32,
    learning_rate: f64,
) -> StepSummary {
    let StepExchange { exchange_seconds, wait_seconds, traffic } = exchanged;
    StepSummary {
        step,
        loss,
        learning_rate,
        exchange_seconds,
        wait_seconds,
        traffic,
        world_size: ring.world_size(),
        epoch: ring.epoch(),
        ..StepSummary::default()
    }
}

/// Shows a step in the worker's metrics.
pub(crate) fn measure(metrics: &Metrics, step: &StepSummary) {
    metrics.step_seconds.observe(step.step_seconds);
    metrics.compute_seconds.observe(step.compute_seconds);
    metrics.exchange_seconds.observe(step.exchange_seconds);
    metrics.wait_seconds.observe(step.wait_seconds);
    metrics.hidden_exchange_seconds.observe(step.traffic.hidden_seconds);
    metrics.collective_seconds.observe(step.traffic.collective_seconds);
    // A counter takes no less; what a peer could have made of it is no number.
    if step.traffic.bus_bytes >= 0.0 {
        metrics.bus_bytes.inc_by(step.traffic.bus_bytes as u64);
    }
    metrics.steps.inc();
    metrics.skipped_steps.inc_by(u64::from(step.skipped));
    metrics.loss.set(f64::from(step.loss));
    metrics.step.set(i64::try_from(step.step).unwrap_or(i64::MAX));
}

/// Why there are no more steps; all ranks know it, one says it.
pub(super) async fn say_early_stop(rank: &Rank, step: u64, selection: &Selection) {
    if rank.assignment.is_first() {
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
