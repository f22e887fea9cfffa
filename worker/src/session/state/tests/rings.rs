//! A rank's life through several rings.

use super::*;
use crate::ring::{Trouble, TroubleKind};

/// A ring of two, of which this worker is `rank`.
pub(super) fn next(key: RankKey, rank: Option<usize>, after_step: bool) -> NextRing {
    let RingView { members, .. } = assignment(key, 1).ring;
    NextRing {
        view: RingView { job: key.job, epoch: key.epoch, members },
        rank,
        protocol: ringtune_shared::version::RING_PROTOCOLS.max,
        after_step,
        reason: "rank 1 was lost".to_owned(),
        orders: Vec::new(),
    }
}

fn enter(key: RankKey, rank: Option<usize>, after_step: bool) -> Event {
    Event::EnterRing(Box::new(next(key, rank, after_step)))
}

fn re_forming() -> Session {
    let mut session = Session::default();
    session.apply(Event::Connected { re_forms: true, timings: false });
    session
}

fn says(session: &mut Session, life: RankKey, event: RankEvent) -> Vec<Effect> {
    session.apply(Event::Rank(life, event))
}

fn trouble() -> Option<Trouble> {
    Some(Trouble { kind: TroubleKind::Closed, rank: 1, text: "rank 1 was lost".to_owned() })
}

fn broken(epoch: u64, step: u64) -> RankEvent {
    RankEvent::Waiting { epoch: Epoch(epoch), step, trouble: trouble() }
}

fn entered(epoch: u64, step: u64) -> RankEvent {
    RankEvent::Entered { epoch: Epoch(epoch), step }
}

/// Epoch, rank, phase and step of the only rank that is held.
fn shown(session: &Session) -> (u64, Option<usize>, Phase, u64) {
    let held = session.held().remove(0);
    (held.key.epoch.0, held.rank, held.phase, held.step)
}

#[test]
fn a_rank_whose_ring_broke_waits_and_goes_on_in_the_next_one() {
    let (mut session, life) = (re_forming(), key(1, 1));
    training(&mut session, life, 1);
    for number in 1..=3 {
        assert!(says(&mut session, life, RankEvent::Step(step(number))).is_empty());
    }
    says(&mut session, life, RankEvent::Stored(1));
    // 1. It says what it saw.
    let effects = says(&mut session, life, broken(1, 3));
    assert!(matches!(&effects[..], [Effect::Send(Message::Report { held, .. })]
        if held.phase == Phase::Waiting && held.step == 3 && held.trouble == trouble()));
    // 2. In the next ring it is rank 0: the life hears of it, and nothing of the old trouble is shown.
    let effects = session.apply(enter(key(1, 2), Some(0), false));
    assert!(matches!(&effects[..], [Effect::Enter(of, ring)] if *of == life && ring.rank == Some(0)));
    assert_eq!((shown(&session), session.held()[0].trouble.clone()), ((2, Some(0), Phase::Ready, 3), None));
    assert_eq!((session.running(), session.place()), (Some(life), Some(0)));
    // 3. It sends what the old rank 0 may not have sent, and what it does from here on.
    let effects = says(&mut session, life, entered(2, 3));
    assert_eq!((phases(&effects), steps(&effects)), (vec![Phase::Training], vec![2, 3]));
    let effects = says(&mut session, life, RankEvent::Step(step(4)));
    assert!(matches!(effects[..], [Effect::Send(Message::Step(of, _))] if of == key(1, 2)));
    // 4. Under the old epoch, too, it hears what is stored; then nothing is left to say.
    let effects = session.apply(Event::StepsStored(key(1, 1), 4));
    assert_eq!(effects, [Effect::Stored(life, 4)]);
    assert!(steps(&session.apply(Event::Connected { re_forms: true, timings: false })).is_empty());
}

