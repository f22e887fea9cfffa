//! Which workers rest after a failure, for whom, and where a job is tried next.

use super::*;

#[test]
fn a_worker_that_fails_again_and_again_is_left_alone_for_longer_and_longer() {
    let mut world = World::new(1);
    let mut waits = Vec::new();
    for _ in 0..9 {
        world.report(Phase::Failed, Fault::Node);
        if world.cluster.job(world.job).is_none() {
            world.job = JobId::new();
            world.create(world.job);
        }
        let began = world.now;
        assert_eq!(world.cluster.count_workers(WorkerState::Idle), 1);
        let reason = world.cluster.waiting().reason(world.job).unwrap();
        assert!(reason.contains("0 free, 1 needed; 1 more are resting"), "{reason}");
        while world.holder().is_none() {
            world.pass(1000);
        }
        waits.push((world.now.0 - began.0) / 1000);
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
    // What it prepares well makes up for all that.
    world.report(Phase::Ready, Fault::Unknown);
    world.report(Phase::Failed, Fault::Job);
    world.job = JobId::new();
    world.create(world.job);
    world.report(Phase::Failed, Fault::Node);
    let began = world.now;
    while world.holder().is_none() {
        world.pass(1000);
    }
    assert_eq!((world.now.0 - began.0) / 1000, 10);
}

#[test]
fn one_owners_failures_take_no_worker_from_anybody_else_whatever_they_are() {
    for fault in Fault::ALL {
        let mut world = World::new(1);
        world.report(Phase::Ready, Fault::Unknown);
        world.apply(Input::CancelJob { job: world.job, reason: String::new() });
        world.report(Phase::Stopped, Fault::Unknown);
        // 1. Forty jobs of one owner, before that of another one.
        let bad: Vec<JobId> = (0..40).map(|_| JobId::new()).collect();
        bad.iter().for_each(|job| world.create_of(*job, "mallory"));
        let good = JobId::new();
        world.create_of(good, "ada");
        // 2. The first of them fails. Where the fault may be its own, the other one is next.
        (world.job, world.reason) = (bad[0], String::new());
        world.report(Phase::Failed, fault);
        world.job = good;
        assert!(world.holder().is_some(), "{fault:?}: the other owner's job waits");
        world.report(Phase::Ready, Fault::Unknown);
        let known = world.cluster.worker(world.workers[0].worker).unwrap();
        assert!(known.rests_until.is_none() && known.doubts.is_empty(), "{fault:?}");
    }
}

#[test]
fn a_worker_rests_for_all_once_jobs_of_several_owners_fail_there_one_after_the_other() {
    let mut world = World::new(1);
    world.report(Phase::Failed, Fault::Job);
    for (owner, fault, for_all) in [
        ("ada", Fault::Node, false),
        ("bob", Fault::Job, false),
        // What is the coordinator's or a link's is not the worker's, whoever meets it.
        ("cid", Fault::Coordinator, false),
        ("dan", Fault::Node, true),
    ] {
        world.fails_for(owner, fault);
        let known = world.cluster.worker(world.workers[0].worker).unwrap();
        assert_eq!(known.rests_until.is_some(), for_all, "{owner}");
    }
    // The next one waits, and the worker comes back.
    world.job = JobId::new();
    let next = world.job;
    world.create_of(next, "eve");
    assert_eq!(world.holder(), None);
    while world.holder().is_none() {
        world.pass(1000);
    }
    world.report(Phase::Ready, Fault::Unknown);
    assert!(!world.rests(0));
}

#[test]
fn a_worker_rests_for_each_owner_whose_jobs_failed_there() {
    let mut world = World::new(1);
    world.report(Phase::Failed, Fault::Job);
    (0..16).for_each(|owner| world.fails_for(&owner.to_string(), Fault::Coordinator));
    world.pass(1000);
    world.fails_for("last", Fault::Coordinator);
    world.job = JobId::new();
    world.create_of(world.job, "1");
    assert_eq!(world.holder(), None);
    // For each it is over by itself. The first of seventeen is forgotten.
    world.pass(9000);
    let known = world.cluster.worker(world.workers[0].worker).unwrap();
    assert!(world.holder().is_some() && known.rests_for("last"));
    assert_eq!(known.doubts.len(), 16);
}

#[test]
fn what_a_machine_lacks_is_looked_for_on_each_other_machine_once() {
    // Two workers of one machine, and one of another.
    let mut world = World::new(0);
    for (number, host) in [(0, "one"), (1, "one"), (2, "two")] {
        let (session, hello) = (SessionId(number), hello(number, "", 1));
        let hello = Hello { host_name: host.to_owned(), ..hello };
        world.workers.push(Sender { worker: hello.worker, session });
        world.apply(Input::Hello { session, hello });
    }
    let first = world.holder().unwrap().0;
    assert!(first < 2);
    world.report(Phase::Failed, Fault::Machine);
    assert_eq!(world.holder(), Some((2, Epoch(2))), "not the one beside it");
    assert!(world.reason.ends_with("; trying again elsewhere") || world.reason.starts_with("preparing"));
    world.report(Phase::Failed, Fault::Machine);
    assert!(world.cluster.job(world.job).is_none());
    assert_eq!(world.reason, "rank 0 on two: no space left (tried 2 times)");
    assert!((0..3).all(|worker| !world.rests(worker)));
    // Where there is one machine alone, there is no elsewhere.
    let mut world = World::new(1);
    world.report(Phase::Failed, Fault::Machine);
    assert!(world.cluster.job(world.job).is_none());
    assert_eq!(world.reason, "rank 0 on host-0: no space left");
}

#[test]
fn a_job_whose_worker_rests_does_not_say_that_it_goes_elsewhere() {
    let mut world = World::new(1);
    world.report(Phase::Failed, Fault::Node);
    let job = world.cluster.job(world.job).unwrap();
    assert_eq!(job.reason, "rank 0 on host-0: no space left; trying again when a worker has rested");
}
