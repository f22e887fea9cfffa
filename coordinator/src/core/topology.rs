//! Which of the free workers a ring gets that is to be packed or spread by a label: a function of both.

use std::collections::BTreeMap;

use ringtune_shared::job::Topology;

/// Workers by their value of the label.
type Groups<W> = BTreeMap<Option<String>, Vec<W>>;

/// At most so many of `free`, in rank order: workers with the same value of the label are neighbours. Those without the label
/// count as one more value, which is packed last.
pub(super) fn choose<W>(
    topology: &Topology,
    free: Vec<W>,
    value: impl Fn(&W) -> Option<String>,
    most: usize,
) -> Vec<W> {
    let mut groups: Groups<W> = BTreeMap::new();
    for worker in free {
        groups.entry(value(&worker)).or_default().push(worker);
    }
    match topology {
        Topology::Pack(_) => pack(&mut groups, most),
        Topology::Spread(_) => spread(&mut groups, most),
    }
    groups.into_values().flatten().collect()
}

/// Takes from as few groups as may be: from the smallest that has enough, or else from the largest.
fn pack<W>(groups: &mut Groups<W>, most: usize) {
    let mut sizes: Vec<(bool, usize, Option<String>)> =
        groups.iter().map(|(value, workers)| (value.is_some(), workers.len(), value.clone())).collect();
    // The largest last, those with the label behind those without.
    sizes.sort_by(|one, other| (one.0, one.1, &other.2).cmp(&(other.0, other.1, &one.2)));
    let (mut chosen, mut open) = (BTreeMap::new(), most);
    while open > 0
        && let Some((has_label, largest, _)) = sizes.last().map(|(has, size, value)| (*has, *size, value))
    {
        let enough = |(has, size, _): &(bool, usize, Option<String>)| *has == has_label && *size >= open;
        let place = if largest >= open { sizes.iter().position(enough) } else { None };
        let (_, size, value) = sizes.remove(place.unwrap_or(sizes.len() - 1));
        chosen.insert(value, size.min(open));
        open -= size.min(open);
    }
    groups.retain(|value, workers| {
        workers.truncate(chosen.get(value).copied().unwrap_or(0));
        !workers.is_empty()
    });
}

/// Takes one of each group in turn, of larger groups first.
fn spread<W>(groups: &mut Groups<W>, most: usize) {
    let mut order: Vec<(usize, Option<String>)> =
        groups.iter().map(|(value, workers)| (workers.len(), value.clone())).collect();
    order.sort_by(|one, other| (other.0, &one.1).cmp(&(one.0, &other.1)));
    let (mut taken, mut open) = (BTreeMap::<&Option<String>, usize>::new(), most);
    let all: usize = order.iter().map(|(size, _)| size).sum();
    while open > most.saturating_sub(all) {
        for (size, value) in &order {
            let of_group = taken.entry(value).or_default();
            if *of_group < *size && open > 0 {
                *of_group += 1;
                open -= 1;
            }
        }
    }
    groups.retain(|value, workers| {
        workers.truncate(taken.get(value).copied().unwrap_or(0));
        !workers.is_empty()
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The racks of the workers that are chosen of those of these racks; 0: it has no label.
    fn racks(topology: &str, free: &[u8], most: usize) -> Vec<String> {
        let rack = |rack: &u8| (*rack > 0).then(|| format!("r{rack}"));
        let chosen = choose(&topology.parse().unwrap(), free.to_vec(), rack, most);
        chosen.iter().map(|one| rack(one).unwrap_or_default()).collect()
    }

    #[test]
    fn a_ring_is_packed_into_the_smallest_rack_that_has_room() {
        let free = [1, 2, 2, 3, 3, 3, 0, 0, 0, 0];
        assert_eq!(racks("pack:rack", &free, 1), ["r1"]);
        assert_eq!(racks("pack:rack", &free, 2), ["r2", "r2"]);
        assert_eq!(racks("pack:rack", &free, 3), ["r3", "r3", "r3"]);
        assert_eq!(racks("pack:rack", &free, 4), ["r1", "r3", "r3", "r3"]);
        assert_eq!(racks("pack:rack", &free, 5), ["r2", "r2", "r3", "r3", "r3"]);
        assert_eq!(racks("pack:rack", &free, 7), ["", "r1", "r2", "r2", "r3", "r3", "r3"]);
        assert_eq!(racks("pack:rack", &free, 20).len(), 10);
    }

    #[test]
    fn a_ring_is_spread_over_all_racks() {
        let free = [1, 2, 2, 3, 3, 3];
        assert_eq!(racks("spread:rack", &free, 1), ["r3"]);
        assert_eq!(racks("spread:rack", &free, 3), ["r1", "r2", "r3"]);
        assert_eq!(racks("spread:rack", &free, 5), ["r1", "r2", "r2", "r3", "r3"]);
        assert_eq!(racks("spread:rack", &free, 20).len(), 6);
        assert_eq!(racks("spread:rack", &[], 3).len(), 0);
    }

    proptest! {
        #[test]
        fn as_many_are_chosen_as_there_may_be_and_no_rack_is_more_than_needed(
            free in prop::collection::vec(0u8..5, 0..12), most in 0usize..14,
        ) {
            for topology in ["pack:rack", "spread:rack"] {
                let chosen = racks(topology, &free, most);
                prop_assert_eq!(chosen.len(), most.min(free.len()));
                let of = |rack: &str| chosen.iter().filter(|one| *one == rack).count();
                let all = |rack: u8| free.iter().filter(|one| **one == rack).count();
                let used: Vec<u8> = (1u8..5).filter(|rack| of(&format!("r{rack}")) > 0).collect();
                if topology == "spread:rack" {
                    // One rack has more than one worker above another only where that has no more.
                    for (one, other) in (1u8..5).flat_map(|one| (1u8..5).map(move |other| (one, other))) {
                        let (more, fewer) = (of(&format!("r{one}")), of(&format!("r{other}")));
                        prop_assert!(more <= fewer + 1 || fewer == all(other));
                    }
                } else if of("") == 0 {
                    // No fewer racks have so many.
                    let mut sizes: Vec<usize> = (1u8..5).map(all).collect();
                    sizes.sort_unstable_by(|one, other| other.cmp(one));
                    let fewest = (0..=4).find(|count| sizes[..*count].iter().sum::<usize>() >= chosen.len());
                    prop_assert_eq!(Some(used.len()), fewest);
                }
            }
        }
    }
}
