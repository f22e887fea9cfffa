//! Lost workers, failed jobs, and workers that rest.

use std::sync::Arc;

use ringtune_shared::checkpoint::file_name;
use ringtune_shared::ids::{Epoch, JobId};
use ringtune_shared::job::QueueSpec;
use ringtune_shared::version::Dialect;

use crate::core::testing::{self, file, inversion, new_job};
use crate::core::{
    Action, Capabilities, Cluster, Down, Fault, HeldRank, Hello, Input, JobState, NewJob, Options, Phase,
    RankReport, Recovered, Sender, SessionId, Time, WorkerState,
};

mod rests;

/// Workers on hosts a, b, …, in this order, and a job for one of them.
struct World {
    cluster: Cluster,
    now: Time,
    workers: Vec<Sender>,
    job: JobId,
    reason: String,
    /// What workers were told.
    told: Vec<Down>,
}

fn hello(number: u64, class: &str, threads: u32) -> Hello {
    let capabilities = Capabilities {
        version: ringtune_shared::version::VERSION.to_owned(),
        numerics_class: class.to_owned(),
        threads,
        ..Capabilities::default()
    };
    Hello { capabilities: Arc::new(capabilities), ..testing::hello(number) }
}

impl World {
    fn new(workers: usize) -> Self {
        Self::of_classes(&vec![("", 1); workers])
    }

    /// A worker of each class, with so many threads.
    fn of_classes(workers: &[(&str, u32)]) -> Self {
        let cluster = testing::cluster();
        let (now, job) = (Time(1), JobId::new());
        let mut world =
            Self { cluster, now, workers: Vec::new(), job, reason: String::new(), told: Vec::new() };
        for (number, (class, threads)) in (0..).zip(workers) {
            let (session, hello) = (SessionId(number), hello(number, class, *threads));
            let worker = hello.worker;
            world.apply(Input::Hello { session, hello });
            world.workers.push(Sender { worker, session });
        }
        world.create(job);
        world
    }

    /// The same, where the job did steps before, on a worker like the first one, and was then queued again.
    fn going_on(workers: &[(&str, u32)]) -> Self {
        let mut world = Self::of_classes(&workers[..1]);
        let mut job = (**world.cluster.job(world.job).unwrap()).clone();
        (job.ring, job.rings, job.tries, job.state, job.step) = (None, 0, 0, JobState::Queued, 5);
        let recovered = Recovered { last_number: job.number, jobs: vec![job], ..Recovered::default() };
        world.cluster = Cluster::recover(Options::default(), recovered, Time(0));
        world.workers.clear();
        world.told.clear();
        for (number, (class, threads)) in (0..).zip(workers) {
            let (session, hello) = (SessionId(number), hello(number, class, *threads));
            world.workers.push(Sender { worker: hello.worker, session });
            world.apply(Input::Hello { session, hello });
        }
        world
    }

    fn create(&mut self, id: JobId) {
        self.create_of(id, "");
    }

    fn create_of(&mut self, id: JobId, owner: &str) {
        let queue = Arc::new(QueueSpec { owner: owner.to_owned(), ..QueueSpec::default() });
        self.apply(Input::CreateJob(NewJob { queue, ..new_job(id, inversion("")) }));
    }

    fn apply(&mut self, input: Input) {
        let mut effects = self.cluster.apply(input, self.now).unwrap();
        effects.actions.extend(self.cluster.place(self.now).actions);
        self.cluster.check_indexes().unwrap();
        self.told.extend(effects.actions.into_iter().filter_map(|action| match action {
            Action::Send(_, message) => Some(message),
            Action::Close(..) => None,
        }));
        for write in effects.writes {
            if let crate::core::Write::UpdateJob(job) = write
                && job.id == self.job
            {
                self.reason.clone_from(&job.reason);
            }
        }
    }

    /// Which worker has the job's rank, and in which epoch.
    fn holder(&self) -> Option<(usize, Epoch)> {
        let ring = self.cluster.job(self.job)?.ring.as_ref()?;
        let holder = ring.members[0].worker;
        Some((self.workers.iter().position(|one| one.worker == holder).unwrap(), ring.epoch))
    }

    fn report(&mut self, phase: Phase, fault: Fault) {
        let (holder, epoch) = self.holder().unwrap();
        self.report_of(holder, epoch, phase, fault);
    }

