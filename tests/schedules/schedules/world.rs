//! The simulated world: a coordinator, workers, the network between them, and a clock.

use std::collections::BTreeMap;

use ringtune_shared::ids::{ContentHash, JobId, WorkerId};

use crate::{
    chain::State,
    chance::Chance,
    coordinator::{Coordinator, Link},
    events::{Agenda, Event, RingKey},
    faults::Planted,
    node::Node,
    ring::RingSim,
};

/// No schedule takes longer, in milliseconds of its own.
const LONGEST: i64 = 400_000;

/// A job, as its user knows it.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) id: JobId,
    /// Of a step.
    pub(crate) microbatches: usize,
    pub(crate) steps: u64,
    /// The state after each step where nothing goes wrong, from that before the first.
    pub(crate) right: Vec<State>,
    /// The highest step that is in a checkpoint of which the coordinator said that it is there.
    pub(crate) kept: u64,
    pub(crate) cancelled: bool,
}

/// The whole simulated world.
pub(crate) struct World {
    pub(crate) now: i64,
    pub(crate) agenda: Agenda,
    pub(crate) chance: Chance,
    pub(crate) planted: Option<Planted>,
    pub(crate) coordinator: Coordinator,
    pub(crate) links: BTreeMap<u64, Link>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) rings: BTreeMap<RingKey, RingSim>,
    pub(crate) jobs: Vec<Wanted>,
    /// Step and state of each checkpoint's content.
    pub(crate) contents: BTreeMap<ContentHash, (u64, State)>,
    /// Since when nothing gets from one to the other. The coordinator comes after the workers.
    pub(crate) cuts: BTreeMap<(usize, usize), i64>,
    /// Sessions and lives so far.
    pub(crate) count: u64,
    /// Nothing goes wrong any more.
    pub(crate) calm: bool,
    /// Lines for people, if anybody wants them.
    pub(crate) trace: Option<Vec<String>>,
}

impl World {
    pub(crate) fn new(seed: u64, planted: Option<Planted>, trace: bool) -> Self {
        let mut chance = Chance::of(seed);
        let workers = 3 + chance.below(4);
        let mut world = Self {
            now: 0,
            agenda: Agenda::default(),
            chance,
            planted,
            coordinator: Coordinator::new(),
            links: BTreeMap::new(),
            nodes: (0..workers).map(Node::new).collect(),
            rings: BTreeMap::new(),
            jobs: Vec::new(),
            contents: BTreeMap::new(),
            cuts: BTreeMap::new(),
            count: 0,
            calm: false,
            trace: trace.then(Vec::new),
        };
        for worker in 0..workers {
            world.after(0, 20, Event::Dial { worker, start: 1 });
        }
        world.after(100, 100, Event::Tick);
        world.write_script();
        world
    }

    /// Until every job has come to its end, and every worker has let go of it.
    pub(crate) fn run(&mut self) {
        while !self.is_over() {
            let (at, event) = self.agenda.next().expect("something happens");
            assert!(at < LONGEST, "it never ends: {}", self.what_is_left());
            self.now = self.now.max(at);
            self.happens(event);
        }
        self.check_the_end();
    }

    /// An event, at a time between these two from now on.
    pub(crate) fn after(&mut self, least: i64, most: i64, event: Event) {
        let at = self.now + self.chance.between(least, most);
        self.agenda.add(at, event);
    }

    /// A line of the trace.
    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>7} {}", self.now, line()));
        }
    }

    fn happens(&mut self, event: Event) {
        if let Some(worker) = whose(&event)
            && self.nodes[worker].frozen.is_some()
        {
            // It comes to that when it can.
            return self.nodes[worker].parked.push(event);
        }
        match event {
            Event::Up(session) => self.up_arrives(session),
            Event::Down(session) => self.down_arrives(session),
            Event::SessionOver(session) => self.session_is_over(session),
            Event::LinkDown { worker, session } => self.link_is_down(worker, session),
            Event::Commit => self.commit(),
            Event::Tick => self.tick(),
            Event::CoordinatorStarts => self.coordinator_starts(),
            Event::Dial { worker, start } => self.dial(worker, start),
            Event::Beat { worker, session } => self.beat(worker, session),
            Event::Looked { worker, session, question } => self.looked(worker, session, &question),
            Event::Say { worker, start } => self.hear_life(worker, start),
            Event::Clock { worker, life, clock } => {
                if self.nodes[worker].life_is(life).is_some_and(|life| life.clock == clock) {
                    self.time_is_over(worker);
                }
            }
            Event::Connected { worker, life, ring } => self.connected(worker, life, ring),
            Event::Gathered { worker, life, ring, number } => self.gathered(worker, life, ring, number),
            Event::Closed { worker, life, ring, by, refused } => {
                self.neighbour_closed(worker, life, ring, by, refused);
            }
            Event::Lease { worker, life, ring, of } => self.lease_is_over(worker, life, ring, of),
            Event::Upload { worker, life } => self.upload(worker, life),
            Event::Answer { worker, life, answer } => self.answered(worker, life, answer),
            Event::Drained { worker, start, over } => self.drain_is_over(worker, start, over),
            Event::Starts { worker } => self.starts(worker),
            Event::Mishap(mishap) => self.mishap(mishap),
        }
    }

    /// Whether something gets from one worker to another, both ways, if both were awake.
    pub(crate) fn is_linked(&self, one: usize, other: usize) -> bool {
        !self.cuts.contains_key(&(one, other)) && !self.cuts.contains_key(&(other, one))
    }

    /// The coordinator's number among those that are linked.
    pub(crate) fn hub(&self) -> usize {
        self.nodes.len()
    }

    /// Whether a worker gets answers of the coordinator.
    pub(crate) fn reaches_coordinator(&self, worker: usize) -> bool {
        self.coordinator.cluster.is_some() && self.is_linked(worker, self.hub())
    }

    pub(crate) fn wanted(&mut self, job: JobId) -> &mut Wanted {
        self.jobs.iter_mut().find(|wanted| wanted.id == job).expect("a job that a user wants")
    }
}

/// The worker whose process an event needs.
fn whose(event: &Event) -> Option<usize> {
    match event {
        Event::LinkDown { worker, .. }
        | Event::Dial { worker, .. }
        | Event::Beat { worker, .. }
        | Event::Looked { worker, .. }
        | Event::Say { worker, .. }
        | Event::Clock { worker, .. }
        | Event::Connected { worker, .. }
        | Event::Gathered { worker, .. }
        | Event::Closed { worker, .. }
        | Event::Lease { worker, .. }
        | Event::Upload { worker, .. }
        | Event::Answer { worker, .. }
        | Event::Drained { worker, .. } => Some(*worker),
        _ => None,
    }
}

/// The name of a worker.
pub(crate) fn id_of(worker: usize) -> WorkerId {
    WorkerId(uuid::Uuid::from_u128(1000 + worker as u128))
}

/// The worker of this name.
pub(crate) fn number_of(worker: WorkerId) -> usize {
    (worker.0.as_u128() - 1000) as usize
}
