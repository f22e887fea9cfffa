//! What becomes of a job whose ring loses a member: one pure decision, as a table.

use super::failure::Failure;
use super::fault::{Cure, Fault, Rest};
use super::job_state::JobState;

/// What happened to a member of a ring, or to its rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// Its session ended or fell silent.
    Away,
    /// It did not come back in time, after its session's end or after the coordinator's restart.
    Overdue,
    /// It is connected, but has not said for too long that it holds the rank: it never took or dropped it.
    NotHeld,
    /// It came back as another start of its daemon: the rank went with the old one.
    Restarted,
    /// Its certificate was revoked: it does not come back with it, and nobody of its ring talks to it.
    Evicted,
    /// It came back without the rank. `unheard`: nothing was ever heard of that rank, whose assignment may be lost.
    BackWithout {
        /// See above.
        unheard: bool,
    },
    /// The rank failed. A worker that refuses a rank or shuts down says so, too, as a fault of the node.
    RankFailed(Fault),
    /// The rank stopped, and nobody had asked it to.
    RankStopped(Fault),
    /// The rank failed because it lost its neighbour, which may know why.
    NeighbourLost,
    /// Ranks lost their neighbours, and the time in which one could say why is over. `away`: a worker of the ring is
    /// not connected; it is what they lost.
    Unexplained {
        /// See above.
        away: bool,
    },
}

impl Loss {
    /// Whose fault it is. A worker that is lost may have died of the job that it had, or by itself.
    pub(super) fn fault(self) -> Fault {
        match self {
            Self::RankFailed(fault) | Self::RankStopped(fault) => fault,
            Self::NeighbourLost => Fault::Link,
            Self::Away
            | Self::Overdue
            | Self::NotHeld
            | Self::Restarted
            | Self::Evicted
            | Self::BackWithout { .. }
            | Self::Unexplained { .. } => Fault::Node,
        }
    }

    /// The worker, or its whole machine, keeps from the job what that asks for, or does not have it. It does not rest for it;
    /// it only gets no rank of this job while others could take it.
    pub(super) fn is_refusal(self) -> bool {
        matches!(self.fault().follows().cure, Cure::OtherWorkers | Cure::OtherMachines)
    }

    /// For whom the worker rests.
    pub(super) fn rest(self) -> Rest {
        self.fault().follows().rest
    }

    /// The owner's other jobs let those of others go first.
    pub(super) fn puts_others_first(self) -> bool {
        matches!(self, Self::RankFailed(fault) if fault.follows().others_first)
    }
}

/// The job as far as the decision depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Situation {
    /// Preparing or Running.
    pub(super) state: JobState,
    /// Its ranks were told to stop: it has a goal already.
    pub(super) stopping: bool,
    /// It runs on a ring that can go on without a member.
    pub(super) reforms: bool,
    /// Rings formed for it since it last did a new step.
    pub(super) rings: u64,
    /// Rings that are formed at most without a new step.
    pub(super) tries: u64,
    /// It may be tried again after an error of its own.
    pub(super) may_err: bool,
    /// Some workers keep from it what it asks for, and there are enough others that have not said so.
    pub(super) others: bool,
    /// Its ring goes on from a checkpoint that the job made itself.
    pub(super) resumes: bool,
}

/// What follows for the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing yet: the member may come back, another rank may say more, or a deadline decides.
    Wait,
    /// The member is given its rank again.
    Assign,
    /// The job is ending anyway: the rank counts as one that ended.
    Ended,
    /// The member is lost: what becomes of the ring is decided by [`super::reform`].
    Lost,
    /// The job goes back to the queue, and the worker rests; but see [`Loss::is_refusal`].
    Queue,
    /// The job goes back to the queue, for an older checkpoint: that is no fault of the worker, and no try.
    OlderCheckpoint,
    /// As Queue, for other workers: that is no try.
    Elsewhere,
    /// The job goes back to the queue after an error of its own, which is counted.
    AfterError,
    /// As Queue, but the job has had all the rings that it may have, or no worker is left that could take it: it fails.
    GiveUp(Failure),
    /// The job fails.
    Fail(Failure),
}

