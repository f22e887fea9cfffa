//! Placement over indexes against the simplest way to say the same: look at all jobs and all workers each time.

mod order;
mod reference;
mod urgent;

use std::sync::Arc;

use proptest::prelude::*;
use ringtune_shared::ids::{Epoch, JobId, WorkerId};
use ringtune_shared::job::{JobSpec, MixedPrecision, QueueSpec};

use self::reference::{candidates, open_to, reference};
use crate::core::testing::{self, inversion, new_job};
use crate::core::{
    Capabilities, Cluster, Fault, HeldRank, Hello, Input, Job, JobState, Limits, NewJob, Options, Phase, Pin,
    RankReport, Recovered, RingPlace, Sender, SessionId, Time,
};

fn spec(world_size: u8, min_world_size: u8) -> Arc<JobSpec> {
    inversion(&format!("[cluster]\nworld_size = {world_size}\nmin_world_size = {min_world_size}\n"))
}

/// As above, on workers of one pool only.
fn spec_in_pool(world_size: u8, min_world_size: u8, pool: u8) -> Arc<JobSpec> {
    let constraints = if pool == 0 { String::new() } else { format!("constraints = [\"pool={pool}\"]\n") };
    let size = format!("world_size = {world_size}\nmin_world_size = {min_world_size}\n");
    inversion(&format!("[cluster]\n{size}{constraints}"))
}

/// Queued jobs that did steps before, each with its class and the fewest workers that it starts on.
fn going_on(jobs: &[(u8, u8)]) -> Recovered {
    let mut cluster = testing::cluster();
    let made = jobs.iter().map(|(class, size)| {
        let id = JobId::new();
        cluster.apply(Input::CreateJob(new_job(id, spec(*size, *size))), Time(0)).unwrap();
        let mut job = (**cluster.job(id).unwrap()).clone();
        let pin = Pin {
            numerics_class: format!("class-{class}"),
            threads_per_rank: 1,
            precision: MixedPrecision::No,
            version: String::new(),
        };
        (job.pin, job.step) = (Some(Arc::new(pin)), 5);
        job
    });
    let jobs: Vec<Job> = made.collect();
    Recovered { last_number: jobs.len() as u64, jobs, ..Recovered::default() }
}

struct World {
    cluster: Cluster,
    now: Time,
    workers: Vec<Sender>,
    jobs: Vec<JobId>,
    sessions: u64,
}

impl World {
    fn apply(&mut self, input: Input) {
        self.now = self.now.plus(1);
        let _ = self.cluster.apply(input, self.now);
        self.cluster.check_indexes().unwrap();
    }

    fn hello(&mut self, class: u8, host: u8) {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let capabilities = Capabilities {
            version: ringtune_shared::version::VERSION.to_owned(),
            numerics_class: format!("class-{}", class % 3),
            threads: 1,
            labels: [("pool".to_owned(), (host / 4 % 3).to_string())].into(),
            ..Capabilities::default()
        };
        let (host_name, capabilities) = (format!("host-{}", host % 4), Arc::new(capabilities));
        let hello = Hello { host_name, capabilities, ..testing::hello(self.sessions) };
        self.workers.push(Sender { worker: hello.worker, session });
        self.apply(Input::Hello { session, hello });
    }

    /// A rank of a ring that prepares fails by a fault of its node, or as that refuses it: its job is queued again, bound to
    /// its class if it did steps before, unless it was tried too often, or nobody is left who has not refused it.
    fn fail_a_node(&mut self, which: u8, fault: Fault) {
        let preparing = self.cluster.jobs().filter(|job| job.state == JobState::Preparing);
        let ring = preparing.filter_map(|job| Some((job.id, job.ring.clone()?)));
        let rings: Vec<_> = ring.collect();
        let Some((job, ring)) = rings.get(usize::from(which) % rings.len().max(1)) else { return };
        let rank = usize::from(which) % ring.members.len();
        let worker = ring.members[rank].worker;
        let Some(sender) = self.workers.iter().find(|one| one.worker == worker).copied() else { return };
        let phase = Phase::Failed;
        let held = HeldRank { phase, fault, ..HeldRank::of(*job, ring.epoch, Some(rank as u32)) };
        let newest = self.cluster.worker(worker).and_then(|worker| worker.session) == Some(sender.session);
        let mut before = (**self.cluster.job(*job).unwrap()).clone();
        self.apply(Input::RankReport(sender, RankReport { held, progress: None }));
        if newest && fault == Fault::Access && before.told_to_stop().is_none() {
            before.refused_by.insert(worker);
            if !before.has_begun() {
                before.pin = None;
            }
            let all = candidates(&self.cluster, |_| true);
            let goes_on = open_to(&self.cluster, &before, &all)
                .0
                .iter()
                .all(|one| !before.refused_by.contains(&one.worker));
            let now = self.cluster.job(*job);
            assert_eq!(
                now.map(|job| (job.state, job.tries)),
                goes_on.then_some((JobState::Queued, before.tries - 1))
            );
        }
    }

