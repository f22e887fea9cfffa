//! A week of a large cluster, played on the core: how long whose jobs wait, beside first come, first served. Run it with
//! `--run-ignored all --no-capture`; docs/queue.md has its table.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use ringtune_coordinator::core::{
    Action, Capabilities, Cluster, Down, Effects, EnterRing, EventBody, HeldRank, Hello, Input, JobState,
    NewJob, Options, Phase, RankReport, Recovered, Sender, SessionId, Sight, StepRecord, Time, Write,
};
use ringtune_shared::ids::{Epoch, JobId, WorkerId};
use ringtune_shared::job::QueueSpec;

use crate::samples::{Chance, file, new_job, spec, state_after, step_record, uuid_of};

const WORKERS: usize = 500;
const JOBS: usize = 20_000;
const OWNERS: usize = 200;
/// They submit half of all jobs, a hundred at a time.
const HEAVY: usize = 10;
const STEPS: u64 = crate::samples::STEPS;
/// When the week begins.
const ORIGIN: i64 = 1_700_000_000_000;
const HOUR: i64 = 3_600_000;
const WEEK: i64 = 7 * 24 * HOUR;
/// What a rank takes to prepare.
const PREPARES: i64 = 60_000;
/// Rank-hours of all jobs, of those that the cluster has.
const LOAD: f64 = 0.9;

/// A job, as its user sees it.
struct Wanted {
    owner: usize,
    priority: u32,
    ranks: (i64, i64),
    arrives: i64,
    /// Milliseconds of one rank for a step.
    step: i64,
    begun: Option<i64>,
    ended: bool,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives(usize),
    Ready(usize, JobId, Epoch),
    Step(JobId, Epoch),
    Tick,
}

/// What a worker holds.
#[derive(Clone)]
struct Held {
    job: JobId,
    epoch: Epoch,
    rank: Option<u32>,
    trains: bool,
    next: Option<EnterRing>,
    stops: bool,
}

struct Week {
    cluster: Cluster,
    now: i64,
    events: BinaryHeap<Reverse<(i64, u64, Event)>>,
    sequence: u64,
    workers: Vec<WorkerId>,
    held: Vec<Option<Held>>,
    jobs: Vec<Wanted>,
    /// All owners and priorities are one.
    in_order: bool,
    shrunk: usize,
    stopped: usize,
    lost_steps: u64,
    /// Milliseconds of ranks that computed in the week.
    computed: i64,
}

/// The jobs of a week: sizes, priorities and times by chance, so much work that the cluster is busy.
fn wanted(chance: &mut Chance) -> Vec<Wanted> {
    let mut jobs: Vec<Wanted> = Vec::with_capacity(JOBS);
    let mut burst = (0, 0, 0);
    while jobs.len() < JOBS {
        let heavy = burst.2 > 0 || chance.below(100) == 0;
        if heavy && burst.2 == 0 {
            burst = (chance.below(HEAVY), chance.below(WEEK as usize) as i64, 100);
        }
        let (owner, arrives) = match heavy {
            true => (burst.0, burst.1),
            false => (HEAVY + chance.below(OWNERS - HEAVY), chance.below(WEEK as usize) as i64),
        };
        burst.2 -= i32::from(heavy);
        // Some are urgent, and need many ranks at once.
        let urgent = !heavy && chance.below(100) == 0;
        let priority = if heavy { 0 } else { [0, 0, 0, 50][chance.below(4)] };
        let most = [1, 1, 2, 4, 4, 8, 16][chance.below(7)];
        let least = if chance.below(2) == 0 { most } else { 1 };
        let (priority, ranks) = match urgent {
            true => (200, [(32, 32), (64, 64), (128, 128)][chance.below(3)]),
            false => (priority, (most, least)),
        };
        // From one to a hundred, most of them small.
        let size = 10f64.powf(chance.below(2000) as f64 / 1000.0);
        let step = size as i64;
        jobs.push(Wanted { owner, priority, ranks, arrives, step, begun: None, ended: false });
    }
    let all: i64 = jobs.iter().map(|job| job.step).sum();
    let unit = LOAD * (WORKERS as f64) * (WEEK as f64) / (all as f64 * STEPS as f64);
    jobs.iter_mut().for_each(|job| job.step = (job.step as f64 * unit) as i64);
    jobs
}

