//! What the coordinator counts, for Prometheus.
//!
//! Names follow Prometheus' own rules: base units, `_total` for counters. Labels have few values: RPC methods are
//! those of the API (any other path counts as "other"), never ids.

mod layer;
mod refusals;

use prometheus::{
    Encoder as _, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

pub use layer::{CountedBody, CountedService, Layer};
use refusals::RefusedConnections;
use ringtune_security::Refusals;

use crate::core::{JobState, OtherEpoch, Reformed, Scarce, WorkerState};

/// Seconds; from a heartbeat's handling to a long upload.
const RPC_BUCKETS: [f64; 9] = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 600.0];

/// All metrics of one coordinator; clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    rpcs: IntCounterVec,
    rpc_seconds: HistogramVec,
    jobs: IntGaugeVec,
    workers: IntGaugeVec,
    /// Optimizer steps that ranks reported.
    pub steps: IntCounter,
    /// Bytes of contents that came in.
    pub uploaded_bytes: IntCounter,
    /// What workers said that this version does not know, by what it was.
    pub unknown: IntCounterVec,
    other_epochs: IntCounterVec,
    denied_calls: IntCounterVec,
    over_quota: IntCounterVec,
    reformed: IntCounterVec,
    reform_seconds: HistogramVec,
    disk_free_bytes: IntGauge,
    disk_low: IntGauge,
    store_failing: IntGauge,
    /// Rings with a rank for which the others wait.
    pub stragglers: IntGauge,
    refusals: Refusals,
}