    /// Places, and compares.
    fn place(&mut self) {
        let mut before = self.cluster.clone();
        before.expire_latecomers();
        let expected = reference(&before);
        self.cluster.place(self.now);
        self.cluster.check_indexes().unwrap();
        for (id, outcome) in &expected {
            let job = self.cluster.job(*id).unwrap();
            let ring =
                job.ring.as_ref().map(|ring| ring.members.iter().map(|one| one.worker).collect::<Vec<_>>());
            assert_eq!(ring.as_ref(), outcome.as_ref().ok(), "{id}");
        }
        for (id, outcome) in reference(&self.cluster) {
            assert_eq!(self.cluster.waiting().reason(id), outcome.err(), "{id}");
        }
    }
}

proptest! {
    #[test]
    fn indexes_decide_as_a_look_at_everything_does(
        bound in prop::collection::vec((0u8..3, 1u8..4), 0..6),
        owner_ranks in prop_oneof![Just(0u32), 1u32..7],
        steps in prop::collection::vec((0u8..16, any::<u8>(), any::<u8>()), 1..100),
    ) {
        let recovered = going_on(&bound);
        let jobs = recovered.jobs.iter().map(|job| job.id).collect();
        let limits = Limits { owner_ranks, ..Limits::default() };
        let cluster = Cluster::recover(Options { limits, ..Options::default() }, recovered, Time(0));
        let mut world = World { cluster, now: Time(1), workers: vec![], jobs, sessions: 0 };
        for (what, one, other) in steps {
            match what {
                0..3 => world.hello(one, other),
                3 if !world.workers.is_empty() => {
                    let sender = world.workers[usize::from(one) % world.workers.len()];
                    world.apply(Input::SessionEnded(sender));
                }
                4 if !world.jobs.is_empty() => {
                    let job = world.jobs[usize::from(one) % world.jobs.len()];
                    world.apply(Input::CancelJob { job, reason: String::new() });
                }
                5 => {
                    world.now = world.now.plus(20_000);
                    world.apply(Input::Tick);
                }
                6..9 => {
                    let owner = ["", "ada", "bob"][usize::from(one / 6 % 3)];
                    let priority = u32::from(other / 64);
                    let (size, pool) = (one % 6 + 1, (other / 8).saturating_sub(5) % 4);
                    world.create_for(owner, priority, spec_in_pool(size, other % size + 1, pool));
                }
                9 if !world.workers.is_empty() => {
                    // It lets go of what it was told to.
                    let sender = world.workers[usize::from(one) % world.workers.len()];
                    world.apply(Input::Heartbeat(sender, Vec::new()));
                }
                15 if !world.workers.is_empty() => {
                    // It holds the model of all jobs, or another one.
                    let model = world.cluster.jobs().next().filter(|_| other < 200).map(|job| job.model());
                    let worker = world.workers[usize::from(one) % world.workers.len()].worker;
                    world.cluster.loaded(worker, model.unwrap_or_default());
                    world.cluster.check_indexes().unwrap();
                }
                10..13 => world.fail_a_node(one, if other < 128 { Fault::Node } else { Fault::Access }),
                _ => world.place(),
            }
        }
        world.place();
    }
}

/// Workers of these classes, all free, beside jobs of these sizes that wait for more.
fn waiting(workers: &[u8], jobs: &[(u8, u8)]) -> World {
    let cluster = testing::cluster();
    let mut world = World { cluster, now: Time(1), workers: vec![], jobs: vec![], sessions: 0 };
    workers.iter().for_each(|class| world.hello(*class, 0));
    for (size, min) in jobs {
        world.create(spec(*size, *min));
        world.place();
    }
    world
}

impl World {
    fn create(&mut self, spec: Arc<JobSpec>) {
        self.create_for("", 0, spec);
    }

    fn create_for(&mut self, owner: &str, priority: u32, spec: Arc<JobSpec>) {
        let id = JobId::new();
        let queue = Arc::new(QueueSpec { owner: owner.to_owned(), priority, ..QueueSpec::default() });
        self.apply(Input::CreateJob(NewJob { queue, ..new_job(id, spec) }));
        if self.cluster.job(id).is_some() {
            self.jobs.push(id);
        }
    }

    fn states(&self) -> Vec<JobState> {
        self.jobs.iter().map(|id| self.cluster.job(*id).unwrap().state).collect()
    }
}

#[test]
fn a_job_keeps_no_workers_of_a_class_that_is_too_small_for_it() {
    use JobState::{Preparing, Queued};
    // Of class 0 one of four is busy, class 1 has two: the second job waits for class 0, and keeps what is free of it.
    let world = waiting(&[0, 0, 0, 0, 1, 1], &[(1, 1), (4, 4), (2, 2), (1, 1)]);
    assert_eq!(world.states(), [Preparing, Queued, Preparing, Queued]);
    let first = world.jobs[1];
    let reason = world.cluster.waiting().reason(world.jobs[3]);
    assert_eq!(reason, Some(format!("waiting for workers: job {first} comes first")));
}

