//! When a ring is formed anew, and of whom.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

mod links;

const NOW: Time = Time(1_000_000);

const LIMITS: Limits = Limits {
    verdict: 400,
    recovery: 60_000,
    timeout: 15_000,
    spare: 600_000,
    head: 3_000,
    entry: 1_500,
    named: 4_500,
    look: 2_000,
};

fn ago(milliseconds: i64) -> Time {
    NOW.plus(-milliseconds)
}

fn seat(state: MemberState) -> Seat {
    Seat { state, presence: Presence::Here, leaving: false, empty: false, eyes: Eyes::Blind }
}

fn away(state: MemberState, since: i64) -> Seat {
    Seat { presence: Presence::Away(ago(since)), ..seat(state) }
}

fn leaving(state: MemberState) -> Seat {
    Seat { leaving: true, ..seat(state) }
}

/// It waits, and said so that long ago; its connection with a rank ended.
fn waits(since: i64, rank: usize) -> Seat {
    seat(MemberState::Waiting { since: ago(since), names: Some(Named { rank, closed: true }) })
}

/// The same, but the neighbour fell silent.
fn misses(since: i64, rank: usize) -> Seat {
    seat(MemberState::Waiting { since: ago(since), names: Some(Named { rank, closed: false }) })
}

const GONE: MemberState = MemberState::Gone { done: false };

/// A ring that wants all its members and could have one more.
fn view(members: &[Seat]) -> View {
    View {
        now: NOW,
        members: members.to_vec(),
        ready: Vec::new(),
        min: 1,
        world: members.len() + 1,
        grows: true,
        ordered: false,
        link: None,
        broken: BTreeSet::new(),
        asked: None,
        spare_by: None,
        limits: LIMITS,
    }
}

fn reform(stay: &[usize], lost: &[usize]) -> Decision {
    Decision::Reform(Plan { stay: stay.to_vec(), lost: lost.to_vec(), ..Plan::default() })
}

fn later(milliseconds: i64) -> Decision {
    Decision::Nothing(Some(NOW.plus(milliseconds)))
}

#[test]
fn a_ring_that_is_whole_goes_on() {
    use MemberState::{Done, Entering, Training};
    let train = seat(Training);
    for members in [vec![train; 3], vec![train, away(Training, 500_000), train], vec![seat(Entering), train]]
    {
        assert_eq!(decide(&view(&members)), Decision::Nothing(None), "{members:?}");
    }
    // Rank 0 that finished and was restarted since is no loss either.
    let members = [seat(MemberState::Gone { done: true }), seat(Done), away(Done, 1)];
    assert_eq!(decide(&view(&members)), Decision::End);
    // A member that was about to come in would wait for it in vain.
    assert_eq!(decide(&view(&[seat(MemberState::Finished), seat(Entering)])), Decision::End);
    // Nobody misses a member that is gone after its last step.
    let members = [train, seat(MemberState::Gone { done: true }), seat(Done)];
    assert_eq!(decide(&view(&members)), Decision::Nothing(None));
}

