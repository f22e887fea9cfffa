//! Random wishes of users and random faults, for some seconds. Then everything behaves.

use std::sync::{Arc, OnceLock};

use ringtune_coordinator::core::{Input, NewJob};
use ringtune_shared::{
    ids::JobId,
    job::{
        ClusterDraft, JobDraft, JobSpec, ModelDraft, Order, QueueSpec,
        pictures::concepts::WordDraft,
        pictures::{DataDraft, TrainDraft},
    },
};

use crate::{
    chain,
    events::Event,
    files::{EVERY, LIMIT},
    world::{Wanted, World, id_of},
};

/// Steps of a job.
const STEPS: u64 = 5;
/// Nothing goes wrong later than this.
const TROUBLED: i64 = 4_000;
/// The largest ring that a job wants.
const LARGEST: usize = 4;

/// Something that happens to the world.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Mishap {
    /// A user wants a job of so many ranks, and so many at least.
    Create {
        world: usize,
        least: usize,
        priority: u32,
    },
    Cancel(usize),
    /// A job is paused, and not any more after that time.
    Pause(usize, i64),
    Resume(usize),
    /// Another learning rate is ordered of a job, after this step; 0: as soon as it may be.
    Order(usize, u64),
    /// SIGKILL.
    Kill(usize),
    /// SIGTERM.
    Terminate(usize),
    /// SIGSTOP, and SIGCONT after that time.
    Freeze(usize, i64),
    Thaw(usize),
    /// Nothing gets from one to the other for that time.
    Cut(usize, usize, i64),
    Heal(usize, usize),
    /// A worker is drained, and not any more after that time.
    Drain(usize, i64),
    Undrain(usize),
    /// A session breaks.
    HangUp(usize),
    /// The coordinator is killed: at once, or in the middle of a commit.
    KillCoordinator(Option<bool>),
    /// The disk fails once in so many times.
    Disk(usize),
    /// From now on all is well.
    Calm,
}

impl World {
    pub(crate) fn write_script(&mut self) {
        let workers = self.nodes.len();
        for _ in 0..1 + self.chance.below(2) {
            let world = 1 + self.chance.below(LARGEST.min(workers));
            let least = 1 + self.chance.below(world);
            self.after(0, 800, Event::Mishap(Mishap::Create { world, least, priority: 0 }));
        }
        if self.chance.one_in(3) {
            // One that takes ranks from the others.
            let world = 1 + self.chance.below(LARGEST.min(workers));
            let least = 1 + self.chance.below(world);
            self.after(500, TROUBLED, Event::Mishap(Mishap::Create { world, least, priority: 200 }));
        }
        if self.chance.one_in(4) {
            self.after(300, TROUBLED, Event::Mishap(Mishap::Pause(0, 1_500)));
        }
        for _ in 0..self.chance.below(4) {
            let order = Mishap::Order(self.chance.below(2), self.chance.below(STEPS as usize) as u64);
            self.after(200, TROUBLED, Event::Mishap(order));
        }
        for _ in 0..1 + self.chance.below(7) {
            let mishap = self.any_mishap();
            self.after(300, TROUBLED, Event::Mishap(mishap));
        }
        self.after(TROUBLED, TROUBLED, Event::Mishap(Mishap::Calm));
    }

    fn any_mishap(&mut self) -> Mishap {
        let workers = self.nodes.len();
        let one = self.chance.below(workers);
        let other = (one + 1 + self.chance.below(workers - 1)) % workers;
        let some_time = if self.chance.one_in(2) { 1_200 } else { 4_500 };
        match self.chance.below(20) {
            0..4 => Mishap::Kill(one),
            4..6 => Mishap::Terminate(one),
            6..9 => Mishap::Freeze(one, some_time),
            9..11 => Mishap::Cut(one, other, some_time),
            11 => Mishap::Cut(one, workers, some_time),
            12 => Mishap::Cut(workers, one, some_time),
            13 => Mishap::Drain(one, some_time),
            14 => Mishap::HangUp(one),
            15 => Mishap::KillCoordinator(None),
            16 => Mishap::KillCoordinator(Some(true)),
            17 => Mishap::KillCoordinator(Some(false)),
            18 => Mishap::Disk(8),
            _ => Mishap::Cancel(self.chance.below(2)),
        }
    }

