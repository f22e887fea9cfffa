//! Ranks of a new ring compare their states and plan who takes a state from whom.
//!
//! A ring that lost a member goes on in a new epoch, perhaps with members that were not in it before. As it enters, each
//! rank says after which step its state is and what hash the state has (its [`Standing`]). From the same list every rank
//! concludes the same ([`plan_entry`]): all go on from the highest step, and ranks behind take the state from one
//! that is not, each from another one as far as there are as many.

use super::whole;
use crate::ids::ContentHash;

/// A rank's state as it enters a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The last step that is settled in its state; 0: none yet.
    pub step: u64,
    /// The hash of its state after this step, counters included.
    pub state: ContentHash,
}

/// A plan that brings all ranks to the same state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryPlan {
    /// The highest step that any rank has settled: the ring goes on with the one after it.
    pub step: u64,
    /// The hash of the state after it.
    pub state: ContentHash,
    /// The ranks that have this state, ascending. The first one also says what was done on the way to it.
    pub givers: Vec<usize>,
    /// The ranks that are behind, ascending: each takes the state from one that has it, see [`Self::giver_of`].
    pub takers: Vec<usize>,
}

impl EntryPlan {
    /// The first rank that has the state.
    pub fn first(&self) -> usize {
        self.givers.first().copied().unwrap_or_default()
    }

    /// The giver of a taker: takers are spread over all givers.
    pub fn giver_of(&self, taker: usize) -> usize {
        let place = self.takers.iter().position(|rank| *rank == taker).unwrap_or_default();
        self.givers.iter().cycle().nth(place % self.givers.len().max(1)).copied().unwrap_or_default()
    }
}

/// Two ranks that took the same steps and have not the same state. Nobody can say which of them is right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "after step {step} rank {rank} has the state {state}, but rank {other_rank} has {other_state}: the same steps gave \
     different bits"
)]
pub struct Diverged {
    /// The step after which both are.
    pub step: u64,
    /// The lowest rank at this step.
    pub rank: usize,
    /// The hash of its state.
    pub state: ContentHash,
    /// The lowest rank that has another state.
    pub other_rank: usize,
    /// The hash of that one.
    pub other_state: ContentHash,
}

impl Standing {
    /// Numbers of a row.
    pub const ROW: usize = whole::FLOATS + 32;

    /// Encodes as a row of a gather: the step, then the bytes of the hash, all of them small whole numbers.
    pub fn to_row(&self) -> Vec<f32> {
        whole::to_floats(self.step).into_iter().chain(self.state.0.map(f32::from)).collect()
    }

    /// Reads what [`Standing::to_row`] makes. None: the row is no standing.
    pub fn from_row(row: &[f32]) -> Option<Self> {
        let (step, hash) = row.split_at_checked(whole::FLOATS)?;
        let bytes = hash.iter().map(|number| whole::byte(*number)).collect::<Option<Vec<u8>>>()?;
        Some(Self { step: whole::from_floats(step)?, state: ContentHash(bytes.try_into().ok()?) })
    }
}

