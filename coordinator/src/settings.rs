//! The coordinator's settings: defaults, then a file, then `RINGTUNE__SECTION__KEY`, then flags.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ringtune_shared::daemon::{
    logging::LogSettings,
    settings::{ListenSettings, SecuritySettings, SettingsError, check_state_dir},
    traces::TraceSettings,
};
use ringtune_shared::job::HIGHEST_PRIORITY;
use serde::{Deserialize, Serialize};

use crate::host_names::is_name;

/// What a coordinator that runs takes from settings that it reads again (SIGHUP), by full names.
pub const CHANGE_BY_RELOAD: [&str; 8] = [
    "limits.queued_jobs",
    "limits.owner_queued_jobs",
    "limits.owner_ranks",
    "limits.workers",
    "limits.owner_bytes",
    "limits.owner_files",
    "limits.calls_per_second",
    "log.filter",
];

/// Owners with a weight of their own.
const MOST_WEIGHTS: usize = 1000;

/// They go over the line in every handshake.
const MOST_NAMES: usize = 50;

/// All sections. Unknown keys are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where clients and workers connect.
    pub grpc: ListenSettings,
    /// Where the page, its API, `/metrics`, `/healthz` and `/readyz` are.
    pub http: ListenSettings,
    /// Where jobs and files are kept, and how much room the files may take.
    pub storage: StorageSettings,
    /// How long the coordinator waits for a silent worker.
    pub session: SessionSettings,
    /// How long a ring that runs waits for what.
    pub ring: RingSettings,
    /// In which order jobs get workers.
    pub queue: QueueSettings,
    /// What no client can exceed, whether by mistake or on purpose.
    pub limits: LimitSettings,
    /// The log, on stderr.
    pub log: LogSettings,
    /// Spans of jobs, sent to a collector by OTLP.
    pub traces: TraceSettings,
    /// What keeps strangers out.
    pub security: SecuritySettings,
    /// The cluster's own certificate authority.
    pub authority: AuthoritySettings,
}

/// `[authority]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthoritySettings {
    /// How long a certificate is valid that the cluster's own authority gives; everybody gets the next one after two thirds of it.
    ///
    /// Allowed: 10 to 31536000.
    pub certificate_seconds: u64,
    /// By which names and addresses the coordinator is reached by browsers and Prometheus, besides localhost, its host name and the addresses on which it listens.
    ///
    /// Allowed: at most 50 host names and IP addresses.
    pub names: Vec<String>,
}

/// `[storage]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StorageSettings {
    /// The folder in which the coordinator keeps jobs, their history and all files; one coordinator per folder.
    ///
    /// Allowed: a folder.
    pub state_dir: PathBuf,
    /// How much all uploaded files and artifacts together may take; 0: as much as the disk has.
    ///
    /// Allowed: 0 or more.
    pub content_bytes: u64,
    /// How much of the disk uploads leave free.
    ///
    /// Allowed: 0 or more.
    pub free_bytes: u64,
    /// How many days files of deleted jobs, and files that no job wants, are kept before they are gone for good; fewer where room is needed.
    ///
    /// Allowed: 1 to 3650.
    pub trash_days: u32,
}

/// `[session]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionSettings {
    /// How often a worker tells the coordinator that it is alive.
    ///
    /// Allowed: 0.01 to half of `session.timeout_seconds`.
    pub heartbeat_seconds: f64,
    /// How long a worker may be silent before its session is ended, and how long one that joins a running ring then has to come back; where the whole ring prepares, it has 2 seconds at most.
    ///
    /// Allowed: twice `session.heartbeat_seconds` to 86400.
    pub timeout_seconds: f64,
    /// How long the coordinator waits for the workers of running jobs after its own restart.
    ///
    /// Allowed: 0.01 to 86400.
    pub recovery_seconds: f64,
}

/// `[ring]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RingSettings {
    /// How long the workers of a running job wait for another one when fewer than its `min_world_size` are left; then they keep a checkpoint, and the job goes back to the queue.
    ///
    /// Allowed: 0.01 to 86400.
    pub spare_seconds: f64,
}