#[test]
fn what_a_life_says_of_an_older_ring_is_not_taken_for_the_newer_one() {
    let (mut session, life) = (re_forming(), key(1, 1));
    training(&mut session, life, 0);
    session.apply(enter(key(1, 2), Some(0), false));
    says(&mut session, life, broken(1, 5));
    assert_eq!((shown(&session), session.held()[0].trouble.clone()), ((2, Some(0), Phase::Ready, 5), None));
    assert!(says(&mut session, life, entered(1, 5)).is_empty());
    assert!(says(&mut session, life, RankEvent::Done { epoch: Epoch(1) }).is_empty());
    assert_eq!(shown(&session).2, Phase::Ready);
    // Said again after a reconnect, or late.
    assert_eq!(phases(&session.apply(enter(key(1, 2), Some(0), false))), [Phase::Ready]);
    assert!(session.apply(enter(key(1, 1), Some(0), false)).is_empty());
}

#[test]
fn a_ring_that_is_whole_is_left_after_the_step() {
    let (mut session, life) = (re_forming(), key(1, 1));
    training(&mut session, life, 0);
    session.apply(enter(key(1, 2), Some(0), true));
    assert_eq!(shown(&session), (2, Some(0), Phase::Training, 0));
    says(&mut session, life, RankEvent::Step(step(8)));
    let left = RankEvent::Waiting { epoch: Epoch(1), step: 8, trouble: None };
    assert_eq!(phases(&says(&mut session, life, left.clone())), [Phase::Ready]);
    says(&mut session, life, entered(2, 8));
    assert_eq!(shown(&session), (2, Some(0), Phase::Training, 8));
    // A rank that hears of it from its neighbours only waits for its coordinator.
    let left = RankEvent::Waiting { epoch: Epoch(2), step: 9, trouble: None };
    assert_eq!(phases(&says(&mut session, life, left)), [Phase::Waiting]);
}

#[test]
fn a_joiner_has_no_rank_until_it_enters_a_ring() {
    let (mut session, life) = (re_forming(), key(1, 3));
    let joiner = Box::new(Assignment { rank: None, ..*assignment(life, 1) });
    let effects = session.apply(Event::Assigned(joiner));
    assert!(matches!(&effects[1], Effect::Start(given) if given.re_forms));
    says(&mut session, life, RankEvent::Ready);
    assert!(session.apply(Event::StartRank(life)).is_empty());
    assert_eq!((shown(&session), session.place()), ((3, None, Phase::Ready, 0), None));
    session.apply(enter(key(1, 4), Some(1), true));
    assert!(session.apply(Event::StartRank(key(1, 4))).is_empty());
    says(&mut session, life, entered(4, 6));
    assert_eq!(shown(&session), (4, Some(1), Phase::Training, 6));
    // Its word to end may name any epoch since it was assigned.
    let stop = Event::Stop { key: key(1, 3), keep_artifacts: false };
    assert_eq!(session.apply(stop), [Effect::End { key: life, keep_artifacts: false }]);
}

#[test]
fn a_ring_for_a_job_that_nobody_works_on_here_is_answered_with_a_failure_of_the_node() {
    // 1. Never held.
    let mut session = re_forming();
    let effects = session.apply(enter(key(1, 2), Some(1), false));
    assert!(matches!(&effects[..], [Effect::Send(Message::Report { held, .. })]
        if held.phase == Phase::Failed && held.fault == Some(Fault::Node) && held.key == key(1, 2)));
    assert!(session.apply(enter(key(2, 2), None, false)).is_empty());
    // 2. Ended.
    for (ended, fault, reason) in [
        (RankEvent::Finished, Fault::Node, "ended already"),
        (RankEvent::Failed { reason: "no disk".to_owned(), fault: Fault::Node }, Fault::Node, "no disk"),
        (RankEvent::Failed { reason: "no cat".to_owned(), fault: Fault::Job }, Fault::Job, "no cat"),
    ] {
        let (mut session, life) = (re_forming(), key(1, 1));
        training(&mut session, life, 0);
        says(&mut session, life, ended);
        let effects = session.apply(enter(key(1, 2), Some(1), false));
        assert!(matches!(&effects[..], [Effect::Send(Message::Report { held, .. })]
            if held.phase == Phase::Failed && held.fault == Some(fault) && held.reason.contains(reason)));
        assert!(session.is_idle());
        // Without a place in the next one it is let go.
        session.apply(enter(key(1, 3), None, false));
        assert!(session.held().is_empty());
    }
}

