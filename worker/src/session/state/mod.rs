//! A worker's ranks and messages, as a pure function: `(state, event) -> effects`. No clock, no channel.
//!
//! ```text
//!                 Assigned            Ready              StartRank             Finished
//!   (nothing) ──────────────> Preparing ───> Ready ──────────────> Training ───────────> Finished ─┐
//!                                 │            │                       │                           │ Stop:
//!                                 └────────────┴── Failed / Stopped ───┴──> Failed / Stopped ──────┴──> (nothing)
//! ```
//! One rank's work runs at a time. A rank is held by its job. Its life may go through several rings (`rings.rs`): what the
//! coordinator says is about the newest one, what the life says comes under the epoch with which it was begun. Ended ranks
//! stay held, and are repeated in every hello and heartbeat, until the coordinator lets them go; so nothing that happened
//! while it was away is lost.

mod held;
mod rings;
mod window;

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

use ringtune_shared::ids::JobId;

use super::types::{Assignment, Level, NextRing, Phase, Progress, RankEvent, RankKey, StepSummary, Timings};
use crate::fault::Fault;
use held::Held;
pub use held::HeldRank;

/// Ended ranks held for a coordinator that never lets go of them.
const MOST_HELD: usize = 64;

/// An event.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The coordinator said welcome.
    Connected {
        /// It gives running jobs other rings.
        re_forms: bool,
        /// It wants to know what each rank's steps take.
        timings: bool,
    },
    /// The session is gone.
    Disconnected,
    /// Take a rank.
    Assigned(Box<Assignment>),
    /// An assignment or a ring that this worker cannot read.
    Unreadable {
        /// The rank.
        key: RankKey,
        /// The place in the ring, as far as it could be read.
        rank: Option<usize>,
        /// The problem.
        reason: String,
    },
    /// All ranks are ready.
    StartRank(RankKey),
    /// The job goes on in another ring.
    EnterRing(Box<NextRing>),
    /// End a rank, or let go of an ended one.
    Stop {
        /// The rank.
        key: RankKey,
        /// Upload what there is first.
        keep_artifacts: bool,
    },
    /// Steps up to this one are safe at the coordinator.
    StepsStored(RankKey, u64),
    /// A rank's work says so.
    Rank(RankKey, RankEvent),
    /// The worker is to end: what runs leaves its ring, or keeps what it has, and all is said.
    Drain,
    /// The time for leaving is over: what still runs keeps what it has.
    LeaveIsOver,
    /// The time for that is over too: what still runs ends without it.
    DrainIsOver,
}

/// An effect to carry out.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Say it to the coordinator. Only while connected.
    Send(Message),
    /// Begin a rank's work.
    Start(Box<Assignment>),
    /// Let it train.
    Train(RankKey),
    /// Have it enter another ring.
    Enter(RankKey, Arc<NextRing>),
    /// Tell it that steps up to this one are stored.
    Stored(RankKey, u64),
    /// End it; it answers with `Stopped`, `Failed` or `Finished`.
    End {
        /// The rank.
        key: RankKey,
        /// Upload what there is first.
        keep_artifacts: bool,
    },
}

/// A worker's message to its coordinator between hello and goodbye.
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
    Log(RankKey, Option<usize>, Level, String),
    /// Durations of a rank's steps. Only the newest are worth sending.
    Timings(RankKey, usize, Timings),
}

/// The one rank whose work runs. Its job may be held with a newer ring already, for which it makes room.
#[derive(Clone, Copy, Debug)]
struct Running {
    /// Of its life.
    key: RankKey,
    /// Asked to end: whether to keep artifacts.
    ending: Option<bool>,
    /// The coordinator asked.
    was_asked: bool,
}

impl Running {
    fn of(assignment: &Assignment) -> Self {
        Self { key: assignment.key(), ending: None, was_asked: false }
    }
}

/// Everything a worker holds.
#[derive(Debug, Default)]
pub struct Session {
    connected: bool,
    /// The coordinator gives running jobs other rings.
    re_forms: bool,
    /// It wants to know what each rank's steps take.
    timings: bool,
    draining: bool,
    held: BTreeMap<JobId, Held>,
    running: Option<Running>,
}

impl Session {
    /// Ranks of a hello.
    pub fn held_for_hello(&self) -> Vec<HeldRank> {
        self.held.values().map(Held::for_hello).collect()
    }

    /// Ranks of a heartbeat.
    pub fn held(&self) -> Vec<HeldRank> {
        self.held.values().map(|held| held.shown.clone()).collect()
    }

    /// The rank whose work runs now.
    pub fn running(&self) -> Option<RankKey> {
        self.running.map(|running| running.key)
    }

