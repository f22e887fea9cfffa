//! Which ranks running jobs give to a job of higher priority: a function of their rings.
//!
//! Who takes less breaks less. Workers that only prepare to join a ring go first, as nothing is done there yet; then rings
//! shrink to their `min_world_size`, between two steps, and lose nothing but speed; then whole jobs go back to the queue, with
//! the state after their last step.

use ringtune_shared::ids::JobId;

/// A ring that may have to give ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Giver {
    pub(super) job: JobId,
    /// Members that whoever needs them could use.
    pub(super) members: usize,
    /// Of those, how many the ring can do without while it goes on.
    pub(super) spare: usize,
    /// Workers that prepare to join it, which whoever needs them could use.
    pub(super) joining: usize,
}

/// What a ring gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gift {
    pub(super) job: JobId,
    pub(super) joining: usize,
    pub(super) members: usize,
    /// The job goes back to the queue, with all its members.
    pub(super) all: bool,
}

/// What the givers give so that there are `needed` ranks more; those who are first give first. None: they have not so many.
pub(super) fn gifts(givers: &[Giver], needed: usize) -> Option<Vec<Gift>> {
    let mut gifts: Vec<Gift> =
        givers.iter().map(|giver| Gift { job: giver.job, joining: 0, members: 0, all: false }).collect();
    let mut open = needed;
    // 1. Who is not there yet, then whom a ring can do without.
    for (gift, giver) in gifts.iter_mut().zip(givers) {
        gift.joining = giver.joining.min(open);
        open -= gift.joining;
    }
    for (gift, giver) in gifts.iter_mut().zip(givers) {
        gift.members = giver.spare.min(open);
        open -= gift.members;
    }
    // 2. Whole rings.
    let mut over = 0;
    for (gift, giver) in gifts.iter_mut().zip(givers) {
        if open == 0 {
            break;
        }
        let more = giver.members - gift.members;
        (gift.members, gift.all) = (giver.members, true);
        over = more.saturating_sub(open);
        open = open.saturating_sub(more);
    }
    if open > 0 {
        return None;
    }
    // 3. Nobody gives what is not needed: those who are last keep it.
    for (gift, giver) in gifts.iter_mut().zip(givers).rev() {
        let more = giver.members - giver.spare;
        if gift.all && more <= over {
            (gift.members, gift.all) = (giver.spare, false);
            over -= more;
        }
        if !gift.all {
            let kept = gift.members.min(over);
            gift.members -= kept;
            over -= kept;
        }
    }
    for gift in gifts.iter_mut().rev() {
        let kept = gift.joining.min(over);
        gift.joining -= kept;
        over -= kept;
    }
    gifts.retain(|gift| gift.joining > 0 || gift.members > 0 || gift.all);
    Some(gifts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn giver(members: usize, spare: usize, joining: usize) -> Giver {
        Giver { job: JobId::new(), members, spare, joining }
    }

    fn given(givers: &[Giver], needed: usize) -> Option<Vec<(usize, usize, bool)>> {
        let all = gifts(givers, needed)?;
        let of = |giver: &Giver| {
            let gift = all.iter().find(|gift| gift.job == giver.job);
            gift.map_or((0, 0, false), |gift| (gift.joining, gift.members, gift.all))
        };
        Some(givers.iter().map(of).collect())
    }

    #[test]
    fn rings_shrink_before_one_is_stopped_and_the_first_gives_first() {
        let two = [giver(4, 3, 0), giver(4, 2, 1)];
        assert_eq!(given(&two, 1), Some(vec![(0, 0, false), (1, 0, false)]));
        assert_eq!(given(&two, 3), Some(vec![(0, 2, false), (1, 0, false)]));
        assert_eq!(given(&two, 6), Some(vec![(0, 3, false), (1, 2, false)]));
        // The first is stopped, and the other need not shrink as far.
        assert_eq!(given(&two, 7), Some(vec![(0, 4, true), (1, 2, false)]));
        assert_eq!(given(&two, 8), Some(vec![(0, 3, false), (1, 4, true)]));
        assert_eq!(given(&two, 9), Some(vec![(0, 4, true), (1, 4, true)]));
        assert_eq!(given(&two, 10), None);
        // What a stopped ring has over, others keep.
        let large = [giver(8, 0, 0), giver(4, 2, 1)];
        assert_eq!(given(&large, 5), Some(vec![(0, 8, true), (0, 0, false)]));
        // One that turns out to be unneeded goes on.
        let three = [giver(1, 0, 0), giver(4, 0, 0)];
        assert_eq!(given(&three, 4), Some(vec![(0, 0, false), (0, 4, true)]));
    }

    proptest! {
        #[test]
        fn enough_is_given_and_nothing_that_could_be_kept(
            all in prop::collection::vec((1usize..6, 0usize..6, 0usize..3), 0..6), needed in 1usize..20,
        ) {
            let givers: Vec<Giver> =
                all.into_iter().map(|(members, spare, joining)| giver(members, spare.min(members - 1), joining)).collect();
            let most: usize = givers.iter().map(|giver| giver.members + giver.joining).sum();
            let Some(gifts) = gifts(&givers, needed) else {
                prop_assert!(most < needed);
                return Ok(());
            };
            prop_assert!(most >= needed);
            let sum: usize = gifts.iter().map(|gift| gift.members + gift.joining).sum();
            prop_assert!(sum >= needed);
            let spare: usize = givers.iter().map(|giver| giver.spare + giver.joining).sum();
            for gift in &gifts {
                let giver = givers.iter().find(|giver| giver.job == gift.job).unwrap();
                prop_assert_eq!(gift.all, gift.members > giver.spare);
                prop_assert!(!gift.all || gift.members == giver.members && spare < needed);
                // Without that job's being stopped there would be too little.
                prop_assert!(!gift.all || sum - (giver.members - giver.spare) < needed);
            }
            if gifts.iter().all(|gift| !gift.all) {
                prop_assert_eq!(sum, needed);
            }
        }
    }
}