/// Plans the entry; `standings` in the order of the ranks. Without ranks nobody takes anything.
///
/// # Errors
/// Two ranks at the highest step have different states. What those behind have is of no interest: they give it up.
pub fn plan_entry(standings: &[Standing]) -> Result<EntryPlan, Diverged> {
    let step = standings.iter().map(|standing| standing.step).max().unwrap_or_default();
    let mut ahead = standings.iter().enumerate().filter(|(_, standing)| standing.step == step);
    let Some((rank, Standing { state, .. })) = ahead.clone().next() else {
        return Ok(EntryPlan { step, state: ContentHash::of(&[]), givers: Vec::new(), takers: Vec::new() });
    };
    if let Some((other_rank, other)) = ahead.find(|(_, standing)| standing.state != *state) {
        let (state, other_state) = (*state, other.state);
        return Err(Diverged { step, rank, state, other_rank, other_state });
    }
    let (givers, takers) = (0..standings.len()).partition(|rank| standings[*rank].step == step);
    Ok(EntryPlan { step, state: *state, givers, takers })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn standing(step: u64, state: u8) -> Standing {
        Standing { step, state: ContentHash::of(&[state]) }
    }

    #[test]
    fn those_who_are_behind_take_the_state_of_those_who_are_not_in_turns() {
        let all = [standing(0, 9), standing(8, 1), standing(7, 2), standing(8, 1), standing(1, 1)];
        let plan = plan_entry(&all).unwrap();
        let (givers, takers) = (vec![1, 3], vec![0, 2, 4]);
        assert_eq!(plan, EntryPlan { step: 8, state: ContentHash::of(&[1]), givers, takers });
        assert_eq!((plan.first(), [0, 2, 4].map(|taker| plan.giver_of(taker))), (1, [1, 3, 1]));
        let equal = plan_entry(&[standing(0, 5); 3]).unwrap();
        assert_eq!((equal.first(), equal.takers.as_slice()), (0, [].as_slice()));
        let empty = plan_entry(&[]).unwrap();
        assert!(empty.takers.is_empty() && (empty.first(), empty.giver_of(0)) == (0, 0));
    }

    #[test]
    fn two_states_after_one_step_are_named() {
        let diverged =
            plan_entry(&[standing(3, 0), standing(4, 1), standing(4, 1), standing(4, 2)]).unwrap_err();
        let (state, other_state) = (ContentHash::of(&[1]), ContentHash::of(&[2]));
        assert_eq!(diverged, Diverged { step: 4, rank: 1, state, other_rank: 3, other_state });
        let text = diverged.to_string();
        assert!(text.contains(&state.to_string()) && text.contains(&other_state.to_string()), "{text}");
        // The states of ranks behind are irrelevant: they are replaced.
        assert!(plan_entry(&[standing(3, 1), standing(3, 2), standing(4, 0)]).is_ok());
    }

    #[test]
    fn what_is_no_standing_is_not_read() {
        let row = standing(u64::MAX - 1, 7).to_row();
        assert_eq!(row.len(), Standing::ROW);
        assert_eq!(Standing::from_row(&row), Some(standing(u64::MAX - 1, 7)));
        for (place, wrong) in
            [(0, -1.0), (1, 65_536.0), (2, 0.5), (3, f32::NAN), (4, 256.0), (35, f32::INFINITY)]
        {
            let mut row = row.clone();
            row[place] = wrong;
            assert_eq!(Standing::from_row(&row), None, "{place}: {wrong}");
        }
        assert_eq!(Standing::from_row(&row[1..]), None);
        assert_eq!(Standing::from_row(&[row.as_slice(), &[0.0]].concat()), None);
        assert_eq!(Standing::from_row(&[]), None);
    }

    proptest! {
        #[test]
        fn a_standing_comes_back(step: u64, state: [u8; 32]) {
            let standing = Standing { step, state: ContentHash(state) };
            prop_assert_eq!(Standing::from_row(&standing.to_row()), Some(standing));
        }

        #[test]
        fn everybody_ends_in_the_highest_state_or_two_that_differ_are_named(
            all in proptest::collection::vec((0..4_u64, 0..2_u8), 1..12),
        ) {
            let all: Vec<Standing> = all.into_iter().map(|(step, state)| standing(step, state)).collect();
            match plan_entry(&all) {
                Ok(plan) => {
                    prop_assert!(plan.takers.iter().all(|taker| plan.givers.contains(&plan.giver_of(*taker))));
                    prop_assert_eq!(plan.givers.first(), Some(&plan.first()));
                    for (rank, standing) in all.iter().enumerate() {
                        prop_assert!(standing.step <= plan.step);
                        let takes = plan.takers.contains(&rank);
                        prop_assert_eq!(takes, standing.step < plan.step);
                        prop_assert!(takes != plan.givers.contains(&rank));
                        prop_assert!(takes || standing.state == plan.state);
                    }
                    prop_assert!(plan.takers.is_sorted());
                }
                Err(Diverged { step, rank, state, other_rank, other_state }) => {
                    prop_assert!(rank < other_rank && state != other_state);
                    prop_assert_eq!(all[rank], Standing { step, state });
                    prop_assert_eq!(all[other_rank], Standing { step, state: other_state });
                    prop_assert!(all.iter().all(|standing| standing.step <= step));
                }
            }
        }
    }
}
