//! The coordinator's settings: defaults, then a file, then `RINGTUNE__SECTION__KEY`, then flags.

use std::path::PathBuf;

use ringtune_shared::daemon::{
    logging::LogSettings,
    settings::{ListenSettings, SecuritySettings, SettingsError, check_state_dir},
};
use serde::{Deserialize, Serialize};

/// All sections. Unknown keys are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where clients and workers call.
    pub grpc: ListenSettings,
    /// Where metrics and health are read.
    pub http: ListenSettings,
    /// The database and the files.
    pub storage: StorageSettings,
    /// Workers' sessions.
    pub session: SessionSettings,
    /// What strangers and mistakes cannot exceed.
    pub limits: LimitSettings,
    /// Logs.
    pub log: LogSettings,
    /// What keeps strangers out.
    pub security: SecuritySettings,
}

/// `[storage]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StorageSettings {
    /// Jobs, their history and their artifacts. One coordinator per folder.
    pub state_dir: PathBuf,
}

/// `[session]`: times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionSettings {
    /// Workers say that they live this often.
    pub heartbeat_seconds: f64,
    /// A worker that is silent for so long is lost, and has so long to come back.
    pub timeout_seconds: f64,
    /// After its own restart the coordinator waits so long for the workers of running jobs.
    pub recovery_seconds: f64,
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitSettings {
    /// Jobs in the queue.
    pub queued_jobs: usize,
    /// Workers connected.
    pub workers: usize,
    /// Bytes of one uploaded file.
    pub upload_bytes: u64,
    /// Uploads under way at a time.
    pub uploads: usize,
    /// gRPC calls under way at a time on one connection.
    pub calls_per_connection: usize,
    /// Seconds that a call with a single answer may take.
    pub call_seconds: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            grpc: ListenSettings::on_loopback(7070),
            http: ListenSettings::on_loopback(7071),
            storage: StorageSettings::default(),
            session: SessionSettings::default(),
            limits: LimitSettings::default(),
            log: LogSettings::default(),
            security: SecuritySettings::default(),
        }
    }
}

impl Default for StorageSettings {
    fn default() -> Self {
        Self { state_dir: PathBuf::from("/var/lib/ringtune") }
    }
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self { heartbeat_seconds: 2.0, timeout_seconds: 15.0, recovery_seconds: 60.0 }
    }
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            queued_jobs: 20_000,
            workers: 2000,
            upload_bytes: 64 << 30,
            uploads: 64,
            calls_per_connection: 256,
            call_seconds: 30.0,
        }
    }
}

impl Settings {
    /// Refuses what types alone do not: values out of range, and listening to the world by accident.
    ///
    /// # Errors
    /// The first setting that cannot be used, by name.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let seconds = [
            ("session.heartbeat_seconds", self.session.heartbeat_seconds),
            ("session.timeout_seconds", self.session.timeout_seconds),
            ("session.recovery_seconds", self.session.recovery_seconds),
            ("limits.call_seconds", self.limits.call_seconds),
        ];
        for (key, given) in seconds {
            if !(0.01..=86_400.0).contains(&given) {
                return Err(SettingsError::number(key, given, "it is between 0.01 and 86400"));
            }
        }
        if self.session.timeout_seconds < 2.0 * self.session.heartbeat_seconds {
            return Err(SettingsError::number(
                "session.timeout_seconds",
                self.session.timeout_seconds,
                "it is at least twice heartbeat_seconds",
            ));
        }
        let counts = [
            ("limits.queued_jobs", self.limits.queued_jobs),
            ("limits.workers", self.limits.workers),
            ("limits.uploads", self.limits.uploads),
            ("limits.calls_per_connection", self.limits.calls_per_connection),
        ];
        for (key, given) in counts {
            if !(1..=1_000_000).contains(&given) {
                return Err(SettingsError::number(key, given, "it is between 1 and 1000000"));
            }
        }
        if self.limits.upload_bytes == 0 {
            return Err(SettingsError::number("limits.upload_bytes", 0, "it is at least 1"));
        }
        check_state_dir(&self.storage.state_dir)?;
        self.security.check(&[("grpc.listen", self.grpc.listen), ("http.listen", self.http.listen)])
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
        assert_eq!(error_key(|s| s.limits.queued_jobs = 0), "limits.queued_jobs");
        assert_eq!(error_key(|s| s.limits.upload_bytes = 0), "limits.upload_bytes");
        assert_eq!(error_key(|s| s.storage.state_dir = PathBuf::new()), "storage.state_dir");
    }

    #[test]
    fn both_ports_are_kept_from_strangers() {
        assert_eq!(error_key(|s| s.grpc.listen.set_ip([0, 0, 0, 0].into())), "grpc.listen");
        assert_eq!(error_key(|s| s.http.listen.set_ip([0, 0, 0, 0].into())), "http.listen");
    }
}
