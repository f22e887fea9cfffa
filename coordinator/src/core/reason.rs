//! Why a job is in its state, for programs.

use ringtune_shared::job::Activity;

use super::failure::Failure;
use super::job::Job;
use super::job_state::JobState;

/// Why a job is in its state. [`Job::reason`] has the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasonCode {
    /// Queued: too few workers of one numerics class are free.
    WaitingForWorkers,
    /// Queued: the free workers are kept for a job before it.
    WaitingBehindJob,
    /// Queued: a more urgent job needed its workers; it goes on from where it was.
    Preempted,
    /// Queued: it goes on from where it was once there are workers.
    Recovering,
    /// Preparing: the ranks fetch, load and encode.
    Preparing,
    /// Running: what the work of its kind is.
    Running(Activity),
    /// Running: it computes steps of another job again.
    Verifying,
    /// Running: the ring lost a member, and the others form a new one.
    Reforming,
    /// Running: too few members are left, and wait for another worker.
    WaitingForSpare,
    /// Preparing or running: it is being cancelled.
    Cancelling,
    /// Preparing or running: it is being paused.
    Pausing,
    /// Paused by a user.
    PausedByUser,
    /// Paused, or about to be: it waits for the other jobs of its sweep.
    WaitingForSweep,
    /// Succeeded: everything is done.
    Completed,
    /// Succeeded before its last step.
    StoppedEarly,
    /// Succeeded before its last step: an order ended it.
    StoppedByOrder,
    /// Cancelled by a user.
    CancelledByUser,
    /// Cancelled: others of its sweep had a lower validation loss.
    OutOfSweep,
    /// Failed.
    Failed(Failure),
}

impl Job {
    /// Why it is in its state. For one in the queue as far as somebody found it out: see [`Job::waits_behind`].
    pub fn reason_code(&self) -> ReasonCode {
        match self.state {
            JobState::Queued if self.preempted => ReasonCode::Preempted,
            JobState::Queued if self.waits_behind => ReasonCode::WaitingBehindJob,
            // Only one that has begun is bound to anything while it is queued, and one that verifies.
            JobState::Queued if self.pin.is_some() && (self.verification.is_none() || self.rings > 0) => {
                ReasonCode::Recovering
            }
            JobState::Queued => ReasonCode::WaitingForWorkers,
            JobState::Preparing | JobState::Running if self.is_cancelling() => ReasonCode::Cancelling,
            JobState::Running | JobState::Paused if self.is_at_rung() => ReasonCode::WaitingForSweep,
            JobState::Preparing | JobState::Running if self.pauses() => ReasonCode::Pausing,
            JobState::Paused => ReasonCode::PausedByUser,
            JobState::Preparing => ReasonCode::Preparing,
            JobState::Running => match self.ring.as_ref().and_then(|ring| ring.reforming.as_ref()) {
                Some(reforming) if reforming.spare_by.is_some() => ReasonCode::WaitingForSpare,
                Some(reforming) if !reforming.planned => ReasonCode::Reforming,
                _ if self.verification.is_some() => ReasonCode::Verifying,
                _ => ReasonCode::Running(self.spec.activity()),
            },
            JobState::Succeeded if self.stopped_early() => ReasonCode::StoppedEarly,
            JobState::Succeeded if self.was_stopped() => ReasonCode::StoppedByOrder,
            JobState::Succeeded => ReasonCode::Completed,
            JobState::Cancelled if self.is_at_rung() => ReasonCode::OutOfSweep,
            JobState::Cancelled => ReasonCode::CancelledByUser,
            // One that failed under a version that did not keep it: a rank is the likeliest.
            JobState::Failed => ReasonCode::Failed(self.failure.unwrap_or(Failure::Rank)),
        }
    }

    fn is_cancelling(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.goal.state() == JobState::Cancelled)
    }

    /// Whether an order ended it.
    fn was_stopped(&self) -> bool {
        let last = self.spec.common.orders.stop_after;
        self.verification.is_none() && last.is_some_and(|last| self.step >= last)
    }

    /// Whether it ended before its last step because it may.
    fn stopped_early(&self) -> bool {
        self.verification.is_none() && self.spec.may_stop_early() && self.step < self.spec.total_steps()
    }
}