#[test]
fn who_is_lost_when_a_ring_breaks() {
    use MemberState::{Done, Entering, Training};
    let train = seat(Training);
    for (what, members, expected) in [
        (
            "a named member's session is gone",
            vec![train, away(Training, 5), waits(0, 1)],
            reform(&[0, 2], &[1]),
        ),
        ("so is another's", vec![away(Training, 9), away(Training, 5), waits(0, 1)], reform(&[2], &[0, 1])),
        ("it hangs: not clear yet", vec![waits(100, 1), train, waits(50, 1)], later(300)),
        ("it hangs", vec![waits(400, 1), train, waits(50, 1)], reform(&[0, 2], &[1])),
        ("somebody is slow to notice", vec![waits(10, 1), waits(0, 0), train], later(390)),
        ("a rank failed, as is known", vec![train, seat(GONE), train], reform(&[0, 2], &[])),
        ("rank 0 is lost", vec![away(Training, 1), waits(0, 0), waits(0, 1)], reform(&[1, 2], &[0])),
        ("somebody is gone from a new ring", vec![away(Entering, 1), waits(0, 0)], reform(&[1], &[0])),
        ("the others are done", vec![seat(GONE), seat(Done), seat(Done)], reform(&[1, 2], &[])),
        (
            "it waits and is away: the others do",
            vec![waits(900, 1), Seat { presence: Presence::Away(ago(1)), ..waits(900, 0) }],
            reform(&[0], &[1]),
        ),
        (
            "nobody is left",
            vec![away(GONE, 4), seat(GONE)],
            Decision::Queue { why: Why::AllLost, lost: vec![], survivors: false },
        ),
    ] {
        assert_eq!(decide(&view(&members)), expected, "{what}");
    }
}

#[test]
fn a_ring_that_is_being_formed_does_not_wait_for_a_member_that_is_away() {
    use MemberState::{Entering, Training};
    let (enters, gone) = (seat(Entering), away(Entering, 1_500));
    assert_eq!(decide(&view(&[enters, away(Entering, 100), seat(Training)])), later(1_400));
    assert_eq!(decide(&view(&[enters, gone, seat(Training)])), reform(&[0, 2], &[1]));
    assert_eq!(decide(&view(&[gone, enters, gone])), reform(&[1], &[0, 2]));
    // Who has entered may be away for as long as it likes.
    assert_eq!(decide(&view(&[enters, away(Training, 9_000), enters])), Decision::Nothing(None));
    let short = View { min: 2, ..view(&[enters, gone]) };
    let wait =
        Decision::WaitForSpare { lost: vec![1], leave: vec![], apart: vec![], until: NOW.plus(600_000) };
    assert_eq!(decide(&short), wait);
}

#[test]
fn a_link_that_breaks_is_named_and_the_third_time_one_of_its_ends_is_left_out() {
    let broken = |link, join: &[usize]| {
        Decision::Reform(Plan {
            stay: vec![0, 1, 2],
            join: join.to_vec(),
            link: Some(link),
            ..Plan::default()
        })
    };
    // Ranks 1 and 2 lost each other; rank 0 only saw that rank 1's ring ended.
    let members = [waits(300, 1), waits(200, 2), waits(200, 1)];
    assert_eq!(decide(&view(&members)), broken((1, 2), &[]));
    // Who says more than that a connection ended is believed first.
    let members = [waits(300, 1), waits(300, 0), misses(100, 0)];
    let mut again = view(&members);
    assert_eq!(decide(&again), broken((0, 2), &[]));
    again.link = Some(((0, 2), 1));
    assert_eq!(decide(&again), broken((0, 2), &[]));
    again.link = Some(((0, 1), 2));
    assert_eq!(decide(&again), broken((0, 2), &[]), "it was another one");
    again.link = Some(((0, 2), 2));
    let plan = Plan { stay: vec![0, 1], apart: vec![2], link: Some((0, 2)), ..Plan::default() };
    assert_eq!(decide(&again), Decision::Reform(plan));
    // Whoever is ready comes in at once.
    let mut joined = view(&members);
    joined.ready = vec![false, true, true];
    assert_eq!(decide(&joined), broken((0, 2), &[1]));
}

