//! Ranks of one ring: what is held, said and let go.

use proptest::prelude::*;
use ringtune_shared::{
    ids::{Epoch, JobId, WorkerId},
    job::parse_job_toml,
    ring::{Member, RingView},
};

use super::*;

mod rings;

fn job(number: u64) -> JobId {
    JobId(uuid::Uuid::from_u128(u128::from(number) + 1))
}

fn key(number: u64, epoch: u64) -> RankKey {
    RankKey { job: job(number), epoch: Epoch(epoch) }
}

fn assignment(key: RankKey, rank: usize) -> Box<Assignment> {
    let toml = "kind = \"textual_inversion\"\nname = \"n\"\n[model]\nbase = \"/m\"\n[data]\nimages = \"/i\"\n\
        [train]\nplaceholder_token = \"<a>\"\ninitializer_token = \"b\"\n";
    let member = |number: usize| Member { worker: WorkerId::new(), address: format!("h:{}", number + 1) };
    let ring = RingView { job: key.job, epoch: key.epoch, members: (0..=rank).map(member).collect() };
    Box::new(Assignment::new(ring, rank, parse_job_toml(toml).unwrap()))
}

fn step(step: u64) -> StepSummary {
    StepSummary::example(step)
}

fn connected() -> Session {
    let mut session = Session::default();
    session.apply(Event::Connected { re_forms: false, timings: false });
    session
}

fn training(session: &mut Session, key: RankKey, rank: usize) {
    session.apply(Event::Assigned(assignment(key, rank)));
    session.apply(Event::Rank(key, RankEvent::Ready));
    assert!(session.apply(Event::StartRank(key)).contains(&Effect::Train(key)));
}

fn phases(effects: &[Effect]) -> Vec<Phase> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Send(Message::Report { held, .. }) => Some(held.phase),
            _ => None,
        })
        .collect()
}

fn steps(effects: &[Effect]) -> Vec<u64> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Send(Message::Step(_, step)) => Some(step.step),
            _ => None,
        })
        .collect()
}

#[test]
fn a_rank_goes_through_its_phases_and_is_let_go() {
    let mut session = connected();
    let effects = session.apply(Event::Assigned(assignment(key(1, 1), 0)));
    assert!(matches!(effects[1], Effect::Start(_)));
    assert_eq!(phases(&session.apply(Event::Rank(key(1, 1), RankEvent::Ready))), [Phase::Ready]);
    // Only a ready rank trains, and only once.
    assert_eq!(phases(&session.apply(Event::StartRank(key(1, 1)))), [Phase::Training]);
    assert!(session.apply(Event::StartRank(key(1, 1))).is_empty());
    assert_eq!(steps(&session.apply(Event::Rank(key(1, 1), RankEvent::Step(step(1))))), [1]);
    assert_eq!(phases(&session.apply(Event::Rank(key(1, 1), RankEvent::Finished))), [Phase::Finished]);
    assert_eq!(session.held()[0].phase, Phase::Finished);
    assert!(session.is_idle());
    session.apply(Event::Stop { key: key(1, 1), keep_artifacts: false });
    assert!(session.held().is_empty());
}

#[test]
fn what_happened_while_the_coordinator_was_away_is_said_when_it_is_back() {
    let mut session = connected();
    training(&mut session, key(1, 1), 0);
    session.apply(Event::Rank(key(1, 1), RankEvent::Step(step(1))));
    session.apply(Event::Rank(key(1, 1), RankEvent::Step(step(2))));
    session.apply(Event::StepsStored(key(1, 1), 1));
    session.apply(Event::Disconnected);
    for event in [RankEvent::Step(step(3)), RankEvent::Finished] {
        assert!(session.apply(Event::Rank(key(1, 1), event)).is_empty());
    }
    // The hello must not let the coordinator end the job before it has the steps.
    assert_eq!(session.held_for_hello()[0].phase, Phase::Training);
    let effects = session.apply(Event::Connected { re_forms: false, timings: false });
    assert_eq!((steps(&effects), phases(&effects)), (vec![2, 3], vec![Phase::Finished]));
    session.apply(Event::StepsStored(key(1, 1), 3));
    assert_eq!(session.held_for_hello()[0].phase, Phase::Finished);
}

