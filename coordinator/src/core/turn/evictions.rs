//! Workers whose certificates were revoked.

use ringtune_shared::ids::WorkerId;

use super::Turn;
use crate::core::effect::Action;
use crate::core::loss::Loss;
use crate::core::session::SessionId;
use crate::core::worker::RingPlace;

/// The reason in logs.
const REVOKED: &str = "its certificate was revoked";

impl Turn<'_> {
    /// A worker loses its session and its place at once: it does not come back as the one that it was, so that nobody waits
    /// for it. `session`: the one of the certificate; a newer one is of another certificate and goes on. None: whichever it
    /// has.
    pub(super) fn evict(&mut self, id: WorkerId, session: Option<SessionId>) {
        let current = self.cluster.workers.get(&id).and_then(|worker| worker.session);
        if session.is_some() && session != current {
            return;
        }
        if let Some(current) = current {
            self.effects.actions.push(Action::Close(current, REVOKED.to_owned()));
            self.take_session(id);
        }
        match self.cluster.place_of(id) {
            Some(RingPlace::Rank(job, rank)) => {
                let host = self.ring(job).and_then(|ring| Some(ring.member(id)?.host_name.clone()));
                let reason = format!("rank {rank} on {}: {REVOKED}", host.unwrap_or_default());
                self.lose(job, id, Loss::Evicted, &reason);
            }
            Some(RingPlace::Joins(job)) => {
                let host = self.ring(job).and_then(|ring| Some(ring.joiner(id)?.member.host_name.clone()));
                let why = format!("{} does not join the ring: {REVOKED}", host.unwrap_or_default());
                self.drop_joiner(job, id, &why);
            }
            None => {}
        }
    }
}