#[test]
fn a_worker_that_ends_leaves_its_ring_and_says_nothing_more_once_it_is_let_go() {
    let (mut session, life) = (re_forming(), key(1, 1));
    training(&mut session, life, 1);
    let effects = session.apply(Event::Drain);
    assert!(matches!(&effects[..], [Effect::Send(Message::Report { held, .. })]
        if held.leaving && held.phase == Phase::Training));
    assert!(session.apply(Event::Drain).len() == 1 && !session.is_idle());
    let effects = session.apply(enter(key(1, 2), None, true));
    assert!(matches!(&effects[..], [Effect::Enter(_, ring)] if ring.rank.is_none()));
    assert_eq!(shown(&session).0, 1, "it is in no newer ring");
    assert_eq!(phases(&says(&mut session, life, RankEvent::Stopped)), [Phase::Stopped]);
    assert!(session.held().is_empty() && session.is_idle());
}

#[test]
fn a_worker_that_is_not_let_go_in_time_keeps_what_it_has() {
    let (mut session, life) = (re_forming(), key(1, 1));
    training(&mut session, life, 0);
    session.apply(Event::Drain);
    let end = |keep_artifacts| [Effect::End { key: life, keep_artifacts }];
    assert_eq!(session.apply(Event::LeaveIsOver), end(true));
    assert_eq!(session.apply(Event::DrainIsOver), end(false));
    assert_eq!(phases(&says(&mut session, life, RankEvent::Stopped)), [Phase::Failed]);
    // A rank that the coordinator stopped instead has not failed.
    let mut session = re_forming();
    training(&mut session, life, 0);
    session.apply(Event::Drain);
    assert_eq!(session.apply(Event::Stop { key: life, keep_artifacts: true }), end(true));
    assert!(session.apply(Event::LeaveIsOver).is_empty());
    assert_eq!(phases(&says(&mut session, life, RankEvent::Stopped)), [Phase::Stopped]);
    // Nor does one wait to be let go that only prepares, or that nobody hears.
    let mut preparing = re_forming();
    preparing.apply(Event::Assigned(assignment(life, 0)));
    let mut unheard = re_forming();
    training(&mut unheard, life, 0);
    unheard.apply(Event::Disconnected);
    for session in [&mut preparing, &mut unheard] {
        assert_eq!(session.apply(Event::Drain), end(true));
    }
}

#[test]
fn a_rank_that_is_done_is_held_and_shown_so_with_steps_that_are_not_its_own_to_send() {
    let (mut session, life) = (re_forming(), key(1, 1));
    training(&mut session, life, 1);
    says(&mut session, life, RankEvent::Step(step(1)));
    says(&mut session, life, RankEvent::Done { epoch: Epoch(1) });
    assert_eq!(session.held_for_hello()[0].phase, Phase::Done);
    assert!(!session.is_idle());
    // Rank 0 is lost before its files are kept.
    session.apply(enter(key(1, 2), Some(0), false));
    assert_eq!(steps(&says(&mut session, life, entered(2, 1))), [1]);
    says(&mut session, life, RankEvent::Finished);
    assert_eq!(session.held_for_hello()[0].phase, Phase::Training, "its step is not stored yet");
}

