//! Settings sections of both daemons, and what is refused in them.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};

use crate::user_info::without_user_info;

/// `[grpc]` and `[http]`: a port on which the daemon listens. Each daemon has its own defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenSettings {
    /// The address and port on which the daemon listens; port 0 takes any free one.
    ///
    /// Allowed: `ADDRESS:PORT`; beyond loopback both ports speak TLS.
    pub listen: SocketAddr,
}

impl ListenSettings {
    /// This port, which only this machine reaches.
    pub fn on_loopback(port: u16) -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], port)) }
    }
}

/// `[security]`: what keeps strangers out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecuritySettings {
    /// For test networks: the daemon encrypts nothing and asks nobody who they are, so that whoever reaches its ports may do
    /// everything.
    pub insecure: bool,
    /// Whether the daemon speaks TLS; `auto`: where one of its ports listens beyond loopback.
    ///
    /// Allowed: `auto` or `on`.
    pub tls: TlsMode,
    /// The daemon's own certificate and those between it and the root, PEM, where they come from another authority; empty: the
    /// cluster's own authority gives them.
    ///
    /// Allowed: empty, or a file, together with `security.key` and `security.ca`.
    pub certificate: PathBuf,
    /// The private key of `security.certificate`, PEM.
    ///
    /// Allowed: empty, or a file that only the daemon's user can read.
    pub key: PathBuf,
    /// The roots that sign the certificates of everybody in the cluster, PEM.
    ///
    /// Allowed: empty, or a file.
    pub ca: PathBuf,
}

/// `security.tls`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// Where a port listens beyond loopback.
    #[default]
    Auto,
    /// Everywhere.
    On,
}

/// How the ports of a daemon are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Not at all: everybody who reaches them may do everything.
    Plain,
    /// TLS, and roles.
    Tls,
}

/// A setting whose value cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingsError {
    /// Names the key, what was given and what is allowed.
    #[error("{key}: {given} is not allowed; {allowed}")]
    Value {
        /// `section.key`.
        key: &'static str,
        /// As given; a text in quotes.
        given: String,
        /// Allowed values.
        allowed: String,
    },
}

impl SettingsError {
    /// A number that is out of range.
    pub fn number(key: &'static str, given: impl ToString, allowed: &str) -> Self {
        Self::Value { key, given: given.to_string(), allowed: allowed.to_owned() }
    }

    /// A text that does not do; it is shown in quotes, and an address without its user name and password.
    pub fn text(key: &'static str, given: &str, allowed: &str) -> Self {
        Self::Value { key, given: format!("{:?}", without_user_info(given)), allowed: allowed.to_owned() }
    }

    /// The given and the allowed value, without the key.
    pub fn problem(&self) -> String {
        match self {
            Self::Value { given, allowed, .. } => format!("{given} is not allowed; {allowed}"),
        }
    }

    /// `section.key` of the setting.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Value { key, .. } => key,
        }
    }
}

impl SecuritySettings {
    /// Refuses what contradicts itself.
    ///
    /// # Errors
    /// The first setting that does not fit the others.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.insecure && self.tls == TlsMode::On {
            return Err(SettingsError::text("security.tls", "on", "security.insecure asks for the opposite"));
        }
        let paths = [
            ("security.certificate", &self.certificate),
            ("security.key", &self.key),
            ("security.ca", &self.ca),
        ];
        if let Some((_, given)) = paths.iter().find(|(_, path)| !path.as_os_str().is_empty()) {
            if let Some((missing, _)) = paths.iter().find(|(_, path)| path.as_os_str().is_empty()) {
                let allowed = "security.certificate, security.key and security.ca go together";
                return Err(SettingsError::text(missing, "", allowed));
            }
            if self.insecure {
                let allowed = "with security.insecure nothing is encrypted";
                return Err(SettingsError::text("security.certificate", &given.to_string_lossy(), allowed));
            }
        }
        Ok(())
    }

    /// Whether the daemon's certificate comes from elsewhere, by path.
    pub fn brings_certificate(&self) -> bool {
        !self.certificate.as_os_str().is_empty()
    }

    /// The protection of all ports of a daemon with these addresses.
    pub fn protection(&self, listening: &[SocketAddr]) -> Protection {
        let exposed = listening.iter().any(|address| !address.ip().is_loopback());
        let wanted = exposed || self.tls == TlsMode::On || self.brings_certificate();
        if wanted && !self.insecure { Protection::Tls } else { Protection::Plain }
    }
}