/// `[queue]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueSettings {
    /// After how long what an owner has used of the cluster counts half: among jobs of one priority, those come first whose owner has used less.
    ///
    /// Allowed: 60 to 31536000.
    pub half_life_seconds: f64,
    /// Owners who are entitled to more or less than others, each as `NAME=WEIGHT`: who has 2 may use twice as much; others have 1.
    ///
    /// Allowed: at most 1000, each weight 0.01 to 100.
    pub weights: Vec<String>,
    /// By how much a job's `queue.priority` must be higher than that of a running job to take ranks from it: that one goes on with fewer, or later, and loses no step; 1001: nobody takes any.
    ///
    /// Allowed: 1 to 1001.
    pub preempt_difference: u32,
    /// After how long in the queue a job comes before all that have not waited so long, whatever their priority.
    ///
    /// Allowed: 60 to 31536000.
    pub longest_wait_seconds: f64,
    /// The highest `queue.priority` that a submitter may give a job; admins may give any, and so may everybody on loopback and with `--insecure`.
    ///
    /// Allowed: 0 to 1000.
    pub submitter_priority: u32,
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitSettings {
    /// How many jobs may wait in the queue, paused ones included.
    ///
    /// Allowed: 1 to 1000000.
    pub queued_jobs: usize,
    /// How many jobs of one owner may wait in the queue, paused ones included; 0: as many as those of all owners together.
    ///
    /// Allowed: 0 to 1000000.
    pub owner_queued_jobs: usize,
    /// How many ranks the jobs of one owner may have at a time, a worker that prepares to join a ring included; 0: as many as there are.
    ///
    /// Allowed: 0 to 1000000.
    pub owner_ranks: u32,
    /// How many workers may be connected.
    ///
    /// Allowed: 1 to 1000000.
    pub workers: usize,
    /// How large one uploaded file may be.
    ///
    /// Allowed: 1 or more.
    pub upload_bytes: u64,
    /// How many uploads may be under way at a time.
    ///
    /// Allowed: 1 to 1000000.
    pub uploads: usize,
    /// How many artifacts one job may have; one that replaces another counts again.
    ///
    /// Allowed: 1 or more.
    pub artifacts_per_job: u64,
    /// How many bytes one owner's uploads and the files of their jobs may take; 0: as many as those of all owners together; nobody is limited on loopback and with `--insecure`.
    ///
    /// Allowed: 0 or more.
    pub owner_bytes: u64,
    /// How many files these may be; a file that several jobs of one owner have counts once.
    ///
    /// Allowed: 1 or more.
    pub owner_files: u64,
    /// How many gRPC connections may be open at a time.
    ///
    /// Allowed: 1 to 1000000.
    pub connections: usize,
    /// How many of them one address beyond loopback may have; of IPv6, one network of 64 bits.
    ///
    /// Allowed: 1 to 1000000.
    pub connections_per_address: usize,
    /// How long a connection may take to open, its handshake included, and then until its first call.
    ///
    /// Allowed: 0.01 to 86400.
    pub opening_seconds: f64,
    /// How many gRPC calls may be under way at a time on one connection.
    ///
    /// Allowed: 1 to 1000000.
    pub calls_per_connection: usize,
    /// How many calls one member of the cluster, or one address that is none's, may make a second in the long run; ten times as many at once, and those over it wait up to 5 seconds.
    ///
    /// Allowed: 1 to 1000000.
    pub calls_per_second: usize,
    /// How long a call with a single answer may take.
    ///
    /// Allowed: 0.01 to 86400.
    pub call_seconds: f64,
    /// How long the client of an upload, a download or a watch may do nothing before the call is ended; after twice as long a
    /// connection that takes nothing of what is sent to it.
    ///
    /// Allowed: 0.01 to 86400.
    pub idle_seconds: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            grpc: ListenSettings::on_loopback(7070),
            http: ListenSettings::on_loopback(7071),
            storage: StorageSettings::default(),
            session: SessionSettings::default(),
            ring: RingSettings::default(),
            queue: QueueSettings::default(),
            limits: LimitSettings::default(),
            log: LogSettings::default(),
            traces: TraceSettings::default(),
            security: SecuritySettings::default(),
            authority: AuthoritySettings::default(),
        }
    }
}

impl Default for StorageSettings {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from("/var/lib/ringtune"),
            content_bytes: 0,
            free_bytes: 512 << 20,
            trash_days: 7,
        }
    }
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self { heartbeat_seconds: 2.0, timeout_seconds: 15.0, recovery_seconds: 60.0 }
    }
}

impl Default for RingSettings {
    fn default() -> Self {
        Self { spare_seconds: 600.0 }
    }
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            half_life_seconds: 86_400.0,
            weights: Vec::new(),
            preempt_difference: 100,
            longest_wait_seconds: 7.0 * 86_400.0,
            submitter_priority: 99,
        }
    }
}

impl QueueSettings {
    /// The weights of owners who have another one than 1.
    pub fn weights(&self) -> BTreeMap<String, f64> {
        self.weights.iter().filter_map(|text| weight(text)).collect()
    }
}

/// Reads `NAME=WEIGHT`.
fn weight(text: &str) -> Option<(String, f64)> {
    let (owner, weight) = text.rsplit_once('=')?;
    let weight = weight.parse().ok().filter(|weight| (0.01..=100.0).contains(weight))?;
    Some((owner.to_owned(), weight))
}

