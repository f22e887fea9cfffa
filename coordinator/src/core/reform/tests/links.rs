//! Who is asked which members it reaches, and who is left out of a ring for it.

use super::*;

fn looks(seat: Seat, eyes: Eyes) -> Seat {
    Seat { eyes, ..seat }
}

/// Whose members were asked so long ago, and which links they found broken.
fn asked(members: &[Seat], since: i64, broken: &[(usize, usize)]) -> View {
    View { asked: Some(ago(since)), broken: broken.iter().copied().collect(), ..view(members) }
}

#[test]
fn who_lost_somebody_that_may_live_asks_who_is_reached() {
    use Eyes::{Blind, Closed, Looking, Open};
    let train = seat(MemberState::Training);
    let broke = [looks(misses(0, 1), Closed), looks(train, Closed), train];
    assert_eq!(decide(&view(&broke)), Decision::Look);
    // Nobody understands the question; nobody is missed; who is missed is gone.
    let blind = broke.map(|seat| looks(seat, Blind));
    assert_eq!(decide(&view(&blind)), later(400));
    let anew = looks(seat(MemberState::Waiting { since: NOW, names: None }), Closed);
    assert_eq!(decide(&view(&[anew, anew])), reform(&[0, 1], &[]));
    let gone = looks(away(MemberState::Training, 5), Closed);
    assert_eq!(decide(&view(&[broke[0], gone])), reform(&[0], &[1]));
    // 1. Asked. Whom somebody missed and who does not even say that it looks is lost.
    let silent = [looks(misses(400, 1), Open), looks(train, Closed), looks(waits(390, 0), Open)];
    assert_eq!(decide(&asked(&silent, 400, &[])), reform(&[0, 2], &[1]));
    let early = [looks(misses(300, 1), Open), looks(train, Closed), looks(waits(290, 0), Open)];
    assert_eq!(decide(&asked(&early, 300, &[])), later(100));
    // 2. One that looks lives: it may not have noticed. It is waited for, but not for ever.
    let members = [looks(misses(700, 1), Open), looks(train, Looking), looks(waits(690, 0), Open)];
    assert_eq!(decide(&asked(&members, 700, &[(0, 1)])), later(1_300));
    let all = Decision::Reform(Plan { stay: vec![0, 1, 2], link: Some((0, 1)), ..Plan::default() });
    assert_eq!(decide(&asked(&members, 2_000, &[])), all);
    // 3. Who is lost for other reasons makes nobody wait.
    let mut gone = members;
    gone[2] = looks(away(MemberState::Training, 100), Closed);
    gone[1] = looks(misses(600, 2), Looking);
    assert_eq!(decide(&asked(&gone, 700, &[])), reform(&[0, 1], &[2]));
}

#[test]
fn the_next_ring_is_made_of_members_that_reach_each_other() {
    let left = |size: usize, broken: &[(usize, usize)]| {
        let members: Vec<Seat> = (0..size).map(|_| looks(waits(500, 0), Eyes::Open)).collect();
        let Decision::Reform(plan) = decide(&asked(&members, 500, broken)) else { panic!("{broken:?}") };
        assert!(plan.lost.is_empty() && plan.leave.is_empty());
        plan.apart
    };
    // Of two the first one goes on.
    assert_eq!(left(2, &[(0, 1)]), [1]);
    assert_eq!(left(3, &[(0, 1)]), [1]);
    assert_eq!(left(3, &[(0, 2)]), [2]);
    // Whom nobody reaches is left out, also rank 0: its clock may be wrong.
    assert_eq!(left(3, &[(0, 1), (0, 2)]), [0]);
    assert_eq!(left(5, &[(0, 3), (1, 3), (2, 3), (3, 4)]), [3]);
    // One after the other.
    assert_eq!(left(5, &[(0, 1), (2, 3)]), [1, 3]);
    assert_eq!(left(5, &[(0, 1), (1, 2), (2, 3), (3, 4)]), [1, 3]);
    assert_eq!(left(3, &[(0, 1), (0, 2), (1, 2)]), [1, 2]);
    assert!(left(3, &[]).is_empty());
    // Who has the state stays.
    let newcomer = Seat { empty: true, ..looks(waits(500, 0), Eyes::Open) };
    let full = looks(waits(500, 0), Eyes::Open);
    let of = |members: &[Seat], broken: &[(usize, usize)]| match decide(&asked(members, 500, broken)) {
        Decision::Reform(plan) => plan.apart,
        other => panic!("{other:?}"),
    };
    assert_eq!(of(&[newcomer, full], &[(0, 1)]), [0]);
    assert_eq!(of(&[newcomer, newcomer, full], &[(0, 2), (1, 2)]), [0, 1]);
    // Too few are left: who is left out is not waited for.
    let two = [full, full];
    let wait =
        Decision::WaitForSpare { lost: vec![], leave: vec![], apart: vec![1], until: NOW.plus(600_000) };
    assert_eq!(decide(&View { min: 2, ..asked(&two, 500, &[(0, 1)]) }), wait);
}