    fn report_of(&mut self, holder: usize, epoch: Epoch, phase: Phase, fault: Fault) {
        let (job, reason) = (self.job, "no space left".to_owned());
        let held = HeldRank { phase, reason, fault, ..HeldRank::of(job, epoch, Some(0)) };
        self.apply(Input::RankReport(self.workers[holder], RankReport { held, progress: None }));
        if phase.is_terminal() {
            // It lets go of what it is told to.
            self.apply(Input::Heartbeat(self.workers[holder], Vec::new()));
        }
    }

    /// The worker's daemon comes back, perhaps as another start of it, without a rank.
    fn come_back(&mut self, worker: usize, incarnation: u64) {
        let known = self.cluster.worker(self.workers[worker].worker).unwrap();
        let hello = Hello {
            worker: known.id,
            incarnation,
            host_name: known.host_name.clone(),
            address: known.address.clone(),
            capabilities: known.capabilities.clone(),
            held: Vec::new(),
            dialect: Dialect::ours(),
        };
        let session = SessionId(self.workers[worker].session.0 + 100);
        self.apply(Input::Hello { session, hello });
        self.workers[worker].session = session;
    }

    /// The worker's connection ends, and the other ones beat for as many milliseconds as it is waited for, and a second
    /// more.
    fn stays_away(&mut self, gone: usize, waited_for: i64) {
        self.apply(Input::SessionEnded(self.workers[gone]));
        for _ in 0..=waited_for / 1000 {
            self.now = self.now.plus(1000);
            for (index, worker) in self.workers.clone().into_iter().enumerate() {
                if index != gone && self.holder().is_none_or(|(holder, _)| holder != index) {
                    self.apply(Input::Heartbeat(worker, Vec::new()));
                }
            }
            self.apply(Input::Tick);
        }
    }

    /// Whether the worker gets no rank of jobs without an owner.
    fn rests(&self, worker: usize) -> bool {
        let known = self.cluster.worker(self.workers[worker].worker).unwrap();
        assert!(known.rests_until.is_none(), "for everybody");
        known.doubts.iter().any(|doubt| doubt.until.is_some())
    }

    /// The worker gets the rank of a new job of this owner, and fails at it.
    fn fails_for(&mut self, owner: &str, fault: Fault) {
        self.job = JobId::new();
        let job = self.job;
        self.create_of(job, owner);
        assert!(self.holder().is_some(), "{owner}");
        self.report(Phase::Failed, fault);
        if self.cluster.job(job).is_some() {
            self.apply(Input::CancelJob { job, reason: String::new() });
        }
    }

    fn pass(&mut self, milliseconds: i64) {
        // Nobody falls silent meanwhile.
        for _ in 0..milliseconds / 1000 {
            self.now = self.now.plus(1000);
            for worker in self.workers.clone() {
                self.apply(Input::Heartbeat(worker, Vec::new()));
            }
            self.apply(Input::Tick);
        }
    }
}

#[test]
fn a_job_that_a_node_fails_to_prepare_is_tried_on_two_others_and_no_more() {
    let mut world = World::new(5);
    for (worker, epoch) in [(0, 1), (1, 2)] {
        assert_eq!(world.holder(), Some((worker, Epoch(epoch))));
        world.report(Phase::Failed, Fault::Node);
        assert_eq!(world.cluster.job(world.job).unwrap().state, JobState::Preparing, "placed again at once");
    }
    assert_eq!(world.holder(), Some((2, Epoch(3))));
    world.report(Phase::Failed, Fault::Node);
    assert!(world.cluster.job(world.job).is_none());
    assert_eq!(world.reason, "rank 0 on host-2: no space left (tried 3 times)");
}

#[test]
fn a_job_that_asks_for_what_workers_keep_from_it_is_tried_on_each_once_and_no_worker_rests() {
    let mut world = World::new(5);
    for worker in 0..5 {
        assert_eq!(world.holder(), Some((worker, Epoch(worker as u64 + 1))), "one that has not refused it");
        assert_eq!(world.cluster.job(world.job).unwrap().tries, 1, "a refusal is no try");
        world.report(Phase::Failed, Fault::Access);
    }
    assert!(world.cluster.job(world.job).is_none());
    assert_eq!(world.reason, "rank 0 on host-4: no space left (tried 5 times)");
    assert!(world.cluster.workers().all(|worker| worker.rests_until.is_none()));
    // The next job gets the first worker as if nothing had been.
    world.job = JobId::new();
    world.create(world.job);
    assert_eq!(world.holder(), Some((0, Epoch(1))));
}

