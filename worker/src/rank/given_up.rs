//! Why what a rank does in a ring is given up in the middle.

use std::future::Future;

use ringtune_shared::{ids::Epoch, ring::RingError};

use super::{Error, Orders};
use crate::{
    ring,
    session::{ended, replaced},
};

/// Watches the ring of one epoch, and the orders, beside what a rank does there.
pub(crate) struct GivenUp<F> {
    failed: std::pin::Pin<Box<F>>,
    epoch: Epoch,
    orders: Orders,
}

impl<F: Future<Output = RingError>> GivenUp<F> {
    /// `failed`: ends when the ring fails.
    pub(crate) fn of(failed: F, epoch: Epoch, orders: &Orders) -> Self {
        Self { failed: Box::pin(failed), epoch, orders: orders.clone() }
    }

    /// Ends when the ring fails, when a newer one is to be entered at once, or when the rank is to end. Never after the
    /// end of the ring has been told once.
    pub(crate) async fn reason(&mut self) -> Error {
        let (mut newer, epoch) = (self.orders.clone(), self.epoch);
        tokio::select! {
            // An order explains a broken ring, and not the other way round.
            biased;
            _ = ended(&mut self.orders) => Error::Stopped,
            () = replaced(&mut newer, epoch) => Error::Ring(ring::Error::Replaced),
            error = &mut self.failed => Error::Ring(ring::Error::Ring(error)),
        }
    }
}
