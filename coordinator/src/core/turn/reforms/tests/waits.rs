//! What jobs wait for that are behind others.

use super::*;
use crate::core::{LongestWait, Wait};

impl World {
    fn wait(&self, id: JobId) -> Wait {
        let mut job = (**self.cluster.job(id).unwrap()).clone();
        self.cluster.waiting().explain(&mut job);
        job.wait.unwrap()
    }
}

#[test]
fn a_job_that_waits_says_who_is_ahead_and_when_it_may_start() {
    let mut world = World::training(2, 2, 0);
    world.step(0, 1, 1, "a");
    let waiting = [JobId::new(), JobId::new()];
    for (id, ranks) in waiting.into_iter().zip([1, 2]) {
        let spec = inversion(&format!("[cluster]\nworld_size = {ranks}\n"));
        world.apply(Input::CreateJob(new_job(id, spec)));
    }
    let since = world.now.plus(-1);
    let first = Wait { needed: 1, free: 0, usable: 2, ahead: 0, behind: None, since, start: None };
    assert_eq!(world.wait(waiting[0]), first);
    // Two steps take two seconds, six are left: both workers are free then, but three are needed by the second job.
    world.now = world.now.plus(1_000);
    world.step(0, 1, 2, "b");
    world.now = world.now.plus(1_000);
    world.step(0, 1, 3, "c");
    let start = world.wait(waiting[0]).start.unwrap();
    assert!((6_000..6_100).contains(&(start.0 - world.now.0)), "{start:?} at {:?}", world.now);
    let second = world.wait(waiting[1]);
    assert_eq!((second.needed, second.ahead, second.start), (2, 1, None));
    // Without the first one there are enough.
    world.apply(Input::PauseJob(waiting[0]));
    let now_first = world.wait(waiting[1]).start.unwrap();
    assert!((0..10).contains(&(now_first.0 - start.0)), "{now_first:?}, {start:?}");
    let longest = world.cluster.longest_waits(world.now, 9);
    let milliseconds = world.now.0 - world.wait(waiting[1]).since.0;
    assert_eq!(longest, [LongestWait { owner: String::new(), class: None, milliseconds }]);
}

#[test]
fn a_job_that_is_not_done_in_time_fails_wherever_it_is() {
    let queue = |max_seconds, deadline: &str| {
        let deadline = deadline.to_owned();
        Arc::new(ringtune_shared::job::QueueSpec { max_seconds, deadline, ..Default::default() })
    };
    // 1. It runs: its ranks keep what they have.
    let mut world = World::training(1, 1, 0);
    world.apply(Input::CancelJob { job: world.job, reason: String::new() });
    world.say(0, 1, Some(0), Phase::Stopped);
    world.apply(Input::Heartbeat(world.workers[0], Vec::new()));
    world.ended = None;
    world.job = JobId::new();
    let new = new_job(world.job, inversion(""));
    world.apply(Input::CreateJob(crate::core::NewJob { queue: queue(60, ""), ..new }));
    for phase in [Phase::Ready, Phase::Training] {
        world.say(0, 1, Some(0), phase);
    }
    world.step(0, 1, 1, "a");
    world.told.clear();
    world.pass(59, &[]);
    assert_eq!(world.job().state, JobState::Running);
    world.pass(2, &[]);
    let keeps = |(_, down): &(usize, Down)| matches!(down, Down::StopRank { keep_artifacts: true, .. });
    assert!(world.told.iter().any(keeps), "{:?}", world.told);
    world.say(0, 1, Some(0), Phase::Stopped);
    let ended = world.ended.clone().unwrap();
    assert_eq!(ended.reason, "queue.max_seconds is over: 60 s");
    assert_eq!(ended.reason_code(), ReasonCode::Failed(Failure::OutOfTime));
    // 2. It waits, and it is paused.
    for pauses in [false, true] {
        let mut cluster = testing::cluster();
        let id = JobId::new();
        let new = new_job(id, inversion(""));
        let queue = queue(0, "1970-01-01T00:00:09Z");
        cluster.apply(Input::CreateJob(crate::core::NewJob { queue, ..new }), Time(1)).unwrap();
        if pauses {
            cluster.apply(Input::PauseJob(id), Time(2)).unwrap();
        }
        cluster.apply(Input::Tick, Time(8_999)).unwrap();
        assert!(cluster.job(id).is_some());
        cluster.apply(Input::Tick, Time(9_000)).unwrap();
        assert!(cluster.job(id).is_none(), "{pauses}");
        cluster.check_indexes().unwrap();
    }
}