fn id_of(job: usize) -> JobId {
    JobId(uuid_of(job as u64 + 1))
}

fn index_of(job: JobId) -> usize {
    (job.0.as_u128() - 1) as usize
}

impl Week {
    fn new(in_order: bool) -> Self {
        // Nobody dies here, and a rank that is told to stop ends its step first.
        let (session_timeout, cancel) = (100 * WEEK, 100 * WEEK);
        let options = Options { session_timeout, cancel, finish: WEEK, ..Options::default() };
        let now = ORIGIN;
        let mut week = Self {
            cluster: Cluster::recover(options, Recovered::default(), Time(now)),
            now,
            events: BinaryHeap::new(),
            sequence: 0,
            workers: Vec::new(),
            held: vec![None; WORKERS],
            jobs: wanted(&mut Chance(7)),
            in_order,
            shrunk: 0,
            stopped: 0,
            lost_steps: 0,
            computed: 0,
        };
        for number in 0..WORKERS {
            let worker = WorkerId(uuid_of(1_000_000 + number as u64));
            week.workers.push(worker);
            let class = if number < 400 { "large" } else { "small" };
            let capabilities =
                Capabilities { numerics_class: class.to_owned(), threads: 1, ..Capabilities::default() };
            let hello = Hello {
                worker,
                incarnation: 1,
                host_name: format!("host-{number}"),
                address: format!("host-{number}:7080"),
                capabilities: Arc::new(capabilities),
                held: Vec::new(),
                dialect: ringtune_shared::version::Dialect::ours(),
            };
            week.apply(Input::Hello { session: SessionId(number as u64), hello });
        }
        for job in 0..JOBS {
            let at = now + week.jobs[job].arrives;
            week.at(at, Event::Arrives(job));
        }
        week.at(now, Event::Tick);
        week
    }

    fn at(&mut self, time: i64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    fn run(mut self) -> Self {
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            self.now = time;
            match event {
                Event::Arrives(job) => self.create(job),
                Event::Ready(worker, job, epoch) => {
                    let held = self.held[worker].as_ref();
                    if held.is_some_and(|held| held.job == job && held.epoch == epoch && !held.trains) {
                        self.report(worker, Phase::Ready);
                    }
                }
                Event::Step(job, epoch) => self.step(job, epoch),
                Event::Tick => {
                    self.apply(Input::Tick);
                    if self.jobs.iter().any(|job| !job.ended) {
                        self.at(time + 10_000, Event::Tick);
                    }
                }
            }
        }
        self
    }

    fn create(&mut self, job: usize) {
        let Wanted { owner, priority, ranks, .. } = self.jobs[job];
        let (owner, priority) = if self.in_order { (0, 0) } else { (owner, priority) };
        let queue = Arc::new(QueueSpec { owner: format!("owner-{owner}"), priority, ..QueueSpec::default() });
        self.apply(Input::CreateJob(NewJob { queue, ..new_job(id_of(job), spec(ranks.0, ranks.1)) }));
    }

    /// Takes in an input, and places; workers do at once what they are told.
    fn apply(&mut self, input: Input) {
        let effects = self.cluster.apply(input, Time(self.now)).unwrap();
        self.carry_out(effects);
        let effects = self.cluster.place(Time(self.now));
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Effects) {
        for write in effects.writes {
            if let Write::AppendEvent(event) = write
                && let EventBody::StateChange { from, to, .. } = event.body
            {
                let job = &mut self.jobs[index_of(event.job)];
                if to == JobState::Preparing {
                    job.begun.get_or_insert(self.now);
                }
                job.ended |= to.is_terminal();
                if to == JobState::Queued && from == Some(JobState::Running) {
                    self.stopped += 1;
                    let job = self.cluster.job(event.job).unwrap();
                    self.lost_steps += job.step - job.checkpoint.map_or(0, |checkpoint| checkpoint.step);
                }
            }
        }
        for action in effects.actions {
            if let Action::Send(session, down) = action {
                self.hear(session.0 as usize, down);
            }
        }
    }

