//! Who reaches whom: asks the workers, and leaves out whom the others do not reach.

use std::collections::BTreeMap;

use ringtune_shared::ids::{Epoch, JobId, WorkerId};

use super::Turn;
use crate::core::deadlines::Subject;
use crate::core::effect::{Down, LookAtLinks};
use crate::core::job::{Phase, Ring};
use crate::core::links::{About, Apart, Links, Look, Sight};
use crate::core::refusal::Refusal;
use crate::core::session::Sender;
use crate::core::time::Time;

/// In a ring of more members each one looks at its neighbours, theirs, and those whom somebody lost.
const ALL_LOOK_AT_ALL: usize = 12;

/// Whom a worker is to look at: workers with their addresses.
type Targets = Vec<(WorkerId, String)>;

impl Turn<'_> {
    /// A worker says whom it reaches.
    pub(super) fn links_seen(
        &mut self,
        sender: Sender,
        id: JobId,
        number: u64,
        sight: Sight,
    ) -> Result<(), Refusal> {
        self.heard(sender)?;
        let Some(links) = self.links_mut(id) else { return Ok(()) };
        match links.answer(number, sender.worker, sight) {
            Some(About::Ring) => self.look_at_ring(id),
            Some(About::Joiner(joiner)) => self.judge_joiner(id, joiner),
            None => {}
        }
        Ok(())
    }

    /// The ring broke: its members look who of them is there.
    pub(super) fn ask_members(&mut self, id: JobId) {
        let Some(ring) = self.ring(id) else { return };
        let size = ring.members.len();
        let pauses = ring.present().filter_map(|(_, member)| member.pause.as_ref());
        let named: Vec<usize> =
            pauses.filter_map(|pause| usize::try_from(pause.trouble.as_ref()?.rank?).ok()).collect();
        let near = |rank: usize, other: usize| {
            let apart = rank.abs_diff(other);
            size <= ALL_LOOK_AT_ALL || apart.min(size - apart) <= 2
        };
        let looks_at = |rank: usize, other: usize| {
            rank != other && (near(rank, other) || named.contains(&rank) || named.contains(&other))
        };
        let targets = |rank: usize| {
            let others = ring.present().filter(|(other, _)| looks_at(rank, *other));
            others.map(|(_, member)| (member.worker, member.address.clone())).collect()
        };
        let questions = ring.present().map(|(rank, member)| (member.worker, targets(rank))).collect();
        let look = self.ask(id, ring.epoch, questions);
        if let Some(links) = self.links_mut(id) {
            links.ring = look;
        }
    }

    /// A worker that is ready to join and the members look whether they reach each other, beside the ring, which goes on.
    pub(super) fn ask_about_joiners(&mut self, id: JobId) {
        let Some(ring) = self.ring(id).filter(|ring| !ring.joining.is_empty()) else { return };
        for joiner in ring.joining.iter().filter(|joiner| joiner.member.phase == Phase::Ready) {
            let worker = joiner.member.worker;
            if !self.can_look(worker) || self.joiner_look(id, worker, ring.epoch).is_some() {
                continue;
            }
            let members = || ring.present().map(|(_, member)| member);
            let it = || vec![(worker, joiner.member.address.clone())];
            let mut questions: Vec<(WorkerId, Targets)> =
                members().map(|member| (member.worker, it())).collect();
            questions
                .push((worker, members().map(|member| (member.worker, member.address.clone())).collect()));
            let look = self.ask(id, ring.epoch, questions);
            if let (Some(look), Some(links)) = (look, self.links_mut(id)) {
                links.joiners.insert(worker, look);
            }
        }
    }

    /// Whether a joiner and the members reach each other, as far as they can say so.
    pub(super) fn is_reached(&self, id: JobId, worker: WorkerId, ring: &Ring) -> bool {
        let look = || self.joiner_look(id, worker, ring.epoch);
        !self.can_look(worker) || look().is_some_and(|look| look.is_over() && look.first_broken().is_none())
    }

    /// What was asked about a joiner and is over, or may still be answered.
    fn joiner_look(&self, id: JobId, worker: WorkerId, epoch: Epoch) -> Option<&Look> {
        let look = self.cluster.jobs.get(&id)?.links.of_joiner(worker, epoch)?;
        (look.is_over() || self.now < look.since.plus(self.cluster.options.look)).then_some(look)
    }

    /// Somebody said how it reaches a joiner, or the joiner how it reaches the members.
    fn judge_joiner(&mut self, id: JobId, worker: WorkerId) {
        let Some(ring) = self.ring(id) else { return };
        let Some(joiner) = ring.joiner(worker) else { return };
        let links = self.cluster.jobs.get(&id).map(|job| &job.links);
        let Some(look) = links.and_then(|links| links.of_joiner(worker, ring.epoch)) else { return };
        let Some((from, to, why)) = look.first_broken() else { return self.look_at_ring(id) };
        let name = |worker| self.name_in(&ring, worker);
        let what = format!("{} does not reach {}: {why}", name(from), name(to));
        let host = joiner.member.host_name.clone();
        let seconds = self.keep_apart(id, worker) / 1000;
        let why = format!("{host} does not join the ring: {what}. It is tried again in {seconds} s");
        self.drop_joiner(id, worker, &why);
    }

    /// A worker's rank and host.
    pub(super) fn name_in(&self, ring: &Ring, worker: WorkerId) -> String {
        match (ring.rank_of(worker), ring.member(worker), ring.joiner(worker)) {
            (Some(rank), Some(member), _) => format!("rank {rank} on {}", member.host_name),
            (_, _, Some(joiner)) => joiner.member.host_name.clone(),
            _ => worker.to_string(),
        }
    }

    /// A worker is not asked to join for a while, which grows each time. For how many milliseconds.
    pub(super) fn keep_apart(&mut self, id: JobId, worker: WorkerId) -> i64 {
        let (now, first, longest) =
            (self.now, self.cluster.options.apart, self.cluster.options.longest_apart);
        // A ring that cannot go on without others does not wait for long before it tries this one again.
        let ring = self.ring(id);
        let stands = ring.and_then(|ring| ring.reforming.as_ref()?.spare_by).is_some();
        let most = if stands { longest.min(first.saturating_mul(3)) } else { longest };
        let Some(links) = self.links_mut(id) else { return 0 };
        let lately = links.apart.get(&worker).filter(|apart| now < apart.until.plus(longest));
        let times = lately.map_or(0, |apart| apart.times);
        let pause = first.saturating_mul(1 << times.min(32)).min(most);
        let until = now.plus(pause);
        links.apart.insert(worker, Apart { times: times.saturating_add(1), until });
        self.cluster.deadlines.by(Subject::Job(id), until);
        pause
    }

    /// When there is something to be done about links, should nobody say anything.
    pub(super) fn links_deadline(&self, id: JobId) -> Option<Time> {
        let links = &self.cluster.jobs.get(&id)?.links;
        let looks = links.joiners.values().filter(|look| !look.is_over());
        let over = looks.map(|look| look.since.plus(self.cluster.options.look));
        let again = links.apart.values().map(|apart| apart.until);
        over.chain(again).filter(|at| *at > self.now).min()
    }

    /// Whoever was left out for long enough may join again.
    pub(super) fn look_at_apart(&mut self, id: JobId) {
        let is_over = |links: &Links| links.apart.values().any(|apart| apart.until <= self.now);
        if self.cluster.jobs.get(&id).is_some_and(|job| is_over(&job.links)) {
            self.cluster.placement_due = true;
        }
    }

    /// Whether a worker is there and says whom it reaches when it is asked.
    pub(super) fn can_look(&self, worker: WorkerId) -> bool {
        self.cluster.workers.get(&worker).is_some_and(|worker| worker.looks && worker.session.is_some())
    }

    /// Asks each of these about others, where it understands the question. None: nobody does.
    fn ask(&mut self, id: JobId, epoch: Epoch, questions: Vec<(WorkerId, Targets)>) -> Option<Look> {
        let since = self.now;
        let links = self.links_mut(id)?;
        links.looks += 1;
        let number = links.looks;
        let mut asked = BTreeMap::new();
        for (worker, targets) in questions {
            if self.can_look(worker) {
                let question = LookAtLinks { job: id, look: number, workers: targets };
                self.tell(worker, Down::LookAtLinks(question));
                asked.insert(worker, Sight::Asked);
            }
        }
        self.cluster.deadlines.by(Subject::Job(id), since.plus(self.cluster.options.look));
        (!asked.is_empty()).then_some(Look { number, epoch, since, asked })
    }

    /// Nothing of it is stored, so that no row is written.
    pub(super) fn links_mut(&mut self, id: JobId) -> Option<&mut Links> {
        self.cluster.jobs.get_mut(&id).map(|job| &mut std::sync::Arc::make_mut(job).links)
    }
}