/// The problem with a folder that a daemon has to write to: something else is in its place, or this user may not write
/// there or make it. Blocks.
pub fn folder_problem(folder: &Path) -> Option<String> {
    let existing = folder.ancestors().find(|ancestor| ancestor.exists())?;
    let shown = existing.display();
    if !existing.is_dir() {
        return Some(format!("{shown} is no folder"));
    }
    match access(existing, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => None,
        Err(error) if existing == folder => {
            Some(format!("this user cannot write there: {}", std::io::Error::from(error)))
        }
        Err(error) => Some(format!(
            "it is not there, and this user cannot make it in {shown}: {}",
            std::io::Error::from(error)
        )),
    }
}

/// Refuses a `storage.state_dir` that is empty.
///
/// # Errors
/// It is.
pub fn check_state_dir(folder: &Path) -> Result<(), SettingsError> {
    if folder.as_os_str().is_empty() {
        return Err(SettingsError::text("storage.state_dir", "", "it must be a folder"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_beyond_loopback_speak_tls_unless_insecure() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let here = ListenSettings::on_loopback(7070).listen;
        let usual = SecuritySettings::default();
        let insecure = SecuritySettings { insecure: true, ..usual.clone() };
        for everywhere in ["0.0.0.0:7071", "[::]:7071", "10.0.0.1:0"] {
            assert_eq!(usual.protection(&[here, address(everywhere)]), Protection::Tls, "{everywhere}");
            assert_eq!(insecure.protection(&[here, address(everywhere)]), Protection::Plain, "{everywhere}");
        }
        assert_eq!(usual.protection(&[here, address("[::1]:1")]), Protection::Plain);
        let on = SecuritySettings { tls: TlsMode::On, ..usual.clone() };
        let brought = SecuritySettings { certificate: "/c.pem".into(), ..usual };
        assert_eq!((on.protection(&[here]), brought.protection(&[here])), (Protection::Tls, Protection::Tls));
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let key = |change: &dyn Fn(&mut SecuritySettings)| {
            let mut settings = SecuritySettings::default();
            change(&mut settings);
            settings.check().map_or_else(|error| error.key(), |()| "none")
        };
        let all = |settings: &mut SecuritySettings| {
            settings.certificate = "/c".into();
            settings.key = "/k".into();
            settings.ca = "/a".into();
        };
        assert_eq!(key(&|_| ()), "none");
        assert_eq!(key(&all), "none");
        assert_eq!(key(&|s| (s.insecure, s.tls) = (true, TlsMode::On)), "security.tls");
        assert_eq!(key(&|s| s.key = "/k".into()), "security.certificate");
        assert_eq!(
            key(&|s| {
                all(s);
                s.ca = PathBuf::new();
            }),
            "security.ca"
        );
        assert_eq!(
            key(&|s| {
                all(s);
                s.insecure = true;
            }),
            "security.certificate"
        );
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_told_from_one_that_is_yet_to_be_made() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(folder_problem(folder.path()), None);
        assert_eq!(folder_problem(&folder.path().join("new/state")), None);
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        for wrong in [file.clone(), file.join("state")] {
            let problem = folder_problem(&wrong).unwrap();
            assert!(problem.ends_with("file is no folder"), "{problem}");
        }
        // Not writable, not even by root.
        let problem = folder_problem(Path::new("/proc/1/ringtune")).unwrap();
        assert!(problem.contains("cannot"), "{problem}");
    }

    #[test]
    fn errors_name_the_setting_what_was_given_and_what_is_allowed() {
        let empty = check_state_dir(Path::new("")).unwrap_err();
        assert_eq!(empty.to_string(), "storage.state_dir: \"\" is not allowed; it must be a folder");
        assert_eq!(check_state_dir(Path::new("/s")), Ok(()));
        let number = SettingsError::number("a.b", 0.5, "it must be at least 1");
        assert_eq!(number.to_string(), "a.b: 0.5 is not allowed; it must be at least 1");
    }
}
