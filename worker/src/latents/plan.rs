//! Who gives which picture's posteriors to the ring: a pure function of who has what.

/// What one rank gives in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Give {
    /// The picture's number.
    pub picture: usize,
    /// Nobody has it: the rank encodes it. Otherwise it is in the rank's own cache.
    pub encode: bool,
}

/// The rounds of an exchange after which every rank has every picture: in each, every rank gives at most one, in
/// the order of ranks. First go those that are in somebody's cache, then those that have to be encoded, each
/// by one rank only, spread evenly. What all have is not given at all.
///
/// `has[rank][picture]`; rows of the same length, one a rank.
pub fn rounds(has: &[Vec<bool>]) -> Vec<Vec<Option<Give>>> {
    let pictures = has.first().map_or(0, Vec::len);
    let mut cached = vec![Vec::new(); has.len()];
    let mut encoded = vec![Vec::new(); has.len()];
    for picture in 0..pictures {
        let holders: Vec<usize> =
            (0..has.len()).filter(|rank| has[*rank].get(picture) == Some(&true)).collect();
        if holders.len() == has.len() {
            continue;
        }
        let encode = holders.is_empty();
        let queues = if encode { &mut encoded } else { &mut cached };
        let givers = if encode { (0..has.len()).collect() } else { holders };
        // The first of those that give least so far.
        if let Some(rank) = givers.into_iter().min_by_key(|rank| queues[*rank].len()) {
            queues[rank].push(Give { picture, encode });
        }
    }
    let mut rounds = in_rounds(&cached);
    rounds.extend(in_rounds(&encoded));
    rounds
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
    fn an_empty_cluster_spreads_the_encoding() {
        let give = |picture| Some(Give { picture, encode: true });
        let empty = vec![vec![false; 5]; 2];
        assert_eq!(rounds(&empty), [[give(0), give(1)], [give(2), give(3)], [give(4), None]]);
        assert_eq!(rounds(&[vec![false; 2]]), [[give(0)], [give(1)]]);
        assert!(rounds(&[vec![true; 9], vec![true; 9]]).is_empty());
        assert!(rounds(&[vec![], vec![]]).is_empty());
    }

    proptest! {
        #[test]
        fn every_picture_reaches_every_rank_once_and_nothing_is_encoded_twice(
            has in (1usize..6, 0usize..20).prop_flat_map(|(ranks, pictures)| {
                prop::collection::vec(prop::collection::vec(any::<bool>(), pictures), ranks)
            }),
        ) {
            let rounds = rounds(&has);
            let mut given = vec![0usize; has[0].len()];
            let mut encoding = vec![0usize; has.len()];
            for round in &rounds {
                prop_assert_eq!(round.len(), has.len());
                for (rank, give) in round.iter().enumerate() {
                    let Some(give) = give else { continue };
                    given[give.picture] += 1;
                    encoding[rank] += usize::from(give.encode);
                    let held = has.iter().any(|rank| rank[give.picture]);
                    prop_assert_eq!(give.encode, !held);
                    prop_assert!(give.encode || has[rank][give.picture]);
                }
            }
            for (picture, given) in given.iter().enumerate() {
                let all = has.iter().all(|rank| rank[picture]);
                prop_assert_eq!(*given, usize::from(!all));
            }
            let (least, most) = (encoding.iter().min(), encoding.iter().max());
            prop_assert!(most.unwrap() - least.unwrap() <= 1);
        }
    }
}
