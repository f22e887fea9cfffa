//! Connections that were closed or not let in, by reason, as the listeners count them.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, Opts};
use ringtune_security::Refusals;

/// Reads the listeners' counts when Prometheus asks.
pub(super) struct RefusedConnections {
    refusals: Refusals,
    description: Vec<Desc>,
}

fn counter() -> Result<IntCounterVec, prometheus::Error> {
    let help = "Connections that were not let in, or were closed for having no calls or a revoked certificate, by \
        reason; of both ports";
    IntCounterVec::new(Opts::new("ringtune_refused_connections_total", help), &["reason"])
}

impl RefusedConnections {
    pub(super) fn new(refusals: Refusals) -> Result<Self, prometheus::Error> {
        let description = counter()?.desc().into_iter().cloned().collect();
        Ok(Self { refusals, description })
    }
}

impl Collector for RefusedConnections {
    fn desc(&self) -> Vec<&Desc> {
        self.description.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // It was made once before.
        let Ok(counter) = counter() else { return Vec::new() };
        for (refusal, count) in self.refusals.counts() {
            counter.with_label_values(&[refusal.as_str()]).inc_by(count);
        }
        counter.collect()
    }
}
