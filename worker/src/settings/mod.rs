//! The worker's settings: defaults, then a file, then `RINGTUNE__SECTION__KEY`, then flags.

mod sections;

use std::time::Duration;

use ringtune_security::CredentialPaths;
use ringtune_shared::daemon::{
    logging::LogSettings,
    settings::{ListenSettings, Protection, SecuritySettings, SettingsError, TlsMode, check_state_dir},
    traces::TraceSettings,
};
use ringtune_shared::job::{Violation, check_labels};
use ringtune_sources::Environment;
use serde::{Deserialize, Serialize};

use crate::{
    access::{AccessSettings, Rules},
    coordinator::CoordinatorAddress,
    node::Share,
};
use sections::GRACE_SECONDS;
pub use sections::{
    CloudSettings, ComputeSettings, CoordinatorSettings, DebugSettings, END_LIMIT, ModelCacheSettings,
    RingSettings, ShutdownSettings, StorageSettings, TrainingSettings, WorkerSettings,
};
pub(crate) use sections::{LATENT_MEMORY_BYTES, MOST_IDLE_SECONDS, MOST_RING_CONNECTIONS};

/// What a worker that runs takes from settings that it reads again (SIGHUP), by full names.
pub const CHANGE_BY_RELOAD: [&str; 1] = ["log.filter"];

/// All sections. Unknown keys are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The coordinator that the worker dials.
    pub coordinator: CoordinatorSettings,
    /// Where ring neighbours connect.
    pub grpc: ListenSettings,
    /// Where `/metrics` and `/healthz` are read.
    pub http: ListenSettings,
    /// How the worker and its ring neighbours reach each other.
    pub ring: RingSettings,
    /// Where the worker keeps files, and how much room they may take.
    pub storage: StorageSettings,
    /// Where models from buckets are kept; those from a model hub are in the hub's own cache.
    pub model_cache: ModelCacheSettings,
    /// What jobs may reach on this machine by path or address; `auto` is everything for a worker whose `grpc.listen` is on
    /// loopback.
    pub access: AccessSettings,
    /// What the worker says of itself.
    pub worker: WorkerSettings,
    /// How much of the processor a rank gets.
    pub compute: ComputeSettings,
    /// What a rank keeps for the case that its whole ring is lost.
    pub training: TrainingSettings,
    /// When and how the worker ends.
    pub shutdown: ShutdownSettings,
    /// The cloud that lent the machine.
    pub cloud: CloudSettings,
    /// For those who check the numbers.
    pub debug: DebugSettings,
    /// The log, on stderr.
    pub log: LogSettings,
    /// Spans of jobs, sent to a collector by OTLP.
    pub traces: TraceSettings,
    /// What keeps strangers out.
    pub security: SecuritySettings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            grpc: ListenSettings::on_loopback(7080),
            http: ListenSettings::on_loopback(7081),
            coordinator: CoordinatorSettings::default(),
            ring: RingSettings::default(),
            storage: StorageSettings::default(),
            model_cache: ModelCacheSettings::default(),
            access: AccessSettings::default(),
            worker: WorkerSettings::default(),
            compute: ComputeSettings::default(),
            training: TrainingSettings::default(),
            shutdown: ShutdownSettings::default(),
            cloud: CloudSettings::default(),
            debug: DebugSettings::default(),
            log: LogSettings::default(),
            traces: TraceSettings::default(),
            security: SecuritySettings::default(),
        }
    }
}