/// A job runs on worker 0, and the one after it was refused by worker 1, the only other one: both, in this order.
fn refused_by_the_only_free_worker() -> (World, JobId, JobId) {
    let mut world = World::new(2);
    world.report(Phase::Ready, Fault::Unknown);
    let (first, refused) = (world.job, JobId::new());
    world.job = refused;
    world.create(refused);
    assert_eq!(world.holder(), Some((1, Epoch(1))));
    world.report(Phase::Failed, Fault::Access);
    let job = world.cluster.job(refused).unwrap();
    assert_eq!((job.state, job.tries), (JobState::Queued, 0));
    let reason = world.cluster.waiting().reason(refused).unwrap();
    assert_eq!(reason, "waiting for workers: 0 free, 1 needed; 1 more keep from the job what it asks for");
    (world, first, refused)
}

#[test]
fn a_job_waits_for_a_busy_worker_that_has_not_refused_it_and_leaves_those_that_have_to_others() {
    let (mut world, first, refused) = refused_by_the_only_free_worker();
    // 1. The one behind it gets the worker that it cannot use.
    world.job = JobId::new();
    world.create(world.job);
    assert_eq!(world.holder(), Some((1, Epoch(1))));
    // 2. The other one is free.
    world.job = first;
    world.apply(Input::CancelJob { job: first, reason: String::new() });
    world.report(Phase::Stopped, Fault::Unknown);
    world.job = refused;
    assert_eq!(world.holder(), Some((0, Epoch(2))));
    // 3. It refuses, too.
    world.report(Phase::Failed, Fault::Access);
    assert!(world.cluster.job(refused).is_none());
    assert_eq!(world.reason, "rank 0 on host-0: no space left (tried 2 times)");
}

#[test]
fn a_job_waits_for_no_worker_that_is_gone_or_withdrawn() {
    for gone in [true, false] {
        let (mut world, _, refused) = refused_by_the_only_free_worker();
        let Sender { worker, .. } = world.workers[0];
        world.apply(match gone {
            true => Input::SessionEnded(world.workers[0]),
            false => Input::DrainWorker { worker, draining: true },
        });
        // It could only be refused again, and is told so.
        assert_eq!(world.holder(), Some((1, Epoch(2))));
        world.report(Phase::Failed, Fault::Access);
        assert!(world.cluster.job(refused).is_none(), "gone: {gone}");
    }
}

#[test]
fn a_fault_of_the_job_or_one_that_nobody_names_ends_it_at_once_and_spares_the_worker() {
    for fault in [Fault::Job, Fault::Unknown] {
        let mut world = World::new(2);
        world.report(Phase::Failed, fault);
        assert!(world.cluster.job(world.job).is_none());
        assert_eq!(world.reason, "rank 0 on host-0: no space left");
        assert!(world.cluster.workers().all(|worker| worker.rests_until.is_none()));
    }
}

#[test]
fn a_job_has_as_many_tries_as_it_asked_for() {
    // 1. After errors of its own, in all.
    let mut world = World::new(1);
    world.cluster.apply(Input::CancelJob { job: world.job, reason: String::new() }, world.now).unwrap();
    world.report(Phase::Stopped, Fault::Unknown);
    let ask = |world: &mut World, worker_retries, error_retries| {
        world.job = JobId::new();
        let queue = Arc::new(QueueSpec { worker_retries, error_retries, ..QueueSpec::default() });
        world.apply(Input::CreateJob(NewJob { queue, ..new_job(world.job, inversion("")) }));
    };
    ask(&mut world, 0, 2);
    for error in 1..=2 {
        world.report(Phase::Ready, Fault::Unknown);
        world.report(Phase::Failed, Fault::Job);
        assert_eq!(world.cluster.job(world.job).unwrap().errors, error);
        let said =
            format!("rank 0 on host-0: no space left; trying again from its beginning (error {error} of 2)");
        let note = world.reason.clone();
        assert!(note == said || note.starts_with("forming") || world.holder().is_some(), "{note}");
    }
    world.report(Phase::Failed, Fault::Job);
    assert!(world.cluster.job(world.job).is_none());
    // 2. Where the worker is to blame, in a row: none here, as many as are wanted there.
    for (retries, ends) in [(0, true), (1, false)] {
        let mut world = World::new(2);
        world.cluster.apply(Input::CancelJob { job: world.job, reason: String::new() }, world.now).unwrap();
        world.report(Phase::Stopped, Fault::Unknown);
        ask(&mut world, retries, 9);
        world.report(Phase::Failed, Fault::Node);
        assert_eq!(world.cluster.job(world.job).is_none(), ends, "{retries}");
    }
}

#[test]
fn a_node_that_failed_later_on_costs_the_job_its_worker() {
    let mut world = World::new(2);
    world.report(Phase::Ready, Fault::Unknown);
    world.report(Phase::Failed, Fault::Node);
    assert_eq!(world.holder(), Some((1, Epoch(2))));
    assert!(world.rests(0));
}

