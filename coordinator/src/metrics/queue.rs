//! How long jobs wait in the queue, by whose they are and where they may run, as they do when Prometheus asks.

use std::sync::{Arc, OnceLock};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts};

use crate::core::LongestWait;

/// The class of a job that is bound to none.
const ANY: &str = "any";

/// Who says it.
type Ask = Box<dyn Fn() -> Vec<LongestWait> + Send + Sync>;

/// Where the answer comes from, once there is a queue.
#[derive(Clone, Default)]
pub(super) struct Waits(Arc<OnceLock<Ask>>);

impl std::fmt::Debug for Waits {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Waits")
    }
}

impl Waits {
    /// From now on, who is asked.
    pub(super) fn set(&self, ask: impl Fn() -> Vec<LongestWait> + Send + Sync + 'static) {
        // Once: there is one queue.
        let _ = self.0.set(Box::new(ask));
    }
}

/// Reads them when Prometheus asks.
pub(super) struct LongestWaits {
    waits: Waits,
    description: Vec<Desc>,
}

fn gauge() -> Result<GaugeVec, prometheus::Error> {
    let help = "How long the job waits in the queue that waits for longest, by its owner and by the numerics class that it \
        is bound to (any: none yet); of the 100 longest";
    GaugeVec::new(Opts::new("ringtune_queue_longest_wait_seconds", help), &["owner", "class"])
}

impl LongestWaits {
    pub(super) fn new(waits: Waits) -> Result<Self, prometheus::Error> {
        let description = gauge()?.desc().into_iter().cloned().collect();
        Ok(Self { waits, description })
    }
}

impl Collector for LongestWaits {
    fn desc(&self) -> Vec<&Desc> {
        self.description.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // It was made once before.
        let Ok(gauge) = gauge() else { return Vec::new() };
        gauge.with_label_values(&["", ANY]).set(0.0);
        for LongestWait { owner, class, milliseconds } in self.waits.0.get().iter().flat_map(|ask| ask()) {
            let class = class.as_deref().unwrap_or(ANY);
            gauge.with_label_values(&[owner.as_str(), class]).set(milliseconds as f64 / 1000.0);
        }
        gauge.collect()
    }
}
