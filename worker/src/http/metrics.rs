//! The worker's metrics. One registry a worker, so that several can live in one test process.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::UNIX_EPOCH,
};

use prometheus::{
    Encoder as _, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
    TextEncoder,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use ringtune_security::{Refusals, Trust};
use ringtune_shared::version::VERSION;

/// A metric could not be made or shown.
#[derive(Debug, thiserror::Error)]
#[error("metrics: {0}")]
pub struct MetricsError(#[from] prometheus::Error);

/// A worker's metrics. All names begin with `ringtune_worker_`.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Seconds from the beginning of a step to its end.
    pub step_seconds: Histogram,
    /// Seconds of a step in the engine.
    pub compute_seconds: Histogram,
    /// Seconds of a step in which gradients travel and nothing is computed.
    pub exchange_seconds: Histogram,
    /// Seconds of a step in which gradients travel while others are still computed.
    pub hidden_exchange_seconds: Histogram,
    /// Seconds of a step's collectives, hidden or not, without waiting.
    pub collective_seconds: Histogram,
    /// Bytes for the bus bandwidth.
    pub bus_bytes: IntCounter,
    /// Seconds of a step in which slower ranks are waited for.
    pub wait_seconds: Histogram,
    /// Steps finished since the worker started.
    pub steps: IntCounter,
    /// Pictures drawn for jobs since the worker started.
    pub pictures: IntCounter,
    /// Texts made for jobs since the worker started.
    pub texts: IntCounter,
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
    /// Streams opened to next ranks, by what they go through.
    pub ring_streams: IntCounterVec,
    /// Calls of other ranks that were refused because they came from an epoch that is over.
    pub stale_calls: IntCounter,
    /// Calls that were not let in: nobody knows who makes them, or their role or place is another.
    pub denied_calls: IntCounter,
    /// Connections to the worker's ports that were refused or closed, by reason.
    pub refusals: Refusals,
    /// The ports' certificate and the work folder, once known.
    home: Arc<OnceLock<Home>>,
}

/// Sources that are read at each scrape.
#[derive(Debug)]
struct Home {
    trust: Option<Trust>,
    folder: PathBuf,
}

impl Home {
    /// The last second of the certificate, as Unix time; 0 without one.
    fn certificate_end(&self) -> f64 {
        let credentials = self.trust.as_ref().and_then(Trust::credentials);
        let end = credentials.map(|credentials| credentials.validity().until);
        end.and_then(|end| end.duration_since(UNIX_EPOCH).ok()).map_or(0.0, |since| since.as_secs_f64())
    }

    /// Bytes; 0 where that cannot be told.
    fn free(&self) -> f64 {
        let about = rustix::fs::statvfs(&self.folder);
        about.map_or(0.0, |about| about.f_bavail.saturating_mul(about.f_frsize) as f64)
    }
}

/// A gauge whose value is asked for whenever it is shown.
struct Asked {
    gauge: Gauge,
    home: Arc<OnceLock<Home>>,
    ask: fn(&Home) -> f64,
}

impl Collector for Asked {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gauge.set(self.home.get().map_or(0.0, self.ask));
        self.gauge.collect()
    }
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
        let about = Opts::new("ringtune_build_info", "Which program of which version this is; always 1");
        let about = about.const_label("program", "ringtune-worker").const_label("version", VERSION);
        let about = IntGauge::with_opts(about)?;
        about.set(1);
        registry.register(Box::new(about))?;
        let home = Arc::new(OnceLock::new());
        let asked = |name: &str, help: &str, ask: fn(&Home) -> f64| -> Result<(), MetricsError> {
            let (gauge, home) = (Gauge::new(name, help)?, Arc::clone(&home));
            Ok(registry.register(Box::new(Asked { gauge, home, ask }))?)
        };
        asked(
            "ringtune_worker_certificate_expiry_timestamp_seconds",
            "When the certificate of the worker ends; 0 without TLS",
            Home::certificate_end,
        )?;
        asked("ringtune_worker_disk_free_bytes", "What is free on the disk of the state folder", Home::free)?;
        let ring_streams = Opts::new(
            "ringtune_worker_ring_streams_total",
            "Streams opened to next ranks, by what they go through: tcp, or of a worker on the same machine the local socket or shared memory",
        );
        let ring_streams = IntCounterVec::new(ring_streams, &["way"])?;
        registry.register(Box::new(ring_streams.clone()))?;
        for way in ["tcp", "local", "memory"] {
            ring_streams.with_label_values(&[way]);
        }
        let refusals = Refusals::default();
        registry.register(Box::new(RefusedConnections::of(refusals.clone())?))?;
        let metrics = Self {
            step_seconds: histogram("ringtune_worker_step_seconds", "Seconds of a step")?,
            compute_seconds: histogram("ringtune_worker_compute_seconds", "Seconds of a step in the engine")?,
            exchange_seconds: histogram(
                "ringtune_worker_exchange_seconds",
                "Seconds of a step in which gradients travel and nothing is computed, without waiting",
            )?,
            hidden_exchange_seconds: histogram(
                "ringtune_worker_hidden_exchange_seconds",
                "Seconds of a step in which gradients travel while others are still computed",
            )?,
            collective_seconds: histogram(
                "ringtune_worker_collective_seconds",
                "Seconds of a step's exchanges, hidden or not, without waiting",
            )?,
            bus_bytes: counter(
                "ringtune_worker_bus_bytes_total",
                "Bytes that steps exchanged, counted as NCCL's tests do: of n ranks, a sum x 2(n-1)/n, a gather x (n-1)/n",
            )?,
            wait_seconds: histogram(
                "ringtune_worker_wait_seconds",
                "Seconds of a step in which other ranks are waited for",
            )?,
            steps: counter("ringtune_worker_steps_total", "Steps finished")?,
            pictures: counter("ringtune_worker_pictures_total", "Pictures drawn for jobs")?,
            texts: counter("ringtune_worker_texts_total", "Texts made for jobs")?,
            skipped_steps: counter(
                "ringtune_worker_skipped_steps_total",
                "Steps left out because a number was not finite",
            )?,
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
            ring_streams,
            stale_calls: counter(
                "ringtune_worker_stale_calls_total",
                "Calls of other ranks refused because their epoch is over",
            )?,
            denied_calls: counter("ringtune_worker_denied_calls_total", "Calls that were not let in")?,
            refusals,
            home,
            registry,
        };
        metrics.rank.set(-1);
        Ok(metrics)
    }

    /// From now on, whose certificate the ports have, if they speak TLS, and which folder the worker writes to.
    pub fn show_home(&self, trust: Option<Trust>, folder: PathBuf) {
        // Once: they are the same for all of its life.
        let _ = self.home.set(Home { trust, folder });
    }

    /// Renders all metrics in Prometheus' text format. Blocks: some are read from files.
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