/// It can say whom it reaches, and has come so far.
#[test]
fn too_few_members_wait_for_others() {
    let members = [waits(500, 1), seat(GONE), waits(500, 1)];
    let mut short = View { min: 3, world: 3, ..view(&members) };
    let wait = |lost: &[usize], until| Decision::WaitForSpare {
        lost: lost.to_vec(),
        leave: vec![],
        apart: vec![],
        until: NOW.plus(until),
    };
    assert_eq!(decide(&short), wait(&[], 600_000));
    short.spare_by = Some(NOW.plus(7));
    assert_eq!(decide(&short), wait(&[], 7));
    short.spare_by = Some(NOW);
    let queue = |why, survivors| Decision::Queue { why, lost: vec![], survivors };
    assert_eq!(decide(&short), queue(Why::NoSpare, true));
    short.ready = vec![true, true];
    let plan = Plan { stay: vec![0, 2], join: vec![0], ..Plan::default() };
    assert_eq!(decide(&short), Decision::Reform(plan));
    // One that is away for a moment is waited for; then it is lost.
    let blink = |since| Seat { presence: Presence::Away(ago(since)), ..waits(500, 1) };
    let alone = |since| View { min: 2, ..view(&[blink(since), seat(GONE)]) };
    assert_eq!(decide(&alone(5_000)), wait(&[], 10_000));
    let lost = Decision::Queue { why: Why::AllLost, lost: vec![0], survivors: false };
    assert_eq!(decide(&alone(15_000)), lost);
    // What is left after the last step takes one alone.
    let done = [seat(GONE), seat(MemberState::Done)];
    assert_eq!(decide(&View { min: 2, ..view(&done) }), reform(&[1], &[]));
}

#[test]
fn members_that_are_away_are_given_up_only_where_nobody_vouches_for_them() {
    use MemberState::{Done, Training};
    let all_lost =
        |lost: &[usize]| Decision::Queue { why: Why::AllLost, lost: lost.to_vec(), survivors: false };
    let two = |since, other| view(&[away(Training, since), away(Training, other)]);
    assert_eq!(decide(&two(70_000, 20_000)), later(40_000));
    assert_eq!(decide(&two(70_000, 60_000)), all_lost(&[0, 1]));
    assert_eq!(decide(&view(&[away(Training, 14_000)])), later(1_000));
    assert_eq!(decide(&view(&[away(Training, 15_000)])), all_lost(&[0]));
    // After a restart of the coordinator.
    let presence = Presence::Expected { soon: NOW.plus(10), late: NOW.plus(50) };
    let expected = Seat { presence, ..seat(Training) };
    assert_eq!(decide(&view(&[expected, expected])), later(50));
    assert_eq!(decide(&view(&[expected, seat(Training)])), Decision::Nothing(None));
    assert_eq!(decide(&view(&[expected, seat(Training), waits(900, 1)])), later(10));
    // One that another member lost may stay away until 4.5 s after the restart, which was 15 s before `soon`.
    let presence = Presence::Expected { soon: NOW.plus(11_000), late: NOW.plus(60_000) };
    let missed = Seat { presence, ..seat(Training) };
    assert_eq!(decide(&view(&[missed, waits(900, 0)])), later(500));
    assert_eq!(decide(&view(&[seat(Training), waits(900, 0), missed])), later(11_000));
    let over = Seat { presence: Presence::Expected { soon: NOW, late: NOW.plus(50) }, ..expected };
    assert_eq!(decide(&view(&[over, waits(900, 0)])), reform(&[1], &[0]));
    // Rank 0 sends the files: if it is gone for long, another one does.
    let done = seat(Done);
    assert_eq!(decide(&view(&[seat(Training), done, done])), Decision::Nothing(None));
    assert_eq!(decide(&view(&[away(Training, 2_000), done, away(Done, 9)])), later(1_000));
    assert_eq!(decide(&view(&[away(Training, 3_000), done, away(Done, 9)])), reform(&[1], &[0, 2]));
    // The same if the coordinator was restarted meanwhile, also with another one that has not come back.
    let expected = |soon| {
        let presence = Presence::Expected { soon: NOW.plus(soon), late: NOW.plus(soon + 45_000) };
        Seat { presence, ..seat(MemberState::Entering) }
    };
    assert_eq!(decide(&view(&[expected(9), done, done])), later(9));
    assert_eq!(decide(&view(&[expected(9), done, expected(9)])), later(9));
    assert_eq!(decide(&view(&[expected(0), done, done])), reform(&[1, 2], &[0]));
    assert_eq!(decide(&view(&[expected(0), done, expected(0)])), reform(&[1], &[0, 2]));
    // Rank 0 is here, or somebody is not done: nothing is known to be lost.
    assert_eq!(decide(&view(&[seat(Training), done, expected(0)])), Decision::Nothing(None));
    assert_eq!(decide(&view(&[expected(0), done, seat(Training)])), Decision::Nothing(None));
}

