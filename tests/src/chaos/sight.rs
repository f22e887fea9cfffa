//! A job and its ring as programs see them: state, reason code, epoch, phases, no words.

use std::time::Instant;

use ringtune_proto::v1::{self, JobReason, JobState, RankPhase};

/// A job and its ring in GetJob at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sight {
    /// When it came, by this process's own clock.
    pub at: Instant,
    /// The job's state.
    pub state: JobState,
    /// Why it is in it.
    pub reason: JobReason,
    /// The ring's epoch; 0: there is no ring.
    pub epoch: u64,
    /// A member has left its ring, which broke, or has failed.
    pub member_is_out: bool,
}

impl Sight {
    /// Of an answer.
    pub fn of(job: &v1::Job, at: Instant) -> Self {
        let members = job.ring.as_ref().map(|ring| &*ring.members).unwrap_or_default();
        let is_out = |phase| matches!(phase, RankPhase::Waiting | RankPhase::Failed);
        Self {
            at,
            state: job.state(),
            reason: job.reason_code(),
            epoch: job.ring.as_ref().map_or(0, |ring| ring.epoch),
            member_is_out: members.iter().any(|member| is_out(member.phase())),
        }
    }

    /// Whether another sight differs in time only.
    pub fn says_the_same(&self, other: &Self) -> bool {
        *self == Self { at: self.at, ..*other }
    }

    /// A ring is without a member, or was since the one of this epoch.
    pub fn tells_of_a_loss(&self, epoch: u64) -> bool {
        let reasons = [JobReason::Reforming, JobReason::WaitingForSpare, JobReason::Recovering];
        let back = epoch > 0 && self.epoch == 0 && self.state == JobState::Queued;
        self.member_is_out
            || self.epoch > epoch
            || reasons.contains(&self.reason)
            || self.state == JobState::Failed
            || back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(state: JobState, reason: JobReason, epoch: u64, phases: &[RankPhase]) -> v1::Job {
        let member = |phase: &RankPhase| v1::ring::Member { phase: (*phase).into(), ..Default::default() };
        let ring = v1::Ring { epoch, members: phases.iter().map(member).collect() };
        let mut job = v1::Job { ring: (epoch > 0).then_some(ring), ..Default::default() };
        job.set_state(state);
        job.set_reason_code(reason);
        job
    }

    const TRAINING: [RankPhase; 2] = [RankPhase::Training; 2];

    #[test]
    fn each_sign_of_a_loss_is_one_and_a_ring_that_is_whole_is_none() {
        let sees = |job: v1::Job| Sight::of(&job, Instant::now()).tells_of_a_loss(1);
        let running =
            |reason, epoch, phases: &[RankPhase]| sees(job(JobState::Running, reason, epoch, phases));
        assert!(!running(JobReason::Training, 1, &TRAINING));
        assert!(!running(JobReason::Training, 1, &[RankPhase::Done; 2]));
        assert!(running(JobReason::Training, 2, &TRAINING));
        assert!(running(JobReason::Training, 1, &[RankPhase::Training, RankPhase::Waiting]));
        assert!(running(JobReason::Training, 1, &[RankPhase::Failed, RankPhase::Training]));
        assert!(running(JobReason::Reforming, 1, &TRAINING));
        assert!(running(JobReason::WaitingForSpare, 1, &TRAINING));
        assert!(sees(job(JobState::Queued, JobReason::Recovering, 0, &[])));
        assert!(sees(job(JobState::Queued, JobReason::WaitingForWorkers, 0, &[])));
        assert!(sees(job(JobState::Failed, JobReason::WorkerLost, 0, &[])));
        assert!(!sees(job(JobState::Succeeded, JobReason::Completed, 0, &[])));
    }
}