    pub(crate) fn mishap(&mut self, mishap: Mishap) {
        self.tell(|| format!("--- {mishap:?}"));
        match mishap {
            Mishap::Create { world, least, priority } => self.create(world, least, priority),
            Mishap::Cancel(job) => self.cancel(job),
            Mishap::Pause(job, time) => {
                if let Some(wanted) = self.jobs.get(job)
                    && self.coordinator.cluster.is_some()
                {
                    let input = Input::PauseJob(wanted.id);
                    self.request(input, None);
                    self.after(50, time, Event::Mishap(Mishap::Resume(job)));
                }
            }
            Mishap::Resume(job) => {
                if let Some(wanted) = self.jobs.get(job) {
                    let input = Input::ResumeJob(wanted.id);
                    self.request_when_up(input, Mishap::Resume(job));
                }
            }
            Mishap::Order(job, after_step) => {
                if let Some(wanted) = self.jobs.get(job)
                    && self.coordinator.cluster.is_some()
                {
                    let (job, rate) = (wanted.id, 1.0 + self.now as f64);
                    let input = Input::OrderJob { job, order: Order::LearningRate(rate), after_step };
                    self.request(input, None);
                }
            }
            Mishap::Kill(worker) => self.kill(worker),
            Mishap::Terminate(worker) => self.drain(worker),
            Mishap::Freeze(worker, time) => self.freeze(worker, time),
            Mishap::Thaw(worker) => self.thaw(worker),
            Mishap::Cut(from, to, time) => {
                self.cut(from, to, time);
                if self.chance.one_in(2) {
                    self.cut(to, from, time);
                }
            }
            Mishap::Heal(from, to) => self.heal(from, to),
            Mishap::Drain(worker, time) => {
                let input = Input::DrainWorker { worker: id_of(worker), draining: true };
                if self.coordinator.cluster.is_some() {
                    self.request(input, None);
                }
                self.after(time, time, Event::Mishap(Mishap::Undrain(worker)));
            }
            Mishap::Undrain(worker) => {
                let input = Input::DrainWorker { worker: id_of(worker), draining: false };
                self.request_when_up(input, Mishap::Undrain(worker));
            }
            Mishap::HangUp(worker) => {
                if let Some(session) = self.nodes[worker].link
                    && self.nodes[worker].frozen.is_none()
                {
                    self.link_is_down(worker, session);
                }
            }
            Mishap::KillCoordinator(None) => self.coordinator_dies(),
            Mishap::KillCoordinator(when) => self.coordinator.dies = when,
            Mishap::Disk(times) => self.coordinator.disk_fails = times,
            Mishap::Calm => self.calm_down(),
        }
    }

    fn request_when_up(&mut self, input: Input, again: Mishap) {
        if self.coordinator.cluster.is_some() && self.calm {
            return self.request(input, None);
        }
        self.after(500, 500, Event::Mishap(again));
    }

    /// A user tries until the job is accepted.
    fn create(&mut self, world: usize, least: usize, priority: u32) {
        if self.coordinator.cluster.is_none() {
            return self.after(300, 300, Event::Mishap(Mishap::Create { world, least, priority }));
        }
        let id = JobId(uuid::Uuid::from_u128(self.jobs.len() as u128 + 1));
        let spec = spec(world, least);
        let microbatches = spec.global_microbatches() as usize;
        let right = (0..=STEPS).map(|steps| chain::right(id, steps, microbatches)).collect();
        // Here they are not to run out.
        let queue = Arc::new(QueueSpec { priority, worker_retries: 1000, ..QueueSpec::default() });
        let new = NewJob { id, spec, queue, request: None, resumed: None, trace: None, sweep: None };
        let wanted = Wanted { id, microbatches, steps: STEPS, right, kept: 0, cancelled: false };
        self.jobs.push(wanted);
        self.accept(Input::CreateJob(new));
    }

