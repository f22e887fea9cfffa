//! Which members of a ring reach each other.

use std::collections::BTreeSet;

use super::Seat;

/// Who is left out of a next ring of `members`, so that those who are in it reach each other: whoever has the most broken
/// links, one after the other, and of two with as many the one without the state, then the higher rank. One that has the
/// state stays, if any has.
pub(super) fn left_out(
    seats: &[Seat],
    members: &[usize],
    broken: &BTreeSet<(usize, usize)>,
) -> BTreeSet<usize> {
    let mut rest: BTreeSet<usize> = members.iter().copied().collect();
    let mut out = BTreeSet::new();
    let is_empty = |rank: usize| seats.get(rank).is_none_or(|seat| seat.empty);
    loop {
        let links = |rank: usize| {
            let ends = |(one, other): &&(usize, usize)| {
                (*one == rank || *other == rank) && rest.contains(one) && rest.contains(other)
            };
            broken.iter().filter(ends).count()
        };
        let full = rest.iter().filter(|rank| !is_empty(**rank)).count();
        // Both ends of a link cannot be the only one that has the state.
        let may_go = |rank: &&usize| is_empty(**rank) || full > 1;
        let worst = rest.iter().filter(|rank| links(**rank) > 0).filter(may_go);
        let Some(worst) = worst.copied().max_by_key(|rank| (links(*rank), is_empty(*rank), *rank)) else {
            return out;
        };
        rest.remove(&worst);
        out.insert(worst);
    }
}
