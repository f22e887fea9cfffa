use std::sync::Arc;

use ringtune_shared::ids::{JobId, WorkerId};

use crate::core::testing::{self, inversion, new_job};
use crate::core::{
    Capabilities, Cluster, Hello, Input, Limits, Options, Recovered, Refusal, Sender, SessionId, Time,
    WorkerState,
};

struct World {
    cluster: Cluster,
    now: Time,
    sessions: u64,
}

impl World {
    fn new(workers: usize) -> Self {
        let limits = Limits { workers, ..Limits::default() };
        let options = Options { limits, ..Options::default() };
        Self { cluster: Cluster::recover(options, Recovered::default(), Time(0)), now: Time(1), sessions: 0 }
    }

    fn hello(&mut self, worker: WorkerId, address: &str) -> Result<Sender, Refusal> {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let capabilities = Capabilities {
            version: ringtune_shared::version::VERSION.to_owned(),
            threads: 1,
            ..Capabilities::default()
        };
        let (address, capabilities) = (address.to_owned(), Arc::new(capabilities));
        let hello = Hello { worker, address, capabilities, ..testing::hello(0) };
        self.apply(Input::Hello { session, hello })?;
        Ok(Sender { worker, session })
    }

    fn apply(&mut self, input: Input) -> Result<(), Refusal> {
        self.now = self.now.plus(1);
        self.cluster.apply(input, self.now)?;
        self.cluster.place(self.now);
        self.cluster.check_indexes().unwrap();
        Ok(())
    }

    fn known(&self) -> Vec<WorkerId> {
        self.cluster.workers().map(|worker| worker.id).collect()
    }
}

#[test]
fn an_address_is_one_workers_while_it_is_connected() {
    let mut world = World::new(9);
    let (first, second) = (WorkerId::new(), WorkerId::new());
    let session = world.hello(first, "node:7080").unwrap();
    let refused = world.hello(second, "node:7080").unwrap_err();
    assert_eq!(refused, Refusal::AddressTaken { address: "node:7080".to_owned(), holder: first });
    assert_eq!(world.known(), [first]);
    // The same worker comes back, and goes for good.
    let again = world.hello(first, "node:7080").unwrap();
    world.apply(Input::SessionEnded(session)).unwrap();
    world.hello(second, "node:7080").unwrap_err();
    world.apply(Input::SessionEnded(again)).unwrap();
    // Installed anew, it need not wait until its old self is forgotten.
    world.hello(second, "node:7080").unwrap();
    assert_eq!(world.known(), [second]);
    // It moves, and gives its address back.
    world.hello(second, "node:7090").unwrap();
    world.hello(first, "node:7080").unwrap();
}

#[test]
fn a_ring_still_waits_for_a_worker_whose_address_another_one_took() {
    let mut world = World::new(9);
    let (first, second) = (WorkerId::new(), WorkerId::new());
    let session = world.hello(first, "node:7080").unwrap();
    world.apply(Input::CreateJob(new_job(JobId::new(), inversion("")))).unwrap();
    world.apply(Input::SessionEnded(session)).unwrap();
    world.hello(second, "node:7080").unwrap();
    assert!(world.cluster.rank_of(first).is_some());
}

#[test]
fn those_that_are_gone_keep_nobody_out_and_are_remembered_in_a_bounded_number() {
    let mut world = World::new(2);
    let (stays, mut gone) = (WorkerId::new(), Vec::new());
    world.hello(stays, "stays").unwrap();
    for number in 0..5 {
        let session = world.hello(WorkerId::new(), &format!("node:{number}")).unwrap();
        assert!(matches!(world.hello(WorkerId::new(), "full"), Err(Refusal::TooManyWorkers { limit: 2 })));
        world.apply(Input::SessionEnded(session)).unwrap();
        gone.push(session.worker);
    }
    assert_eq!(world.cluster.count_workers(WorkerState::Lost), 2);
    let mut left = vec![stays, gone[3], gone[4]];
    left.sort_unstable();
    assert_eq!(world.known(), left, "the longest lost are forgotten first");
}

#[test]
fn only_those_who_are_silent_are_lost_and_after_a_while_forgotten() {
    let mut world = World::new(9);
    let options = Options::default();
    let (silent, speaks) = (WorkerId::new(), WorkerId::new());
    world.hello(silent, "silent").unwrap();
    let speaker = world.hello(speaks, "speaks").unwrap();
    for _ in 0..options.session_timeout / 1000 {
        world.now = world.now.plus(1000);
        world.apply(Input::Heartbeat(speaker, Vec::new())).unwrap();
        world.apply(Input::Tick).unwrap();
    }
    let state = |worker| world.cluster.worker_state(world.cluster.worker(worker).unwrap());
    assert_eq!((state(silent), state(speaks)), (WorkerState::Lost, WorkerState::Idle));
    for _ in 0..=options.forget_worker / 10_000 {
        world.now = world.now.plus(10_000);
        world.apply(Input::Heartbeat(speaker, Vec::new())).unwrap();
        world.apply(Input::Tick).unwrap();
    }
    assert_eq!(world.known(), [speaks]);
}