#[test]
fn only_rank_0_sends_steps_but_all_show_how_far_they_are() {
    let mut session = connected();
    training(&mut session, key(1, 1), 1);
    assert!(session.apply(Event::Rank(key(1, 1), RankEvent::Step(step(7)))).is_empty());
    assert_eq!(session.held()[0].step, 7);
}

#[test]
fn a_resumed_rank_that_has_no_step_left_finishes_with_the_step_that_it_resumed_after() {
    let mut session = connected();
    training(&mut session, key(1, 1), 0);
    let entered = RankEvent::Entered { epoch: Epoch(1), step: 7 };
    assert_eq!(phases(&session.apply(Event::Rank(key(1, 1), entered))), [Phase::Training]);
    let effects = session.apply(Event::Rank(key(1, 1), RankEvent::Finished));
    assert!(matches!(&effects[..], [Effect::Send(Message::Report { held, .. })]
        if held.phase == Phase::Finished && held.step == 7));
}

#[test]
fn a_cancelled_rank_is_held_until_it_is_let_go_and_a_dropped_one_is_not() {
    for keep_artifacts in [true, false] {
        let mut session = connected();
        training(&mut session, key(1, 1), 0);
        let stop = Event::Stop { key: key(1, 1), keep_artifacts };
        let end = vec![Effect::End { key: key(1, 1), keep_artifacts }];
        assert_eq!(session.apply(stop.clone()), end);
        assert!(session.apply(stop).is_empty(), "asking twice changes nothing");
        session.apply(Event::Rank(key(1, 1), RankEvent::Stopped));
        assert_eq!(session.held().len(), usize::from(keep_artifacts));
        session.apply(Event::Stop { key: key(1, 1), keep_artifacts: false });
        assert!(session.held().is_empty());
    }
}

#[test]
fn dropping_overrules_keeping() {
    let mut session = connected();
    training(&mut session, key(1, 1), 0);
    session.apply(Event::Stop { key: key(1, 1), keep_artifacts: true });
    let effects = session.apply(Event::Stop { key: key(1, 1), keep_artifacts: false });
    assert_eq!(effects, [Effect::End { key: key(1, 1), keep_artifacts: false }]);
    assert!(session.apply(Event::Stop { key: key(1, 1), keep_artifacts: true }).is_empty());
}

#[test]
fn a_rank_beside_a_running_one_is_refused_unless_that_one_is_ending() {
    let mut session = connected();
    training(&mut session, key(1, 1), 0);
    let effects = session.apply(Event::Assigned(assignment(key(2, 1), 0)));
    assert_eq!(phases(&effects), [Phase::Failed]);
    session.apply(Event::Stop { key: key(1, 1), keep_artifacts: false });
    let effects = session.apply(Event::Assigned(assignment(key(3, 1), 0)));
    assert_eq!(phases(&effects), [Phase::Preparing], "it waits");
    let effects = session.apply(Event::Rank(key(1, 1), RankEvent::Stopped));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Start(next) if next.key() == key(3, 1))));
}

#[test]
fn a_newer_epoch_replaces_an_older_one_and_never_the_other_way_round() {
    let mut session = connected();
    training(&mut session, key(1, 2), 0);
    assert!(session.apply(Event::Assigned(assignment(key(1, 1), 0))).is_empty());
    let effects = session.apply(Event::Assigned(assignment(key(1, 3), 0)));
    assert!(effects.contains(&Effect::End { key: key(1, 2), keep_artifacts: false }));
    // What is held is the newer one, from here on; what the older one says is not about it.
    assert_eq!(session.held().iter().map(|held| held.key).collect::<Vec<_>>(), [key(1, 3)]);
    assert!(session.apply(Event::Rank(key(1, 2), RankEvent::Step(step(9)))).is_empty());
    assert!(session.apply(Event::Stop { key: key(1, 2), keep_artifacts: true }).is_empty());
    assert_eq!((session.running(), session.place()), (Some(key(1, 2)), None));
    let effects = session.apply(Event::Rank(key(1, 2), RankEvent::Stopped));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Start(next) if next.key() == key(1, 3))));
    assert_eq!(session.held().iter().map(|held| held.key).collect::<Vec<_>>(), [key(1, 3)]);
}

