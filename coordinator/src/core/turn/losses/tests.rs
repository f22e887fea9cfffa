use std::sync::Arc;

use ringtune_shared::ids::{Epoch, JobId, WorkerId};
use ringtune_shared::spec::parse_job_toml;
use ringtune_shared::version::Dialect;

use crate::core::{
    Capabilities, Cluster, Fault, HeldRank, Hello, Input, JobState, NewJob, Options, Phase, RankReport,
    Recovered, Sender, SessionId, Time, WorkerState,
};

/// Workers on hosts a, b, …, in this order, and a job for one of them.
struct World {
    cluster: Cluster,
    now: Time,
    workers: Vec<Sender>,
    job: JobId,
    reason: String,
}

impl World {
    fn new(workers: u64) -> Self {
        let cluster = Cluster::recover(Options::default(), Recovered::default(), Time(0));
        let (now, job) = (Time(1), JobId::new());
        let mut world = Self { cluster, now, workers: Vec::new(), job, reason: String::new() };
        for number in 0..workers {
            let (worker, session) = (WorkerId::new(), SessionId(number));
            let capabilities = Capabilities {
                version: ringtune_shared::version::VERSION.to_owned(),
                threads: 1,
                ..Capabilities::default()
            };
            let hello = Hello {
                worker,
                incarnation: 1,
                host_name: format!("host-{number}"),
                address: format!("127.0.0.1:{number}"),
                capabilities: Arc::new(capabilities),
                held: Vec::new(),
                dialect: Dialect::ours(),
            };
            world.apply(Input::Hello { session, hello });
            world.workers.push(Sender { worker, session });
        }
        world.create(job);
        world
    }

    fn create(&mut self, id: JobId) {
        let spec = parse_job_toml(
            "kind = \"textual_inversion\"\n[model]\nbase = \"/models/sd\"\n[data]\nimages = \"/images\"\n\
             [train]\nplaceholder_token = \"<star>\"\ninitializer_token = \"star\"\n",
        );
        let new =
            NewJob { id, spec: Arc::new(spec.unwrap()), request: None, resumed: None, queue: Arc::default() };
        self.apply(Input::CreateJob(new));
    }

    fn apply(&mut self, input: Input) {
        let effects = self.cluster.apply(input, self.now).unwrap();
        self.cluster.place(self.now);
        self.cluster.check_indexes().unwrap();
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
        let (job, reason) = (self.job, "no space left".to_owned());
        let held = HeldRank { job, epoch, rank: 0, phase, reason, neighbour_lost: false, fault, step: 0 };
        self.apply(Input::RankReport(self.workers[holder], RankReport { held, progress: None }));
        // It lets go of what it is told to.
        self.apply(Input::Heartbeat(self.workers[holder], Vec::new()));
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
fn a_node_that_failed_later_on_ends_the_job() {
    let mut world = World::new(2);
    world.report(Phase::Ready, Fault::Unknown);
    world.report(Phase::Failed, Fault::Node);
    assert!(world.cluster.job(world.job).is_none());
}

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
        assert!(reason.contains("0 free, 1 needed; 1 more left alone"), "{reason}");
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
