//! Jobs that are so urgent that others give them ranks.

use super::*;

/// A job on these workers that runs, and one that is more urgent by so much.
fn beside_urgent(workers: usize, (world_size, min): (u8, u8), (urgent, difference): (u8, u32)) -> World {
    let mut world = waiting(&vec![0; workers], &[(world_size, min)]);
    world.run(world.jobs[0]);
    world.create_for("bob", difference, spec(urgent, urgent));
    world.place();
    world
}

fn leaving(world: &World, job: JobId) -> usize {
    let ring = world.cluster.job(job).and_then(|job| job.ring.clone());
    ring.map_or(0, |ring| ring.present().count())
}

#[test]
fn a_ring_shrinks_for_a_job_that_is_so_much_more_urgent() {
    let world = beside_urgent(3, (3, 1), (2, 100));
    let [giving, urgent] = world.jobs[..] else { panic!("two jobs") };
    // The next ring has one member; the others leave the old one after their step.
    assert_eq!(leaving(&world, giving), 1);
    assert_eq!(world.cluster.job(giving).unwrap().state, JobState::Running);
    assert_eq!(world.cluster.job(urgent).unwrap().state, JobState::Queued);
    let less = beside_urgent(3, (3, 1), (2, 99));
    assert_eq!(leaving(&less, less.jobs[0]), 3);
}

#[test]
fn a_job_goes_back_to_the_queue_for_one_that_needs_all_its_workers() {
    let mut world = beside_urgent(2, (2, 2), (1, 100));
    let [giving, urgent] = world.jobs[..] else { panic!("two jobs") };
    let stop = world.cluster.job(giving).unwrap().stop.clone().expect("it stops");
    assert!(
        stop.goal.reason().unwrap().starts_with(&format!("job {urgent} of priority 100 needs its workers"))
    );
    // Nothing more is taken meanwhile.
    world.place();
    let members = world.members(giving);
    members.iter().for_each(|worker| world.say(*worker, giving, Phase::Stopped));
    assert_eq!(world.cluster.job(giving).unwrap().state, JobState::Queued);
    assert_eq!(world.cluster.job(giving).unwrap().tries, 0);
    members.iter().for_each(|worker| world.let_go(*worker));
    assert_eq!(world.members(urgent).len(), 1);
    // It needs two, and keeps its place.
    assert_eq!(world.cluster.job(giving).unwrap().state, JobState::Queued);
}

#[test]
fn a_job_that_prepares_gives_way_at_once_and_an_equal_one_never() {
    let mut world = waiting(&[0], &[(1, 1)]);
    world.create_for("bob", 99, spec(1, 1));
    world.place();
    assert!(world.cluster.job(world.jobs[0]).unwrap().stop.is_none());
    world.create_for("bob", 100, spec(1, 1));
    world.place();
    assert!(world.cluster.job(world.jobs[0]).unwrap().stop.is_some());
}

#[test]
fn a_latecomer_takes_nothing() {
    let mut world = waiting(&[0], &[(1, 1)]);
    world.run(world.jobs[0]);
    let options = Options::default();
    world.cluster.owner_failed("bob", world.now, options.rest, options.longest_rest);
    world.create_for("bob", 1000, spec(1, 1));
    world.place();
    let stop = |world: &World| world.cluster.job(world.jobs[0]).unwrap().stop.is_some();
    assert!(!stop(&world));
    world.now = world.now.plus(options.rest);
    world.apply(Input::Tick);
    world.create_for("bob", 0, spec(1, 1));
    world.place();
    assert!(stop(&world), "its time is over");
}