#[test]
fn who_joins_or_leaves_does_so_between_two_steps() {
    use MemberState::{Done, Entering, Training};
    let train = seat(Training);
    let planned = |stay: &[usize], leave: &[usize], join: &[usize]| {
        let (stay, leave, join) = (stay.to_vec(), leave.to_vec(), join.to_vec());
        Decision::Reform(Plan { stay, leave, join, after_step: true, ..Plan::default() })
    };
    let with = |members: &[Seat], ready: &[bool]| View { ready: ready.to_vec(), ..view(members) };
    assert_eq!(decide(&with(&[train, train], &[false, true, true])), planned(&[0, 1], &[], &[1]));
    for not_now in [vec![train, seat(Entering)], vec![train, away(Training, 1)], vec![train, seat(Done)]] {
        assert_eq!(decide(&with(&not_now, &[true])), Decision::Nothing(None), "{not_now:?}");
    }
    let full = View { world: 2, ..with(&[train, train], &[true]) };
    assert_eq!(decide(&full), Decision::Nothing(None));
    let ends = View { grows: false, ..with(&[train, train], &[true]) };
    assert_eq!(decide(&ends), Decision::Nothing(None));

    let going = leaving(Training);
    assert_eq!(decide(&view(&[going, train, going])), planned(&[1], &[0, 2], &[]));
    assert_eq!(decide(&view(&[going, seat(Entering)])), Decision::Nothing(None));
    let alone = Decision::Queue { why: Why::Leaving, lost: vec![], survivors: true };
    assert_eq!(decide(&view(&[going])), alone);
    assert_eq!(decide(&View { min: 2, ..view(&[going, train]) }), alone);
    assert_eq!(decide(&View { min: 2, ..with(&[going, train], &[true]) }), planned(&[1], &[0], &[0]));
    assert_eq!(decide(&view(&[train, leaving(Done)])), Decision::LetGo(vec![1]));
    // A ring that broke anyway goes on without it.
    let (broken, one) = (waits(0, 1), leaving(waits(0, 0).state));
    let plan = Plan { stay: vec![0], leave: vec![1], link: Some((0, 1)), ..Plan::default() };
    assert_eq!(decide(&view(&[broken, one])), Decision::Reform(plan));
    assert_eq!(decide(&view(&[leaving(broken.state)])), alone);
}

#[test]
fn a_job_ends_when_its_files_are_there_and_nobody_works() {
    use MemberState::{Done, Finished, Training};
    let (first, done) = (seat(Finished), seat(Done));
    for members in [vec![first], vec![first, done, waits(0, 0)], vec![first, away(Training, 1), seat(GONE)]] {
        assert_eq!(decide(&view(&members)), Decision::End, "{members:?}");
    }
    assert_eq!(decide(&view(&[first, seat(Training)])), Decision::Nothing(None));
    let presence = Presence::Expected { soon: NOW.plus(1), late: NOW.plus(9) };
    // Who has not come back soon after a restart of the coordinator is not waited for any longer.
    assert_eq!(decide(&view(&[first, Seat { presence, ..seat(Training) }])), later(1));
    let presence = Presence::Expected { soon: NOW, late: NOW.plus(9) };
    assert_eq!(decide(&view(&[first, Seat { presence, ..seat(Training) }])), Decision::End);
}

