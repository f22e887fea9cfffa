//! Worker daemons, as far as the coordinator can tell them from real ones: they hold ranks, form rings, take steps together,
//! and notice when a neighbour is gone.

use std::collections::{BTreeMap, VecDeque};

use ringtune_coordinator::core::{
    Down, Fault, HeldRank, Input, Phase, RankReport, Sender, SessionId, StepRecord, Trouble, TroubleKind,
};
use ringtune_shared::ids::{ContentHash, Epoch, JobId, WorkerId};

use crate::samples::{STEPS, file, state_after, step_record};
use crate::sweeps::validation_loss;
use crate::world::World;

/// So often a rank looks in vain for a neighbour that hangs, or does not come.
const PATIENCE: u32 = 6;

/// A rank as a worker holds it.
#[derive(Clone)]
pub(crate) struct Rank {
    pub(crate) held: HeldRank,
    /// The ring that it is in, or enters.
    ring: Option<Seat>,
    /// The ring that it is to enter next.
    next: Option<(Epoch, Vec<WorkerId>)>,
    /// The members of its first ring.
    first: Vec<WorkerId>,
    /// It is told to leave: it goes after the step.
    leaves: bool,
    /// The newest epoch that it heard of.
    known: Epoch,
    /// Steps that are not known to be stored.
    unsaved: BTreeMap<u64, StepRecord>,
    misses: u32,
}

#[derive(Clone)]
struct Seat {
    epoch: Epoch,
    members: Vec<WorkerId>,
    entered: bool,
}

/// A worker daemon.
pub(crate) struct Daemon {
    pub(crate) id: WorkerId,
    /// Its numerics class.
    pub(crate) class: &'static str,
    pub(crate) threads: u32,
    pub(crate) incarnation: u64,
    pub(crate) session: Option<SessionId>,
    pub(crate) inbox: VecDeque<Down>,
    pub(crate) ranks: Vec<Rank>,
    /// The last rank that it let go.
    pub(crate) past: Option<Rank>,
    /// It knows nothing of rings that change, as release 0.2.0.
    pub(crate) old: bool,
    /// It does nothing, and hears nothing.
    pub(crate) hangs: bool,
    /// It wants to end.
    pub(crate) leaving: bool,
}

impl Rank {
    pub(crate) fn is(&self, job: JobId, epoch: Epoch) -> bool {
        self.held.job == job && self.held.epoch == epoch
    }
}

impl World {
    pub(crate) fn read_inbox(&mut self, who: usize) {
        if self.daemons[who].hangs {
            return;
        }
        let files = self.disk.files.values();
        let steps: BTreeMap<ContentHash, u64> =
            files.filter_map(|file| file.checkpoint()).map(|one| (one.hash, one.step)).collect();
        let daemon = &mut self.daemons[who];
        let Some(message) = daemon.inbox.pop_front() else { return };
        match message {
            Down::Assignment(given) => {
                assert!(daemon.ranks.is_empty(), "a worker got a rank while it held another");
                if let Some(rank) = given.rank {
                    assert_eq!(given.members[rank as usize].0, daemon.id);
                }
                // A file that is gone by now is one that it began with all the same.
                let step = given.resume_from.map_or(0, |hash| steps.get(&hash).copied().unwrap_or(1));
                let held = HeldRank {
                    phase: Phase::Preparing,
                    step,
                    ..HeldRank::of(given.job, given.epoch, given.rank)
                };
                let first = given.members.iter().map(|(worker, _)| *worker).collect();
                daemon.ranks.push(Rank {
                    held,
                    ring: None,
                    next: None,
                    first,
                    leaves: false,
                    known: given.epoch,
                    unsaved: BTreeMap::new(),
                    misses: 0,
                });
            }
            Down::StartRank(job, epoch) => {
                for rank in daemon.ranks.iter_mut().filter(|rank| rank.is(job, epoch)) {
                    if rank.held.phase == Phase::Ready && rank.ring.is_none() {
                        rank.next.get_or_insert((epoch, rank.first.clone()));
                    }
                }
            }
            Down::EnterRing(given) => {
                assert!(!daemon.old, "an old worker was told to enter a ring");
                let members = given.members.iter().map(|(worker, _)| *worker).collect();
                daemon.enter(given.job, given.epoch, given.rank, given.after_step, members);
            }
            Down::StopRank { job, epoch, keep_artifacts, .. } => self.stop(who, job, epoch, keep_artifacts),
            Down::LookAtLinks(question) => self.look(who, &question),
            Down::StepsStored(job, _, step) => {
                for rank in daemon.ranks.iter_mut().filter(|rank| rank.held.job == job) {
                    rank.unsaved.retain(|unsaved, _| *unsaved > step);
                }
            }
            Down::Welcome(_) => {}
        }
    }