/// The table. A loss by a fault of a node or of a connection is worth another ring while the job prepares, as nothing of
/// it is done yet; what is the job's own fault, or nobody's that is known, is not. A ring that runs and whose members can
/// all re-form goes on without the member; one with a member that cannot (release 0.2.0) ends its job.
///
/// | loss                        | stopping | Preparing             | Running, re-forms | Running, cannot    |
/// |-----------------------------|----------|-----------------------|-------------------|--------------------|
/// | Away                        | wait     | wait                  | wait              | wait               |
/// | Overdue, NotHeld            | wait     | queue, or WorkerLost  | lost              | fail WorkerLost    |
/// | Restarted, Evicted          | ended    | queue, or WorkerLost  | lost              | fail WorkerLost    |
/// | BackWithout, unheard        | ended    | assign again          | lost              | fail WorkerLost    |
/// | BackWithout                 | ended    | queue, or WorkerLost  | lost              | fail WorkerLost    |
/// | RankFailed, RankStopped: node's fault | ended | queue, or Rank | lost             | fail Rank          |
/// | RankFailed, RankStopped: the coordinator's, a link's, nobody's | ended | queue, or Rank | lost | fail Rank |
/// | RankFailed, RankStopped: the machine's, its settings' | ended | elsewhere, or Rank | lost | fail Rank |
/// | RankFailed, RankStopped: other fault  | ended | after error, or fail Rank | likewise | likewise          |
/// | RankFailed: the checkpoint's fault    | ended | older checkpoint | lost            | fail Rank          |
/// | NeighbourLost               | ended    | wait                  | lost              | wait               |
/// | Unexplained, a worker away  | wait     | queue, or WorkerLost  | lost              | fail WorkerLost    |
/// | Unexplained                 | wait     | fail NeighbourLost    | fail NeighbourLost | fail NeighbourLost |
pub(super) fn decide(loss: Loss, job: Situation) -> Verdict {
    if job.stopping {
        return match loss {
            Loss::Away | Loss::Overdue | Loss::NotHeld | Loss::Unexplained { .. } => Verdict::Wait,
            Loss::Restarted
            | Loss::Evicted
            | Loss::BackWithout { .. }
            | Loss::RankFailed(_)
            | Loss::RankStopped(_)
            | Loss::NeighbourLost => Verdict::Ended,
        };
    }
    let preparing = job.state == JobState::Preparing;
    let again_or = |failure| match preparing {
        true if job.rings < job.tries => Verdict::Queue,
        true => Verdict::GiveUp(failure),
        false if job.reforms => Verdict::Lost,
        false => Verdict::Fail(failure),
    };
    match loss {
        Loss::RankFailed(Fault::Checkpoint) if preparing && job.resumes => Verdict::OlderCheckpoint,
        // Another worker's settings may allow it. Once all have refused, it would only be refused again.
        _ if loss.is_refusal() && preparing && job.others => Verdict::Elsewhere,
        _ if loss.is_refusal() && preparing => Verdict::GiveUp(Failure::Rank),
        // Its state went with it.
        Loss::NeighbourLost if job.reforms => Verdict::Lost,
        Loss::Away | Loss::NeighbourLost => Verdict::Wait,
        Loss::BackWithout { unheard: true } if preparing => Verdict::Assign,
        Loss::Overdue
        | Loss::NotHeld
        | Loss::Restarted
        | Loss::Evicted
        | Loss::BackWithout { .. }
        | Loss::Unexplained { away: true } => again_or(Failure::WorkerLost),
        Loss::RankFailed(fault) | Loss::RankStopped(fault) => match fault.follows().cure {
            Cure::None if job.may_err => Verdict::AfterError,
            Cure::None => Verdict::Fail(Failure::Rank),
            // Of a checkpoint that is known no more, or of none: another ring may do better.
            Cure::AnotherRing | Cure::OtherWorkers | Cure::OtherMachines | Cure::OlderCheckpoint => {
                again_or(Failure::Rank)
            }
        },
        Loss::Unexplained { away: false } => Verdict::Fail(Failure::NeighbourLost),
    }
}

#[cfg(test)]
mod tests {
    use Failure::{NeighbourLost, Rank, WorkerLost};
    use Verdict::{AfterError, Assign, Elsewhere, Ended, Fail, GiveUp, Lost, OlderCheckpoint, Queue, Wait};

    use super::*;