#[test]
fn a_job_that_began_on_a_busy_class_leaves_the_others_to_those_behind_it() {
    let recovered = going_on(&[(0, 2), (0, 2)]);
    let jobs = recovered.jobs.iter().map(|job| job.id).collect();
    let cluster = Cluster::recover(Options::default(), recovered, Time(0));
    let mut world = World { cluster, now: Time(1), workers: vec![], jobs, sessions: 0 };
    [0, 0, 1].into_iter().for_each(|class| world.hello(class, 0));
    world.place();
    world.create(spec(1, 1));
    world.place();
    use JobState::{Preparing, Queued};
    assert_eq!(world.states(), [Preparing, Queued, Preparing]);
}

#[test]
fn a_large_job_gets_its_workers_before_the_small_ones_behind_it() {
    use JobState::{Preparing, Queued};
    let mut world = waiting(&[0, 0], &[(1, 1), (2, 2), (1, 1), (1, 1)]);
    assert_eq!(world.states(), [Preparing, Queued, Queued, Queued]);
    let (first, large) = (world.jobs[0], world.jobs[1]);
    world.apply(Input::CancelJob { job: first, reason: String::new() });
    let worker =
        world.cluster.workers().find(|worker| world.cluster.rank_of(worker.id).is_some()).unwrap().id;
    let sender = *world.workers.iter().find(|one| one.worker == worker).unwrap();
    let held = HeldRank { phase: Phase::Stopped, ..HeldRank::of(first, Epoch(1), Some(0)) };
    world.apply(Input::RankReport(sender, RankReport { held, progress: None }));
    world.apply(Input::Heartbeat(sender, Vec::new()));
    world.place();
    let ring = world.cluster.job(large).unwrap().ring.clone();
    assert_eq!(ring.map(|ring| ring.members.len()), Some(2));
}

impl World {
    fn say(&mut self, worker: WorkerId, job: JobId, phase: Phase) {
        let sender = *self.workers.iter().find(|one| one.worker == worker).unwrap();
        let rank = self.cluster.rank_of(worker).map(|(_, rank)| rank);
        let held = HeldRank { phase, ..HeldRank::of(job, Epoch(1), rank.or(Some(0))) };
        self.apply(Input::RankReport(sender, RankReport { held, progress: None }));
        self.place();
    }

    /// Has a job's only ring run.
    fn run(&mut self, job: JobId) {
        for phase in [Phase::Ready, Phase::Training] {
            self.members(job).into_iter().for_each(|worker| self.say(worker, job, phase));
        }
        assert_eq!(self.cluster.job(job).unwrap().state, JobState::Running);
    }

    fn members(&self, job: JobId) -> Vec<WorkerId> {
        let ring = self.cluster.job(job).and_then(|job| job.ring.clone());
        ring.iter().flat_map(|ring| ring.present()).map(|(_, member)| member.worker).collect()
    }

    /// Ends a job, whose workers let it go one after the other: those that are still to do so.
    fn cancel(&mut self, job: JobId) -> Vec<WorkerId> {
        let members = self.members(job);
        self.apply(Input::CancelJob { job, reason: String::new() });
        members.iter().for_each(|worker| self.say(*worker, job, Phase::Stopped));
        members
    }

    fn let_go(&mut self, worker: WorkerId) {
        let sender = *self.workers.iter().find(|one| one.worker == worker).unwrap();
        self.apply(Input::Heartbeat(sender, Vec::new()));
        self.place();
    }
}

#[test]
fn a_ring_with_room_grows_before_a_worker_is_kept_for_a_job_that_cannot_begin() {
    use JobState::{Queued, Running};
    let mut world = waiting(&[0, 0], &[(1, 1)]);
    let ending = world.cancel(world.jobs[0]);
    // One that could have two begins on one, as the other worker is still letting go; and then one that needs both.
    for (size, min) in [(2, 1), (2, 2)] {
        world.create(spec(size, min));
        world.place();
    }
    let (small, large) = (world.jobs[1], world.jobs[2]);
    world.let_go(ending[0]);
    assert_eq!(world.cluster.place_of(ending[0]), None, "the ring does not run yet");
    world.run(small);
    assert_eq!(world.cluster.place_of(ending[0]), Some(RingPlace::Joins(small)));
    let state = |job: JobId| world.cluster.job(job).unwrap().state;
    assert_eq!((state(small), state(large)), (Running, Queued));
}

#[test]
fn a_worker_is_kept_for_a_job_that_begins_once_another_one_has_let_go() {
    let mut world = waiting(&[0, 0, 0], &[(2, 2), (2, 1), (2, 2)]);
    let [first, growing, next] = world.jobs[..] else { panic!("three jobs") };
    world.run(growing);
    let ending = world.cancel(first);
    world.let_go(ending[0]);
    assert_eq!(world.cluster.place_of(ending[0]), None, "kept for a moment");
    world.let_go(ending[1]);
    assert_eq!(world.members(next).len(), 2);
    assert_eq!(world.members(growing).len(), 1);
}
