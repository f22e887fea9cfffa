//! The worker's metrics. One registry a worker, so that several can live in one test process.

use prometheus::{
    Encoder as _, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
    TextEncoder,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use ringtune_security::Refusals;

/// A metric could not be made or shown.
#[derive(Debug, thiserror::Error)]
#[error("metrics: {0}")]
pub struct MetricsError(#[from] prometheus::Error);

/// What a worker counts and measures. All names begin with `ringtune_worker_`.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Seconds from the beginning of a step to its end.
    pub step_seconds: Histogram,
    /// Seconds of a step in the engine.
    pub compute_seconds: Histogram,
    /// Seconds of a step in which gradients travel, waiting for slower ranks included.
    pub exchange_seconds: Histogram,
    /// Steps finished since the worker started.
    pub steps: IntCounter,
    /// Pictures drawn for jobs since the worker started.
    pub pictures: IntCounter,
    /// Steps skipped because a number was not finite.
    pub skipped_steps: IntCounter,
    /// The loss of the last step.
    pub loss: Gauge,
    /// The loss on the held-out samples, when it was last taken.
    pub validation_loss: Gauge,
    /// The step that was finished last.
    pub step: IntGauge,
    /// The rank it holds; -1: none.
    pub rank: IntGauge,
    /// 1 while the session with the coordinator stands.
    pub session_up: IntGauge,
    /// Sessions with the coordinator since the worker started.
    pub sessions: IntCounter,
    /// Messages of the coordinator that were skipped, because this version does not know them.
    pub unknown_messages: IntCounter,
    /// Posteriors that went through the VAE here: two a picture, one of its mirror image.
    pub latents_encoded: IntCounter,
    /// Posteriors found in this worker's cache.
    pub latent_cache_hits: IntCounter,
    /// Posteriors that another rank had or encoded.
    pub latents_received: IntCounter,
    /// Payload bytes sent to the next rank.
    pub exchange_sent_bytes: IntCounter,
    /// Payload bytes received from the previous rank.
    pub exchange_received_bytes: IntCounter,
    /// Calls of other ranks that were refused because they came from an epoch that is over.
    pub stale_calls: IntCounter,
    /// Calls that were not let in: nobody knows who makes them, or their role or place is another.
    pub denied_calls: IntCounter,
    /// Connections to the worker's ports that were refused or closed, by reason.
    pub refusals: Refusals,
}

/// Shows what the listeners count.
struct RefusedConnections {
    refusals: Refusals,
    shape: IntCounterVec,
}

impl RefusedConnections {
    fn of(refusals: Refusals) -> Result<Self, MetricsError> {
        Ok(Self { refusals, shape: Self::empty()? })
    }

    fn empty() -> Result<IntCounterVec, prometheus::Error> {
        let name = "ringtune_worker_refused_connections_total";
        IntCounterVec::new(Opts::new(name, "Connections refused or closed, by reason"), &["reason"])
    }
}

impl Collector for RefusedConnections {
    fn desc(&self) -> Vec<&Desc> {
        self.shape.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // Made anew each time: what is counted elsewhere cannot be set here.
        let Ok(counters) = Self::empty() else { return Vec::new() };
        for (refusal, count) in self.refusals.counts() {
            counters.with_label_values(&[refusal.as_str()]).inc_by(count);
        }
        counters.collect()
    }
}

impl Metrics {
    /// Makes and registers all of them, and those of the process.
    pub fn new() -> Result<Self, MetricsError> {
        let registry = Registry::new();
        let histogram = |name: &str, help: &str| -> Result<Histogram, MetricsError> {
            let buckets = prometheus::exponential_buckets(0.001, 2.0, 18)?;
            let metric = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets))?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let counter = |name: &str, help: &str| -> Result<IntCounter, MetricsError> {
            let metric = IntCounter::new(name, help)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let gauge = |name: &str, help: &str| -> Result<IntGauge, MetricsError> {
            let metric = IntGauge::new(name, help)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let loss = Gauge::new("ringtune_worker_loss", "Loss of the last step")?;
        registry.register(Box::new(loss.clone()))?;
        let validation_loss =
            Gauge::new("ringtune_worker_validation_loss", "Loss on the held-out samples, when last taken")?;
        registry.register(Box::new(validation_loss.clone()))?;
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        let refusals = Refusals::default();
        registry.register(Box::new(RefusedConnections::of(refusals.clone())?))?;
        let metrics = Self {
            step_seconds: histogram("ringtune_worker_step_seconds", "Seconds of a step")?,
            compute_seconds: histogram("ringtune_worker_compute_seconds", "Seconds of a step in the engine")?,
            exchange_seconds: histogram(
                "ringtune_worker_exchange_seconds",
                "Seconds of a step in the exchange, waiting included",
            )?,
            steps: counter("ringtune_worker_steps_total", "Steps finished")?,
            pictures: counter("ringtune_worker_pictures_total", "Pictures drawn for jobs")?,
            skipped_steps: counter("ringtune_worker_skipped_steps_total", "Steps with a number not finite")?,
            loss,
            validation_loss,
            step: gauge("ringtune_worker_step", "The step finished last")?,
            rank: gauge("ringtune_worker_rank", "The rank held, -1 without one")?,
            session_up: gauge("ringtune_worker_session_up", "1 while the coordinator is connected")?,
            sessions: counter("ringtune_worker_sessions_total", "Sessions with the coordinator")?,
            unknown_messages: counter(
                "ringtune_worker_unknown_messages_total",
                "Messages of the coordinator skipped because this version does not know them",
            )?,
            latents_encoded: counter("ringtune_worker_latents_encoded_total", "Posteriors encoded here")?,
            latent_cache_hits: counter(
                "ringtune_worker_latent_cache_hits_total",
                "Posteriors found in the latent cache",
            )?,
            latents_received: counter(
                "ringtune_worker_latents_received_total",
                "Posteriors received from other ranks",
            )?,
            exchange_sent_bytes: counter(
                "ringtune_worker_exchange_sent_bytes_total",
                "Payload sent in rings",
            )?,
            exchange_received_bytes: counter(
                "ringtune_worker_exchange_received_bytes_total",
                "Payload received in rings",
            )?,
            stale_calls: counter(
                "ringtune_worker_stale_calls_total",
                "Calls of other ranks refused because their epoch is over",
            )?,
            denied_calls: counter("ringtune_worker_denied_calls_total", "Calls that were not let in")?,
            refusals,
            registry,
        };
        metrics.rank.set(-1);
        Ok(metrics)
    }

    /// All of them in Prometheus' text format.
    pub fn render(&self) -> Result<String, MetricsError> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_show_by_the_reason_that_they_were_refused_for() {
        let text = Metrics::new().unwrap().render().unwrap();
        for reason in ["full", "plaintext", "certificate", "revoked"] {
            let line = format!("ringtune_worker_refused_connections_total{{reason=\"{reason}\"}} 0");
            assert!(text.contains(&line), "{text}");
        }
    }

    #[test]
    fn two_workers_of_one_process_have_their_own_numbers() {
        let (one, other) = (Metrics::new().unwrap(), Metrics::new().unwrap());
        one.steps.inc_by(3);
        assert!(one.render().unwrap().contains("ringtune_worker_steps_total 3"));
        assert!(other.render().unwrap().contains("ringtune_worker_steps_total 0"));
        assert!(other.render().unwrap().contains("ringtune_worker_rank -1"));
    }
}