    /// Each loss with what follows while the job stops, while it prepares, after its last try to, and while it runs on a
    /// ring that can go on without a member, and on one that cannot.
    const TABLE: [(Loss, [Verdict; 5]); 22] = [
        (Loss::Away, [Wait, Wait, Wait, Wait, Wait]),
        (Loss::Overdue, [Wait, Queue, GiveUp(WorkerLost), Lost, Fail(WorkerLost)]),
        (Loss::NotHeld, [Wait, Queue, GiveUp(WorkerLost), Lost, Fail(WorkerLost)]),
        (Loss::Restarted, [Ended, Queue, GiveUp(WorkerLost), Lost, Fail(WorkerLost)]),
        (Loss::Evicted, [Ended, Queue, GiveUp(WorkerLost), Lost, Fail(WorkerLost)]),
        (Loss::BackWithout { unheard: true }, [Ended, Assign, Assign, Lost, Fail(WorkerLost)]),
        (Loss::BackWithout { unheard: false }, [Ended, Queue, GiveUp(WorkerLost), Lost, Fail(WorkerLost)]),
        (Loss::RankFailed(Fault::Node), [Ended, Queue, GiveUp(Rank), Lost, Fail(Rank)]),
        (Loss::RankFailed(Fault::Machine), [Ended, Elsewhere, Elsewhere, Lost, Fail(Rank)]),
        (Loss::RankFailed(Fault::Coordinator), [Ended, Queue, GiveUp(Rank), Lost, Fail(Rank)]),
        (Loss::RankFailed(Fault::Link), [Ended, Queue, GiveUp(Rank), Lost, Fail(Rank)]),
        (Loss::RankFailed(Fault::Nobody), [Ended, Queue, GiveUp(Rank), Lost, Fail(Rank)]),
        (Loss::RankFailed(Fault::Access), [Ended, Elsewhere, Elsewhere, Lost, Fail(Rank)]),
        (Loss::RankFailed(Fault::Job), [Ended, Fail(Rank), Fail(Rank), Fail(Rank), Fail(Rank)]),
        (Loss::RankFailed(Fault::Unknown), [Ended, Fail(Rank), Fail(Rank), Fail(Rank), Fail(Rank)]),
        (Loss::RankFailed(Fault::Checkpoint), [Ended, OlderCheckpoint, OlderCheckpoint, Lost, Fail(Rank)]),
        (Loss::RankStopped(Fault::Node), [Ended, Queue, GiveUp(Rank), Lost, Fail(Rank)]),
        (Loss::RankStopped(Fault::Job), [Ended, Fail(Rank), Fail(Rank), Fail(Rank), Fail(Rank)]),
        (Loss::RankStopped(Fault::Unknown), [Ended, Fail(Rank), Fail(Rank), Fail(Rank), Fail(Rank)]),
        (Loss::NeighbourLost, [Ended, Wait, Wait, Lost, Wait]),
        (Loss::Unexplained { away: true }, [Wait, Queue, GiveUp(WorkerLost), Lost, Fail(WorkerLost)]),
        (
            Loss::Unexplained { away: false },
            [Wait, Fail(NeighbourLost), Fail(NeighbourLost), Fail(NeighbourLost), Fail(NeighbourLost)],
        ),
    ];

    #[test]
    fn every_fault_has_its_line() {
        for fault in Fault::ALL {
            let failed = Loss::RankFailed(fault);
            assert!(TABLE.iter().any(|(loss, _)| *loss == failed), "{fault:?}");
        }
    }

    #[test]
    fn every_line_of_the_table() {
        for (loss, [stopping, preparing, at_the_last_try, re_forming, running]) in TABLE {
            let situation = |state, rings| Situation {
                state,
                stopping: false,
                reforms: false,
                rings,
                tries: 3,
                may_err: false,
                others: true,
                resumes: true,
            };
            let decided =
                |state, rings, stopping| decide(loss, Situation { stopping, ..situation(state, rings) });
            for rings in 1..=4 {
                for state in [JobState::Preparing, JobState::Running] {
                    assert_eq!(decided(state, rings, true), stopping, "{loss:?}, stopping, ring {rings}");
                }
                let expected = if rings < 3 { preparing } else { at_the_last_try };
                assert_eq!(decided(JobState::Preparing, rings, false), expected, "{loss:?}, ring {rings}");
                assert_eq!(decided(JobState::Running, rings, false), running, "{loss:?}, ring {rings}");
                // What would end it for its own fault does not, while it may err; nothing else is another.
                let errs = Situation { may_err: true, ..situation(JobState::Running, rings) };
                let is_own = matches!(
                    loss,
                    Loss::RankFailed(Fault::Job | Fault::Unknown)
                        | Loss::RankStopped(Fault::Job | Fault::Unknown)
                );
                assert_eq!(decide(loss, errs), if is_own { AfterError } else { running }, "{loss:?}");
                let reforms = Situation { reforms: true, ..situation(JobState::Running, rings) };
                assert_eq!(decide(loss, reforms), re_forming, "{loss:?}, ring {rings} re-forms");
                assert_eq!(decide(loss, Situation { stopping: true, ..reforms }), stopping, "{loss:?}");
            }
        }
    }

    #[test]
    fn a_checkpoint_that_is_not_the_jobs_own_costs_a_try() {
        let (state, tries) = (JobState::Preparing, 3);
        let (stopping, reforms, others, resumes) = (false, false, true, false);
        let may_err = true;
        let situation =
            |rings| Situation { state, stopping, reforms, rings, tries, may_err, others, resumes };
        let loss = Loss::RankFailed(Fault::Checkpoint);
        assert_eq!(decide(loss, situation(1)), Queue);
        assert_eq!(decide(loss, situation(3)), GiveUp(Rank));
    }

    #[test]
    fn a_job_that_all_workers_refuse_fails_at_once() {
        let (stopping, reforms, others, resumes) = (false, false, false, false);
        for loss in [Fault::Access, Fault::Machine]
            .map(Loss::RankFailed)
            .into_iter()
            .chain([Loss::RankStopped(Fault::Access)])
        {
            let situation = |state, reforms| Situation {
                state,
                stopping,
                reforms,
                rings: 1,
                tries: 3,
                may_err: true,
                others,
                resumes,
            };
            assert_eq!(decide(loss, situation(JobState::Preparing, reforms)), GiveUp(Rank));
            assert_eq!(decide(loss, situation(JobState::Running, true)), Lost);
        }
    }
}