    fn stop(&mut self, who: usize, job: JobId, epoch: Epoch, keep_artifacts: bool) {
        let daemon = &mut self.daemons[who];
        let Some(at) = daemon.ranks.iter().position(|rank| rank.is(job, epoch)) else { return };
        if !keep_artifacts {
            daemon.past = Some(daemon.ranks.remove(at));
            return;
        }
        let rank = &mut daemon.ranks[at];
        if rank.held.phase.is_terminal() {
            return;
        }
        let keeps = rank.held.rank == Some(0) || rank.held.phase == Phase::Waiting;
        rank.held.phase = Phase::Stopped;
        let (step, connected) = (rank.held.step, daemon.session.is_some());
        if keeps && connected && step > 0 {
            let name = format!("checkpoint-{step}.safetensors");
            self.apply(Input::KeepArtifact { artifact: file(job, name, Some(epoch), self.now) });
        }
    }

    /// A rank goes on, and says so if it is connected. It also goes on when it is not.
    pub(crate) fn work(&mut self, who: usize, may_fail: bool) {
        if self.daemons[who].hangs {
            return;
        }
        let fails = may_fail && self.chance.below(60) == 0;
        let fault = [Fault::Unknown, Fault::Job, Fault::Node, Fault::Node][self.chance.below(4)];
        let Some(mut rank) = self.daemons[who].ranks.first().cloned() else { return };
        if rank.held.phase.is_terminal() {
            return;
        }
        let before = (rank.held.phase, rank.held.epoch);
        if fails {
            (rank.held.phase, rank.held.fault) = (Phase::Failed, fault);
        } else if rank.held.phase == Phase::Preparing {
            rank.held.phase = Phase::Ready;
        } else if rank.ring.is_none() {
            if let Some((epoch, members)) = rank.next.take() {
                (rank.ring, rank.misses) = (Some(Seat { epoch, members, entered: false }), 0);
            }
        } else {
            self.be_in_ring(who, &mut rank);
        }
        rank.held.leaving = self.daemons[who].leaving;
        if rank.leaves && rank.ring.is_none() {
            self.daemons[who].past = Some(rank);
            self.daemons[who].ranks.clear();
            return self.heartbeat(who);
        }
        self.daemons[who].ranks[0] = rank.clone();
        self.say_steps(who, &rank);
        if before != (rank.held.phase, rank.held.epoch) || self.chance.below(4) == 0 {
            self.report(who, &rank);
        }
    }

    fn report(&mut self, who: usize, rank: &Rank) {
        let daemon = &self.daemons[who];
        let Some(session) = daemon.session else { return };
        let sender = Sender { worker: daemon.id, session };
        self.say(who, Input::RankReport(sender, RankReport { held: rank.held.clone(), progress: None }));
    }

    /// Rank 0 sends what may not be stored, and a checkpoint now and then.
    fn say_steps(&mut self, who: usize, rank: &Rank) {
        let (job, epoch) = (rank.held.job, rank.held.epoch);
        for step in rank.unsaved.values().filter(|_| rank.held.rank == Some(0)) {
            let Some(session) = self.daemons[who].session else { return };
            let sender = Sender { worker: self.daemons[who].id, session };
            self.say(who, Input::RankStep(sender, job, epoch, *step));
            if self.chance.below(3) == 0 && self.daemons[who].session.is_some() {
                let name = format!("checkpoint-{}.safetensors", step.step);
                self.apply(Input::KeepArtifact { artifact: file(job, name, Some(epoch), self.now) });
            }
        }
    }

