//! A ring that broke: who is lost, and whether the others go on or wait.

use std::collections::BTreeSet;

use super::{Decision, Eyes, MemberState, Plan, Presence, View, Why, links::left_out};
use crate::core::time::Time;

/// The third time in a row that a link breaks, one of its two ends is left out.
const LINK_BREAKS: u32 = 3;

/// `live`: those that are not gone, of whom there is at least one.
pub(super) fn decide(view: &View, live: &[usize]) -> Decision {
    let named = named(view, live);
    if is_to_ask(view, live, &named) {
        return Decision::Look;
    }
    // 1. After a restart of the coordinator: who is not back yet may have been lost, or not.
    let earlier = view.limits.timeout.min(view.limits.recovery).saturating_sub(view.limits.named).max(0);
    let expected = live.iter().filter_map(|rank| match view.members[*rank].presence {
        Presence::Expected { soon, .. } if named.contains(rank) => Some(soon.plus(-earlier)),
        Presence::Expected { soon, .. } => Some(soon),
        _ => None,
    });
    let expected = expected.filter(|until| view.now < *until);
    if let Some(until) = expected.min() {
        return Decision::Nothing(Some(until));
    }
    // 2. Whether it is time.
    if let Err(until) = is_clear(view, live) {
        return Decision::Nothing(until);
    }
    // 3. Who is lost. One that lives may not have noticed: its ring was only being formed, or it still computes.
    let (mut lost, rest): (Vec<usize>, Vec<usize>) = live.iter().partition(|rank| {
        let seat = &view.members[**rank];
        let lives = matches!(seat.eyes, Eyes::Looking | Eyes::Open);
        let absent = view.away_since(**rank).is_some() || (named.contains(rank) && !lives);
        let worked_off = seat.state == MemberState::Finished;
        !view.has_reported(**rank) && (absent || worked_off)
    });
    let nobody_lost = lost.is_empty() && view.members.len() == live.len();
    let all_here = nobody_lost && rest.iter().all(|rank| view.is_here(*rank));
    if all_here && let Some(until) = view.looks_until(&rest) {
        return Decision::Nothing(Some(until));
    }
    let link = blame(view, live).filter(|_| all_here);
    // 4. Who is left.
    let (leave, rest): (Vec<usize>, Vec<usize>) =
        rest.into_iter().partition(|rank| view.members[*rank].leaving);
    let (here, away): (Vec<usize>, Vec<usize>) = rest.into_iter().partition(|rank| view.is_here(*rank));
    let over =
        |rank: &usize| view.away_since(*rank).is_none_or(|since| since.plus(view.limits.timeout) <= view.now);
    let (never_back, may_return): (Vec<usize>, Vec<usize>) = away.into_iter().partition(over);
    lost.extend(never_back);
    let broken = view.broken_links(link);
    let apart = left_out(&view.members, &here, &broken);
    let stay: Vec<usize> = here.into_iter().filter(|rank| !apart.contains(rank)).collect();
    let apart: Vec<usize> = apart.into_iter().collect();
    // Newcomers alone can go on with nothing, nor is there anything that they could wait with.
    let has_state = |ranks: &[usize]| ranks.iter().any(|rank| !view.members[*rank].empty);
    if !stay.is_empty() && !has_state(&stay) && !has_state(&may_return) {
        let survivors = leave.iter().any(|rank| view.is_here(*rank) && !view.members[*rank].empty);
        let why = if survivors { Why::Leaving } else { Why::StateLost };
        lost.sort_unstable();
        return Decision::Queue { why, lost, survivors };
    }
    let join = view.spares(stay.len());
    // What is left to be done once all steps are takes one rank alone.
    let done = stay.iter().all(|rank| view.is_done(*rank));
    if has_state(&stay) && (stay.len() + join.len() >= view.min || done) {
        lost.extend(may_return);
        lost.sort_unstable();
        return Decision::Reform(Plan { stay, lost, leave, apart, join, after_step: false, link });
    }
    too_few(view, (lost, leave, apart), &[stay, may_return].concat())
}

/// Whether it is time to find out who reaches whom: a link broke, and both its ends may live.
fn is_to_ask(view: &View, live: &[usize], named: &BTreeSet<usize>) -> bool {
    let lives = |rank: &usize| live.contains(rank) && view.is_here(*rank);
    view.asked.is_none()
        && view.members.len() == live.len()
        && named.iter().any(lives)
        && live.iter().any(|rank| view.is_here(*rank) && view.members[*rank].eyes != Eyes::Blind)
}