impl Settings {
    /// Refuses what types alone do not: values out of range, and listening to the world by accident.
    ///
    /// # Errors
    /// The first setting that cannot be used, by name.
    pub fn validate(&self) -> Result<(), SettingsError> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// All invalid settings, alone or in combination.
    pub fn problems(&self) -> Vec<SettingsError> {
        let mut problems = Vec::new();
        let timeout = self.ring.peer_timeout_seconds;
        if !(0.1..=86_400.0).contains(&timeout) {
            problems.push(SettingsError::number(
                "ring.peer_timeout_seconds",
                timeout,
                "it must be between 0.1 and 86400",
            ));
        }
        if !self.ring.interface.is_empty() && !self.ring.advertise_address.is_empty() {
            problems.push(SettingsError::text(
                "ring.interface",
                &self.ring.interface,
                "ring.advertise_address is given too; give one of them",
            ));
        }
        if self.ring.connections > MOST_RING_CONNECTIONS {
            problems.push(SettingsError::number(
                "ring.connections",
                self.ring.connections,
                "it must be at most 8; 0 means as many as are worth while",
            ));
        }
        if let Some(text) = self.worker.labels.iter().find(|text| !text.contains('=')) {
            problems.push(SettingsError::text(
                "worker.labels",
                text,
                "a label is KEY=VALUE, as in pool=blue",
            ));
        }
        if let Some(Violation { problem, .. }) = check_labels("worker.labels", &self.worker.labels()).pop() {
            problems.push(SettingsError::text("worker.labels", &self.worker.labels.join(", "), &problem));
        }
        if self.compute.threads > 4096 {
            problems.push(SettingsError::number(
                "compute.threads",
                self.compute.threads,
                "it must be at most 4096; 0 means one for each physical core",
            ));
        }
        if let Err(wrong) = self.compute.share.parse::<Share>() {
            problems.push(SettingsError::text("compute.share", &self.compute.share, &wrong.to_string()));
        }
        let recovery = self.training.recovery_checkpoint_seconds;
        if recovery != 0.0 && !(0.01..=86_400.0).contains(&recovery) {
            problems.push(SettingsError::number(
                "training.recovery_checkpoint_seconds",
                recovery,
                "it must be 0, or between 0.01 and 86400",
            ));
        }
        let ShutdownSettings { grace_seconds, idle_seconds, exit_code } = self.shutdown;
        if !GRACE_SECONDS.contains(&grace_seconds) {
            let allowed = "it must be between 15 and 86400";
            problems.push(SettingsError::number("shutdown.grace_seconds", grace_seconds, allowed));
        }
        if idle_seconds > MOST_IDLE_SECONDS {
            let allowed = "it must be at most 31536000; 0 means never";
            problems.push(SettingsError::number("shutdown.idle_seconds", idle_seconds, allowed));
        }
        if (1..=3).contains(&exit_code) {
            let allowed = "it must be 0, or between 4 and 255; 1 to 3 are failures";
            problems.push(SettingsError::number("shutdown.exit_code", exit_code, allowed));
        }
        problems.extend(self.cloud.problem());
        let dir = &self.model_cache.dir;
        if !dir.as_os_str().is_empty() && !dir.is_absolute() {
            let given = dir.display().to_string();
            problems.push(SettingsError::text(
                "model_cache.dir",
                &given,
                "it must be an absolute path, or empty",
            ));
        }
        problems.extend(self.access.problems());
        problems.extend(check_state_dir(&self.storage.state_dir).err());
        problems.extend(self.security.check().err());
        problems.extend(self.traces.problems());
        problems.extend(self.protection().err());
        problems
    }

    /// The coordinator's address.
    ///
    /// # Errors
    /// `coordinator.url` is no address.
    pub fn coordinator_address(&self) -> Result<CoordinatorAddress, SettingsError> {
        let url = &self.coordinator.url;
        CoordinatorAddress::parse(url).ok_or_else(|| {
            let allowed = "it must be https://HOST:PORT or http://HOST:PORT, such as http://127.0.0.1:7070";
            SettingsError::text("coordinator.url", url, allowed)
        })
    }

