//! Periodic actions of a training.

/// Whether something that happens every so many steps, and after the last, happens after `step` of `total_steps`. `every`
/// of 0: never.
pub(super) fn is_due(every: u64, step: u64, total_steps: u64) -> bool {
    every > 0 && (step.is_multiple_of(every) || step == total_steps)
}