/// `parted`: who is lost, who leaves, who is left out.
fn too_few(
    view: &View,
    (mut lost, leave, apart): (Vec<usize>, Vec<usize>, Vec<usize>),
    rest: &[usize],
) -> Decision {
    lost.sort_unstable();
    if rest.is_empty() {
        let survivors = leave.iter().any(|rank| view.is_here(*rank));
        let why = if survivors { Why::Leaving } else { Why::AllLost };
        return Decision::Queue { why, lost, survivors };
    }
    let spare_by = view.spare_by.unwrap_or(view.now.plus(view.limits.spare));
    if spare_by <= view.now {
        return Decision::Queue { why: Why::NoSpare, lost, survivors: true };
    }
    let back_by = rest.iter().filter_map(|rank| view.away_since(*rank));
    let until = back_by.map(|since| since.plus(view.limits.timeout)).chain([spare_by]).min();
    Decision::WaitForSpare { lost, leave, apart, until: until.unwrap_or(spare_by) }
}

/// Whether it is clear who is lost; if not, when it will be.
fn is_clear(view: &View, live: &[usize]) -> Result<(), Option<Time>> {
    let any_gone = view.members.len() > live.len();
    let named = named(view, live);
    let mut silent = live.iter().filter(|rank| !view.has_reported(**rank)).peekable();
    if any_gone
        || silent.peek().is_none()
        || silent.any(|rank| named.contains(rank) && view.away_since(*rank).is_some())
    {
        return Ok(());
    }
    let first = live.iter().filter_map(|rank| match view.members[*rank].state {
        MemberState::Waiting { since, .. } => Some(since),
        _ => None,
    });
    let until = first.min().map(|first| first.plus(view.limits.verdict));
    if until.is_some_and(|until| until <= view.now) { Ok(()) } else { Err(until) }
}

/// Whom somebody lost.
fn named(view: &View, live: &[usize]) -> BTreeSet<usize> {
    let names = live.iter().filter_map(|rank| match view.members[*rank].state {
        MemberState::Waiting { names, .. } => names,
        _ => None,
    });
    names.map(|named| named.rank).collect()
}

/// The link that broke first, where nobody is lost: the lower rank comes first. When a ring breaks, all its connections
/// end one after the other, so that a rank which only saw that says little; two that name each other say more.
fn blame(view: &View, live: &[usize]) -> Option<(usize, usize)> {
    let words = live.iter().filter_map(|rank| match view.members[*rank].state {
        MemberState::Waiting { since, names: Some(named) }
            if named.rank != *rank && live.contains(&named.rank) =>
        {
            Some((*rank, since, named))
        }
        _ => None,
    });
    let words: Vec<_> = words.collect();
    let mutual =
        |from: usize, to: usize| words.iter().any(|(rank, _, named)| (*rank, named.rank) == (to, from));
    let first = words
        .iter()
        .min_by_key(|(rank, since, named)| (named.closed, !mutual(*rank, named.rank), *since, *rank));
    first.map(|(rank, _, named)| ((*rank).min(named.rank), (*rank).max(named.rank)))
}

impl View {
    /// The links that the next ring does without. `blamed`: the one that broke this time, if nothing else did.
    fn broken_links(&self, blamed: Option<(usize, usize)>) -> BTreeSet<(usize, usize)> {
        let again = blamed.filter(|blamed| {
            self.link.is_some_and(|(before, times)| before == *blamed && times + 1 >= LINK_BREAKS)
        });
        match again {
            Some(link) if self.broken.is_empty() => BTreeSet::from([link]),
            _ => self.broken.clone(),
        }
    }

    /// Until when some of these may still report whom they reach. None: they did, or their time is over.
    fn looks_until(&self, ranks: &[usize]) -> Option<Time> {
        let until = self.asked?.plus(self.limits.look);
        let looks = |rank: &usize| matches!(self.members[*rank].eyes, Eyes::Closed | Eyes::Looking);
        (self.now < until && ranks.iter().any(looks)).then_some(until)
    }

    /// Since when a member is away, if it is.
    fn away_since(&self, rank: usize) -> Option<Time> {
        match self.members[rank].presence {
            Presence::Here => None,
            Presence::Away(since) => Some(since),
            Presence::Expected { soon, .. } => Some(soon),
        }
    }

    /// It said that it has left the ring, and has its state.
    fn has_reported(&self, rank: usize) -> bool {
        matches!(self.members[rank].state, MemberState::Waiting { .. } | MemberState::Done)
    }
}
