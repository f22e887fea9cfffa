//! What a worker holds and what it says, as a pure function: `(state, event) -> effects`. No clock, no channel.
//!
//! ```text
//!                 Assigned            Ready              StartRank             Finished
//!   (nothing) ──────────────> Preparing ───> Ready ──────────────> Training ───────────> Finished ─┐
//!                                 │            │                       │                           │ Stop:
//!                                 └────────────┴── Failed / Stopped ───┴──> Failed / Stopped ──────┴──> (nothing)
//! ```
//! One rank's work runs at a time. A rank is held by its job; the epoch is that of the ring that it has now, and what is
//! said of another one is not about it. Ended ranks stay held, and are repeated in every hello and heartbeat, until the
//! coordinator lets them go; so nothing that happened while it was away is lost.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, VecDeque},
};

use ringtune_shared::ids::JobId;

use super::types::{Assignment, Level, Phase, Progress, RankEvent, RankKey, StepSummary};
use crate::fault::Fault;

/// Step reports kept for a coordinator that is away; the oldest go first. metrics.csv has them all.
const MOST_UNSTORED_STEPS: usize = 200_000;
/// Ended ranks held for a coordinator that never lets go of them.
const MOST_HELD: usize = 64;

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The coordinator said welcome.
    Connected,
    /// The session is gone.
    Disconnected,
    /// Take a rank.
    Assigned(Box<Assignment>),
    /// An assignment that this worker cannot read.
    Unreadable {
        /// Which.
        key: RankKey,
        /// The place in the ring, as far as it could be read.
        rank: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// All ranks are ready.
    StartRank(RankKey),
    /// End a rank, or let go of an ended one.
    Stop {
        /// Which.
        key: RankKey,
        /// Upload what there is first.
        keep_artifacts: bool,
    },
    /// Steps up to this one are safe at the coordinator.
    StepsStored(RankKey, u64),
    /// A rank's work says so.
    Rank(RankKey, RankEvent),
    /// The worker is to end: what runs keeps what it has, and all is said.
    Drain,
    /// The time for that is over: what still runs ends without it.
    DrainIsOver,
}

/// What to do about it.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Say it to the coordinator. Only while connected.
    Send(Message),
    /// Begin a rank's work.
    Start(Box<Assignment>),
    /// Let it train.
    Train(RankKey),
    /// End it; it answers with `Stopped`, `Failed` or `Finished`.
    End {
        /// Which.
        key: RankKey,
        /// Upload what there is first.
        keep_artifacts: bool,
    },
}

/// What a worker says to its coordinator between hello and goodbye.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A phase, or progress within Preparing.
    Report {
        /// The rank, as it is held now.
        held: HeldRank,
        /// Within Preparing.
        progress: Option<Progress>,
    },
    /// A finished step.
    Step(RankKey, StepSummary),
    /// A line for the job's history.
    Log(RankKey, usize, Level, String),
}

/// A rank as hello, heartbeats and reports show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRank {
    /// The job and the epoch.
    pub key: RankKey,
    /// The place in the ring.
    pub rank: usize,
    /// How far it is.
    pub phase: Phase,
    /// The last step done.
    pub step: u64,
    /// Why it failed.
    pub reason: String,
    /// It failed only because a neighbour was lost.
    pub neighbour_lost: bool,
    /// Whose fault it is that it failed.
    pub fault: Option<Fault>,
}

#[derive(Debug)]
struct Held {
    shown: HeldRank,
    /// Waits for the work that runs to end.
    waiting: Option<Box<Assignment>>,
    unstored: VecDeque<StepSummary>,
}

impl Held {
    fn new(key: RankKey, rank: usize) -> Self {
        let (reason, neighbour_lost, fault) = (String::new(), false, None);
        let shown = HeldRank { key, rank, phase: Phase::Preparing, step: 0, reason, neighbour_lost, fault };
        Self { shown, waiting: None, unstored: VecDeque::new() }
    }
}