    /// The protection of the worker's ports: with TLS where they listen beyond loopback, where settings ask for it, and
    /// where the coordinator's address does.
    ///
    /// # Errors
    /// The coordinator's address asks for the opposite of another setting.
    pub fn protection(&self) -> Result<Protection, SettingsError> {
        let address = self.coordinator_address()?;
        let contradicts =
            |allowed: &str| SettingsError::text("coordinator.url", &self.coordinator.url, allowed);
        if self.security.insecure && address.secure {
            return Err(contradicts(&format!(
                "it asks for TLS, and security.insecure (--insecure) for none: drop --insecure, or write http://{}",
                address.authority()
            )));
        }
        let own = self.security.protection(&[self.grpc.listen, self.http.listen]);
        if own == Protection::Tls && !address.secure && !address.is_loopback() {
            let why = match (self.security.tls, self.security.brings_certificate()) {
                (TlsMode::On, _) => "security.tls",
                (_, true) => "security.certificate",
                _ if self.is_exposed() => "grpc.listen (--listen), which is beyond this machine,",
                _ => "http.listen (--http-listen), which is beyond this machine,",
            };
            return Err(contradicts(&format!(
                "{why} asks for TLS: write https://{}, or give --insecure on a network where everybody may do everything",
                address.authority()
            )));
        }
        Ok(if address.secure { Protection::Tls } else { own })
    }

    /// Paths of certificates from elsewhere, if they are used.
    pub fn brought_credentials(&self) -> Option<CredentialPaths> {
        let SecuritySettings { certificate, key, ca, .. } = &self.security;
        self.security.brings_certificate().then(|| CredentialPaths {
            chain: certificate.clone(),
            key: key.clone(),
            ca: ca.clone(),
        })
    }

    /// Whether others than this machine's users reach the worker's ring port.
    pub fn is_exposed(&self) -> bool {
        !self.grpc.listen.ip().is_loopback()
    }

    /// The access rules of jobs on this machine.
    pub fn access_rules(&self, environment: &Environment) -> Rules {
        let cache = self.model_cache.options(environment, &self.storage.state_dir);
        self.access.rules(self.is_exposed(), &cache.folder)
    }

    /// Interval of recovery points, for the loss of a whole ring; None: never.
    pub fn recovery_interval(&self) -> Option<Duration> {
        let seconds = self.training.recovery_checkpoint_seconds;
        (seconds > 0.0).then(|| Duration::from_secs_f64(seconds))
    }

    /// How long the worker may take to end.
    pub fn grace(&self) -> Duration {
        Duration::from_secs(self.shutdown.grace_seconds)
    }