/// Found by [`whatever_comes`]: it waited for its own end, as if for another ring's.
#[test]
fn what_is_let_go_while_it_ends_does_not_begin_again_in_the_same_ring() {
    let mut session = connected();
    session.apply(Event::Assigned(assignment(key(1, 1), 0)));
    session.apply(Event::Assigned(assignment(key(1, 2), 0)));
    session.apply(Event::Stop { key: key(1, 2), keep_artifacts: false });
    assert!(session.apply(Event::Assigned(assignment(key(1, 1), 0))).is_empty());
    assert!(session.apply(Event::Stop { key: key(1, 1), keep_artifacts: true }).is_empty());
    session.apply(Event::Assigned(assignment(key(1, 3), 0)));
    let effects = session.apply(Event::Rank(key(1, 1), RankEvent::Stopped));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Start(next) if next.key() == key(1, 3))));
}

#[test]
fn a_worker_that_ends_keeps_what_its_rank_has_and_fails_it_with_the_reason() {
    let mut session = connected();
    training(&mut session, key(1, 1), 0);
    let effects = session.apply(Event::Drain);
    assert_eq!(effects, [Effect::End { key: key(1, 1), keep_artifacts: true }]);
    assert!(!session.is_idle());
    // Files that cannot be uploaded in time are lost.
    let effects = session.apply(Event::DrainIsOver);
    assert_eq!(effects, [Effect::End { key: key(1, 1), keep_artifacts: false }]);
    let effects = session.apply(Event::Rank(key(1, 1), RankEvent::Stopped));
    assert_eq!(phases(&effects), [Phase::Failed]);
    assert_eq!(session.held()[0].fault, Some(Fault::Nobody));
    assert!(session.is_idle());
    let effects = session.apply(Event::Assigned(assignment(key(2, 1), 0)));
    assert_eq!(phases(&effects), [Phase::Failed]);
}

#[test]
fn a_worker_that_ends_keeps_nothing_that_was_to_be_dropped() {
    let mut session = connected();
    training(&mut session, key(1, 1), 0);
    session.apply(Event::Stop { key: key(1, 1), keep_artifacts: false });
    assert!(session.apply(Event::Drain).is_empty());
    assert!(session.apply(Event::DrainIsOver).is_empty());
}

#[test]
fn a_failure_says_whose_fault_it_is() {
    for fault in [Fault::Job, Fault::Node] {
        let mut session = connected();
        training(&mut session, key(1, 1), 0);
        session.apply(Event::Rank(key(1, 1), RankEvent::Failed { reason: "r".to_owned(), fault }));
        assert_eq!(session.held()[0].fault, Some(fault));
    }
    // A rank that there is no room for here.
    let mut session = connected();
    training(&mut session, key(1, 1), 0);
    session.apply(Event::Assigned(assignment(key(2, 1), 0)));
    assert_eq!(session.held().iter().map(|held| held.fault).collect::<Vec<_>>(), [None, Some(Fault::Node)]);
}

#[test]
fn an_assignment_that_cannot_be_read_is_answered() {
    let mut session = connected();
    let reason = "spec: train.resolution".to_owned();
    let effects = session.apply(Event::Unreadable { key: key(1, 1), rank: Some(2), reason: reason.clone() });
    assert!(matches!(&effects[..], [Effect::Send(Message::Report { held, .. })]
        if held.phase == Phase::Failed && held.reason == reason && held.rank == Some(2)));
}

#[derive(Clone, Debug)]
enum Move {
    Connect,
    Disconnect,
    Assign(u64, u64, usize),
    Start(u64, u64),
    Stop(u64, u64, bool),
    Stored(u64, u64, u64),
    /// A ring of this epoch; without a place (2), at once or after a step.
    Enter(u64, u64, usize, bool),
    /// The running rank's work says its next word: 0 ready, 1 step, 2 finished, 3 failed, 4 lost, 5 stopped, 6 waiting,
    /// 7 entered, 8 done.
    Work(u8),
}

