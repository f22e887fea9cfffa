//! Rings whose members do not all reach each other.

use ringtune_shared::version::Dialect;

use super::*;

/// A ring of three, and a free worker; ranks 0 and 1 do not reach each other any more.
fn broken_link() -> World {
    let mut world = World::training(3, 1, 0);
    world.step(0, 1, 1, "one");
    world.broken.insert((0, 1));
    world.waits(1, 1, 1, 0);
    world.waits(2, 1, 2, 1);
    world.waits(0, 1, 0, 2);
    world
}

/// How often the notes say so.
fn said(world: &World, text: &str) -> usize {
    world.notes.iter().filter(|note| note.contains(text)).count()
}

#[test]
fn the_ring_goes_on_at_once_without_the_end_of_a_link_that_does_not_work() {
    let mut world = broken_link();
    assert_eq!(world.told_to_enter(), [(0, 2, Some(0), false), (2, 2, Some(1), false)]);
    let left_out = "rank 1 on host-1 is left out of the ring: rank 0 on host-0 does not reach rank 1 on host-1: \
                    127.0.0.1:1: it did not answer. It is tried again in 10 s";
    assert_eq!(said(&world, left_out), 1, "{:?}", world.notes);
    // Nothing is wrong with the worker itself: other jobs may have it at once.
    let worker = world.cluster.worker(world.workers[1].worker).unwrap();
    assert_eq!((worker.rests_until, worker.failures), (None, 0));
}

#[test]
fn who_was_left_out_comes_back_when_its_links_work_and_stops_nobody_before() {
    let mut world = broken_link();
    world.say(0, 2, Some(0), Phase::Training);
    world.say(2, 2, Some(1), Phase::Training);
    world.apply(Input::Heartbeat(world.workers[1], Vec::new()));
    world.told_to_enter();
    let mut waited = Vec::new();
    for _ in 0..4 {
        let since = world.now;
        while !matches!(world.cluster.place_of(world.workers[1].worker), Some(RingPlace::Joins(_))) {
            world.pass(1, &[]);
            assert!(world.now.0 - since.0 < 200_000, "it never joins: {:?}", world.notes);
        }
        waited.push((world.now.0 - since.0 + 500) / 1000);
        // It prepares, and then the link is tried: nobody in the ring hears of it.
        world.say(1, 2, None, Phase::Ready);
        assert_eq!(world.told_to_enter(), []);
        assert_eq!(world.cluster.place_of(world.workers[1].worker), None);
        world.apply(Input::Heartbeat(world.workers[1], Vec::new()));
    }
    assert!(
        waited.iter().zip([10, 20, 40, 80]).all(|(waited, wanted)| waited.abs_diff(wanted) <= 1),
        "{waited:?}"
    );
    assert_eq!(said(&world, "host-1 does not join the ring: rank 0 on host-0 does not reach host-1"), 4);
    // The link works again.
    world.broken.clear();
    world.pass(162, &[]);
    world.say(1, 2, None, Phase::Ready);
    let entering = [(0, 3, Some(0), true), (2, 3, Some(1), true), (1, 3, Some(2), true)];
    assert_eq!(world.told_to_enter(), entering);
}

#[test]
fn one_that_does_not_answer_is_lost_and_one_that_has_not_noticed_is_not() {
    // The ring is being formed: rank 1 waits for rank 0, which does not reach it.
    let mut world = World::training(2, 1, 0);
    world.broken.insert((0, 1));
    world.waits(0, 1, 0, 1);
    world.pass(1, &[]);
    assert_eq!(world.told_to_enter(), [(0, 2, Some(0), false)]);
    assert_eq!(said(&world, "rank 1 on host-1 is left out of the ring"), 1, "{:?}", world.notes);
    // It hangs.
    let mut world = World::training(2, 1, 0);
    world.mute.insert(1);
    world.waits(0, 1, 0, 1);
    world.pass(1, &[1]);
    assert_eq!(world.told_to_enter(), [(0, 2, Some(0), false)]);
    assert_eq!(said(&world, "rank 1 on host-1 was lost: "), 1, "{:?}", world.notes);
}

#[test]
fn too_few_that_reach_each_other_wait_and_the_link_is_tried_again_soon() {
    let mut world = World::training(2, 2, 0);
    world.step(0, 1, 1, "one");
    world.broken.insert((1, 0));
    world.waits(1, 1, 1, 0);
    world.waits(0, 1, 0, 1);
    assert_eq!(world.job().reason, "1 rank(s) left, 2 needed: waiting for another worker");
    world.apply(Input::Heartbeat(world.workers[1], Vec::new()));
    for _ in 0..5 {
        world.pass(31, &[]);
        assert!(matches!(world.cluster.place_of(world.workers[1].worker), Some(RingPlace::Joins(_))));
        world.say(1, 1, None, Phase::Ready);
        world.apply(Input::Heartbeat(world.workers[1], Vec::new()));
    }
    world.broken.clear();
    world.pass(31, &[]);
    world.told.clear();
    world.say(1, 1, None, Phase::Ready);
    assert_eq!(world.told_to_enter(), [(0, 2, Some(0), false), (1, 2, Some(1), false)]);
}

#[test]
fn workers_that_cannot_say_whom_they_reach_are_treated_as_before() {
    let mut world = World::training(2, 1, 0);
    for number in 0..2 {
        let held = world.told_place(number).into_iter().collect();
        let session = SessionId(world.workers[number].session.0 + 100);
        world.workers[number].session = session;
        let mut dialect = Dialect::ours();
        dialect.features.retain(|feature| feature != ringtune_shared::version::LINKS);
        let hello = Hello { worker: world.workers[number].worker, held, dialect, ..hello(number as u64) };
        world.apply(Input::Hello { session, hello });
    }
    world.broken.insert((0, 1));
    for epoch in 1..=3 {
        assert!(world.told_to_enter().len() <= 2);
        world.waits(1, epoch, 1, 0);
        world.waits(0, epoch, 0, 1);
    }
    // The third time in a row one of the two is left out.
    assert_eq!(world.told_to_enter(), [(0, 4, Some(0), false)]);
    assert_eq!(said(&world, "rank 1 on host-1 is left out of the ring"), 1, "{:?}", world.notes);
}

#[test]
fn a_worker_that_says_nothing_more_is_cut_off_and_does_not_drop_its_rank() {
    let mut world = World::training(2, 1, 0);
    world.pass(4, &[1]);
    // A line for the log says nothing of what it holds.
    let (sender, job) = (world.workers[1], world.job);
    let (epoch, level, message) = (Epoch(1), crate::core::LogLevel::Info, "a line".to_owned());
    world.apply(Input::RankLog { sender, job, epoch, level, message });
    world.pass(20, &[1]);
    assert_eq!(said(&world, "does not hold it"), 0, "{:?}", world.notes);
    assert_eq!(said(&world, "rank 1 on host-1: connection lost"), 1, "{:?}", world.notes);
}