#[test]
fn newcomers_without_the_state_do_not_go_on_alone() {
    let newcomer = |seat: Seat| Seat { empty: true, ..seat };
    let queue = |why, survivors| Decision::Queue { why, lost: Vec::new(), survivors };
    // Whoever had it is lost for good, or about to leave; or may still come back.
    let left = [seat(GONE), newcomer(waits(500, 0)), newcomer(waits(500, 0))];
    assert_eq!(decide(&view(&left)), queue(Why::StateLost, false));
    let leaver = Seat { leaving: true, ..waits(500, 0) };
    assert_eq!(decide(&view(&[leaver, newcomer(waits(500, 0))])), queue(Why::Leaving, true));
    let blink = Seat { presence: Presence::Away(ago(2_000)), ..waits(500, 1) };
    let waiting = decide(&view(&[blink, newcomer(waits(500, 0))]));
    assert!(matches!(waiting, Decision::WaitForSpare { .. }), "{waiting:?}");
    // One that has it is enough.
    assert_eq!(decide(&view(&[seat(GONE), waits(500, 0), newcomer(waits(500, 0))])), reform(&[1, 2], &[]));
}

fn seats() -> impl Strategy<Value = Vec<Seat>> {
    let state =
        (0u8..14, 0i64..1_000, 0usize..5, any::<bool>()).prop_map(
            |(which, since, rank, closed)| match which {
                0 | 1 => GONE,
                2 => MemberState::Entering,
                3..6 => MemberState::Training,
                6..11 => MemberState::Waiting { since: ago(since), names: Some(Named { rank, closed }) },
                11 => MemberState::Waiting { since: ago(since), names: None },
                12 => MemberState::Done,
                _ => MemberState::Gone { done: true },
            },
        );
    let presence = (0u8..10, 0i64..80_000).prop_map(|(which, since)| match which {
        0 | 1 => Presence::Away(ago(since)),
        2 => Presence::Expected { soon: ago(since - 20_000), late: NOW.plus(since) },
        _ => Presence::Here,
    });
    let eyes = prop::sample::select(vec![Eyes::Blind, Eyes::Closed, Eyes::Looking, Eyes::Open]);
    let seat =
        (state, presence, 0u8..8, 0u8..4, eyes).prop_map(|(state, presence, leaves, new, eyes)| Seat {
            state,
            presence,
            leaving: leaves == 0,
            empty: new == 0 && matches!(state, MemberState::Entering | MemberState::Waiting { .. }),
            eyes,
        });
    prop::collection::vec(seat, 1..6)
}