#[test]
fn a_worker_that_is_lost_while_it_prepares_costs_the_job_a_try_and_no_more() {
    let mut world = World::new(4);
    // 1. It stays away.
    world.report(Phase::Preparing, Fault::Unknown);
    world.stays_away(0, Options::default().preparing);
    assert_eq!(world.holder(), Some((1, Epoch(2))));
    let lost = "worker lost: rank 0 on host-0 did not come back within 2 s; trying again elsewhere";
    assert_eq!(world.reason, lost);
    // 2. The next one restarts.
    world.report(Phase::Preparing, Fault::Unknown);
    world.come_back(1, 2);
    assert_eq!(world.reason, "worker restarted: rank 0 on host-1 is lost; trying again elsewhere");
    assert_eq!(world.holder(), Some((2, Epoch(3))));
    // 3. The third one comes back without the rank that it had begun with: that was the last try.
    world.report(Phase::Preparing, Fault::Unknown);
    world.come_back(2, 1);
    assert!(world.cluster.job(world.job).is_none());
    assert_eq!(world.reason, "rank 0 on host-2: the worker came back without it (tried 3 times)");
    // All of them rest.
    assert_eq!([0, 1, 2, 3].map(|worker| world.rests(worker)), [true, true, true, false]);
}

#[test]
fn a_job_whose_only_worker_is_lost_while_it_trains_goes_on_elsewhere() {
    let mut world = World::new(2);
    world.report(Phase::Ready, Fault::Unknown);
    world.stays_away(0, Options::default().session_timeout);
    assert_eq!(world.holder(), Some((1, Epoch(2))));
    assert_eq!(world.reason, "all its workers are lost; going on from its beginning");
}

#[test]
fn a_job_that_goes_on_elsewhere_says_why_its_last_rank_failed() {
    let mut world = World::new(2);
    world.report(Phase::Ready, Fault::Unknown);
    world.report(Phase::Failed, Fault::Node);
    assert!(
        world.reason.starts_with("all its workers are lost; going on from its beginning: rank 0 on host-0")
    );
}

#[test]
fn an_assignment_that_may_be_lost_is_given_again() {
    let mut world = World::new(2);
    world.told.clear();
    world.come_back(0, 1);
    assert_eq!(world.holder(), Some((0, Epoch(1))));
    let given = world.told.iter().filter(|message| matches!(message, Down::Assignment(_))).count();
    assert_eq!(given, 1);
}

#[test]
fn a_job_of_which_no_ring_started_is_bound_to_no_class() {
    let mut world = World::of_classes(&[("a", 4), ("b", 2), ("b", 3), ("a", 7)]);
    // The class that has most free workers, of equal ones the first by name.
    for (holder, epoch, class, threads) in [(0, 1, "a", 4), (1, 2, "b", 2), (3, 3, "a", 7)] {
        assert_eq!(world.holder(), Some((holder, Epoch(epoch))));
        let pin = world.cluster.job(world.job).unwrap().pin.clone().unwrap();
        assert_eq!((pin.numerics_class.as_str(), pin.threads_per_rank), (class, threads));
        world.report(Phase::Failed, Fault::Node);
    }
    // Not even where nobody is left of the other class.
    let mut world = World::of_classes(&[("a", 4)]);
    world.report(Phase::Failed, Fault::Node);
    assert_eq!(world.cluster.job(world.job).unwrap().pin, None);
    world.apply(Input::Hello { session: SessionId(50), hello: hello(50, "b", 9) });
    assert_eq!(world.cluster.job(world.job).unwrap().state, JobState::Preparing);
}

#[test]
fn the_next_ring_is_of_the_class_and_has_the_threads_of_the_one_that_did_steps() {
    let mut world = World::going_on(&[("a", 4), ("b", 2), ("b", 3), ("a", 7)]);
    assert_eq!(world.holder(), Some((0, Epoch(1))));
    let pin = world.cluster.job(world.job).unwrap().pin.clone().unwrap();
    assert_eq!((pin.numerics_class.as_str(), pin.threads_per_rank), ("a", 4));
    world.report(Phase::Failed, Fault::Node);
    assert_eq!(world.holder(), Some((3, Epoch(2))), "though those of the other class are free");
    world.report(Phase::Failed, Fault::Node);
    // It waits for its class, and lets others pass meanwhile.
    let reason = world.cluster.waiting().reason(world.job).unwrap();
    let of_class = "2 free, 0 of the numerics class that the job began on; 1 of that class needed";
    assert!(reason.contains(of_class), "{reason}");
    let (first, other) = (world.job, JobId::new());
    world.create(other);
    world.job = other;
    assert_eq!(world.holder(), Some((1, Epoch(1))));
    world.job = first;
    while world.holder().is_none() {
        world.now = world.now.plus(1000);
        world.workers.clone().into_iter().for_each(|one| world.apply(Input::Heartbeat(one, Vec::new())));
        world.apply(Input::Tick);
    }
    assert_eq!(world.holder(), Some((0, Epoch(3))));
    let given = world.told.iter().filter_map(|message| match message {
        Down::Assignment(given) if given.job == first => {
            Some((given.numerics_class.as_str(), given.threads_per_rank, given.version.as_str()))
        }
        _ => None,
    });
    assert_eq!(given.collect::<Vec<_>>(), [("a", 4, pin.version.as_str()); 3]);
    assert_eq!(world.cluster.job(first).unwrap().pin, Some(pin));
}

