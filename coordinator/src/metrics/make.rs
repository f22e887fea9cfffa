//! Makes metrics. Each value that a label may have begins at 0: a counter that first appears with what it counts hides it
//! from `rate()`.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

type Made<T> = Result<T, prometheus::Error>;

/// What one label is called, and its values.
pub(super) type Label<'a> = (&'a str, &'a [&'a str]);

/// Registers what it makes.
pub(super) struct Maker<'a>(pub(super) &'a Registry);

impl Maker<'_> {
    pub(super) fn add<C: Collector + Clone + 'static>(&self, metric: C) -> Made<C> {
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> Made<IntCounter> {
        self.add(IntCounter::new(name, help)?)
    }

    pub(super) fn counters(&self, name: &str, help: &str, (label, values): Label<'_>) -> Made<IntCounterVec> {
        let counters = self.add(IntCounterVec::new(Opts::new(name, help), &[label])?)?;
        values.iter().for_each(|value| drop(counters.with_label_values(&[*value])));
        Ok(counters)
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> Made<IntGauge> {
        self.add(IntGauge::new(name, help)?)
    }

    pub(super) fn gauges(&self, name: &str, help: &str, (label, values): Label<'_>) -> Made<IntGaugeVec> {
        let gauges = self.add(IntGaugeVec::new(Opts::new(name, help), &[label])?)?;
        values.iter().for_each(|value| gauges.with_label_values(&[*value]).set(0));
        Ok(gauges)
    }

    pub(super) fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Made<Histogram> {
        self.add(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?)
    }

    pub(super) fn histograms(
        &self,
        name: &str,
        help: &str,
        (label, values): Label<'_>,
        buckets: &[f64],
    ) -> Made<HistogramVec> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let histograms = self.add(HistogramVec::new(options, &[label])?)?;
        values.iter().for_each(|value| drop(histograms.with_label_values(&[*value])));
        Ok(histograms)
    }

    /// A gauge whose value is asked for whenever it is shown.
    pub(super) fn asked(
        &self,
        name: &str,
        help: &str,
        ask: impl Fn() -> f64 + Send + Sync + 'static,
    ) -> Made<()> {
        self.0.register(Box::new(AskedGauge { gauge: Gauge::new(name, help)?, ask: Box::new(ask) }))
    }
}

struct AskedGauge {
    gauge: Gauge,
    ask: Box<dyn Fn() -> f64 + Send + Sync>,
}

impl Collector for AskedGauge {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gauge.set((self.ask)());
        self.gauge.collect()
    }
}
