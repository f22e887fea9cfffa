//! Orders to a rank's work.

use std::sync::Arc;

use ringtune_shared::ids::Epoch;
use tokio::sync::watch;

use super::types::NextRing;

/// Orders so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankOrders {
    /// All ranks are ready.
    pub train: bool,
    /// End; whether to upload what there is first.
    pub end: Option<EndOrder>,
    /// The newest ring that it was given after its first one.
    pub ring: Option<Arc<NextRing>>,
    /// Steps up to this one are safe at the coordinator.
    pub stored_step: u64,
}

impl RankOrders {
    /// Whether the coordinator has stored this step, or takes none from this rank any more: then what waits for it is
    /// refused, not lost.
    pub fn has_stored(&self, step: u64) -> bool {
        self.stored_step >= step || self.ring.as_ref().is_some_and(|ring| ring.rank.is_none())
    }

    /// The ring that takes the place of this epoch's.
    pub fn ring_after(&self, epoch: Epoch) -> Option<&Arc<NextRing>> {
        self.ring.as_ref().filter(|ring| ring.view.epoch > epoch)
    }
}

/// How to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndOrder {
    /// Upload what there is first.
    pub keep_artifacts: bool,
}

/// Tells a rank's work what to do. Dropping it ends the work.
#[derive(Debug)]
pub struct RankControl {
    orders: watch::Sender<RankOrders>,
}

impl RankControl {
    /// The control, and the end that the work listens to.
    pub fn new() -> (Self, watch::Receiver<RankOrders>) {
        let (orders, receiver) = watch::channel(RankOrders::default());
        (Self { orders }, receiver)
    }

    /// Changes what the work was told.
    pub(super) fn tell(&self, change: impl FnOnce(&mut RankOrders)) {
        self.orders.send_modify(change);
    }
}

/// Completes when the coordinator has stored this step; also when it takes no step from this rank any more, or nobody
/// holds the control.
pub(crate) async fn stored(orders: &mut watch::Receiver<RankOrders>, step: u64) {
    let _ = orders.wait_for(|orders| orders.has_stored(step)).await;
}

/// Completes when the rank is to end, or when nobody holds its control any more.
pub(crate) async fn ended(orders: &mut watch::Receiver<RankOrders>) -> Option<EndOrder> {
    match orders.wait_for(|orders| orders.end.is_some()).await {
        Ok(orders) => orders.end,
        Err(_) => None,
    }
}

/// Completes when the rank is to end without keeping anything.
pub(crate) async fn dropped(orders: &mut watch::Receiver<RankOrders>) {
    let _ = orders.wait_for(|orders| orders.end.is_some_and(|end| !end.keep_artifacts)).await;
}

/// Completes when this epoch's ring is to be given up at once for a newer one; never, when nobody holds the control.
pub(crate) async fn replaced(orders: &mut watch::Receiver<RankOrders>, epoch: Epoch) {
    let at_once = |orders: &RankOrders| orders.ring_after(epoch).is_some_and(|ring| !ring.after_step);
    if orders.wait_for(at_once).await.is_err() {
        std::future::pending::<()>().await;
    }
}