#[test]
fn a_pin_comes_back_from_the_store() {
    let mut world = World::of_classes(&[("a", 4), ("b", 2), ("b", 3)]);
    world.report(Phase::Ready, Fault::Unknown);
    let mut job = (**world.cluster.job(world.job).unwrap()).clone();
    assert_eq!(job.pin.as_ref().unwrap().numerics_class, "b");
    // As a job that is queued again when the coordinator starts.
    (job.ring, job.state) = (None, JobState::Queued);
    let recovered = Recovered { jobs: vec![job], ..Recovered::default() };
    world.cluster = Cluster::recover(Options::default(), recovered, Time(0));
    world.apply(Input::Hello { session: SessionId(50), hello: hello(50, "a", 9) });
    assert_eq!(world.cluster.job(world.job).unwrap().state, JobState::Queued);
    world.apply(Input::Hello { session: SessionId(51), hello: hello(51, "b", 9) });
    assert_eq!(world.cluster.job(world.job).unwrap().state, JobState::Preparing);
    let given = world.told.iter().rev().find_map(|message| match message {
        Down::Assignment(given) => Some((given.numerics_class.as_str(), given.threads_per_rank)),
        _ => None,
    });
    assert_eq!(given, Some(("b", 2)));
}

#[test]
fn that_a_rank_of_an_older_epoch_is_ready_starts_no_newer_ring() {
    let mut world = World::new(2);
    world.report(Phase::Failed, Fault::Node);
    assert_eq!(world.holder(), Some((1, Epoch(2))));
    world.told.clear();
    for holder in [0, 1] {
        world.report_of(holder, Epoch(1), Phase::Ready, Fault::Unknown);
    }
    let job = world.cluster.job(world.job).unwrap();
    assert_eq!((job.state, job.ring.as_ref().unwrap().started), (JobState::Preparing, false));
    assert!(!world.told.iter().any(|message| matches!(message, Down::StartRank(..))));
    world.report(Phase::Ready, Fault::Unknown);
    assert!(world.cluster.job(world.job).unwrap().ring.as_ref().unwrap().started);
    assert_eq!(world.told.last(), Some(&Down::StartRank(world.job, Epoch(2))));
}

#[test]
fn a_damaged_checkpoint_goes_and_the_one_before_it_is_taken() {
    let mut world = World::new(1);
    let keep = |step: u64| file(world.job, &file_name(step), &step.to_le_bytes(), Some(1));
    let kept = [keep(5), keep(10)];
    let hashes = kept.each_ref().map(|artifact| artifact.hash);
    kept.into_iter().for_each(|artifact| world.apply(Input::KeepArtifact { artifact }));
    for (epoch, words, next) in
        [(2, "step 10 is damaged; going on from step 5", Some(hashes[0])), (3, "from its beginning", None)]
    {
        world.told.clear();
        world.report(Phase::Failed, Fault::Checkpoint);
        assert!(world.reason.ends_with(words), "{}", world.reason);
        // At once, on the same worker, and not as a try.
        assert_eq!(world.holder(), Some((0, Epoch(epoch))));
        assert!(world.cluster.worker(world.workers[0].worker).unwrap().rests_until.is_none());
        assert_eq!(world.cluster.job(world.job).unwrap().tries, 1);
        let given = world.told.iter().find_map(|message| match message {
            Down::Assignment(given) => Some(given.resume_from),
            _ => None,
        });
        assert_eq!(given, Some(next));
    }
    assert_eq!(world.cluster.checkpoints(world.job).count(), 0);
    // Nothing is left that could be damaged.
    world.report(Phase::Failed, Fault::Checkpoint);
    assert_eq!(world.holder(), None);
}
