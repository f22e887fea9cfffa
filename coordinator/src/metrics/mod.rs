//! What the coordinator counts, for Prometheus.
//!
//! Names follow Prometheus' own rules: base units, `_total` for counters. Labels have few values: RPC methods are
//! those of the API (any other path counts as "other"), never ids.

mod layer;
mod make;
mod queue;
mod refusals;

use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

use prometheus::{
    Encoder as _, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

pub use layer::{CountedBody, CountedService, Layer};
use make::Maker;
use queue::{LongestWaits, Waits};
use refusals::RefusedConnections;
use ringtune_security::{Refusals, Trust};
use ringtune_shared::version::VERSION;

use crate::core::{JobState, LongestWait, OtherEpoch, Reformed, Scarce, WorkerState};

/// Seconds; from a heartbeat's handling to a long upload.
const RPC_BUCKETS: [f64; 9] = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 600.0];
/// Seconds; a commit that takes longer than the first of them is rare on a good disk.
const COMMIT_BUCKETS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0, 10.0];
/// Seconds; from a free worker to a busy week.
const QUEUE_BUCKETS: [f64; 9] = [1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 14_400.0, 86_400.0, 604_800.0];
/// What a message of a worker may have in it that this version does not know.
pub(crate) const UNKNOWN: [&str; 4] = ["message", "phase", "log_level", "progress_stage"];
/// Why a call is not made.
pub(crate) const DENIALS: [&str; 9] = [
    "no_identity",
    "certificate",
    "token",
    "too_many_tokens",
    "too_many_calls",
    "role",
    "worker",
    "owner",
    "method",
];
/// What stands for methods that are not ours.
const OTHER: &str = "other";
const WORKER_STATES: [&str; 3] = ["idle", "busy", "lost"];
const CHANGES: [&str; 2] = ["loss", "planned"];

/// All metrics of one coordinator; clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    rpcs: IntCounterVec,
    rpc_seconds: HistogramVec,
    jobs: IntGaugeVec,
    jobs_ended: IntCounterVec,
    workers: IntGaugeVec,
    /// Seconds that jobs waited for their first ring.
    pub queue_seconds: Histogram,
    /// Sessions of workers that are open.
    pub sessions: IntGauge,
    /// Streams of news that are open.
    pub watches: IntGauge,
    /// Steps that were stored.
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
    disk_size_bytes: IntGauge,
    disk_low: IntGauge,
    store_failing: IntGauge,
    /// Seconds that commits of the store took.
    pub commit_seconds: Histogram,
    /// Rings with a rank for which the others wait.
    pub stragglers: IntGauge,
    /// Whether the coordinator takes work.
    pub ready: IntGauge,
    certificate: Arc<OnceLock<Trust>>,
    waits: Waits,
    refusals: Refusals,
}

