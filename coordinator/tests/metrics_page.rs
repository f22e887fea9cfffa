//! docs/metrics.md lists every metric of the coordinator.
#![expect(clippy::expect_used, reason = "a test reports by panicking")]

#[path = "../../shared/tests/metrics_page/mod.rs"]
mod page;

use ringtune_coordinator::metrics::Metrics;

#[test]
fn the_page_lists_every_metric_of_the_coordinator() {
    let shown = Metrics::new().and_then(|metrics| metrics.text()).expect("the metrics");
    page::check_table("ringtune-coordinator", &shown);
}
