//! What becomes of a ring that runs when its members change: one pure decision.
//!
//! The ring itself notices that a member is gone, and every rank that does says that it waits, and whom it lost. What is
//! decided here is who is lost, who stays, and who comes in for them.
//!
//! # When a ring loses a member
//!
//! 1. **The ring notices.** A connection ends, or there is no sign of life for 2.5 seconds. The rank drops what it was
//!    doing, even in the middle of a gradient, keeps state, model and pictures, breaks its other connection, so that
//!    all ranks learn of it, and reports that it waits and whom it lost (`worker/src/rank/rings.rs`).
//! 2. **The coordinator decides**, here. A member is lost when its worker came back without the rank, or when another
//!    member named it and it says nothing for 0.4 seconds, or its session is gone. A worker whose session is gone while
//!    its ring goes on is only away. What a single loss means for a job in any state is the table in `core/loss.rs`. If
//!    every member may be alive, a link broke: the coordinator asks the members whom they reach (`core/turn/links.rs`,
//!    answered by `worker/src/session/looking.rs`), and leaves out the member with the most broken links (`links.rs`).
//! 3. **The next epoch** is stored, and then its members are told to enter it. The survivors keep their order, so the
//!    lowest of them is rank 0. As they enter, the ranks exchange step and hash of their states;
//!    `shared/src/ring/membership.rs` decides who is behind and takes the state from whom.
//! 4. **Too few members** keep their state and wait for another worker, for `ring.spare_seconds`. After that they save
//!    a checkpoint, and the job returns to the queue and goes on from there. So does a job that lost all workers, from
//!    its newest checkpoint or from the recovery point that rank 0 uploads every minute
//!    (`worker/src/training/recovery.rs`), which is no file of the user's and goes with the job's end. A checkpoint
//!    that turns out damaged is taken off the job, and the one before it is used.
//!
//! A rank that enters a ring waits for its neighbours as long as they answer. One that does not answer is lost after
//! the lease, whoever was to call whom (`worker/src/ring/reach.rs`), and the rank waits as if its ring had broken.
//!
//! A free worker joins a ring with room. It prepares beside the ring and comes in between two steps, once it and all
//! members have checked that they reach each other. A worker that was left out, or not reached, is asked again after
//! growing waits (`Links::apart`). The newest epoch that a rank knows travels with the gradients, so that all ranks
//! leave the old ring after the same step. A worker that is drained or told to end leaves in the same way. A new rank 0
//! makes `metrics.csv` and the TensorBoard events from the steps that the coordinator has and those that it kept
//! itself.
//!
//! # Invariants
//!
//! - The next epoch is stored before anybody is told of it. Whatever a rank says or sends under an older epoch (chunks,
//!   streams, reports, steps, files) changes nothing in the newer one.
//! - Nothing that a rank waits for while a ring is formed has a timeout of its own: a neighbour that answers is waited
//!   for, one that does not is lost by the lease.
//! - A running ring is stopped for a worker that joins only when every link between them was tried both ways in this
//!   epoch.
//! - A state is taken from a rank that is furthest, and used only with the hash that it announced.
//! - A change of a state in place, by an update or by another rank's state, is completed before the rank reports where
//!   it stands, whatever becomes of its ring; step, state and hash are set together (`worker/src/training/steps.rs`:
//!   `settle`, `restored`).
//! - A ring has a member with the state, or none is formed: newcomers alone continue nothing (`Member.newcomer`).
//! - A checkpoint is at the coordinator only when the reports of its step and of all steps before it are, so that
//!   whatever continues from it leaves no hole in the history. Rank 0 holds it back until then
//!   (`worker/src/contents/uploads.rs`).

mod broken;
mod links;

use std::collections::BTreeSet;

use super::time::Time;

