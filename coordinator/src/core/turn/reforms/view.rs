//! A job's ring as the decision sees it.

use std::collections::BTreeSet;

use ringtune_shared::ids::{JobId, WorkerId};

use crate::core::job::{Job, Member, Pause, Phase, Ring, TroubleKind};
use crate::core::job_state::JobState;
use crate::core::links::{Look, Sight};
use crate::core::reform::{Eyes, Limits, MemberState, Named, Presence, Seat, View};
use crate::core::turn::Turn;

/// Fewer steps than these are not worth another member.
const STEPS_WORTH_A_MEMBER: u64 = 2;

impl Turn<'_> {
    /// The view of a job's ring. None: it does not run, cannot re-form, or is being stopped.
    pub(in crate::core::turn) fn view(&self, id: JobId) -> Option<View> {
        let job = self.cluster.jobs.get(&id)?;
        let ring = job.ring.as_ref().filter(|ring| ring.reforms())?;
        if job.state != JobState::Running || job.told_to_stop().is_some() {
            return None;
        }
        let options = &self.cluster.options;
        let (world, min) = job.ranks();
        let ready = ring.joining.iter().map(|joiner| {
            joiner.member.phase == Phase::Ready
                && self.presence(ring, joiner.member.worker) == Presence::Here
                && !self.is_withdrawn(joiner.member.worker)
                && self.is_reached(id, joiner.member.worker, ring)
        });
        let look = job.links.of_ring(ring.epoch);
        Some(View {
            now: self.now,
            members: ring.members.iter().map(|member| self.seat_of(ring, member, look)).collect(),
            ready: ready.collect(),
            min: min as usize,
            world: world as usize,
            grows: is_worth_a_member(job),
            ordered: job.has_pending_order(),
            link: ring.link.as_ref().and_then(|link| {
                let (one, other) = (ring.rank_of(link.workers.0)?, ring.rank_of(link.workers.1)?);
                Some(((one.min(other), one.max(other)), link.times))
            }),
            broken: look.map(|look| broken_links(ring, look)).unwrap_or_default(),
            asked: look.map(|look| look.since),
            spare_by: ring.reforming.as_ref().and_then(|reforming| reforming.spare_by),
            limits: Limits {
                verdict: options.verdict,
                recovery: options.recovery,
                timeout: options.session_timeout,
                spare: options.spare,
                head: options.head,
                entry: options.entry,
                named: options.named,
                look: options.look,
            },
        })
    }

    fn seat_of(&self, ring: &Ring, member: &Member, look: Option<&Look>) -> Seat {
        let done = matches!(member.phase, Phase::Done | Phase::Finished);
        let state = match member.phase {
            _ if member.gone => MemberState::Gone { done },
            Phase::Assigned | Phase::Preparing | Phase::Ready => MemberState::Entering,
            Phase::Training => MemberState::Training,
            Phase::Waiting => waiting(ring, member.pause.as_ref(), self.now),
            Phase::Done => MemberState::Done,
            Phase::Finished => MemberState::Finished,
            // One of them makes its member gone, or ends the job.
            Phase::Failed | Phase::Stopped => MemberState::Gone { done: false },
        };
        let leaving =
            ring.pauses || self.is_withdrawn(member.worker) || self.taker(member.yields_to).is_some();
        let eyes = match look.map(|look| look.asked.get(&member.worker)) {
            None if self.can_look(member.worker) => Eyes::Closed,
            None | Some(None) => Eyes::Blind,
            Some(Some(Sight::Asked)) => Eyes::Closed,
            Some(Some(Sight::Looking)) => Eyes::Looking,
            Some(Some(Sight::Seen(_))) => Eyes::Open,
        };
        Seat { state, presence: self.presence(ring, member.worker), leaving, empty: member.newcomer, eyes }
    }

    fn presence(&self, ring: &Ring, worker: WorkerId) -> Presence {
        match self.cluster.workers.get(&worker) {
            None if self.now < ring.patience => {
                Presence::Expected { soon: ring.returns_by, late: ring.patience }
            }
            None => Presence::Away(ring.patience),
            Some(worker) => match (worker.session, worker.lost) {
                (None, Some(lost)) => Presence::Away(lost),
                _ => Presence::Here,
            },
        }
    }

    fn is_withdrawn(&self, worker: WorkerId) -> bool {
        self.cluster.workers.get(&worker).is_some_and(|worker| worker.draining || worker.leaving)
    }
}

/// The links that do not work between members, by their ranks.
fn broken_links(ring: &Ring, look: &Look) -> BTreeSet<(usize, usize)> {
    let ends = |(from, sight): (&WorkerId, &Sight)| -> Vec<(WorkerId, WorkerId)> {
        match sight {
            Sight::Seen(broken) => broken.keys().map(|to| (*from, *to)).collect(),
            _ => Vec::new(),
        }
    };
    let ranks = |(from, to)| {
        let (one, other) = (ring.rank_of(from)?, ring.rank_of(to)?);
        (one != other).then_some((one.min(other), one.max(other)))
    };
    look.asked.iter().flat_map(ends).filter_map(ranks).collect()
}

fn waiting(ring: &Ring, pause: Option<&Pause>, now: crate::core::Time) -> MemberState {
    let since = pause.map_or(now, |pause| pause.since);
    let trouble = pause.and_then(|pause| pause.trouble.as_ref());
    let names = trouble.and_then(|trouble| {
        let rank = usize::try_from(trouble.rank?).ok().filter(|rank| *rank < ring.members.len())?;
        Some(Named { rank, closed: trouble.kind == TroubleKind::Closed })
    });
    MemberState::Waiting { since, names }
}

/// Whether so much of a job is left that a new ring pays off.
pub(in crate::core::turn) fn is_worth_a_member(job: &Job) -> bool {
    let stays = job.stop.is_none() && !job.pauses();
    stays && job.total_steps().saturating_sub(job.step) >= STEPS_WORTH_A_MEMBER
}