#[test]
fn a_new_rank_0_sends_no_step_before_the_ones_that_the_last_one_may_not_have_sent() {
    let (mut session, life) = (re_forming(), key(1, 1));
    training(&mut session, life, 1);
    says(&mut session, life, entered(1, 0));
    says(&mut session, life, RankEvent::Step(step(1)));
    // It ends the step in the old ring, where it was not rank 0.
    session.apply(enter(key(1, 2), Some(0), true));
    assert!(steps(&says(&mut session, life, RankEvent::Step(step(2)))).is_empty());
    // A ring that it never entered leaves that as it is.
    session.apply(enter(key(1, 3), Some(0), false));
    assert!(steps(&says(&mut session, life, RankEvent::Step(step(3)))).is_empty());
    assert_eq!(steps(&says(&mut session, life, entered(3, 3))), [1, 2, 3]);
    assert_eq!(steps(&says(&mut session, life, RankEvent::Step(step(4)))), [4]);
    // As above, with another ring announced before it reports that it entered this one.
    session.apply(enter(key(1, 4), Some(1), false));
    session.apply(enter(key(1, 5), Some(0), false));
    session.apply(enter(key(1, 6), Some(0), true));
    assert_eq!(steps(&says(&mut session, life, entered(5, 4))), [1, 2, 3, 4]);
    // A rank that stays rank 0 has reported all of them.
    session.apply(enter(key(1, 7), Some(0), true));
    assert_eq!(steps(&says(&mut session, life, RankEvent::Step(step(5)))), [5]);
}

#[test]
fn a_rank_0_that_has_finished_is_finished_in_a_later_ring_too() {
    let (mut session, life) = (re_forming(), key(1, 1));
    training(&mut session, life, 0);
    says(&mut session, life, RankEvent::Step(step(1)));
    says(&mut session, life, RankEvent::Finished);
    // The coordinator had not heard of it.
    let effects = session.apply(enter(key(1, 2), Some(0), true));
    assert_eq!((steps(&effects), phases(&effects)), (vec![1], vec![Phase::Finished]));
    assert_eq!(shown(&session), (2, Some(0), Phase::Finished, 1));
    // Another rank's work would be to do again.
    session.apply(enter(key(1, 3), Some(1), false));
    assert_eq!(shown(&session).2, Phase::Failed);
}

#[test]
fn a_rank_that_ends_with_what_it_has_says_its_steps_as_well() {
    let (mut session, life) = (re_forming(), key(1, 1));
    training(&mut session, life, 1);
    (1..=2).for_each(|number| drop(says(&mut session, life, RankEvent::Step(step(number)))));
    says(&mut session, life, broken(1, 2));
    let effects = session.apply(Event::Stop { key: life, keep_artifacts: true });
    assert_eq!(steps(&effects), [1, 2]);
    assert!(effects.contains(&Effect::End { key: life, keep_artifacts: true }));
    // Again after a reconnect, until they are stored.
    assert_eq!(steps(&session.apply(Event::Connected { re_forms: true, timings: false })), [1, 2]);
    session.apply(Event::StepsStored(life, 2));
    assert!(steps(&session.apply(Event::Connected { re_forms: true, timings: false })).is_empty());
}

#[test]
fn a_rank_says_what_its_own_steps_take_to_a_coordinator_that_wants_to_know() {
    let mut session = Session::default();
    session.apply(Event::Connected { re_forms: true, timings: true });
    let life = key(1, 1);
    training(&mut session, life, 1);
    let long = |number, epoch| StepSummary {
        epoch: Epoch(epoch),
        step_seconds: 1.5,
        compute_seconds: 0.5,
        ..step(number)
    };
    let told = |effects: &[Effect]| match effects {
        [Effect::Send(Message::Timings(key, rank, timings))] => {
            Some((key.epoch.0, *rank, timings.step, timings.compute_seconds))
        }
        [] => None,
        other => panic!("{other:?}"),
    };
    let says = |session: &mut Session, step| told(&says(session, life, RankEvent::Step(step)));
    assert_eq!(says(&mut session, long(1, 1)), Some((1, 1, 1, 0.5)));
    // A step that was taken in an older ring may be another rank's.
    session.apply(enter(key(1, 2), Some(1), false));
    assert_eq!(says(&mut session, long(1, 1)), None);
    assert_eq!(says(&mut session, long(2, 2)), Some((2, 1, 2, 0.5)));
    // Not sent now, nor later.
    session.apply(Event::Disconnected);
    assert_eq!(says(&mut session, long(3, 2)), None);
    let again = session.apply(Event::Connected { re_forms: true, timings: false });
    assert!(again.iter().all(|effect| !matches!(effect, Effect::Send(Message::Timings(..)))));
    // A coordinator that does not know what it would be is not told.
    assert_eq!(says(&mut session, long(4, 2)), None);
}