/// A ring that runs, as far as the decision depends on it.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) now: Time,
    /// In rank order, those that are gone included.
    pub(super) members: Vec<Seat>,
    /// Who prepares to join, in the order in which they came: whether each can come in now.
    pub(super) ready: Vec<bool>,
    /// The fewest members.
    pub(super) min: usize,
    /// The most members.
    pub(super) world: usize,
    /// Enough is left to be done that another member is worth a new ring.
    pub(super) grows: bool,
    /// Its members are to be told of an order.
    pub(super) ordered: bool,
    /// The link that broke last, by its ranks, and how often in a row.
    pub(super) link: Option<((usize, usize), u32)>,
    /// Links that do not work, as their ends say, each by its ranks, the lower one first.
    pub(super) broken: BTreeSet<(usize, usize)>,
    /// When the members were asked whom they reach; none: they were not since this ring was formed.
    pub(super) asked: Option<Time>,
    /// Too few are left already, and wait for others until then.
    pub(super) spare_by: Option<Time>,
    pub(super) limits: Limits,
}

/// Time limits, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// How long the other ranks have to report that the ring broke, after the first one did.
    pub(super) verdict: i64,
    /// How long all members may be away.
    pub(super) recovery: i64,
    /// How long a member may be away that no other one can vouch for.
    pub(super) timeout: i64,
    /// How long too few members wait for others.
    pub(super) spare: i64,
    /// How long rank 0 may be away once the others are done.
    pub(super) head: i64,
    /// How long a member may be away while its ring is being formed.
    pub(super) entry: i64,
    /// How long a member that another one reports lost may be away after a restart of the coordinator.
    pub(super) named: i64,
    /// How long members look which others they reach.
    pub(super) look: i64,
}

/// A place in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) state: MemberState,
    pub(super) presence: Presence,
    /// Its worker is about to end, or is drained, or is to serve a more urgent job.
    pub(super) leaving: bool,
    /// It has not got the state yet: without another member it can go on with nothing.
    pub(super) empty: bool,
    pub(super) eyes: Eyes,
}

/// Whether a member says whom it reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Eyes {
    /// It is of a release that does not.
    Blind,
    /// It has not said so yet.
    Closed,
    /// It lives, and looks.
    Looking,
    /// It has said so.
    Open,
}

/// How far a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemberState {
    /// It is lost or has left. `done`: after its last step, so that nobody misses it.
    Gone {
        /// See above.
        done: bool,
    },
    /// It has not said yet that it is in this ring.
    Entering,
    Training,
    /// Its ring broke, or it left it, at that time; and whom it lost.
    Waiting {
        since: Time,
        names: Option<Named>,
    },
    /// All steps are done.
    Done,
    /// The files are here as well.
    Finished,
}

/// Whom a rank lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) rank: usize,
    /// Only the connection ended, as it does where the neighbour lost somebody itself.
    pub(super) closed: bool,
}

/// Whether a member can be told anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    Here,
    /// Its session is over since then.
    Away(Time),
    /// The coordinator restarted, and it has not come back yet: a ring that is broken, or has done all its steps, waits until
    /// `soon`, another one until `late`.
    Expected {
        soon: Time,
        late: Time,
    },
}

/// What follows. Members and joiners are numbered as in the [`View`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// Nothing, before this time at least, if there is one.
    Nothing(Option<Time>),
    /// The members are to say whom they reach.
    Look,
    /// These form the next ring.
    Reform(Plan),
    /// Too few are left: they wait for others.
    WaitForSpare {
        lost: Vec<usize>,
        leave: Vec<usize>,
        /// As in a [`Plan`].
        apart: Vec<usize>,
        /// When to look again.
        until: Time,
    },
    /// The job goes back to the queue.
    Queue {
        why: Why,
        lost: Vec<usize>,
        /// There is somebody who can keep a checkpoint.
        survivors: bool,
    },
    /// These did all their steps and want to leave: nobody needs them.
    LetGo(Vec<usize>),
    /// All is done.
    End,
}

/// The members of the next ring.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Plan {
    /// In rank order.
    pub(super) stay: Vec<usize>,
    pub(super) lost: Vec<usize>,
    /// Those who are told to leave.
    pub(super) leave: Vec<usize>,
    /// Who is left out, as it and others do not reach each other.
    pub(super) apart: Vec<usize>,
    /// Joiners, who come after those that stay.
    pub(super) join: Vec<usize>,
    /// The ring is whole: it ends its step first.
    pub(super) after_step: bool,
    /// Nobody was lost but the link between these.
    pub(super) link: Option<(usize, usize)>,
}