    /// After how long without a rank it ends; None: never.
    pub fn idle_limit(&self) -> Option<Duration> {
        let seconds = self.shutdown.idle_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// After this long without a sign of life, and one pulse more, a neighbour counts as lost.
    pub fn peer_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.ring.peer_timeout_seconds)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn error_key(change: impl FnOnce(&mut Settings)) -> &'static str {
        let mut settings = Settings::default();
        change(&mut settings);
        settings.validate().map_or_else(|error| error.key(), |()| "none")
    }

    #[test]
    fn tls_is_where_the_ports_or_the_coordinators_address_ask_for_it() {
        let with = |url: &str, change: &dyn Fn(&mut Settings)| {
            let mut settings = Settings::default();
            settings.coordinator.url = url.to_owned();
            change(&mut settings);
            settings.protection()
        };
        let everywhere = |settings: &mut Settings| settings.grpc.listen.set_ip([0, 0, 0, 0].into());
        let insecure = |settings: &mut Settings| {
            settings.grpc.listen.set_ip([0, 0, 0, 0].into());
            settings.security.insecure = true;
        };
        let (far, far_plain, here) =
            ("https://10.0.0.1:7070", "http://10.0.0.1:7070", "http://127.0.0.1:7070");
        for (url, change, expected) in [
            (here, &(|_: &mut Settings| ()) as &dyn Fn(&mut Settings), Protection::Plain),
            (far_plain, &|_| (), Protection::Plain),
            (far, &|_| (), Protection::Tls),
            ("10.0.0.1", &|_| (), Protection::Tls),
            ("https://localhost", &|_| (), Protection::Tls),
            (here, &everywhere, Protection::Tls),
            (far, &everywhere, Protection::Tls),
            (far_plain, &insecure, Protection::Plain),
        ] {
            assert_eq!(with(url, change), Ok(expected), "{url}");
        }
        // Contradictions are refused, and both settings are named.
        let http = |settings: &mut Settings| settings.http.listen.set_ip([10, 0, 0, 2].into());
        let on = |settings: &mut Settings| settings.security.tls = TlsMode::On;
        for (url, change, other) in [
            (far, &insecure as &dyn Fn(&mut Settings), "security.insecure"),
            ("10.0.0.1", &insecure, "security.insecure"),
            (far_plain, &everywhere, "grpc.listen"),
            (far_plain, &http, "http.listen"),
            (far_plain, &on, "security.tls"),
        ] {
            let error = with(url, change).unwrap_err();
            assert_eq!(error.key(), "coordinator.url");
            assert!(error.to_string().contains(other), "{error}");
        }
    }

    #[test]
    fn impossible_values_are_refused_by_name() {
        assert_eq!(error_key(|_| ()), "none");
        let mut settings = Settings::default();
        settings.coordinator.url = "https://ada:lovelace@host:7070".to_owned();
        let error = settings.coordinator_address().unwrap_err().to_string();
        assert!(error.contains("\"https://[removed]@host:7070\"") && !error.contains("lovelace"), "{error}");
        for url in ["", "ftp://host:1", "http://host:", "http://h:1/path", "a b"] {
            assert_eq!(error_key(|s| s.coordinator.url = url.to_owned()), "coordinator.url", "{url}");
        }
        assert_eq!(error_key(|s| s.ring.peer_timeout_seconds = f64::NAN), "ring.peer_timeout_seconds");
        assert_eq!(error_key(|s| s.ring.peer_timeout_seconds = 0.0), "ring.peer_timeout_seconds");
        assert_eq!(error_key(|s| s.ring.connections = 9), "ring.connections");
        for seconds in [f64::NAN, -1.0, 0.001, 100_000.0] {
            let key = error_key(|s| s.training.recovery_checkpoint_seconds = seconds);
            assert_eq!(key, "training.recovery_checkpoint_seconds", "{seconds}");
        }
        assert_eq!(error_key(|s| s.training.recovery_checkpoint_seconds = 0.0), "none");
        let graces = [0, 14, 15, 86_401].map(|seconds| error_key(|s| s.shutdown.grace_seconds = seconds));
        assert_eq!(
            graces,
            ["shutdown.grace_seconds", "shutdown.grace_seconds", "none", "shutdown.grace_seconds"]
        );
        assert_eq!(error_key(|s| s.shutdown.idle_seconds = u64::MAX), "shutdown.idle_seconds");
        assert_eq!(error_key(|s| s.shutdown.exit_code = 3), "shutdown.exit_code");
        assert_eq!(error_key(|s| s.shutdown.exit_code = 4), "none");
        use crate::cloud::CloudProvider;
        let cloud = |provider, endpoint: &str| {
            let endpoint = endpoint.to_owned();
            error_key(|s| s.cloud = CloudSettings { provider, endpoint })
        };
        assert_eq!(cloud(CloudProvider::Aws, "http://127.0.0.1:1338"), "none");
        assert_eq!(cloud(CloudProvider::None, "http://127.0.0.1:1338"), "cloud.endpoint");
        for wrong in ["127.0.0.1", "https://a", "http://", "http://a/b"] {
            assert_eq!(cloud(CloudProvider::Aws, wrong), "cloud.endpoint", "{wrong}");
        }
        assert_eq!(error_key(|s| s.storage.state_dir = PathBuf::new()), "storage.state_dir");
        for share in ["", "1", "0/2", "3/2", "1/257", "1/0", "a/b", "1/2/3"] {
            assert_eq!(error_key(|s| s.compute.share = share.to_owned()), "compute.share", "{share}");
        }
        assert_eq!(error_key(|s| s.compute.share = "256/256".to_owned()), "none");
        assert_eq!(error_key(|s| s.model_cache.dir = PathBuf::from("models")), "model_cache.dir");
        assert_eq!(
            error_key(|s| {
                s.ring.interface = "eth0".to_owned();
                s.ring.advertise_address = "a:1".to_owned();
            }),
            "ring.interface"
        );
    }
}
