//! Who comes first.

use super::*;

/// Two owners and two priorities beside each other; which of the waiting jobs begins once a worker is free.
#[test]
fn priority_comes_before_fair_share_and_that_before_age() {
    use JobState::{Preparing, Queued};
    let mut world = waiting(&[0], &[]);
    world.create_for("ada", 0, spec(1, 1));
    world.place();
    world.create_for("ada", 0, spec(1, 1));
    world.create_for("bob", 0, spec(1, 1));
    world.create_for("ada", 1, spec(1, 1));
    world.place();
    assert_eq!(world.states(), [Preparing, Queued, Queued, Queued]);
    let [_, older, shared, urgent] = world.jobs[..] else { panic!("four jobs") };
    for (running, next) in [(world.jobs[0], urgent), (urgent, shared), (shared, older)] {
        let ended = world.cancel(running);
        world.let_go(ended[0]);
        assert_eq!(world.members(next).len(), 1, "{next} is the next");
    }
}

#[test]
fn owners_get_as_much_as_each_other_of_what_is_free_at_one_time() {
    let mut world = waiting(&[0; 6], &[]);
    for owner in ["ada", "bob"] {
        (0..6).for_each(|_| world.create_for(owner, 0, spec(1, 1)));
    }
    world.place();
    let held = |owner: &str| world.cluster.account_of(owner).map(|account| account.held);
    assert_eq!((held("ada"), held("bob")), (Some(3), Some(3)));
}

#[test]
fn a_job_that_waited_for_long_comes_first() {
    let mut world = waiting(&[], &[(1, 1)]);
    world.now = world.now.plus(Options::default().longest_wait);
    (0..2).for_each(|_| world.apply(Input::Tick));
    world.create_for("bob", 1000, spec(1, 1));
    world.hello(0, 0);
    world.place();
    assert_eq!(world.states(), [JobState::Preparing, JobState::Queued]);
}
