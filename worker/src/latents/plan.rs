//! Plans which rank gives which posterior to the ring: a pure function of the ranks' caches.

/// A rank's gift in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Give {
    /// Its number.
    pub number: usize,
    /// The rank has to encode it: no rank has it. Otherwise it is in the rank's own cache.
    pub encode: bool,
}

/// The rounds of an exchange after which every rank has every posterior that any of them has: in each, every rank gives at
/// most one, in the order of ranks, and those that give are chosen evenly. What all have is not given at all.
///
/// `has[rank][number]`; rows of the same length, one a rank.
pub fn giving(has: &[Vec<bool>]) -> Vec<Vec<Option<Give>>> {
    let count = has.first().map_or(0, Vec::len);
    let mut queues = vec![Vec::new(); has.len()];
    for number in 0..count {
        let holders: Vec<usize> =
            (0..has.len()).filter(|rank| has[*rank].get(number) == Some(&true)).collect();
        if holders.len() == has.len() {
            continue;
        }
        // The first of those that give least so far.
        if let Some(rank) = holders.into_iter().min_by_key(|rank| queues[*rank].len()) {
            queues[rank].push(Give { number, encode: false });
        }
    }
    in_rounds(&queues)
}

/// The rounds in which those are encoded that no rank has, each by one rank, in the order in which they are `missing`.
pub fn encoding(missing: &[usize], ranks: usize) -> Vec<Vec<Option<Give>>> {
    let round = |numbers: &[usize]| {
        let gives = numbers.iter().map(|number| Some(Give { number: *number, encode: true }));
        gives.chain(std::iter::repeat(None)).take(ranks.max(1)).collect()
    };
    missing.chunks(ranks.max(1)).map(round).collect()
}

fn in_rounds(queues: &[Vec<Give>]) -> Vec<Vec<Option<Give>>> {
    let count = queues.iter().map(Vec::len).max().unwrap_or(0);
    (0..count).map(|round| queues.iter().map(|queue| queue.get(round).copied()).collect()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_nobody_has_is_encoded_in_its_order_by_all() {
        let give = |number| Some(Give { number, encode: true });
        assert_eq!(encoding(&[4, 0, 3, 1, 2], 2), [[give(4), give(0)], [give(3), give(1)], [give(2), None]]);
        assert_eq!(encoding(&[1, 0], 1), [[give(1)], [give(0)]]);
        assert!(encoding(&[], 3).is_empty());
    }

    #[test]
    fn what_all_have_or_nobody_has_is_not_given() {
        assert!(giving(&[vec![true; 9], vec![true; 9]]).is_empty());
        assert!(giving(&[vec![false; 9], vec![false; 9]]).is_empty());
        assert!(giving(&[vec![], vec![]]).is_empty());
    }

    proptest! {
        #[test]
        fn everything_that_a_rank_has_reaches_every_rank_once(
            has in (1usize..6, 0usize..20).prop_flat_map(|(ranks, count)| {
                prop::collection::vec(prop::collection::vec(any::<bool>(), count), ranks)
            }),
        ) {
            let mut given = vec![0usize; has[0].len()];
            for round in giving(&has) {
                prop_assert_eq!(round.len(), has.len());
                for (rank, give) in round.iter().enumerate() {
                    let Some(give) = give else { continue };
                    given[give.number] += 1;
                    prop_assert!(!give.encode && has[rank][give.number]);
                }
            }
            for (number, given) in given.iter().enumerate() {
                let (all, any) = (has.iter().all(|rank| rank[number]), has.iter().any(|rank| rank[number]));
                prop_assert_eq!(*given, usize::from(any && !all));
            }
        }
    }
}
