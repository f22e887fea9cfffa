//! What a training says of itself in its log.

use super::trainee::Course;
use crate::{rank::Rank, train::Selection};

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

/// "training: 9 steps", or from where.
pub(super) fn plan(done: u64, course: &Course) -> String {
    if let Some(last) = course.proof {
        return format!("computing steps {} to {last} again; no file is made", done + 1);
    }
    let total = course.total;
    match done {
        0 => format!("training: {total} steps"),
        _ => format!("resumed after step {done}; training: steps {} to {total}", done + 1),
    }
}
