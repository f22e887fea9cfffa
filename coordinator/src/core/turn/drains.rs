//! Workers that users take out of service, and put back.

use ringtune_shared::ids::WorkerId;

use super::Turn;
use crate::core::effect::Write;
use crate::core::refusal::Refusal;
use crate::core::worker::RingPlace;

impl Turn<'_> {
    /// Notes whether a worker is drained; its ring goes on without it after a step. Asking again changes nothing.
    pub(super) fn drain(&mut self, id: WorkerId, draining: bool) -> Result<(), Refusal> {
        let is_drained = self.cluster.drained.contains(&id);
        if !is_drained && self.cluster.worker(id).is_none() {
            return Err(Refusal::NoSuchWorker(id));
        }
        if is_drained == draining {
            return Ok(());
        }
        if draining {
            self.cluster.drained.insert_mut(id);
        } else {
            self.cluster.drained.remove_mut(&id);
        }
        self.cluster.change_worker(id, |worker| worker.draining = draining);
        self.effects.writes.push(Write::SetDraining(id, draining));
        match self.cluster.place_of(id) {
            Some(RingPlace::Rank(job, _)) => self.look_at_ring(job),
            Some(RingPlace::Joins(job)) => self.look_at_joiners(job),
            None => {}
        }
        Ok(())
    }
}