impl Default for AuthoritySettings {
    fn default() -> Self {
        Self { certificate_seconds: 7 * 24 * 3600, names: Vec::new() }
    }
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            queued_jobs: 20_000,
            owner_queued_jobs: 0,
            owner_ranks: 0,
            workers: 2000,
            upload_bytes: 64 << 30,
            uploads: 64,
            artifacts_per_job: 10_000,
            owner_bytes: 1 << 40,
            owner_files: 1_000_000,
            connections: 8192,
            connections_per_address: 256,
            opening_seconds: 10.0,
            calls_per_connection: 256,
            calls_per_second: 500,
            call_seconds: 30.0,
            idle_seconds: 60.0,
        }
    }
}

impl Settings {
    /// Refuses what types alone do not: values out of range, and those that contradict each other.
    ///
    /// # Errors
    /// The first setting that cannot be used, by name.
    pub fn validate(&self) -> Result<(), SettingsError> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// All settings that cannot be used, each for itself or beside the others.
    pub fn problems(&self) -> Vec<SettingsError> {
        let mut problems = Vec::new();
        let seconds = [
            ("session.heartbeat_seconds", self.session.heartbeat_seconds),
            ("session.timeout_seconds", self.session.timeout_seconds),
            ("session.recovery_seconds", self.session.recovery_seconds),
            ("ring.spare_seconds", self.ring.spare_seconds),
            ("limits.opening_seconds", self.limits.opening_seconds),
            ("limits.call_seconds", self.limits.call_seconds),
            ("limits.idle_seconds", self.limits.idle_seconds),
        ];
        for (key, given) in seconds {
            if !(0.01..=86_400.0).contains(&given) {
                problems.push(SettingsError::number(key, given, "it must be between 0.01 and 86400"));
            }
        }
        if self.session.timeout_seconds < 2.0 * self.session.heartbeat_seconds {
            problems.push(SettingsError::number(
                "session.timeout_seconds",
                self.session.timeout_seconds,
                "it must be at least twice heartbeat_seconds",
            ));
        }
        let counts = [
            ("limits.queued_jobs", self.limits.queued_jobs),
            ("limits.workers", self.limits.workers),
            ("limits.uploads", self.limits.uploads),
            ("limits.connections", self.limits.connections),
            ("limits.connections_per_address", self.limits.connections_per_address),
            ("limits.calls_per_connection", self.limits.calls_per_connection),
            ("limits.calls_per_second", self.limits.calls_per_second),
        ];
        for (key, given) in counts {
            if !(1..=1_000_000).contains(&given) {
                problems.push(SettingsError::number(key, given, "it must be between 1 and 1000000"));
            }
        }
        for (key, given) in [
            ("limits.upload_bytes", self.limits.upload_bytes),
            ("limits.artifacts_per_job", self.limits.artifacts_per_job),
            ("limits.owner_files", self.limits.owner_files),
        ] {
            if given == 0 {
                problems.push(SettingsError::number(key, 0, "it must be at least 1"));
            }
        }
        let queue = &self.queue;
        for (key, given) in [
            ("queue.half_life_seconds", queue.half_life_seconds),
            ("queue.longest_wait_seconds", queue.longest_wait_seconds),
        ] {
            if !(60.0..=31_536_000.0).contains(&given) {
                problems.push(SettingsError::number(key, given, "it must be between 60 and 31536000"));
            }
        }
        if let Some(text) = queue.weights.iter().find(|text| weight(text).is_none()) {
            let allowed = "NAME=WEIGHT with a weight of 0.01 to 100 is";
            problems.push(SettingsError::text("queue.weights", text, allowed));
        }
        if queue.weights.len() > MOST_WEIGHTS {
            let allowed = format!("at most {MOST_WEIGHTS} owners are");
            problems.push(SettingsError::number("queue.weights", queue.weights.len(), &allowed));
        }
        if !(1..=HIGHEST_PRIORITY + 1).contains(&queue.preempt_difference) {
            let allowed = format!("it must be between 1 and {}", HIGHEST_PRIORITY + 1);
            problems.push(SettingsError::number(
                "queue.preempt_difference",
                queue.preempt_difference,
                &allowed,
            ));
        }
        if queue.submitter_priority > HIGHEST_PRIORITY {
            let allowed = format!("it must be between 0 and {HIGHEST_PRIORITY}");
            problems.push(SettingsError::number(
                "queue.submitter_priority",
                queue.submitter_priority,
                &allowed,
            ));
        }
        for (key, given) in [
            ("limits.owner_queued_jobs", self.limits.owner_queued_jobs),
            ("limits.owner_ranks", self.limits.owner_ranks as usize),
        ] {
            if given > 1_000_000 {
                problems.push(SettingsError::number(key, given, "it must be between 0 and 1000000"));
            }
        }
        let days = self.storage.trash_days;
        if !(1..=3650).contains(&days) {
            problems.push(SettingsError::number("storage.trash_days", days, "it must be between 1 and 3650"));
        }
        let life = self.authority.certificate_seconds;
        if !(10..=31_536_000).contains(&life) {
            let allowed = "it must be between 10 and 31536000";
            problems.push(SettingsError::number("authority.certificate_seconds", life, allowed));
        }
        let names = &self.authority.names;
        if let Some(name) = names.iter().find(|name| !is_name(name)) {
            let allowed = "host names and IP addresses are";
            problems.push(SettingsError::text("authority.names", name, allowed));
        }
        if names.len() > MOST_NAMES {
            let allowed = format!("at most {MOST_NAMES} names are");
            problems.push(SettingsError::number("authority.names", names.len(), &allowed));
        }
        problems.extend(check_state_dir(&self.storage.state_dir).err());
        problems.extend(self.security.check().err());
        problems.extend(self.traces.problems());
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_key(change: impl FnOnce(&mut Settings)) -> &'static str {
        let mut settings = Settings::default();
        change(&mut settings);
        settings.validate().map_or_else(|error| error.key(), |()| "none")
    }