/// The one rank whose work runs. Its job may be held with a newer ring already, for which it makes room.
#[derive(Clone, Copy, Debug)]
struct Running {
    key: RankKey,
    /// Asked to end: whether to keep artifacts.
    ending: Option<bool>,
}

/// Everything a worker holds.
#[derive(Debug, Default)]
pub struct Session {
    connected: bool,
    draining: bool,
    held: BTreeMap<JobId, Held>,
    running: Option<Running>,
}

impl Session {
    /// What a hello shows. A rank whose steps are not all stored yet is not shown as ended: it ends, for the
    /// coordinator, after the steps that follow the hello.
    pub fn held_for_hello(&self) -> Vec<HeldRank> {
        let shown = |held: &Held| {
            let mut shown = held.shown.clone();
            if shown.phase.is_terminal() && !held.unstored.is_empty() {
                shown.phase = Phase::Training;
            }
            shown
        };
        self.held.values().map(shown).collect()
    }

    /// What a heartbeat shows.
    pub fn held(&self) -> Vec<HeldRank> {
        self.held.values().map(|held| held.shown.clone()).collect()
    }

    /// The rank whose work runs now.
    pub fn running(&self) -> Option<RankKey> {
        self.running.map(|running| running.key)
    }

    /// Its place in its ring; none when it only makes room.
    pub fn place(&self) -> Option<usize> {
        self.with(self.running()?).map(|held| held.shown.rank)
    }

    /// What is held of this ring of the job, and of no other.
    fn with(&self, key: RankKey) -> Option<&Held> {
        self.held.get(&key.job).filter(|held| held.shown.key == key)
    }

    fn with_mut(&mut self, key: RankKey) -> Option<&mut Held> {
        self.held.get_mut(&key.job).filter(|held| held.shown.key == key)
    }

    /// Nothing runs and nothing waits to.
    pub fn is_idle(&self) -> bool {
        self.running.is_none() && self.held.values().all(|held| held.shown.phase.is_terminal())
    }

    /// Takes an event in; returns what to do, in order.
    pub fn apply(&mut self, event: Event) -> Vec<Effect> {
        let effects = match event {
            Event::Connected => self.connect(),
            Event::Disconnected => {
                self.connected = false;
                Vec::new()
            }
            Event::Assigned(assignment) => self.assign(assignment),
            Event::Unreadable { key, rank, reason } => self.refuse(key, rank, reason),
            Event::StartRank(key) => self.start_rank(key),
            Event::Stop { key, keep_artifacts } => self.stop(key, keep_artifacts),
            Event::StepsStored(key, step) => {
                if let Some(held) = self.with_mut(key) {
                    while held.unstored.front().is_some_and(|first| first.step <= step) {
                        held.unstored.pop_front();
                    }
                }
                Vec::new()
            }
            Event::Rank(key, event) => self.rank_event(key, event),
            Event::Drain => self.drain(),
            Event::DrainIsOver => self.running().map_or_else(Vec::new, |key| self.stop(key, false)),
        };
        if self.connected {
            return effects;
        }
        effects.into_iter().filter(|effect| !matches!(effect, Effect::Send(_))).collect()
    }

    /// Nothing begins any more. What runs is asked to keep what it has, unless it was asked to drop it.
    fn drain(&mut self) -> Vec<Effect> {
        self.draining = true;
        let waiting = self.held.values().filter(|held| held.waiting.is_some());
        let waiting: Vec<RankKey> = waiting.map(|held| held.shown.key).collect();
        let mut effects: Vec<Effect> =
            waiting.into_iter().flat_map(|key| self.fail(key, SHUTTING_DOWN, Fault::Node)).collect();
        effects.extend(self.running().map_or_else(Vec::new, |key| self.stop(key, true)));
        effects
    }