    /// Its place in its ring; none when it only makes room, or has no ring.
    pub fn place(&self) -> Option<usize> {
        let running = self.running()?;
        self.held.get(&running.job).filter(|held| held.life == running)?.shown.rank
    }

    /// The rank of exactly this ring.
    fn with_mut(&mut self, key: RankKey) -> Option<&mut Held> {
        self.held.get_mut(&key.job).filter(|held| held.shown.key == key)
    }

    /// The rank of the job since this epoch or an earlier one: what the coordinator says of its ring may have passed
    /// the word of a newer one on the way.
    fn since_mut(&mut self, key: RankKey) -> Option<&mut Held> {
        self.held.get_mut(&key.job).filter(|held| held.life.epoch <= key.epoch)
    }

    /// The rank of this life.
    fn living_mut(&mut self, life: RankKey) -> Option<&mut Held> {
        self.held.get_mut(&life.job).filter(|held| held.life == life)
    }

    /// Nothing runs and nothing waits to.
    pub fn is_idle(&self) -> bool {
        self.running.is_none() && self.held.values().all(|held| held.shown.phase.is_terminal())
    }

    /// Takes an event in; returns what to do, in order.
    pub fn apply(&mut self, event: Event) -> Vec<Effect> {
        let effects = match event {
            Event::Connected { re_forms, timings } => {
                (self.re_forms, self.timings) = (re_forms, timings);
                self.connect()
            }
            Event::Disconnected => {
                self.connected = false;
                Vec::new()
            }
            Event::Assigned(assignment) => self.assign(assignment),
            Event::Unreadable { key, rank, reason } => self.refuse(key, rank, reason),
            Event::StartRank(key) => self.start_rank(key),
            Event::Stop { key, keep_artifacts } => self.stop(key, keep_artifacts),
            Event::EnterRing(ring) => self.enter_ring(*ring),
            Event::StepsStored(key, step) => self.stored(key, step),
            Event::Rank(key, event) => self.rank_event(key, event),
            Event::Drain => self.drain(),
            Event::LeaveIsOver => self.end_running(true),
            Event::DrainIsOver => self.end_running(false),
        };
        if self.connected {
            return effects;
        }
        effects.into_iter().filter(|effect| !matches!(effect, Effect::Send(_))).collect()
    }

    /// Says everything again that the coordinator may have missed: steps first, phases after them.
    fn connect(&mut self) -> Vec<Effect> {
        self.connected = true;
        let mut effects = Vec::new();
        for held in self.held.values() {
            effects.extend(unstored(held));
            effects.push(report(held, None));
        }
        effects
    }

    fn assign(&mut self, mut assignment: Box<Assignment>) -> Vec<Effect> {
        assignment.re_forms = self.re_forms;
        let key = assignment.key();
        // 1. Known already (said again after a reconnect), or out of date.
        if let Some(answer) = self.known(key) {
            return answer;
        }
        // 2. No rank fits beside a running one that nobody asked to end.
        let refusal = match self.running {
            _ if self.draining => Some(SHUTTING_DOWN.to_owned()),
            Some(Running { key: RankKey { job, .. }, ending: None, .. }) if job != key.job => {
                Some(format!("this worker holds a rank of job {job} already"))
            }
            _ => None,
        };
        if let Some(reason) = refusal {
            return self.refuse(key, assignment.rank, reason);
        }
        // 3. Take it, now or when the running one has ended. A newer epoch of the same job replaces the older.
        let mut held = Held { re_forms: self.re_forms, ..Held::new(key, assignment.rank) };
        let mut effects = vec![report(&held, None)];
        if self.running.is_some() {
            held.waiting = Some(assignment);
            effects.extend(self.make_room());
        } else {
            self.running = Some(Running::of(&assignment));
            effects.push(Effect::Start(assignment));
        }
        self.hold(held);
        effects
    }

    /// The answer for a rank that is held already, or one of an older ring.
    fn known(&self, key: RankKey) -> Option<Vec<Effect>> {
        let Some(held) = self.held.get(&key.job) else {
            // Let go already, while its work still ends: it cannot begin again in the same ring.
            let ends = |running: &Running| running.key.job == key.job && key.epoch <= running.key.epoch;
            return self.running.filter(ends).map(|_| Vec::new());
        };
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
    fn refuse(&mut self, key: RankKey, rank: Option<usize>, reason: String) -> Vec<Effect> {
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
            // A joiner begins with a ring of its own.
            Some(held) if held.shown.phase == Phase::Ready && !held.begun && held.shown.rank.is_some() => {
                held.begun = true;
                held.shown.phase = Phase::Training;
                vec![Effect::Train(key), report(held, None)]
            }
            _ => Vec::new(),
        }
    }

