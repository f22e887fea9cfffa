//! Admission of calls: decided from the call and this worker's rings, without waiting or locking.

use std::sync::Arc;

use ringtune_shared::{
    ids::{Epoch, JobId, WorkerId},
    ring::Place,
};
use tonic::Status;

/// The caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Calling {
    /// Anybody: the network is unauthenticated.
    Anybody,
    /// The worker that its certificate names.
    Worker(WorkerId),
}

/// A place in a ring, and the ring's members in rank order.
#[derive(Clone, Debug)]
pub(super) struct Roster {
    pub(super) place: Place,
    pub(super) members: Arc<[WorkerId]>,
}

impl Roster {
    /// Checks that a rank's call comes from the worker that holds it. Unknown ranks are refused elsewhere.
    fn check(&self, rank: i32, calling: Calling) -> Option<Admission> {
        let Calling::Worker(caller) = calling else { return None };
        let member = usize::try_from(rank).ok().and_then(|rank| self.members.get(rank));
        (member != Some(&caller)).then(|| {
            Admission::Denied(Status::permission_denied(format!(
                "rank {rank} of job {} in epoch {} is not that of worker {caller}, who calls",
                self.place.job, self.place.epoch
            )))
        })
    }
}

/// The first message of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opening {
    pub(super) job: JobId,
    pub(super) epoch: Epoch,
    pub(super) rank: i32,
    pub(super) world_size: i32,
    pub(super) calling: Calling,
}

/// A request for a state by a rank that is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) job: JobId,
    pub(super) epoch: Epoch,
    pub(super) rank: i32,
    pub(super) step: i64,
    pub(super) calling: Calling,
}

/// The decision about a call.
#[derive(Debug)]
pub(super) enum Admission {
    /// It is let in.
    Welcome,
    /// Its ring or state may still come.
    NotYet,
    /// It is from an epoch that is over.
    Stale(Status),
    /// There is nothing to wait for.
    Refused(Status),
    /// It comes from somebody else than it says.
    Denied(Status),
}

/// Whether a stream belongs to the place that this worker has in the ring of the stream's job.
///
/// The members of a ring are told of it one after the other: a stream may come before the place is taken.
pub(super) fn of_stream(roster: Option<&Roster>, opening: Opening) -> Admission {
    let Opening { epoch, rank, world_size, .. } = opening;
    let Some(roster) = roster.filter(|roster| epoch <= roster.place.epoch) else {
        return Admission::NotYet;
    };
    let place = roster.place;
    if epoch < place.epoch {
        return Admission::Stale(older(epoch, place));
    }
    let expected = (place.previous(), place.world_size);
    if (usize::try_from(rank), usize::try_from(world_size)) != (Ok(expected.0), Ok(expected.1)) {
        return Admission::Refused(Status::failed_precondition(format!(
            "rank {rank} of {world_size} calls, but rank {} of {} precedes this one, which is rank {}",
            expected.0, expected.1, place.rank
        )));
    }
    roster.check(rank, opening.calling).unwrap_or(Admission::Welcome)
}

/// Whether a rank gets the state that it asks for. `offered`: the step of the state that this rank offers in its present
/// ring.
///
/// The ranks of a ring conclude at the same time who gives and who takes: a wish may come before the offer.
pub(super) fn of_wish(roster: Option<&Roster>, offered: Option<u64>, wish: Wish) -> Admission {
    let Wish { job, epoch, rank, step, calling } = wish;
    let Some(roster) = roster else {
        return Admission::Refused(Status::not_found(format!("this worker has no rank of job {job}")));
    };
    let place = roster.place;
    if epoch < place.epoch {
        return Admission::Stale(older(epoch, place));
    }
    let refuse = |text| Admission::Refused(Status::failed_precondition(text));
    if epoch > place.epoch {
        return refuse(format!(
            "epoch: got {epoch}, which is a newer one: this rank is at epoch {}",
            place.epoch
        ));
    }
    if !usize::try_from(rank).is_ok_and(|rank| rank < place.world_size && rank != place.rank) {
        return refuse(format!(
            "rank: got {rank}; allowed: 0 to {} but this one, which is rank {}",
            place.world_size.saturating_sub(1),
            place.rank
        ));
    }
    if let Some(denied) = roster.check(rank, calling) {
        return denied;
    }
    match offered {
        None => Admission::NotYet,
        Some(offered) if u64::try_from(step) == Ok(offered) => Admission::Welcome,
        Some(offered) => refuse(format!("step: got {step}; this rank gives the state after step {offered}")),
    }
}