    /// One look around in the ring: enter it, take a step, come to the end, or lose it.
    fn be_in_ring(&mut self, who: usize, rank: &mut Rank) {
        let Some(seat) = rank.ring.clone() else { return };
        let (me, job, step) = (self.daemons[who].id, rank.held.job, rank.held.step);
        let others: Vec<WorkerId> = seat.members.iter().copied().filter(|one| *one != me).collect();
        // A ring with a broken link stands still.
        let next = |at: usize| seat.members[(at + 1) % seat.members.len()];
        if seat.members.iter().enumerate().any(|(at, one)| self.is_cut(*one, next(at))) {
            return self.look_for_neighbours(who, rank, &seat);
        }
        if !seat.entered {
            let there =
                |one: &WorkerId| self.seat_of(*one, job).is_some_and(|(at, _)| at.epoch == seat.epoch);
            if others.iter().all(there) {
                // Who is behind fetches the state.
                let steps = others.iter().filter_map(|one| self.seat_of(*one, job)).map(|(_, step)| step);
                rank.held.step = steps.max().unwrap_or(0).max(step);
                rank.ring = Some(Seat { entered: true, ..seat });
                (rank.held.phase, rank.misses) = (Phase::Training, 0);
                return;
            }
        } else if step >= STEPS {
            let ends = rank.held.rank == Some(0) || self.daemons[who].old;
            rank.held.phase = if ends { Phase::Finished } else { Phase::Done };
            return;
        } else if others.iter().all(|one| self.gives(*one, job, seat.epoch, step)) {
            return self.take_step(rank, me, &seat);
        }
        self.look_for_neighbours(who, rank, &seat);
    }

    /// Where a worker is in a job's ring, and after which step; none if it is dead to the others.
    fn seat_of(&self, worker: WorkerId, job: JobId) -> Option<(&Seat, u64)> {
        let daemon = self.daemons.iter().find(|daemon| daemon.id == worker)?;
        let rank = daemon.ranks.first().filter(|rank| rank.held.job == job && !daemon.hangs)?;
        let works = !matches!(rank.held.phase, Phase::Failed | Phase::Stopped);
        rank.ring.as_ref().filter(|_| works).map(|seat| (seat, rank.held.step))
    }

    /// Whether a member takes part in the step after this one.
    fn gives(&self, worker: WorkerId, job: JobId, epoch: Epoch, step: u64) -> bool {
        let left = self.left.get(&(worker, job, epoch)).is_some_and(|left| *left > step);
        left || self
            .seat_of(worker, job)
            .is_some_and(|(seat, at)| seat.epoch == epoch && seat.entered && at >= step)
    }

    fn take_step(&mut self, rank: &mut Rank, me: WorkerId, seat: &Seat) {
        let (job, step) = (rank.held.job, rank.held.step + 1);
        // The newest epoch that anybody knows goes around: all hear the same.
        let known = seat.members.iter().filter_map(|one| {
            let daemon = self.daemons.iter().find(|daemon| daemon.id == *one)?;
            daemon.ranks.first().filter(|rank| rank.held.job == job).map(|rank| rank.known)
        });
        let newest = known.max().unwrap_or(seat.epoch);
        let heard = *self.heard.entry((job, seat.epoch, step)).or_insert(newest);
        rank.held.step = step;
        rank.misses = 0;
        let (state, validation_loss) = (Some(state_after(job, step)), Some(validation_loss(job, step)));
        rank.unsaved
            .insert(step, StepRecord { epoch: seat.epoch, state, validation_loss, ..step_record(step) });
        if heard > seat.epoch {
            self.left.insert((me, job, seat.epoch), step);
            rank.ring = None;
            rank.held.phase = if rank.held.epoch > seat.epoch { Phase::Ready } else { Phase::Waiting };
            rank.held.trouble = None;
        }
    }

