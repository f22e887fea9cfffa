//! Members and joiners whose certificates are revoked.

use super::*;

#[test]
fn a_member_whose_certificate_is_revoked_is_lost_at_once() {
    for session in [true, false] {
        let mut world = World::training(3, 1, 0);
        world.step(0, 1, 1, "one");
        let Sender { worker, session: current } = world.workers[1];
        world.apply(Input::Evicted { worker, session: session.then_some(current) });
        assert_eq!(world.told_to_enter(), [(0, 2, Some(0), false), (2, 2, Some(1), false)]);
        assert_eq!(world.job().reason, "re-forming the ring: rank 1 on host-1 was lost");
        let why = "rank 1 on host-1: its certificate was revoked";
        assert!(world.notes.iter().any(|note| note == why), "{:?}", world.notes);
        let known = world.cluster.worker(worker).unwrap();
        assert_eq!((known.session, world.cluster.worker_state(known)), (None, WorkerState::Lost));
        assert_eq!(world.cluster.place_of(worker), None);
        // With a certificate that is good it takes ranks again, as soon as it has let go of the old one.
        world.hello(1, 1, vec![world.held(1, Some(1), Phase::Training)]);
        assert!(world.told.iter().any(|(one, told)| *one == 1 && matches!(told, Down::StopRank { .. })));
        world.apply(Input::Heartbeat(world.workers[1], Vec::new()));
        assert!(matches!(world.cluster.place_of(worker), Some(RingPlace::Joins(_))));
    }
}

#[test]
fn an_older_sessions_certificate_evicts_nobody() {
    let mut world = World::training(2, 1, 0);
    let Sender { worker, session } = world.workers[1];
    world.hello(1, 1, vec![world.held(1, Some(1), Phase::Training)]);
    world.apply(Input::Evicted { worker, session: Some(session) });
    assert!(world.cluster.worker(worker).unwrap().session.is_some());
    assert_eq!(world.told_to_enter(), []);
    let nobody = WorkerId::new();
    world.apply(Input::Evicted { worker: nobody, session: None });
    assert_eq!(world.job().rings, 1);
}

#[test]
fn a_member_that_is_away_and_a_joiner_can_be_evicted() {
    let mut world = World::training(2, 1, 1);
    let Sender { worker: away, .. } = world.workers[1];
    world.go(1);
    assert_eq!(world.told_to_enter(), [], "it may come back");
    world.apply(Input::Evicted { worker: away, session: None });
    assert_eq!(world.told_to_enter(), [(0, 2, Some(0), false)]);
    let Sender { worker: joiner, session } = world.workers[2];
    assert!(matches!(world.cluster.place_of(joiner), Some(RingPlace::Joins(_))));
    world.apply(Input::Evicted { worker: joiner, session: Some(session) });
    assert_eq!(world.cluster.place_of(joiner), None);
    let why = "host-2 does not join the ring: its certificate was revoked";
    assert!(world.notes.iter().any(|note| note == why), "{:?}", world.notes);
}