fn older(epoch: Epoch, place: Place) -> Status {
    Status::failed_precondition(format!(
        "epoch {epoch} is an older one: this rank is at epoch {}",
        place.epoch
    ))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn roster() -> Roster {
        let place = Place { job: JobId::new(), epoch: Epoch(3), rank: 0, world_size: 2 };
        Roster { place, members: [WorkerId::new(), WorkerId::new()].into() }
    }

    fn name(admission: Admission) -> &'static str {
        match admission {
            Admission::Welcome => "welcome",
            Admission::NotYet => "not yet",
            Admission::Stale(status) if status.code() == Code::FailedPrecondition => "stale",
            Admission::Refused(status) if status.code() == Code::FailedPrecondition => "refused",
            Admission::Refused(status) if status.code() == Code::NotFound => "no job",
            Admission::Denied(status) if status.code() == Code::PermissionDenied => "denied",
            Admission::Stale(_) | Admission::Refused(_) | Admission::Denied(_) => "another code",
        }
    }

    #[test]
    fn a_stream_is_for_this_place_for_one_to_come_or_for_none() {
        let roster = roster();
        let calling = Calling::Anybody;
        let good = Opening { job: roster.place.job, epoch: Epoch(3), rank: 1, world_size: 2, calling };
        let by = |worker| Calling::Worker(worker);
        for (opening, expected) in [
            (good, "welcome"),
            (Opening { epoch: Epoch(2), ..good }, "stale"),
            (Opening { epoch: Epoch(4), ..good }, "not yet"),
            (Opening { rank: 0, ..good }, "refused"),
            (Opening { rank: -1, ..good }, "refused"),
            (Opening { world_size: 3, ..good }, "refused"),
            (Opening { calling: by(roster.members[1]), ..good }, "welcome"),
            (Opening { calling: by(roster.members[0]), ..good }, "denied"),
            (Opening { calling: by(WorkerId::new()), ..good }, "denied"),
        ] {
            assert_eq!(name(of_stream(Some(&roster), opening)), expected, "{opening:?}");
        }
        assert_eq!(name(of_stream(None, good)), "not yet");
    }

    #[test]
    fn a_state_is_for_another_member_of_the_same_ring_and_of_the_step_that_is_offered() {
        let roster = roster();
        let calling = Calling::Anybody;
        let good = Wish { job: roster.place.job, epoch: Epoch(3), rank: 1, step: 7, calling };
        let by = |worker| Calling::Worker(worker);
        for (wish, expected) in [
            (good, "welcome"),
            (Wish { epoch: Epoch(2), ..good }, "stale"),
            (Wish { epoch: Epoch(4), ..good }, "refused"),
            (Wish { rank: 0, ..good }, "refused"),
            (Wish { rank: 2, ..good }, "refused"),
            (Wish { rank: -1, ..good }, "refused"),
            (Wish { step: 6, ..good }, "refused"),
            (Wish { step: -1, ..good }, "refused"),
            (Wish { calling: by(roster.members[1]), ..good }, "welcome"),
            (Wish { calling: by(roster.members[0]), ..good }, "denied"),
            (Wish { calling: by(WorkerId::new()), ..good }, "denied"),
        ] {
            assert_eq!(name(of_wish(Some(&roster), Some(7), wish)), expected, "{wish:?}");
        }
        // A stranger does not wait for an offer.
        let stranger = Wish { calling: by(WorkerId::new()), ..good };
        assert_eq!(name(of_wish(Some(&roster), None, stranger)), "denied");
        assert_eq!(name(of_wish(Some(&roster), None, good)), "not yet");
        assert_eq!(name(of_wish(None, None, good)), "no job");
    }
}
