//! Why what a rank does in a ring is given up in the middle.

use std::future::Future;

use ringtune_shared::{ids::Epoch, ring::RingError};
use tokio::time::{Duration, Instant, sleep_until};

use super::{Error, Orders};
use crate::{
    ring,
    session::{dropped, ended, replaced},
};

/// Watches the ring of one epoch, and the orders, beside what a rank does there.
pub(crate) struct GivenUp<F> {
    failed: std::pin::Pin<Box<F>>,
    epoch: Epoch,
    orders: Orders,
    /// A rank that is to end, and to keep what it has, does so when the others do.
    ends_with_others: bool,
    /// When the step is given up all the same that the others are waited for in.
    waits_until: Option<Instant>,
}

/// Timeout of the last step of an ending rank. The coordinator allows twice as long for everything that it keeps.
const LAST_STEP: Duration = Duration::from_secs(15);

impl<F: Future<Output = RingError>> GivenUp<F> {
    /// `failed`: ends when the ring fails.
    pub(crate) fn of(failed: F, epoch: Epoch, orders: &Orders) -> Self {
        let (failed, orders) = (Box::pin(failed), orders.clone());
        Self { failed, epoch, orders, ends_with_others: false, waits_until: None }
    }

    /// For what the ranks have together: an order to end and keep it is none to give anything up, for a while.
    pub(crate) fn ending_with_others(self, ends_with_others: bool) -> Self {
        Self { ends_with_others, ..self }
    }

    /// Ends when the ring fails, when a newer one is to be entered at once, or when the rank is to end. Never after the
    /// end of the ring has been told once.
    pub(crate) async fn reason(&mut self) -> Error {
        let (mut newer, epoch, with_others) = (self.orders.clone(), self.epoch, self.ends_with_others);
        let (orders, waits_until) = (&mut self.orders, &mut self.waits_until);
        let to_end = async move {
            ended(orders).await;
            if with_others {
                let until = *waits_until.get_or_insert_with(|| Instant::now() + LAST_STEP);
                tokio::select! {
                    () = dropped(orders) => {}
                    () = sleep_until(until) => {}
                }
            }
        };
        tokio::select! {
            // An order explains a broken ring, and not the other way round.
            biased;
            () = to_end => Error::Stopped,
            () = replaced(&mut newer, epoch) => Error::Ring(ring::Error::Replaced),
            error = &mut self.failed => Error::Ring(ring::Error::Ring(error)),
        }
    }
}
