//! The ring of one epoch, as a rank's work is lent it.

use std::time::SystemTime;

use tracing::debug;

use super::Error;
use crate::ring::{self, RankRing};

/// Held by the rank's life, so that the neighbours miss this rank only when its last word is said; lent to its work.
#[derive(Debug, Default)]
pub(crate) struct LentRing {
    ring: Option<RankRing>,
}

impl LentRing {
    /// The ring of an epoch from now on.
    pub(super) fn put(&mut self, ring: RankRing) -> &mut RankRing {
        self.ring.insert(ring)
    }

    /// The ring.
    ///
    /// # Errors
    /// This rank has left it.
    pub(crate) fn get(&mut self) -> Result<&mut RankRing, Error> {
        self.ring.as_mut().ok_or(Error::Ring(ring::Error::Replaced))
    }

    /// Whether a certificate of its connections has ended: then it breaks, and nobody is lost.
    pub(super) fn is_over(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.is_over(SystemTime::now()))
    }

    /// Leaves it after the last exchange. All that this rank had to give is given: a neighbour that goes wrong from here
    /// on is not its concern.
    pub(crate) async fn leave(&mut self) {
        if let Some(ring) = self.ring.take()
            && let Err(error) = ring.close().await
        {
            debug!(%error, "the ring broke after the last exchange");
        }
    }

    /// Leaves it as it is: it breaks for the neighbours too, if it has not broken yet.
    pub(super) fn break_off(&mut self) {
        self.ring = None;
    }
}