/// Why a job that runs goes back to the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Nobody is left.
    AllLost,
    /// Only newcomers are left, to whom nobody gave the state.
    StateLost,
    /// Too few are left, and nobody came in time.
    NoSpare,
    /// Too few would be left without those that leave.
    Leaving,
}

/// The decision.
///
/// | the ring                                             | what follows                                             |
/// |------------------------------------------------------|----------------------------------------------------------|
/// | rank 0 finished, nobody works                        | the end                                                  |
/// | nobody is left, or nobody who has the state          | the queue                                                |
/// | broke, and nobody was asked yet whom it reaches      | they are                                                 |
/// | broke, and it is clear who is lost; enough are left  | those who are left, and who is ready, form the next one  |
/// | broke, too few are left                              | they wait for a spare, or for its time to be over: queue |
/// | being formed, a member away                          | it is lost: see above                                    |
/// | whole, all away for too long                         | the queue                                                |
/// | whole, all but rank 0 done, rank 0 gone              | the others form the next one, to send the files          |
/// | whole, a member wants to leave                       | without it, after this step; if it is needed: the queue  |
/// | whole, a joiner is ready and there is room           | with it, after this step                                 |
/// | whole, something was ordered                         | the same, after this step                                |
/// | otherwise                                            | nothing                                                  |
pub(super) fn decide(view: &View) -> Decision {
    let live = view.live();
    // Rank 0 is done only when its files are here, also one that was restarted after that.
    if let Some(first) = view.members.first()
        && matches!(first.state, MemberState::Finished | MemberState::Gone { done: true })
    {
        return view.end(&live);
    }
    if live.is_empty() {
        return Decision::Queue { why: Why::AllLost, lost: Vec::new(), survivors: false };
    }
    let hurt =
        |seat: &Seat| matches!(seat.state, MemberState::Gone { done: false } | MemberState::Waiting { .. });
    if view.members.iter().any(hurt) { broken::decide(view, &live) } else { view.whole(&live) }
}

impl View {
    fn live(&self) -> Vec<usize> {
        let gone = |seat: &Seat| matches!(seat.state, MemberState::Gone { .. });
        (0..self.members.len()).filter(|rank| !gone(&self.members[*rank])).collect()
    }

    fn is_here(&self, rank: usize) -> bool {
        self.members[rank].presence == Presence::Here
    }

    fn is_done(&self, rank: usize) -> bool {
        self.members[rank].state == MemberState::Done
    }

    /// The joiners that are ready, as many as there is room for beside `members`.
    fn spares(&self, members: usize) -> Vec<usize> {
        let ready = self.ready.iter().enumerate().filter(|(_, ready)| **ready).map(|(joiner, _)| joiner);
        ready.take(self.world.saturating_sub(members)).collect()
    }

    /// Rank 0 has sent the files: the others need only come to their end, if they can. Who has not come into the ring by
    /// now has nothing left to do there.
    fn end(&self, live: &[usize]) -> Decision {
        let works = |rank: &&usize| {
            let seat = self.members[**rank];
            let is_lost = match seat.presence {
                Presence::Here => false,
                Presence::Away(_) => true,
                Presence::Expected { soon, .. } => soon <= self.now,
            };
            seat.state == MemberState::Training && !is_lost
        };
        let mut working = live.iter().filter(works).peekable();
        if working.peek().is_none() {
            return Decision::End;
        }
        let until = working.filter_map(|rank| match self.members[*rank].presence {
            Presence::Expected { soon, .. } if self.now < soon => Some(soon),
            _ => None,
        });
        Decision::Nothing(until.min())
    }

    /// Nobody's ring broke, as far as anybody knows.
    fn whole(&self, live: &[usize]) -> Decision {
        let away: Vec<usize> = live.iter().copied().filter(|rank| !self.is_here(*rank)).collect();
        if away.len() == live.len() {
            return self.all_away(live);
        }
        if let Some(decision) = self.head_away(live) {
            return decision;
        }
        if let Some(decision) = self.missing(&away) {
            return decision;
        }
        if !away.is_empty() {
            // The ring goes on without the coordinator. Who is away cannot be told of a change.
            return Decision::Nothing(None);
        }
        let at_work = live.iter().all(|rank| self.members[*rank].state == MemberState::Training);
        let (leaving, rest): (Vec<usize>, Vec<usize>) =
            live.iter().partition(|rank| self.members[**rank].leaving);
        if !leaving.is_empty() {
            return self.leave(at_work, &leaving, rest);
        }
        let mut join = self.spares(rest.len());
        if !self.grows {
            join.clear();
        }
        if at_work && (self.ordered || !join.is_empty()) {
            return Decision::Reform(Plan { stay: rest, join, after_step: true, ..Plan::default() });
        }
        Decision::Nothing(None)
    }

