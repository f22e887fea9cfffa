//! The coordinator's settings: defaults, then a file, then `RINGTUNE__SECTION__KEY`, then flags.

use std::{net::SocketAddr, path::PathBuf};

use ringtune_shared::daemon::logging::LogSettings;
use serde::{Deserialize, Serialize};

/// All sections. Unknown keys are refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where clients and workers call.
    pub grpc: GrpcSettings,
    /// Where metrics and health are read.
    pub http: HttpSettings,
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

/// `[grpc]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GrpcSettings {
    /// `ADDRESS:PORT`; port 0 takes any free one.
    pub listen: SocketAddr,
}

/// `[http]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpSettings {
    /// `ADDRESS:PORT`; port 0 takes any free one.
    pub listen: SocketAddr,
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
    /// Workers known.
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

/// `[security]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecuritySettings {
    /// Listen beyond loopback although nothing is encrypted or authenticated yet.
    pub insecure: bool,
}

impl Default for GrpcSettings {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 7070)) }
    }
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 7071)) }
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
            queued_jobs: 1000,
            workers: 1000,
            upload_bytes: 64 << 30,
            uploads: 64,
            calls_per_connection: 256,
            call_seconds: 30.0,
        }
    }
}

/// A setting whose value cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingsError {
    /// Names the key, what was given and what is allowed.
    #[error("{key}: {given} is not allowed; {allowed}")]
    Value {
        /// `section.key`.
        key: &'static str,
        /// As given.
        given: String,
        /// What would do.
        allowed: String,
    },
    /// Nothing protects the port.
    #[error(
        "{key}: {given} is reachable from other machines and nothing is encrypted or authenticated yet; \
         listen on loopback, or say --insecure where the network is trusted"
    )]
    Insecure {
        /// `section.key`.
        key: &'static str,
        /// The address.
        given: SocketAddr,
    },
}

impl Settings {
    /// Refuses what types alone do not: values out of range, and listening to the world by accident.
    ///
    /// # Errors
    /// The first setting that cannot be used, by name.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let value = |key, given: String, allowed: &str| SettingsError::Value {
            key,
            given,
            allowed: allowed.to_owned(),
        };
        let seconds = [
            ("session.heartbeat_seconds", self.session.heartbeat_seconds),
            ("session.timeout_seconds", self.session.timeout_seconds),
            ("session.recovery_seconds", self.session.recovery_seconds),
            ("limits.call_seconds", self.limits.call_seconds),
        ];
        for (key, given) in seconds {
            if !(0.01..=86_400.0).contains(&given) {
                return Err(value(key, given.to_string(), "it is between 0.01 and 86400"));
            }
        }
        if self.session.timeout_seconds < 2.0 * self.session.heartbeat_seconds {
            let given = self.session.timeout_seconds.to_string();
            return Err(value("session.timeout_seconds", given, "it is at least twice heartbeat_seconds"));
        }
        let counts = [
            ("limits.queued_jobs", self.limits.queued_jobs),
            ("limits.workers", self.limits.workers),
            ("limits.uploads", self.limits.uploads),
            ("limits.calls_per_connection", self.limits.calls_per_connection),
        ];
        for (key, given) in counts {
            if !(1..=1_000_000).contains(&given) {
                return Err(value(key, given.to_string(), "it is between 1 and 1000000"));
            }
        }
        if self.limits.upload_bytes == 0 {
            return Err(value("limits.upload_bytes", "0".to_owned(), "it is at least 1"));
        }
        if self.storage.state_dir.as_os_str().is_empty() {
            return Err(value("storage.state_dir", "\"\"".to_owned(), "it is a folder"));
        }
        for (key, given) in [("grpc.listen", self.grpc.listen), ("http.listen", self.http.listen)] {
            if !given.ip().is_loopback() && !self.security.insecure {
                return Err(SettingsError::Insecure { key, given });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_key(change: impl FnOnce(&mut Settings)) -> &'static str {
        let mut settings = Settings::default();
        change(&mut settings);
        match settings.validate() {
            Err(SettingsError::Value { key, .. } | SettingsError::Insecure { key, .. }) => key,
            Ok(()) => "none",
        }
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
    fn listening_beyond_loopback_needs_insecure() {
        let everywhere: SocketAddr = "[::]:7070".parse().unwrap();
        assert_eq!(error_key(|s| s.grpc.listen = everywhere), "grpc.listen");
        assert_eq!(error_key(|s| s.http.listen = everywhere), "http.listen");
        let trusted = |s: &mut Settings| {
            s.grpc.listen = everywhere;
            s.security.insecure = true;
        };
        assert_eq!(error_key(trusted), "none");
    }
}