    /// It cannot go on. Does it see why?
    fn look_for_neighbours(&mut self, who: usize, rank: &mut Rank, seat: &Seat) {
        let (me, job, size) = (self.daemons[who].id, rank.held.job, seat.members.len());
        let Some(place) = seat.members.iter().position(|one| *one == me) else { return };
        let mut slow = false;
        for at in [(place + 1) % size, (place + size - 1) % size] {
            let other = seat.members[at];
            let cut = self.is_cut(me, other);
            if other == me || (!cut && self.gives(other, job, seat.epoch, rank.held.step)) {
                continue;
            }
            let Some(daemon) = self.daemons.iter().find(|daemon| daemon.id == other) else { continue };
            let theirs = daemon.ranks.first().filter(|rank| rank.held.job == job);
            let dead = theirs.is_none_or(|theirs| {
                theirs.held.phase.is_terminal()
                    || theirs.ring.as_ref().is_some_and(|at| at.epoch > seat.epoch)
                    || (seat.entered && theirs.ring.as_ref().is_none_or(|at| at.epoch != seat.epoch))
            });
            let silent = daemon.hangs || (cut && seat.entered);
            let kind = match (dead && !daemon.hangs && !cut, silent) {
                (true, _) => TroubleKind::Closed,
                (_, true) => TroubleKind::Silent,
                _ => TroubleKind::Unreachable,
            };
            let waits = kind == TroubleKind::Silent || !seat.entered;
            if kind == TroubleKind::Closed || (waits && rank.misses >= PATIENCE) {
                return self.lose_ring(who, rank, seat, at, kind);
            }
            slow |= waits;
        }
        rank.misses += u32::from(slow);
    }

    fn lose_ring(&self, who: usize, rank: &mut Rank, seat: &Seat, at: usize, kind: TroubleKind) {
        (rank.ring, rank.misses) = (None, 0);
        if self.daemons[who].old {
            (rank.held.phase, rank.held.neighbour_lost) = (Phase::Failed, true);
        } else if rank.held.epoch > seat.epoch {
            rank.held.phase = Phase::Ready;
        } else {
            let text = format!("rank {at}: {kind:?}");
            rank.held.trouble = Some(Trouble { kind, rank: u32::try_from(at).ok(), text });
            rank.held.phase = Phase::Waiting;
        }
    }
}

impl Daemon {
    /// It has done all steps of the job.
    pub(crate) fn holds_all_of(&self, job: JobId) -> bool {
        self.ranks.iter().any(|rank| rank.held.job == job && rank.held.step >= STEPS)
    }

    /// It holds a rank of the job that could go on.
    pub(crate) fn has_state_of(&self, job: JobId) -> bool {
        let goes_on = |phase| matches!(phase, Phase::Training | Phase::Waiting | Phase::Done);
        self.ranks.iter().any(|rank| rank.held.job == job && goes_on(rank.held.phase))
    }

    fn enter(
        &mut self,
        job: JobId,
        epoch: Epoch,
        place: Option<u32>,
        after_step: bool,
        members: Vec<WorkerId>,
    ) {
        let Some(at) = self.ranks.iter().position(|rank| rank.held.job == job) else { return };
        let rank = &mut self.ranks[at];
        if rank.held.epoch >= epoch {
            return;
        }
        let trains =
            rank.held.phase == Phase::Training && rank.ring.as_ref().is_some_and(|seat| seat.entered);
        let goes_on = after_step && trains;
        let Some(place) = place else {
            (rank.leaves, rank.known) = (true, epoch);
            if !goes_on {
                self.past = Some(self.ranks.remove(at));
            }
            return;
        };
        (rank.held.epoch, rank.held.rank, rank.known) = (epoch, Some(place), epoch);
        rank.next = Some((epoch, members));
        rank.held.trouble = None;
        if rank.held.phase.is_terminal() {
            (rank.held.phase, rank.held.fault) = (Phase::Failed, Fault::Node);
        } else if !goes_on {
            (rank.ring, rank.held.phase) = (None, Phase::Ready);
        }
    }
}