    /// Says everything again that the coordinator may have missed: steps first, phases after them.
    fn connect(&mut self) -> Vec<Effect> {
        self.connected = true;
        let mut effects = Vec::new();
        for held in self.held.values() {
            let key = held.shown.key;
            effects.extend(held.unstored.iter().map(|step| Effect::Send(Message::Step(key, *step))));
            effects.push(report(held, None));
        }
        effects
    }

    fn assign(&mut self, assignment: Box<Assignment>) -> Vec<Effect> {
        let key = assignment.key();
        // 1. Known already (said again after a reconnect), or out of date.
        if let Some(answer) = self.known(key) {
            return answer;
        }
        // 2. No rank fits beside a running one that nobody asked to end.
        let refusal = match self.running {
            _ if self.draining => Some(SHUTTING_DOWN.to_owned()),
            Some(Running { key: RankKey { job, .. }, ending: None }) if job != key.job => {
                Some(format!("this worker holds a rank of job {job} already"))
            }
            _ => None,
        };
        if let Some(reason) = refusal {
            return self.refuse(key, assignment.rank, reason);
        }
        // 3. Take it, now or when the running one has ended. A newer epoch of the same job replaces the older.
        let mut held = Held::new(key, assignment.rank);
        let mut effects = vec![report(&held, None)];
        if self.running.is_some() {
            held.waiting = Some(assignment);
            effects.extend(self.make_room());
        } else {
            self.running = Some(Running { key, ending: None });
            effects.push(Effect::Start(assignment));
        }
        self.hold(held);
        effects
    }

    /// What to answer when a rank is named that is held already, or one of an older ring.
    fn known(&self, key: RankKey) -> Option<Vec<Effect>> {
        let held = self.held.get(&key.job)?;
        match held.shown.key.epoch.cmp(&key.epoch) {
            Ordering::Less => None,
            Ordering::Equal => Some(vec![report(held, None)]),
            Ordering::Greater => Some(Vec::new()),
        }
    }

    /// Has what runs end, unless it does.
    fn make_room(&mut self) -> Option<Effect> {
        let running = self.running.as_mut().filter(|running| running.ending.is_none())?;
        running.ending = Some(false);
        Some(Effect::End { key: running.key, keep_artifacts: false })
    }

    /// Holds a rank that failed before it began, unless it is known already. Another worker may be able to take it.
    fn refuse(&mut self, key: RankKey, rank: usize, reason: String) -> Vec<Effect> {
        if let Some(answer) = self.known(key) {
            return answer;
        }
        let mut held = Held::new(key, rank);
        held.shown.phase = Phase::Failed;
        held.shown.reason = reason;
        held.shown.fault = Some(Fault::Node);
        let mut effects = vec![report(&held, None)];
        if self.running.is_some_and(|running| running.key.job == key.job) {
            effects.extend(self.make_room());
        }
        self.hold(held);
        effects
    }

    fn hold(&mut self, held: Held) {
        let job = held.shown.key.job;
        if self.held.len() >= MOST_HELD
            && !self.held.contains_key(&job)
            && let Some(oldest) =
                self.held.iter().find(|(_, held)| held.shown.phase.is_terminal()).map(|(job, _)| *job)
        {
            self.held.remove(&oldest);
        }
        self.held.insert(job, held);
    }

    fn start_rank(&mut self, key: RankKey) -> Vec<Effect> {
        match self.with_mut(key) {
            Some(held) if held.shown.phase == Phase::Ready => {
                held.shown.phase = Phase::Training;
                vec![Effect::Train(key), report(held, None)]
            }
            _ => Vec::new(),
        }
    }