impl Metrics {
    /// Fresh metrics in a registry of their own, with those of the process.
    ///
    /// # Errors
    /// None in practice: only a name that is used twice or is not a metric name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let (make, certificate) = (Maker(&registry), Arc::new(OnceLock::<Trust>::new()));
        let refusals = Refusals::default();
        // 1. Of the whole.
        let about = Opts::new("ringtune_build_info", "Which program of which version this is; always 1");
        let about = about.const_label("program", "ringtune-coordinator").const_label("version", VERSION);
        make.add(IntGauge::with_opts(about)?)?.set(1);
        let trust = Arc::clone(&certificate);
        make.asked(
            "ringtune_certificate_expiry_timestamp_seconds",
            "When the certificate of the coordinator's ports ends; 0 without TLS",
            move || certificate_end(trust.get()),
        )?;
        registry.register(Box::new(RefusedConnections::new(refusals.clone())?))?;
        let waits = Waits::default();
        registry.register(Box::new(LongestWaits::new(waits.clone())?))?;
        #[cfg(target_os = "linux")]
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        // 2. Of its parts.
        let metrics = Self {
            rpcs: rpcs(&make)?,
            rpc_seconds: make.histograms(
                "ringtune_rpc_seconds",
                "How long gRPC calls took, streams included",
                ("method", &[OTHER]),
                &RPC_BUCKETS,
            )?,
            jobs: make.gauges(
                "ringtune_jobs",
                "Jobs that are kept, by state",
                ("state", &states(&JobState::ALL)),
            )?,
            jobs_ended: make.counters(
                "ringtune_jobs_ended_total",
                "Jobs that ended since the coordinator started, by how",
                ("state", &states(&JobState::ALL[3..])),
            )?,
            workers: make.gauges(
                "ringtune_workers",
                "Workers by state; a lost one that has no rank is forgotten after 10 minutes at the latest",
                ("state", &WORKER_STATES),
            )?,
            queue_seconds: make.histogram(
                "ringtune_queue_wait_seconds",
                "From a job's creation to its first ring",
                &QUEUE_BUCKETS,
            )?,
            sessions: make.gauge("ringtune_sessions", "Sessions of workers that are open")?,
            watches: make.gauge(
                "ringtune_watches",
                "Streams of news of jobs that are open; a page that somebody looks at has one, and one more for the job that it shows",
            )?,
            steps: make.counter(
                "ringtune_steps_total",
                "Steps stored, of trainings and verifications; one that is done again counts once",
            )?,
            uploaded_bytes: make.counter("ringtune_uploaded_bytes_total", "Bytes of uploads received")?,
            unknown: make.counters(
                "ringtune_unknown_messages_total",
                "Messages of workers, or parts of them, skipped because this version does not know them",
                ("what", &UNKNOWN),
            )?,
            other_epochs: make.counters(
                "ringtune_other_epoch_total",
                "What ranks of another epoch than that of their job's ring said or sent: skipped or refused",
                ("what", &OtherEpoch::ALL.map(OtherEpoch::as_str)),
            )?,
            denied_calls: make.counters(
                "ringtune_denied_calls_total",
                "Calls refused because of the caller's identity, by reason",
                ("reason", &DENIALS),
            )?,
            over_quota: make.counters(
                "ringtune_over_quota_total",
                "Uploads and jobs that were refused because their owner would have too much, by what",
                ("what", &[Scarce::Bytes, Scarce::Files].map(Scarce::as_str)),
            )?,
            reformed: make.counters(
                "ringtune_rings_reformed_total",
                "Rings that went on with other members: after a loss, or as planned",
                ("change", &CHANGES),
            )?,
            reform_seconds: make.histograms(
                "ringtune_ring_reform_seconds",
                "From the first word of a ring's change to its first step after it",
                ("change", &CHANGES),
                &RPC_BUCKETS,
            )?,
            disk_free_bytes: make
                .gauge("ringtune_disk_free_bytes", "What is free on the disk of the state folder")?,
            disk_size_bytes: make.gauge("ringtune_disk_size_bytes", "The size of that disk")?,
            disk_low: make.gauge(
                "ringtune_disk_low",
                "1 while less is free there than storage.free_bytes: new files are refused",
            )?,
            store_failing: make.gauge(
                "ringtune_store_failing",
                "1 while nothing can be stored, as on a full disk: whatever changes a job is refused",
            )?,
            commit_seconds: make.histogram(
                "ringtune_store_commit_seconds",
                "How long commits of the store took, those that failed too",
                &COMMIT_BUCKETS,
            )?,
            stragglers: make.gauge(
                "ringtune_stragglers",
                "Rings with a rank that computes so much longer than the others that they wait for it",
            )?,
            ready: make.gauge("ringtune_ready", "1 while the coordinator takes work")?,
            certificate,
            waits,
            refusals,
            registry: registry.clone(),
        };
        Ok(metrics)
    }

    /// From now on, whose certificate the ports have.
    pub fn show_certificate(&self, trust: &Trust) {
        // Once: it is the same for all of the coordinator's life.
        let _ = self.certificate.set(trust.clone());
    }

    /// From now on, who says how long jobs wait.
    pub fn show_waits(&self, ask: impl Fn() -> Vec<LongestWait> + Send + Sync + 'static) {
        self.waits.set(ask);
    }

    /// What the listeners count: connections that were refused.
    pub fn refusals(&self) -> Refusals {
        self.refusals.clone()
    }

    /// How many jobs are in `state` now.
    pub fn set_jobs(&self, state: JobState, count: usize) {
        self.jobs.with_label_values(&[state.as_str()]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A job ended in `state`.
    pub fn job_ended(&self, state: JobState) {
        self.jobs_ended.with_label_values(&[state.as_str()]).inc();
    }

    /// How many workers are in `state` now.
    pub fn set_workers(&self, state: WorkerState, count: usize) {
        let name = format!("{state:?}").to_ascii_lowercase();
        self.workers.with_label_values(&[&name]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// How many bytes are free on the disk of the state folder, of how many, and whether that is too little.
    pub(crate) fn set_disk(&self, free: u64, size: u64, low: bool) {
        self.disk_free_bytes.set(i64::try_from(free).unwrap_or(i64::MAX));
        self.disk_size_bytes.set(i64::try_from(size).unwrap_or(i64::MAX));
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

/// Calls by two labels.
fn rpcs(make: &Maker<'_>) -> Result<IntCounterVec, prometheus::Error> {
    let about = Opts::new("ringtune_rpcs_total", "gRPC calls that ended, by method and status code");
    let rpcs = make.add(IntCounterVec::new(about, &["method", "code"])?)?;
    rpcs.with_label_values(&[OTHER, code_name(0)]);
    Ok(rpcs)
}

/// The last second of the certificate, as Unix time; 0 without one.
fn certificate_end(trust: Option<&Trust>) -> f64 {
    let end = trust.and_then(Trust::credentials).map(|credentials| credentials.validity().until);
    end.and_then(|end| end.duration_since(UNIX_EPOCH).ok()).map_or(0.0, |since| since.as_secs_f64())
}

fn states<'a>(states: &[JobState]) -> Vec<&'a str> {
    states.iter().map(|state| state.as_str()).collect()
}

/// "JobService/GetJob" for a method that may be ours, "other" for what anybody can make up.
fn method_of(path: &str) -> &str {
    const SERVICES: [&str; 5] =
        ["JobService", "ClusterService", "ArtifactService", "WorkerService", "AccessService"];
    let Some(method) = path.strip_prefix("/ringtune.v1.") else { return OTHER };
    let known = method
        .split_once('/')
        .is_some_and(|(service, name)| SERVICES.contains(&service) && METHODS.contains(&name));
    if known { method } else { OTHER }
}

/// Every method of the five services.
const METHODS: [&str; 38] = [
    "CreateJob",
    "CreateSweep",
    "GetSweep",
    "CancelSweep",
    "VerifyJob",
    "GetJob",
    "ListJobs",
    "CancelJob",
    "OrderJob",
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
    "GetLimits",
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
