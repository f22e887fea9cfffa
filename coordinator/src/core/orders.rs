//! What users order of jobs that learn: when all ranks know of it, and after which step it is carried out.
//!
//! 1. An order of a job that runs is pending until the ring changes, which it does for it: to the epoch that the order is of. Who
//!    enters that epoch, or a later one, is told of it. All ranks enter it after the same step, which only they know at first.
//! 2. The first new step that is stored of that epoch, or a later one, says which: the order is settled. What decides bits becomes
//!    part of the job's spec. All of it is stored with that step. A ring that goes on from a checkpoint does steps again that are
//!    stored: no order changes these.
//! 3. A job that loses its ring before that goes on from what is stored: no step after its last stored one counts, so the order is
//!    settled there. So is one that comes while the job has no ring.
//!
//! Ranks that are told of an order which is not settled agree among each other where it is (`worker/src/rank/orders.rs`).

use std::sync::Arc;

use ringtune_shared::ids::Epoch;
use ringtune_shared::job::{LiveOrder, Order};

use super::job::{Job, Ordered};

impl Job {
    /// Takes in an order. Gives its number.
    pub(super) fn add_order(&mut self, order: Order, after_step: u64) -> u64 {
        let number = self.orders.last().map_or(0, |last| last.live.number) + 1;
        // Its ring may do steps again that are stored: they stay as they are.
        let first = if order == Order::Stop { self.step + 1 } else { self.step };
        let live = LiveOrder { number, order, after_step: after_step.max(first), settled: None };
        Arc::make_mut(&mut self.orders).push(Ordered { live, epoch: None });
        number
    }

    /// Whether its ring is to change for an order.
    pub(super) fn has_pending_order(&self) -> bool {
        self.orders.iter().any(|order| order.epoch.is_none() && order.live.settled.is_none())
    }

    /// Its ring changes to this epoch.
    pub(super) fn send_orders(&mut self, epoch: Epoch) {
        if self.has_pending_order() {
            let orders = Arc::make_mut(&mut self.orders).iter_mut();
            let pending = orders.filter(|order| order.live.settled.is_none());
            pending.for_each(|order| order.epoch = order.epoch.or(Some(epoch)));
        }
    }

    /// All ranks stood after `step` when they began with what is stored first of epoch `of`; none: it has no ring. Gives what is
    /// settled by that.
    pub(super) fn settle_orders(&mut self, step: u64, of: Option<Epoch>) -> Vec<LiveOrder> {
        let is_due = |order: &Ordered| {
            order.live.settled.is_none() && of.is_none_or(|of| order.epoch.is_some_and(|epoch| epoch <= of))
        };
        if !self.orders.iter().any(is_due) {
            return Vec::new();
        }
        let mut settled = Vec::new();
        for order in Arc::make_mut(&mut self.orders).iter_mut().filter(|order| is_due(order)) {
            order.live.settle(step);
            settled.push(order.live.clone());
        }
        Arc::make_mut(&mut self.spec).take_orders(&settled);
        settled
    }

    /// What ranks of this epoch of its ring are told.
    pub(super) fn orders_of(&self, epoch: Epoch) -> Vec<LiveOrder> {
        let told = self
            .orders
            .iter()
            .filter(|order| order.live.settled.is_some() || order.epoch.is_some_and(|told| told <= epoch));
        told.map(|order| order.live.clone()).collect()
    }
}