    fn stop(&mut self, key: RankKey, keep_artifacts: bool) -> Vec<Effect> {
        let Some(held) = self.since_mut(key) else { return Vec::new() };
        let (over, waiting, life) = (held.shown.phase.is_terminal(), held.waiting.is_some(), held.life);
        if waiting && keep_artifacts {
            return self.end(life, Phase::Stopped, "");
        }
        if over || waiting {
            self.held.remove(&key.job);
            return Vec::new();
        }
        if let Some(running) = self.running.as_mut().filter(|running| running.key == life) {
            running.was_asked = true;
            return self.end_running(keep_artifacts);
        }
        Vec::new()
    }

    /// Asks what runs to end. Dropping the work outweighs keeping it; asking again changes nothing.
    fn end_running(&mut self, keep_artifacts: bool) -> Vec<Effect> {
        let Some(running) = &mut self.running else { return Vec::new() };
        if running.ending == Some(false) || running.ending == Some(keep_artifacts) {
            return Vec::new();
        }
        running.ending = Some(keep_artifacts);
        let key = running.key;
        let mut effects = Vec::new();
        if let Some(held) = self.living_mut(key).filter(|held| keep_artifacts && held.re_forms) {
            let sent = held.sends_steps();
            held.tells_all = true;
            effects.extend(unstored(held).filter(|_| !sent));
        }
        effects.push(Effect::End { key, keep_artifacts });
        effects
    }

    fn stored(&mut self, key: RankKey, step: u64) -> Vec<Effect> {
        let Some(held) = self.since_mut(key) else { return Vec::new() };
        held.trim(step);
        let life = held.life;
        let runs = held.re_forms && self.running() == Some(life);
        runs.then_some(Effect::Stored(life, step)).into_iter().collect()
    }

    /// Nothing begins any more. What runs is to leave its ring, where the coordinator can let it go, or is asked to keep
    /// what it has, unless it was asked to drop it.
    fn drain(&mut self) -> Vec<Effect> {
        self.draining = true;
        let waiting = self.held.values().filter(|held| held.waiting.is_some());
        let waiting: Vec<RankKey> = waiting.map(|held| held.life).collect();
        let mut effects: Vec<Effect> =
            waiting.into_iter().flat_map(|key| self.fail(key, SHUTTING_DOWN, Fault::Nobody)).collect();
        let (connected, running) = (self.connected, self.running);
        let leaving = running
            .filter(|running| connected && running.ending.is_none())
            .and_then(|running| self.living_mut(running.key).filter(|held| held.re_forms && held.begun));
        match leaving {
            Some(held) => {
                held.shown.leaving = true;
                effects.push(report(held, None));
            }
            None => effects.extend(self.end_running(true)),
        }
        effects
    }

    fn fail(&mut self, life: RankKey, reason: &str, fault: Fault) -> Vec<Effect> {
        if let Some(held) = self.living_mut(life) {
            held.shown.fault = Some(fault);
        }
        self.end(life, Phase::Failed, reason)
    }

    /// A rank's work has ended (or never began): hold the outcome, or let go if nobody wants it; begin the next.
    fn end(&mut self, life: RankKey, phase: Phase, reason: &str) -> Vec<Effect> {
        let is_dropped =
            self.running.is_some_and(|running| running.key == life && running.ending == Some(false));
        let silently = is_dropped && !self.draining;
        let mut effects = Vec::new();
        let mut let_go = silently;
        if let Some(held) = self.living_mut(life) {
            held.waiting = None;
            held.shown.phase = phase;
            held.shown.reason = reason.to_owned();
            held.shown.trouble = None;
            let_go |= held.let_go;
            if !silently {
                effects.push(report(held, None));
            }
        }
        if let_go {
            self.held.remove(&life.job);
        }
        effects.extend(self.begin_next(life));
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
        self.running = Some(Running::of(&next));
        vec![Effect::Start(next)]
    }
}

const SHUTTING_DOWN: &str = "the worker is shutting down";

fn report(held: &Held, progress: Option<Progress>) -> Effect {
    Effect::Send(Message::Report { held: held.shown.clone(), progress })
}

/// The steps that may not be stored, if they are this rank's to send.
fn unstored(held: &Held) -> impl Iterator<Item = Effect> + '_ {
    let steps = held.unstored.iter().filter(|_| held.is_first() || held.tells_all);
    steps.map(|step| Effect::Send(Message::Step(held.shown.key, *step)))
}

#[cfg(test)]
mod tests;