fn moves() -> impl Strategy<Value = Move> {
    let (jobs, epochs) = (0..3u64, 1..5u64);
    prop_oneof![
        Just(Move::Connect),
        Just(Move::Disconnect),
        (jobs.clone(), epochs.clone(), 0..2usize).prop_map(|(j, e, r)| Move::Assign(j, e, r)),
        (jobs.clone(), epochs.clone()).prop_map(|(j, e)| Move::Start(j, e)),
        (jobs.clone(), epochs.clone(), any::<bool>()).prop_map(|(j, e, k)| Move::Stop(j, e, k)),
        (jobs.clone(), epochs.clone(), 0..20u64).prop_map(|(j, e, s)| Move::Stored(j, e, s)),
        (jobs, epochs, 0..3usize, any::<bool>()).prop_map(|(j, e, r, a)| Move::Enter(j, e, r, a)),
        (0..9u8).prop_map(Move::Work),
        (0..9u8).prop_map(Move::Work),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever comes in whatever order: one rank's work at a time, started once and only for a held rank; an
    /// ending is asked for only of what runs; nothing is said without a session; and in the end everything can be
    /// let go.
    #[test]
    fn whatever_comes(moves in prop::collection::vec(moves(), 0..60)) {
        let mut session = Session::default();
        let (mut up, mut running, mut started, mut count) = (false, None::<RankKey>, Vec::new(), 0);
        for next in moves {
            let event = match next {
                Move::Connect => { up = true; Event::Connected { re_forms: count % 2 == 0, timings: false } }
                Move::Disconnect => { up = false; Event::Disconnected }
                Move::Assign(j, e, rank) => Event::Assigned(assignment(key(j, e), rank)),
                Move::Start(j, e) => Event::StartRank(key(j, e)),
                Move::Stop(j, e, keep_artifacts) => Event::Stop { key: key(j, e), keep_artifacts },
                Move::Stored(j, e, s) => Event::StepsStored(key(j, e), s),
                Move::Enter(j, e, rank, after_step) => {
                    let place = (rank < 2).then_some(rank);
                    Event::EnterRing(Box::new(rings::next(key(j, e), place, after_step)))
                }
                Move::Work(word) => {
                    let Some(key) = running else { continue };
                    count += 1;
                    let event = match word {
                        0 => RankEvent::Ready,
                        1 => RankEvent::Step(step(count)),
                        2 => RankEvent::Finished,
                        3 => RankEvent::Failed { reason: "f".to_owned(), fault: Fault::Job },
                        4 => RankEvent::NeighbourLost("n".to_owned()),
                        5 => RankEvent::Stopped,
                        6 => RankEvent::Waiting { epoch: key.epoch, step: count, trouble: None },
                        7 => RankEvent::Entered { epoch: key.epoch, step: count },
                        _ => RankEvent::Done { epoch: key.epoch },
                    };
                    if event.is_last() { running = None; }
                    Event::Rank(key, event)
                }
            };
            for effect in session.apply(event) {
                match effect {
                    Effect::Send(_) => prop_assert!(up),
                    Effect::Start(assignment) => {
                        prop_assert_eq!(running, None);
                        running = Some(assignment.key());
                        started.push(assignment.key());
                    }
                    Effect::Train(key)
                    | Effect::Enter(key, _)
                    | Effect::Stored(key, _)
                    | Effect::End { key, .. } => prop_assert_eq!(running, Some(key)),
                }
            }
            prop_assert_eq!(session.running(), running);
            prop_assert!(session.held().iter().all(|held| started.iter().any(|key| key.job == held.key.job)
                || held.phase != Phase::Training && held.phase != Phase::Finished && held.phase != Phase::Ready));
        }
        // Let go of everything.
        for _ in 0..4 {
            let held: Vec<RankKey> = session.held().iter().map(|held| held.key).collect();
            for key in held {
                session.apply(Event::Stop { key, keep_artifacts: false });
            }
            if let Some(running) = session.running() {
                session.apply(Event::Rank(running, RankEvent::Stopped));
            }
        }
        prop_assert!(session.held().is_empty() && session.is_idle());
    }
}
