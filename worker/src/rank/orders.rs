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

/// Takes over what was told with a ring. What this rank has settled stays as it is.
pub(super) fn take_over(known: &mut Vec<LiveOrder>, told: &[LiveOrder]) {
    let merged = told.iter().map(|told| {
        let own = known.iter().find(|own| own.number == told.number).and_then(|own| own.settled);
        LiveOrder { settled: told.settled.or(own), ..told.clone() }
    });
    *known = merged.collect();
}

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
    agree(orders, step, &rows);
    Ok(())
}

/// `rows`: after which step each rank settled each order, as far as it did.
fn agree(orders: &mut [LiveOrder], step: u64, rows: &[Vec<f32>]) {
    for (index, order) in orders.iter_mut().enumerate() {
        let known = rows.iter().filter_map(|row| row.get(index)).filter(|step| **step >= 0.0);
        let known = known.map(|step| *step as u64).min();
        order.settled = order.settled.or(known);
        order.settle(step);
    }
}

#[cfg(test)]
mod tests {
    use ringtune_shared::job::Order;

    use super::*;

    fn order(number: u64, settled: Option<u64>) -> LiveOrder {
        LiveOrder { number, order: Order::Snapshot, after_step: 0, settled }
    }

    #[test]
    fn ranks_that_know_more_and_less_come_to_the_same() {
        let rows = vec![vec![UNSETTLED, 9_999_999.0, UNSETTLED], vec![7.0, 9_999_999.0, UNSETTLED]];
        for own in [[None, Some(9_999_999), None], [Some(7), Some(9_999_999), None]] {
            let mut orders = [order(1, own[0]), order(2, own[1]), order(3, own[2])];
            agree(&mut orders, 12, &rows);
            assert_eq!(orders.map(|order| order.settled), [Some(7), Some(9_999_999), Some(12)]);
        }
    }

    #[test]
    fn what_is_settled_stays_settled_when_it_is_told_again() {
        let mut known = vec![order(1, Some(5)), order(2, None)];
        take_over(&mut known, &[order(1, None), order(2, Some(6)), order(3, None)]);
        assert_eq!(known, [order(1, Some(5)), order(2, Some(6)), order(3, None)]);
    }
}