proptest! {
    #[test]
    fn a_decision_keeps_its_promises(
        members in seats(), ready in prop::collection::vec(any::<bool>(), 0..4), min in 1usize..6,
        room in 0usize..3, grows in any::<bool>(), spare in prop::option::of(-5_000i64..5_000),
        link in prop::option::of((0usize..2, 2usize..5, 1u32..4)),
        links in prop::collection::btree_set((0usize..3, 1usize..5), 0..4),
        since in prop::option::of(0i64..3_000),
    ) {
        let world = members.len() + room;
        let (members, ready) = (members, ready);
        let view = View {
            min: min.min(world), world, ready, grows,
            spare_by: spare.map(|spare| NOW.plus(spare)),
            link: link.map(|(one, other, times)| ((one, other), times)),
            broken: links.iter().copied().filter(|(one, other)| one < other && *other < members.len()).collect(),
            asked: since.map(ago),
            ..view(&members)
        };
        let decision = decide(&view);
        prop_assert_eq!(decide(&view), decision.clone());
        let live: BTreeSet<usize> = view.live().into_iter().collect();
        let has_left_the_ring = |rank: &usize| {
            matches!(members[*rank].state, MemberState::Waiting { .. } | MemberState::Done)
        };
        match decision {
            Decision::Reform(plan) => {
                // Whoever was there is in one list, and in none twice; nobody comes back from the dead.
                let mut all =
                    [plan.stay.clone(), plan.lost.clone(), plan.leave.clone(), plan.apart.clone()].concat();
                all.sort_unstable();
                prop_assert!(all.iter().copied().eq(live.iter().copied()), "{plan:?}");
                prop_assert!(!plan.stay.is_empty() && plan.stay.is_sorted());
                prop_assert!(plan.stay.iter().any(|rank| !members[*rank].empty), "nobody has the state");
                prop_assert!(plan.join.is_sorted() && plan.join.iter().all(|joiner| view.ready[*joiner]));
                let size = plan.stay.len() + plan.join.len();
                prop_assert!(size <= view.world);
                let all_done = plan.stay.iter().all(|rank| members[*rank].state == MemberState::Done);
                // One that only grows is as large as it was before, at least.
                let grows = plan.after_step && plan.leave.is_empty();
                prop_assert!(size >= view.min || all_done || grows, "{plan:?}");
                for rank in &plan.stay {
                    let seat = members[*rank];
                    prop_assert!(all_done || (seat.presence == Presence::Here && !seat.leaving));
                }
                if plan.after_step {
                    prop_assert!(plan.lost.is_empty() && plan.link.is_none());
                    prop_assert!(live.iter().all(|rank| members[*rank].state == MemberState::Training));
                }
                if let Some((one, other)) = plan.link {
                    prop_assert!(one < other && plan.lost.is_empty());
                }
                // Those who stay reach each other. Nobody is left out but for a link, or by its own will.
                if !plan.after_step && !all_done {
                    let stays = |(one, other): &&(usize, usize)| {
                        plan.stay.contains(one) && plan.stay.contains(other)
                    };
                    prop_assert_eq!(view.broken.iter().find(stays), None, "{:?}", plan);
                }
                let ends = |rank: usize| view.broken.iter().any(|(one, other)| *one == rank || *other == rank);
                prop_assert!(plan.apart.iter().all(|rank| ends(*rank) || plan.link.is_some()));
            }
            Decision::Look => {
                prop_assert!(view.asked.is_none());
                prop_assert!(live.iter().any(|rank| members[*rank].eyes != Eyes::Blind));
            }
            Decision::WaitForSpare { lost, leave, apart, until } => {
                prop_assert!(until > NOW && until <= view.spare_by.unwrap_or(NOW.plus(LIMITS.spare)));
                let parted = [lost, leave, apart].concat();
                let rest = live.iter().filter(|rank| !parted.contains(rank));
                prop_assert!(rest.count() > 0);
            }
            Decision::Queue { why, lost, survivors } => {
                // Nobody who has the state and can say so is given up.
                let keeps = |rank: &usize| {
                    let seat = members[*rank];
                    has_left_the_ring(rank) && seat.presence == Presence::Here && !seat.empty
                };
                let kept = live.iter().any(|rank| keeps(rank) && !lost.contains(rank));
                prop_assert!(survivors || !kept, "{why:?} {lost:?}");
            }
            Decision::Nothing(until) => {
                prop_assert!(until.is_none_or(|until| until > NOW));
                // A ring that broke is not left alone without a time, unless its rank 0 has sent the files: then whoever
                // still trains says soon that it is done or broken, or its session ends.
                let broke = live.iter().any(|rank| matches!(members[*rank].state, MemberState::Waiting { .. }));
                let is_over = members[0].state == MemberState::Gone { done: true };
                prop_assert!(until.is_some() || !broke || is_over);
            }
            Decision::LetGo(ranks) => {
                let may = |rank: &usize| {
                    *rank != 0 && members[*rank].leaving && members[*rank].state == MemberState::Done
                };
                prop_assert!(!ranks.is_empty() && ranks.iter().all(may));
            }
            Decision::End => {
                let all_here = [MemberState::Finished, MemberState::Gone { done: true }];
                prop_assert!(all_here.contains(&members[0].state), "{members:?}");
            }
        }
    }
}
