//! Who may come in: decided from what a call says and what this worker holds, without waiting or locking.

use ringtune_shared::{
    ids::{Epoch, JobId},
    ring::Place,
};
use tonic::Status;

/// What the first message of a stream says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opening {
    pub(super) job: JobId,
    pub(super) epoch: Epoch,
    pub(super) rank: i32,
    pub(super) world_size: i32,
}

/// What a rank asks for that is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) job: JobId,
    pub(super) epoch: Epoch,
    pub(super) rank: i32,
    pub(super) step: i64,
}

/// What becomes of a call.
#[derive(Debug)]
pub(super) enum Admission {
    /// It is let in.
    Welcome,
    /// What it is for may still come.
    NotYet,
    /// It is from an epoch that is over.
    Stale(Status),
    /// There is nothing to wait for.
    Refused(Status),
}

/// Whether a stream belongs to the place that this worker has in the ring of the stream's job.
///
/// The members of a ring are told of it one after the other: a stream may come before the place is taken.
pub(super) fn of_stream(place: Option<Place>, opening: Opening) -> Admission {
    let Opening { epoch, rank, world_size, .. } = opening;
    let Some(place) = place.filter(|place| epoch <= place.epoch) else { return Admission::NotYet };
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
    Admission::Welcome
}

/// Whether a rank gets the state that it asks for. `offered`: the step of the state that this rank offers in its present
/// ring.
///
/// The ranks of a ring conclude at the same time who gives and who takes: a wish may come before the offer.
pub(super) fn of_wish(place: Option<Place>, offered: Option<u64>, wish: Wish) -> Admission {
    let Wish { job, epoch, rank, step } = wish;
    let Some(place) = place else {
        return Admission::Refused(Status::not_found(format!("this worker has no rank of job {job}")));
    };
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

    fn place() -> Place {
        Place { job: JobId::new(), epoch: Epoch(3), rank: 0, world_size: 2 }
    }

    fn name(admission: Admission) -> &'static str {
        match admission {
            Admission::Welcome => "welcome",
            Admission::NotYet => "not yet",
            Admission::Stale(status) if status.code() == Code::FailedPrecondition => "stale",
            Admission::Refused(status) if status.code() == Code::FailedPrecondition => "refused",
            Admission::Refused(status) if status.code() == Code::NotFound => "no job",
            Admission::Stale(_) | Admission::Refused(_) => "another code",
        }
    }

    #[test]
    fn a_stream_is_for_this_place_for_one_to_come_or_for_none() {
        let place = place();
        let good = Opening { job: place.job, epoch: Epoch(3), rank: 1, world_size: 2 };
        for (opening, expected) in [
            (good, "welcome"),
            (Opening { epoch: Epoch(2), ..good }, "stale"),
            (Opening { epoch: Epoch(4), ..good }, "not yet"),
            (Opening { rank: 0, ..good }, "refused"),
            (Opening { rank: -1, ..good }, "refused"),
            (Opening { world_size: 3, ..good }, "refused"),
        ] {
            assert_eq!(name(of_stream(Some(place), opening)), expected, "{opening:?}");
        }
        assert_eq!(name(of_stream(None, good)), "not yet");
    }

    #[test]
    fn a_state_is_for_another_member_of_the_same_ring_and_of_the_step_that_is_offered() {
        let place = place();
        let good = Wish { job: place.job, epoch: Epoch(3), rank: 1, step: 7 };
        for (wish, expected) in [
            (good, "welcome"),
            (Wish { epoch: Epoch(2), ..good }, "stale"),
            (Wish { epoch: Epoch(4), ..good }, "refused"),
            (Wish { rank: 0, ..good }, "refused"),
            (Wish { rank: 2, ..good }, "refused"),
            (Wish { rank: -1, ..good }, "refused"),
            (Wish { step: 6, ..good }, "refused"),
            (Wish { step: -1, ..good }, "refused"),
        ] {
            assert_eq!(name(of_wish(Some(place), Some(7), wish)), expected, "{wish:?}");
        }
        assert_eq!(name(of_wish(Some(place), None, good)), "not yet");
        assert_eq!(name(of_wish(None, None, good)), "no job");
    }
}