    fn cancel(&mut self, job: usize) {
        let Some(wanted) = self.jobs.get_mut(job) else { return };
        if self.coordinator.cluster.is_some() {
            wanted.cancelled = true;
            let job = wanted.id;
            self.request(Input::CancelJob { job, reason: String::new() }, None);
        }
    }

    fn freeze(&mut self, worker: usize, time: i64) {
        let node = &mut self.nodes[worker];
        if node.alive && node.frozen.is_none() {
            node.frozen = Some(self.now);
            self.falls_silent(worker);
            self.after(50, time, Event::Mishap(Mishap::Thaw(worker)));
        }
    }

    fn thaw(&mut self, worker: usize) {
        if self.nodes[worker].frozen.take().is_none() {
            return;
        }
        for event in std::mem::take(&mut self.nodes[worker].parked) {
            self.after(0, 3, event);
        }
        self.things_move();
    }

    fn cut(&mut self, from: usize, to: usize, time: i64) {
        self.cuts.entry((from, to)).or_insert(self.now);
        let hub = self.hub();
        for worker in [from, to].into_iter().filter(|one| *one != hub) {
            self.falls_silent(worker);
            // A connection that carries nothing is given up in the end.
            if let Some(session) = self.nodes[worker].link.filter(|_| from == hub || to == hub) {
                self.after(4_000, 6_000, Event::LinkDown { worker, session });
            }
        }
        self.after(50, time, Event::Mishap(Mishap::Heal(from, to)));
    }

    fn heal(&mut self, from: usize, to: usize) {
        self.cuts.remove(&(from, to));
        self.things_move();
    }

    /// Delayed events go on.
    fn things_move(&mut self) {
        let sessions: Vec<u64> = self.links.keys().copied().collect();
        for session in sessions {
            self.pump(session);
        }
        let rings: Vec<_> = self.rings.keys().copied().collect();
        for ring in rings {
            self.connect_all(ring);
            self.tell_of_closed(ring);
            self.complete(ring);
        }
    }

    fn calm_down(&mut self) {
        self.calm = true;
        self.coordinator.disk_fails = 0;
        self.coordinator.dies = None;
        self.cuts.clear();
        for worker in 0..self.nodes.len() {
            self.thaw(worker);
        }
        self.things_move();
    }
}

/// The jobs that users want, by their sizes. Each is made once.
fn spec(world: usize, least: usize) -> Arc<JobSpec> {
    static SPECS: OnceLock<Vec<Arc<JobSpec>>> = OnceLock::new();
    let all = SPECS.get_or_init(|| {
        let sizes = (1..=LARGEST).flat_map(|world| (1..=LARGEST).map(move |least| (world, least.min(world))));
        sizes.map(|(world, least)| Arc::new(made(world, least))).collect()
    });
    Arc::clone(&all[(world - 1) * LARGEST + least - 1])
}

fn made(world: usize, least: usize) -> JobSpec {
    let draft = JobDraft {
        kind: Some("textual_inversion".to_owned()),
        model: ModelDraft { base: Some("/models/sd".to_owned()), ..ModelDraft::default() },
        data: DataDraft { images: Some("/images".to_owned()), ..DataDraft::default() },
        word: WordDraft {
            placeholder_token: Some("<star>".to_owned()),
            initializer_token: Some("star".to_owned()),
            ..WordDraft::default()
        },
        train: TrainDraft {
            max_train_steps: Some(STEPS as i64),
            gradient_accumulation_steps: Some(2),
            checkpointing_steps: Some(EVERY as i64),
            checkpoints_total_limit: Some(LIMIT as i64),
            ..TrainDraft::default()
        },
        cluster: ClusterDraft {
            world_size: Some(world as i64),
            min_world_size: Some(least as i64),
            ..ClusterDraft::default()
        },
        ..JobDraft::default()
    };
    JobSpec::from_draft(draft).expect("a good job")
}