impl Metrics {
    /// Fresh metrics in a registry of their own, with those of the process.
    ///
    /// # Errors
    /// None in practice: only a name that is used twice or is not a metric name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let metrics = Self {
            rpcs: IntCounterVec::new(
                Opts::new("ringtune_rpcs_total", "gRPC calls that ended, by method and status code"),
                &["method", "code"],
            )?,
            rpc_seconds: HistogramVec::new(
                HistogramOpts::new("ringtune_rpc_seconds", "How long gRPC calls took, streams included")
                    .buckets(RPC_BUCKETS.to_vec()),
                &["method"],
            )?,
            jobs: IntGaugeVec::new(Opts::new("ringtune_jobs", "Jobs by state"), &["state"])?,
            workers: IntGaugeVec::new(Opts::new("ringtune_workers", "Workers by state"), &["state"])?,
            steps: IntCounter::new("ringtune_steps_total", "Optimizer steps reported by rank 0")?,
            uploaded_bytes: IntCounter::new("ringtune_uploaded_bytes_total", "Bytes of uploads received")?,
            unknown: IntCounterVec::new(
                Opts::new(
                    "ringtune_unknown_messages_total",
                    "Messages of workers, or parts of them, skipped because this version does not know them",
                ),
                &["what"],
            )?,
            other_epochs: IntCounterVec::new(
                Opts::new(
                    "ringtune_other_epoch_total",
                    "What ranks of another epoch than that of their job's ring said or sent: skipped or refused",
                ),
                &["what"],
            )?,
            denied_calls: IntCounterVec::new(
                Opts::new(
                    "ringtune_denied_calls_total",
                    "Calls that were not made because of who the caller is, or is not, by why",
                ),
                &["reason"],
            )?,
            over_quota: IntCounterVec::new(
                Opts::new(
                    "ringtune_over_quota_total",
                    "Uploads and jobs that were refused because their owner would have too much, by what",
                ),
                &["what"],
            )?,
            reformed: IntCounterVec::new(
                Opts::new(
                    "ringtune_rings_reformed_total",
                    "Rings that went on with other members: after a loss, or as planned",
                ),
                &["change"],
            )?,
            reform_seconds: HistogramVec::new(
                HistogramOpts::new(
                    "ringtune_ring_reform_seconds",
                    "From the first word of a ring's change to its first step after it",
                )
                .buckets(RPC_BUCKETS.to_vec()),
                &["change"],
            )?,
            disk_free_bytes: IntGauge::new(
                "ringtune_disk_free_bytes",
                "What is free on the disk of the state folder",
            )?,
            disk_low: IntGauge::new(
                "ringtune_disk_low",
                "1 while less is free there than storage.free_bytes: new files are refused",
            )?,
            store_failing: IntGauge::new(
                "ringtune_store_failing",
                "1 while nothing can be stored, as on a full disk: whatever changes a job is refused",
            )?,
            stragglers: IntGauge::new(
                "ringtune_stragglers",
                "Rings with a rank that computes so much longer than the others that they wait for it",
            )?,
            refusals: Refusals::default(),
            registry,
        };
        let registry = &metrics.registry;
        registry.register(Box::new(metrics.rpcs.clone()))?;
        registry.register(Box::new(metrics.rpc_seconds.clone()))?;
        registry.register(Box::new(metrics.jobs.clone()))?;
        registry.register(Box::new(metrics.workers.clone()))?;
        registry.register(Box::new(metrics.steps.clone()))?;
        registry.register(Box::new(metrics.uploaded_bytes.clone()))?;
        registry.register(Box::new(metrics.unknown.clone()))?;
        registry.register(Box::new(metrics.other_epochs.clone()))?;
        registry.register(Box::new(metrics.denied_calls.clone()))?;
        registry.register(Box::new(metrics.over_quota.clone()))?;
        registry.register(Box::new(metrics.reformed.clone()))?;
        registry.register(Box::new(metrics.reform_seconds.clone()))?;
        for gauge in
            [&metrics.disk_free_bytes, &metrics.disk_low, &metrics.store_failing, &metrics.stragglers]
        {
            registry.register(Box::new(gauge.clone()))?;
        }
        registry.register(Box::new(RefusedConnections::new(metrics.refusals.clone())?))?;
        #[cfg(target_os = "linux")]
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        Ok(metrics)
    }

    /// What the listeners count: connections that were refused.
    pub fn refusals(&self) -> Refusals {
        self.refusals.clone()
    }

    /// How many jobs are in `state` now.
    pub fn set_jobs(&self, state: JobState, count: usize) {
        let name = format!("{state:?}").to_ascii_lowercase();
        self.jobs.with_label_values(&[&name]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// How many workers are in `state` now.
    pub fn set_workers(&self, state: WorkerState, count: usize) {
        let name = format!("{state:?}").to_ascii_lowercase();
        self.workers.with_label_values(&[&name]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// How many bytes are free on the disk of the state folder, and whether that is too little.
    pub(crate) fn set_disk(&self, free: u64, low: bool) {
        self.disk_free_bytes.set(i64::try_from(free).unwrap_or(i64::MAX));
        self.disk_low.set(low.into());
    }

    /// Whether the store fails.
    pub(crate) fn set_store_failing(&self, failing: bool) {
        self.store_failing.set(failing.into());
    }

    /// Something came from another epoch than that of its job's ring.
    pub fn other_epoch(&self, what: OtherEpoch) {
        self.other_epochs.with_label_values(&[what.as_str()]).inc();
    }

    /// A call was not made because of who the caller is. `reason`: one of a few words.
    pub fn call_denied(&self, reason: &'static str) {
        self.denied_calls.with_label_values(&[reason]).inc();
    }

    /// Something was refused because its owner would have too much.
    pub(crate) fn over_quota(&self, what: Scarce) {
        self.over_quota.with_label_values(&[what.as_str()]).inc();
    }

    /// A ring is whole again after its members changed.
    pub fn ring_reformed(&self, ring: Reformed) {
        let change = if ring.planned { "planned" } else { "loss" };
        self.reformed.with_label_values(&[change]).inc();
        self.reform_seconds.with_label_values(&[change]).observe(ring.milliseconds as f64 / 1000.0);
    }

    /// One call ended. `path`: as in the request, "/ringtune.v1.JobService/GetJob".
    fn rpc_ended(&self, path: &str, code: i32, seconds: f64) {
        let method = method_of(path);
        self.rpcs.with_label_values(&[method, code_name(code)]).inc();
        self.rpc_seconds.with_label_values(&[method]).observe(seconds);
    }

    /// The text that Prometheus reads.
    ///
    /// # Errors
    /// None in practice: only a metric without a value type.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}

/// "JobService/GetJob" for a method that may be ours, "other" for what anybody can make up.
fn method_of(path: &str) -> &str {
    const SERVICES: [&str; 5] =
        ["JobService", "ClusterService", "ArtifactService", "WorkerService", "AccessService"];
    let Some(method) = path.strip_prefix("/ringtune.v1.") else { return "other" };
    let known = method
        .split_once('/')
        .is_some_and(|(service, name)| SERVICES.contains(&service) && METHODS.contains(&name));
    if known { method } else { "other" }
}

/// Every method of the five services.
const METHODS: [&str; 33] = [
    "CreateJob",
    "VerifyJob",
    "GetJob",
    "ListJobs",
    "CancelJob",
    "PauseJob",
    "ResumeJob",
    "DeleteJob",
    "WatchJob",
    "WatchJobs",
    "ListSteps",
    "ListEvents",
    "ListWorkers",
    "GetWorker",
    "DrainWorker",
    "UndrainWorker",
    "GetCluster",
    "Upload",
    "Download",
    "ListArtifacts",
    "DeleteArtifact",
    "Session",
    "Join",
    "RenewCertificate",
    "WhoAmI",
    "CreateToken",
    "ListTokens",
    "RevokeToken",
    "ListCertificates",
    "RevokeCertificate",
    "GetAuthority",
    "RotateAuthority",
    "RetireAuthority",
];

/// gRPC's own name of a status code.
pub(crate) fn code_name(code: i32) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    usize::try_from(code).ok().and_then(|code| NAMES.get(code)).copied().unwrap_or("UNKNOWN")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_anybody_can_make_up_is_one_label() {
        assert_eq!(method_of("/ringtune.v1.JobService/GetJob"), "JobService/GetJob");
        for made_up in ["/ringtune.v1.JobService/x9", "/x/GetJob", "", "/ringtune.v1.Other/GetJob"] {
            assert_eq!(method_of(made_up), "other", "{made_up}");
        }
    }

    #[test]
    fn every_method_of_the_api_is_known() {
        let text = String::from_utf8_lossy(ringtune_proto::FILE_DESCRIPTOR_SET);
        for method in METHODS {
            assert!(text.contains(method), "{method} is not in the API");
        }
    }

    #[test]
    fn values_show_in_the_text() {
        let metrics = Metrics::new().unwrap();
        metrics.set_jobs(JobState::Running, 3);
        metrics.rpc_ended("/ringtune.v1.JobService/GetJob", 5, 0.01);
        metrics.ring_reformed(Reformed { planned: false, milliseconds: 300 });
        let text = metrics.text().unwrap();
        assert!(text.contains(r#"ringtune_jobs{state="running"} 3"#), "{text}");
        let reformed = r#"ringtune_rings_reformed_total{change="loss"} 1"#;
        assert!(text.contains(reformed), "{text}");
        let refused = r#"ringtune_refused_connections_total{reason="plaintext"} 0"#;
        assert!(text.contains(refused), "{text}");
        let counted = r#"ringtune_rpcs_total{code="NOT_FOUND",method="JobService/GetJob"} 1"#;
        assert!(text.contains(counted), "{text}");
    }
}
