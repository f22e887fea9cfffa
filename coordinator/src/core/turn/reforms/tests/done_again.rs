//! Steps that a later ring does again.

use ringtune_shared::job::parse_job_toml;

use super::*;

#[test]
fn a_step_that_is_done_again_may_differ_where_the_ring_decides_and_may_shrink() {
    for (exchange, min, may) in [("fast", 1, true), ("fast", 2, false), ("exact", 1, false)] {
        let job = format!(
            "kind = \"gpt2_finetune\"\nmodel.base = \"/m\"\ngpt2.tokens = \"/t\"\ngpt2.exchange = \"{exchange}\"\n\
             cluster.world_size = 2\ncluster.min_world_size = {min}\n"
        );
        let mut world = World::training_job(Arc::new(parse_job_toml(&job).unwrap()), 2, 0);
        ["one", "another"].iter().for_each(|state| world.step(0, 1, 1, state));
        let stops = |told: &(usize, Down)| matches!(told, (_, Down::StopRank { .. }));
        assert_eq!(world.told.iter().any(stops), !may, "{exchange}, {min}: {:?}", world.told);
    }
}

/// The only worker starts for that time, and gets the job again, if it does not end.
fn start(world: &mut World, time: u64) {
    world.hello(0, time, Vec::new());
    if world.ended.is_none() {
        world.say(0, time, Some(0), Phase::Ready);
        world.say(0, time, Some(0), Phase::Training);
    }
}

#[test]
fn a_job_that_always_dies_at_the_same_step_is_given_up_though_it_does_those_before_it_again() {
    let mut world = World::training(1, 1, 0);
    for time in 1..=4 {
        if time > 1 {
            start(&mut world, time);
        }
        assert!(world.ended.is_none(), "start {time}");
        (1..=3).for_each(|step| world.step(0, time, step, "state"));
        assert_eq!((world.job().step, world.job().tries), (3, time - 1));
    }
    start(&mut world, 5);
    let ended = world.ended.unwrap();
    assert_eq!((ended.state, ended.failure), (JobState::Failed, Some(Failure::WorkerLost)));
    assert_eq!(ended.reason, "worker lost: all its workers are lost (tried 3 times without a new step)");
}

#[test]
fn a_job_that_gets_one_step_further_each_time_goes_on_however_often_it_loses_everything() {
    let mut world = World::training(1, 1, 0);
    for time in 1..=8 {
        if time > 1 {
            start(&mut world, time);
        }
        (1..=time).for_each(|step| world.step(0, time, step, "state"));
        assert_eq!((world.job().step, world.job().tries), (time, 0));
    }
}

/// A ring that breaks after each step, of which only each so manieth one is new: in which epoch it is given up, if it is
/// before the 40th.
fn given_up(new: u64) -> Option<u64> {
    let mut world = World::training(2, 1, 0);
    world.step(0, 1, 1, "state");
    for epoch in 1..40 {
        world.told.clear();
        world.say(1, epoch, Some(1), Phase::Waiting);
        world.say(0, epoch, Some(0), Phase::Waiting);
        if world.told.iter().any(|(_, told)| matches!(told, Down::StopRank { keep_artifacts: true, .. })) {
            return Some(epoch);
        }
        (0..2).for_each(|rank| world.say(rank, epoch + 1, Some(rank), Phase::Training));
        world.step(0, epoch + 1, 1, "state");
        assert_eq!(world.job().reason, "training on 2 rank(s)", "a step is a step for whoever watches");
        if epoch % new == 0 {
            world.step(0, epoch + 1, 1 + epoch / new, "state");
        }
    }
    None
}

#[test]
fn a_ring_that_breaks_again_and_again_is_given_up_unless_there_are_new_steps_between() {
    let most = u64::from(Options::default().fruitless);
    assert_eq!(given_up(100), Some(most + 1));
    assert_eq!(given_up(most - 1), None);
}

#[test]
fn a_ring_that_waits_for_others_does_so_no_longer_after_a_clock_was_set_back() {
    let mut world = World::training(2, 2, 0);
    world.step(0, 1, 1, "state");
    world.go(1);
    world.waits(0, 1, 0, 1);
    let spare_by = |cluster: &Cluster| {
        let ring = cluster.job(world.job).unwrap().ring.as_ref().unwrap();
        ring.reforming.as_ref().unwrap().spare_by.unwrap()
    };
    let (job, options) = (world.job().clone(), Options::default());
    assert_eq!(job.reason_code(), ReasonCode::WaitingForSpare);
    let by = spare_by(&world.cluster);
    let recovered = |now| {
        let recovered =
            Recovered { jobs: vec![job.clone()], last_number: job.number, ..Recovered::default() };
        spare_by(&Cluster::recover(options.clone(), recovered, now))
    };
    assert_eq!(recovered(world.now.plus(1000)), by, "a restart alone changes nothing");
    let year = 365 * 24 * 3_600_000;
    assert_eq!(recovered(world.now.plus(-year)), world.now.plus(options.spare - year));
}
