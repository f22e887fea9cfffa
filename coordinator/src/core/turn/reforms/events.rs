//! What a job's log says of a ring that changes.

use ringtune_shared::ids::JobId;

use crate::core::effect::Reformed;
use crate::core::job::{Phase, Ring};
use crate::core::record::{EventBody, LogLevel};
use crate::core::reform::Plan;
use crate::core::turn::Turn;

impl Turn<'_> {
    /// What is known of a member's loss.
    pub(in crate::core::turn) fn note_loss(&mut self, id: JobId, reason: &str) {
        let note = self.cut(reason);
        self.record(id, EventBody::note(LogLevel::Warn, note));
    }

    pub(super) fn note_wait(&mut self, id: JobId, what: &str) {
        self.record(id, EventBody::note(LogLevel::Warn, what));
    }

    /// Whom the others lost, and what they saw of it.
    pub(super) fn note_lost(&mut self, id: JobId, lost: &[usize]) {
        let Some(ring) = self.ring(id) else { return };
        for rank in lost {
            let words = words_about(&ring, *rank).unwrap_or("it is away");
            let text = format!("{} was lost: {words}", name(&ring, *rank));
            self.note_loss(id, &text);
        }
    }

    /// These have no place in the ring any more, as they and others do not reach each other. They are asked again later.
    pub(super) fn leave_out(&mut self, id: JobId, ring: &Ring, apart: &[usize]) {
        for rank in apart {
            let Some(member) = ring.members.get(*rank) else { continue };
            let look = self.cluster.jobs.get(&id).and_then(|job| job.links.of_ring(ring.epoch));
            let others = ring.present().map(|(_, other)| other.worker);
            let why = look.and_then(|look| {
                let (from, to, why) = others.filter(|other| *other != member.worker).find_map(|other| {
                    let (from, why) = look.between(member.worker, other)?;
                    Some((from, if from == other { member.worker } else { other }, why))
                })?;
                let name = |worker| self.name_in(ring, worker);
                Some(format!("{} does not reach {}: {why}", name(from), name(to)))
            });
            let words = words_about(ring, *rank).unwrap_or("its link broke again and again");
            let why = why.unwrap_or_else(|| words.to_owned());
            let seconds = self.keep_apart(id, member.worker) / 1000;
            let text = format!(
                "{} is left out of the ring: {why}. It is tried again in {seconds} s",
                name(ring, *rank)
            );
            self.note_loss(id, &text);
        }
    }

    /// Notes why a ring changes, and returns it for those who are told.
    pub(super) fn say_why(&mut self, id: JobId, old: &Ring, plan: &Plan) -> String {
        self.note_lost(id, &plan.lost);
        let gone = (0..old.members.len()).filter(|rank| old.members[*rank].gone);
        let lost: Vec<String> = gone.chain(plan.lost.iter().copied()).map(|rank| name(old, rank)).collect();
        let leave: Vec<String> = plan.leave.iter().map(|rank| name(old, *rank)).collect();
        let apart: Vec<String> = plan.apart.iter().map(|rank| name(old, *rank)).collect();
        let hosts = plan.join.iter().filter_map(|joiner| old.joining.get(*joiner));
        let hosts: Vec<&str> = hosts.map(|joiner| joiner.member.host_name.as_str()).collect();
        let mut parts = Vec::new();
        if let Some((one, other)) = plan.link {
            let words =
                words_about(old, other).or_else(|| words_about(old, one)).unwrap_or("nobody said why");
            parts.push(format!(
                "the link between {} and {} is broken: {words}",
                name(old, one),
                name(old, other)
            ));
        }
        if !lost.is_empty() {
            parts.push(format!("{} lost", was(&lost)));
        }
        if !apart.is_empty() {
            parts.push(format!("{} left out", is(&apart)));
        }
        if !leave.is_empty() {
            parts.push(format!("{} leaving", is(&leave)));
        }
        if !hosts.is_empty() {
            parts.push(format!("{} joining", is(&hosts)));
        }
        // Ranks also leave a ring by themselves, before the certificates of its connections end.
        let anew = parts.is_empty() && !plan.after_step && names_nobody(old);
        if parts.is_empty() && plan.after_step {
            parts.push("something was ordered".to_owned());
        }
        if parts.is_empty() {
            parts.push(if anew { "its members connect anew" } else { "the ring broke" }.to_owned());
        }
        let reason = self.cut(&parts.join(", "));
        let level = if plan.after_step || anew { LogLevel::Info } else { LogLevel::Warn };
        let ranks = plan.stay.len() + plan.join.len();
        let note = format!("re-forming the ring on {ranks} rank(s): {reason}");
        self.record(id, EventBody::note(level, note));
        reason
    }

    /// The ring did its first step since its members changed, or has nothing more to do.
    pub(in crate::core::turn) fn ring_is_whole(&mut self, id: JobId) {
        let Some(ring) = self.ring(id) else { return };
        let Some(reforming) = ring.reforming.clone().filter(|reforming| reforming.spare_by.is_none()) else {
            return;
        };
        let milliseconds = self.now.0.saturating_sub(reforming.since.0).max(0);
        self.change_ring(id, |ring| (ring.reforming, ring.link) = (None, None));
        let ranks = ring.present().count();
        let Some(job) = self.job_mut(id) else { return };
        job.reason = format!("{} on {ranks} rank(s)", job.activity());
        let (wanted, _) = job.ranks();
        let note = format!(
            "re-formed: epoch {}, {ranks} of {wanted} ranks, after {:.1} s",
            ring.epoch,
            milliseconds as f64 / 1000.0
        );
        self.record(id, EventBody::note(LogLevel::Info, note));
        self.effects.reformed.push(Reformed { planned: reforming.planned, milliseconds });
    }

    /// As above, for a job that has no steps to report, or whose steps are all done.
    pub(in crate::core::turn) fn look_whether_whole(&mut self, id: JobId) {
        let Some(job) = self.cluster.jobs.get(&id) else { return };
        let Some(ring) = job.ring.as_ref().filter(|ring| ring.reforming.is_some()) else { return };
        let works = |phase| matches!(phase, Phase::Training | Phase::Done | Phase::Finished);
        if job.step >= job.total_steps() && ring.all(works) {
            self.ring_is_whole(id);
            self.change_ring(id, |ring| ring.fruitless = 0);
        }
    }
}

fn name(ring: &Ring, rank: usize) -> String {
    let host = ring.members.get(rank).map_or("?", |member| member.host_name.as_str());
    format!("rank {rank} on {host}")
}

/// No member said that it lost another one.
fn names_nobody(ring: &Ring) -> bool {
    ring.members.iter().all(|member| member.pause.as_ref().is_none_or(|pause| pause.trouble.is_none()))
}

/// What somebody said of a rank.
fn words_about(ring: &Ring, rank: usize) -> Option<&str> {
    let troubles = ring.members.iter().filter_map(|member| member.pause.as_ref()?.trouble.as_ref());
    let mut about = troubles.filter(|trouble| trouble.rank.is_some_and(|named| named as usize == rank));
    about.next().map(|trouble| trouble.text.as_str())
}

fn was(names: &[impl AsRef<str>]) -> String {
    joined(names, "was", "were")
}

fn is(names: &[impl AsRef<str>]) -> String {
    joined(names, "is", "are")
}

fn joined(names: &[impl AsRef<str>], one: &str, many: &str) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    format!("{} {}", names.join(", "), if names.len() == 1 { one } else { many })
}