    fn hear(&mut self, worker: usize, down: Down) {
        match down {
            Down::Assignment(given) => {
                let (job, epoch, rank) = (given.job, given.epoch, given.rank);
                self.held[worker] = Some(Held { job, epoch, rank, trains: false, next: None, stops: false });
                self.at(self.now + PREPARES, Event::Ready(worker, job, epoch));
            }
            Down::StartRank(..) => self.enter(worker),
            Down::EnterRing(next) => {
                let Some(held) = &mut self.held[worker] else { return };
                let (trains, after_step) = (held.trains, next.after_step);
                held.next = Some(*next);
                assert!(after_step || !trains, "a ring broke");
            }
            Down::StopRank { job, keep_artifacts, .. } => {
                let Some(held) = self.held[worker].as_mut().filter(|held| held.job == job) else { return };
                if !keep_artifacts {
                    self.held[worker] = None;
                    self.apply(Input::Heartbeat(self.sender(worker), Vec::new()));
                } else if held.trains {
                    held.stops = true;
                } else {
                    self.report(worker, Phase::Stopped);
                }
            }
            Down::LookAtLinks(question) => {
                let (sender, job, look) = (self.sender(worker), question.job, question.look);
                self.apply(Input::LinksSeen { sender, job, look, sight: Sight::Seen(BTreeMap::new()) });
            }
            Down::StepsStored(..) | Down::Welcome(_) => {}
        }
    }

    fn sender(&self, worker: usize) -> Sender {
        Sender { worker: self.workers[worker], session: SessionId(worker as u64) }
    }

    fn report(&mut self, worker: usize, phase: Phase) {
        let Some(held) = self.held[worker].clone() else { return };
        let step = self.cluster.job(held.job).map_or(0, |job| job.step);
        let held = HeldRank { phase, step, ..HeldRank::of(held.job, held.epoch, held.rank) };
        self.apply(Input::RankReport(self.sender(worker), RankReport { held, progress: None }));
    }

    /// A rank is in its ring; the first one has the next step taken.
    fn enter(&mut self, worker: usize) {
        let Some(held) = &mut self.held[worker] else { return };
        held.trains = true;
        let (job, epoch, rank) = (held.job, held.epoch, held.rank);
        self.report(worker, Phase::Training);
        if rank == Some(0) {
            let ranks =
                self.cluster.job(job).and_then(|job| job.ring.as_ref()).map_or(1, |ring| ring.members.len());
            self.at(self.now + self.jobs[index_of(job)].step / ranks as i64, Event::Step(job, epoch));
        }
    }

    fn members(&self, job: JobId) -> Vec<usize> {
        (0..WORKERS)
            .filter(|worker| self.held[*worker].as_ref().is_some_and(|held| held.job == job))
            .collect()
    }

