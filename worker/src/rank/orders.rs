//! What a user orders of a job that learns: after which step all ranks carry it out.
//!
//! All ranks enter a ring after the same step, and are told of the same orders with it. What is not settled by then they settle
//! there, unless one of them knows that an earlier ring did. So an order has the same step on every rank and, once that step's
//! successor is stored, at the coordinator (`coordinator/src/core/orders.rs`).

use ringtune_shared::job::LiveOrder;

use super::Error;
use crate::ring::RankRing;

/// Not known. Steps are whole numbers of at most 10,000,000, which floats hold exactly.
const UNSETTLED: f32 = -1.0;

/// Settles all orders together with the other ranks of a ring that is entered after `step`.
///
/// # Errors
/// The ring's.
pub(super) async fn settle(orders: &mut [LiveOrder], step: u64, ring: &mut RankRing) -> Result<(), Error> {
    if orders.is_empty() {
        return Ok(());
    }
    let own = orders.iter().map(|order| order.settled.map_or(UNSETTLED, |step| step as f32)).collect();
    let rows = ring.gather_one_each(own).await?;
    let known = |step: &f32| (*step >= 0.0).then_some(*step as u64);
    let known: Vec<Vec<Option<u64>>> = rows.iter().map(|row| row.iter().map(known).collect()).collect();
    LiveOrder::agree(orders, step, &known);
    Ok(())
}