    fn stop(&mut self, key: RankKey, keep_artifacts: bool) -> Vec<Effect> {
        let Some(held) = self.with(key) else { return Vec::new() };
        let (over, waiting) = (held.shown.phase.is_terminal(), held.waiting.is_some());
        if waiting && keep_artifacts {
            return self.end(key, Phase::Stopped, "");
        }
        if over || waiting {
            self.held.remove(&key.job);
            return Vec::new();
        }
        let Some(running) = self.running.as_mut().filter(|running| running.key == key) else {
            return Vec::new();
        };
        // Dropping the work outweighs keeping it; asking again changes nothing.
        if running.ending == Some(false) || running.ending == Some(keep_artifacts) {
            return Vec::new();
        }
        running.ending = Some(keep_artifacts);
        vec![Effect::End { key, keep_artifacts }]
    }

    fn rank_event(&mut self, key: RankKey, event: RankEvent) -> Vec<Effect> {
        let Some(held) = self.with_mut(key) else {
            // Of a ring that has been replaced: nobody asks any more how it went.
            return if event.is_last() { self.begin_next(key) } else { Vec::new() };
        };
        match event {
            RankEvent::Progress(progress) => vec![report(held, Some(progress))],
            RankEvent::Ready => {
                held.shown.phase = Phase::Ready;
                vec![report(held, None)]
            }
            // The coordinator knows; the rank may end without another step.
            RankEvent::Resumed(step) => {
                held.shown.step = step;
                Vec::new()
            }
            RankEvent::Step(step) => {
                held.shown.step = step.step;
                if held.shown.rank != 0 {
                    return Vec::new();
                }
                if held.unstored.len() >= MOST_UNSTORED_STEPS {
                    held.unstored.pop_front();
                }
                held.unstored.push_back(step);
                vec![Effect::Send(Message::Step(key, step))]
            }
            RankEvent::Log(level, line) => {
                vec![Effect::Send(Message::Log(key, held.shown.rank, level, line))]
            }
            RankEvent::Finished => self.end(key, Phase::Finished, ""),
            RankEvent::Failed { reason, fault } => self.fail(key, &reason, fault),
            RankEvent::NeighbourLost(reason) => {
                held.shown.neighbour_lost = true;
                self.fail(key, &reason, Fault::Node)
            }
            RankEvent::Stopped if self.draining => self.fail(key, SHUTTING_DOWN, Fault::Node),
            RankEvent::Stopped => self.end(key, Phase::Stopped, ""),
        }
    }

    fn fail(&mut self, key: RankKey, reason: &str, fault: Fault) -> Vec<Effect> {
        if let Some(held) = self.with_mut(key) {
            held.shown.fault = Some(fault);
        }
        self.end(key, Phase::Failed, reason)
    }

    /// A rank's work has ended (or never began): hold the outcome, or let go if nobody wants it; begin the next.
    fn end(&mut self, key: RankKey, phase: Phase, reason: &str) -> Vec<Effect> {
        let is_dropped =
            self.running.is_some_and(|running| running.key == key && running.ending == Some(false));
        let let_go = is_dropped && !self.draining;
        let mut effects = Vec::new();
        if let Some(held) = self.with_mut(key) {
            held.waiting = None;
            held.shown.phase = phase;
            held.shown.reason = reason.to_owned();
            if !let_go {
                effects.push(report(held, None));
            }
        }
        if let_go {
            self.held.remove(&key.job);
        }
        effects.extend(self.begin_next(key));
        effects
    }

    /// The work of a rank has ended: whoever waits for that begins.
    fn begin_next(&mut self, ended: RankKey) -> Vec<Effect> {
        if self.running() != Some(ended) {
            return Vec::new();
        }
        self.running = None;
        let Some(next) = self.held.values_mut().find_map(|held| held.waiting.take()) else {
            return Vec::new();
        };
        self.running = Some(Running { key: next.key(), ending: None });
        vec![Effect::Start(next)]
    }
}

const SHUTTING_DOWN: &str = "the worker is shutting down";

fn report(held: &Held, progress: Option<Progress>) -> Effect {
    Effect::Send(Message::Report { held: held.shown.clone(), progress })
}

#[cfg(test)]
mod tests;