    /// All ranks of a ring have taken a step.
    fn step(&mut self, job: JobId, epoch: Epoch) {
        let Some(known) = self.cluster.job(job) else { return };
        let step = known.step + 1;
        let members = self.members(job);
        let trains = |worker: &&usize| self.held[**worker].as_ref().is_some_and(|held| held.trains);
        let ring: Vec<usize> = members.iter().filter(trains).copied().collect();
        // Where it was told of its next ring, it is known by that one.
        let first = ring
            .iter()
            .copied()
            .find(|worker| self.held[*worker].as_ref().and_then(|held| held.rank) == Some(0));
        let Some(first) = first else { return };
        if known.step == STEPS {
            // It was stopped behind its last step.
            return self.finish(first, &ring);
        }
        if self.now < ORIGIN + WEEK {
            self.computed += self.jobs[index_of(job)].step;
        }
        let state = Some(state_after(job, step));
        let record = StepRecord { epoch, state, ..step_record(step) };
        self.apply(Input::RankStep(self.sender(first), job, epoch, record));
        let stored = self.cluster.job(job);
        assert_eq!(stored.map(|job| job.step), Some(step), "{epoch} {stored:?}");
        if ring.iter().any(|worker| self.held[*worker].as_ref().is_some_and(|held| held.stops)) {
            let name = format!("checkpoint-{step}.safetensors");
            let artifact = file(job, name, Some(epoch), Time(self.now));
            self.apply(Input::KeepArtifact { artifact });
            return ring.iter().for_each(|worker| self.report(*worker, Phase::Stopped));
        }
        if step == STEPS {
            return self.finish(first, &ring);
        }
        let next: Vec<(usize, EnterRing)> = members
            .iter()
            .filter_map(|worker| Some((*worker, self.held[*worker].as_mut()?.next.take()?)))
            .collect();
        if next.is_empty() {
            let ranks = ring.len() as i64;
            return self.at(self.now + self.jobs[index_of(job)].step / ranks, Event::Step(job, epoch));
        }
        for (worker, enter) in &next {
            if let Some(held) = &mut self.held[*worker] {
                (held.epoch, held.rank, held.trains) = (enter.epoch, enter.rank, false);
            }
        }
        for (worker, enter) in next {
            if enter.rank.is_some() {
                self.enter(worker);
            } else {
                self.shrunk += 1;
                self.held[worker] = None;
                self.apply(Input::Heartbeat(self.sender(worker), Vec::new()));
            }
        }
    }

    fn finish(&mut self, first: usize, ring: &[usize]) {
        ring.iter().filter(|worker| **worker != first).for_each(|worker| self.report(*worker, Phase::Done));
        self.report(first, Phase::Finished);
    }

    /// Hours that jobs waited until they began: in the middle, and 95 of 100 at most.
    fn waits(&self, of: impl Fn(&Wanted) -> bool) -> (f64, f64) {
        let waited = |job: &Wanted| job.begun.map(|begun| begun - ORIGIN - job.arrives);
        let mut waits: Vec<i64> = self.jobs.iter().filter(|job| of(job)).filter_map(waited).collect();
        waits.sort_unstable();
        let hours = |place: usize| waits[place.min(waits.len() - 1)] as f64 / HOUR as f64;
        (hours(waits.len() / 2), hours(waits.len() * 95 / 100))
    }
}

#[test]
#[ignore = "takes a minute, and prints a table for people"]
fn a_week_of_many_owners() {
    let weeks = [Week::new(false).run(), Week::new(true).run()];
    type Of = fn(&Wanted) -> bool;
    let rows: [(&str, Of); 5] = [
        ("priority 200", |job| job.priority == 200),
        ("priority 50", |job| job.priority == 50),
        ("priority 0, the 190 owners of few jobs", |job| job.priority == 0 && job.owner >= HEAVY),
        ("priority 0, the 10 owners of many jobs", |job| job.priority == 0 && job.owner < HEAVY),
        ("all", |_| true),
    ];
    println!("| Jobs | median wait | 95 % wait at most | in order of age: median | 95 % |");
    for (what, of) in rows {
        let [(median, most), (median_in_order, most_in_order)] =
            [&weeks[0], &weeks[1]].map(|week| week.waits(of));
        println!("| {what} | {median:.2} h | {most:.2} h | {median_in_order:.2} h | {most_in_order:.2} h |");
    }
    for week in &weeks {
        assert!(week.jobs.iter().all(|job| job.ended), "every job ends");
        assert_eq!(week.lost_steps, 0);
        println!(
            "in order of age: {}; in the week {:.1} % of the workers compute; {} ranks left a ring for others, {} jobs went back \
             to the queue, {} steps were lost",
            week.in_order,
            100.0 * week.computed as f64 / (WEEK as f64 * WORKERS as f64),
            week.shrunk,
            week.stopped,
            week.lost_steps
        );
    }
    assert!(weeks[0].stopped > 0 && weeks[1].stopped == 0);
}
