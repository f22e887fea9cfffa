//! Reports of lost neighbours.

use ringtune_shared::ring::RingError;

use super::{Error, StateProblem};

/// A rank's report of the neighbour that it lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The kind of loss.
    pub kind: TroubleKind,
    /// Its rank in the broken ring.
    pub rank: usize,
    /// For people, that rank included.
    pub text: String,
}

/// How a neighbour was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TroubleKind {
    /// The connection ended.
    Closed,
    /// It gave no sign of life on a connection that stands.
    Silent,
    /// It could not be reached, or did not come.
    Unreachable,
    /// Its frames were damaged or unexpected.
    Damaged,
}

/// The trouble with another rank in an error. None: it is not about one.
pub(super) fn trouble_of(error: &Error) -> Option<Trouble> {
    let (kind, rank) = match error {
        Error::Ring(RingError::PeerLost { rank, .. }) => (TroubleKind::Closed, *rank),
        Error::Ring(RingError::Stalled { rank, .. }) => (TroubleKind::Silent, *rank),
        Error::Ring(
            RingError::Damaged { rank, .. }
            | RingError::Protocol { rank, .. }
            | RingError::StaleEpoch { rank, .. },
        ) => (TroubleKind::Damaged, *rank),
        Error::Unreachable { rank, .. } | Error::Refused { rank, .. } => (TroubleKind::Unreachable, *rank),
        Error::State { rank, problem, .. } => (kind_of(problem), *rank),
        Error::Ring(RingError::Cancelled | RingError::Misuse(_))
        | Error::Plan(_)
        | Error::Replaced
        | Error::Rows
        | Error::Task(_) => return None,
    };
    Some(Trouble { kind, rank, text: error.to_string() })
}

fn kind_of(problem: &StateProblem) -> TroubleKind {
    match problem {
        StateProblem::Broken { .. } | StateProblem::Cut { .. } => TroubleKind::Closed,
        StateProblem::Silent { .. } => TroubleKind::Silent,
        StateProblem::Refused { .. } => TroubleKind::Unreachable,
        StateProblem::TooLong { .. }
        | StateProblem::Chunk { .. }
        | StateProblem::AfterTheEnd
        | StateProblem::Unknown
        | StateProblem::Length { .. }
        | StateProblem::Hash { .. }
        | StateProblem::Unreadable(_)
        | StateProblem::Other { .. } => TroubleKind::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringtune_shared::ids::Epoch;

    use super::*;
    use crate::ring::RankRing;

    #[test]
    fn what_is_about_another_rank_names_it_and_nothing_else_is_the_rings_fault() {
        let address = || "host:1".to_owned();
        let cases = [
            (RingError::PeerLost { rank: 3, reason: "gone".to_owned() }.into(), TroubleKind::Closed),
            (RingError::Stalled { rank: 3, silent: Duration::from_secs(2) }.into(), TroubleKind::Silent),
            (RingError::Damaged { rank: 3, expected: 1, found: 2 }.into(), TroubleKind::Damaged),
            (RingError::Protocol { rank: 3, problem: "odd".to_owned() }.into(), TroubleKind::Damaged),
            (
                RingError::StaleEpoch { rank: 3, got: Epoch(1), current: Epoch(2) }.into(),
                TroubleKind::Damaged,
            ),
            (
                Error::Unreachable { rank: 3, address: address(), reason: "silent".to_owned() },
                TroubleKind::Unreachable,
            ),
            (
                Error::State { rank: 3, address: address(), problem: StateProblem::Cut { bytes: 7 } },
                TroubleKind::Closed,
            ),
        ];
        for (error, kind) in cases {
            let trouble = RankRing::trouble_of(&error).unwrap();
            assert_eq!((trouble.kind, trouble.rank), (kind, 3), "{error}");
            assert!(trouble.text.contains("rank 3"), "{}", trouble.text);
        }
        for error in [Error::Replaced, Error::Rows, RingError::Cancelled.into()] {
            assert_eq!(RankRing::trouble_of(&error), None, "{error}");
        }
    }
}
