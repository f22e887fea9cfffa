//! docs/metrics.md lists every metric of the worker.
#![expect(clippy::expect_used, reason = "a test reports by panicking")]

#[path = "../../shared/tests/metrics_page/mod.rs"]
mod page;

use ringtune_worker::http::Metrics;

#[test]
fn the_page_lists_every_metric_of_the_worker() {
    let shown = Metrics::new().and_then(|metrics| metrics.render()).expect("the metrics");
    page::check_table("ringtune-worker", &shown);
}