    #[test]
    fn impossible_values_are_refused_by_name() {
        assert_eq!(error_key(|_| ()), "none");
        assert_eq!(error_key(|s| s.session.heartbeat_seconds = f64::NAN), "session.heartbeat_seconds");
        assert_eq!(error_key(|s| s.session.timeout_seconds = 3.0), "session.timeout_seconds");
        assert_eq!(error_key(|s| s.session.recovery_seconds = -1.0), "session.recovery_seconds");
        assert_eq!(error_key(|s| s.ring.spare_seconds = 0.0), "ring.spare_seconds");
        assert_eq!(error_key(|s| s.limits.queued_jobs = 0), "limits.queued_jobs");
        assert_eq!(error_key(|s| s.limits.upload_bytes = 0), "limits.upload_bytes");
        assert_eq!(error_key(|s| s.limits.artifacts_per_job = 0), "limits.artifacts_per_job");
        assert_eq!(error_key(|s| s.limits.owner_files = 0), "limits.owner_files");
        assert_eq!(error_key(|s| s.limits.owner_bytes = 0), "none");
        assert_eq!(error_key(|s| s.limits.connections = 0), "limits.connections");
        assert_eq!(error_key(|s| s.limits.connections_per_address = 0), "limits.connections_per_address");
        assert_eq!(error_key(|s| s.limits.calls_per_second = 1_000_001), "limits.calls_per_second");
        assert_eq!(error_key(|s| s.limits.opening_seconds = 0.0), "limits.opening_seconds");
        assert_eq!(error_key(|s| s.authority.certificate_seconds = 9), "authority.certificate_seconds");
        assert_eq!(error_key(|s| s.authority.names = vec!["a b".to_owned()]), "authority.names");
        assert_eq!(error_key(|s| s.authority.names = vec!["a".to_owned(); 51]), "authority.names");
        assert_eq!(error_key(|s| s.authority.names = vec!["::1".into(), "a.b".into()]), "none");
        assert_eq!(error_key(|s| s.queue.half_life_seconds = 59.0), "queue.half_life_seconds");
        assert_eq!(error_key(|s| s.queue.longest_wait_seconds = f64::INFINITY), "queue.longest_wait_seconds");
        for weight in ["ada", "ada=0", "ada=101", "ada=NaN", "=x"] {
            assert_eq!(error_key(|s| s.queue.weights = vec![weight.to_owned()]), "queue.weights", "{weight}");
        }
        assert_eq!(error_key(|s| s.queue.weights = vec!["a=b=2".to_owned(), "=0.5".to_owned()]), "none");
        assert_eq!(error_key(|s| s.queue.submitter_priority = 1001), "queue.submitter_priority");
        assert_eq!(error_key(|s| s.queue.preempt_difference = 0), "queue.preempt_difference");
        assert_eq!(error_key(|s| s.limits.owner_ranks = 1_000_001), "limits.owner_ranks");
        assert_eq!(error_key(|s| s.limits.idle_seconds = 0.0), "limits.idle_seconds");
        assert_eq!(error_key(|s| s.storage.trash_days = 0), "storage.trash_days");
        assert_eq!(error_key(|s| s.storage.state_dir = PathBuf::new()), "storage.state_dir");
        assert_eq!(error_key(|s| s.traces.endpoint = "here".to_owned()), "traces.endpoint");
        assert_eq!(error_key(|s| s.security.key = PathBuf::from("/k")), "security.certificate");
    }
}