    /// No member can be told anything, and nobody can say whether they live.
    fn all_away(&self, live: &[usize]) -> Decision {
        let patience = if live.len() == 1 { self.limits.timeout } else { self.limits.recovery };
        let until = live.iter().map(|rank| match self.members[*rank].presence {
            Presence::Here => self.now,
            Presence::Away(since) => since.plus(patience),
            Presence::Expected { late, .. } => late,
        });
        match until.max() {
            Some(until) if self.now < until => Decision::Nothing(Some(until)),
            _ => Decision::Queue { why: Why::AllLost, lost: live.to_vec(), survivors: false },
        }
    }

    /// A ring comes about with all its members only. Those who are there wait for one that is away, whatever it may be.
    fn missing(&self, away: &[usize]) -> Option<Decision> {
        let missing = away.iter().filter_map(|rank| match self.members[*rank] {
            Seat { state: MemberState::Entering, presence: Presence::Away(since), .. } => {
                Some((*rank, since))
            }
            _ => None,
        });
        let missing: Vec<(usize, Time)> = missing.collect();
        let until = missing.iter().map(|(_, since)| since.plus(self.limits.entry)).min()?;
        if self.now < until {
            return Some(Decision::Nothing(Some(until)));
        }
        let mut without = self.clone();
        for (rank, _) in &missing {
            without.members[*rank].state = MemberState::Gone { done: false };
        }
        let mut decision = decide(&without);
        if let Decision::Reform(Plan { lost, .. })
        | Decision::WaitForSpare { lost, .. }
        | Decision::Queue { lost, .. } = &mut decision
        {
            lost.extend(missing.iter().map(|(rank, _)| *rank));
            lost.sort_unstable();
        }
        Some(decision)
    }

    /// All but rank 0 are done, and it is not there: then somebody else sends the files. After a restart of the coordinator those
    /// who are back and done say for all that nothing is left to be computed.
    fn head_away(&self, live: &[usize]) -> Option<Decision> {
        let (&first, others) = live.split_first()?;
        let expected = |rank: usize| matches!(self.members[rank].presence, Presence::Expected { .. });
        let done = first == 0
            && others.iter().any(|rank| self.is_done(*rank) && self.is_here(*rank))
            && others.iter().all(|rank| self.is_done(*rank) || expected(*rank));
        let until = match self.members[first].presence {
            _ if !done => return None,
            Presence::Here => return None,
            Presence::Away(since) => since.plus(self.limits.head),
            // No ring goes on that it could be away from.
            Presence::Expected { soon, .. } => soon,
        };
        if self.now < until {
            return Some(Decision::Nothing(Some(until)));
        }
        let (stay, absent): (Vec<usize>, Vec<usize>) = others.iter().partition(|rank| self.is_here(**rank));
        let lost = [vec![first], absent].concat();
        Some(Decision::Reform(Plan { stay, lost, ..Plan::default() }))
    }

    fn leave(&self, at_work: bool, leaving: &[usize], rest: Vec<usize>) -> Decision {
        let done: Vec<usize> =
            leaving.iter().copied().filter(|rank| *rank != 0 && self.is_done(*rank)).collect();
        if !done.is_empty() {
            return Decision::LetGo(done);
        }
        if !at_work {
            return Decision::Nothing(None);
        }
        let join = self.spares(rest.len());
        if rest.is_empty() || rest.len() + join.len() < self.min {
            return Decision::Queue { why: Why::Leaving, lost: Vec::new(), survivors: true };
        }
        let leave = leaving.to_vec();
        Decision::Reform(Plan { stay: rest, leave, join, after_step: true, ..Plan::default() })
    }
}

#[cfg(test)]
mod tests;
