//! Settings sections of both daemons, and what is refused in them.

use std::{net::SocketAddr, path::Path};

use serde::{Deserialize, Serialize};

/// `[grpc]` and `[http]`: a port on which the daemon listens. Each daemon has its own defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenSettings {
    /// The address and port on which the daemon listens; port 0 takes any free one.
    ///
    /// Allowed: `ADDRESS:PORT`, beyond loopback only with `security.insecure`.
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
    /// Lets the daemon listen beyond loopback, although nothing is encrypted or authenticated yet.
    pub insecure: bool,
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

impl SettingsError {
    /// A number that is out of range.
    pub fn number(key: &'static str, given: impl ToString, allowed: &str) -> Self {
        Self::Value { key, given: given.to_string(), allowed: allowed.to_owned() }
    }

    /// A text that does not do; it is shown in quotes.
    pub fn text(key: &'static str, given: &str, allowed: &str) -> Self {
        Self::Value { key, given: format!("{given:?}"), allowed: allowed.to_owned() }
    }

    /// `section.key` of the setting.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Value { key, .. } | Self::Insecure { key, .. } => key,
        }
    }
}

impl SecuritySettings {
    /// Refuses to listen to the world by accident: beyond loopback only with `insecure`.
    ///
    /// # Errors
    /// The first of the settings (`section.key` and address) that is reachable from other machines.
    pub fn check(&self, listening: &[(&'static str, SocketAddr)]) -> Result<(), SettingsError> {
        let exposed = |(_, given): &&(&'static str, SocketAddr)| !given.ip().is_loopback();
        match listening.iter().find(exposed) {
            Some(&(key, given)) if !self.insecure => Err(SettingsError::Insecure { key, given }),
            _ => Ok(()),
        }
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
    fn listening_beyond_loopback_needs_insecure() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let here = ("grpc.listen", ListenSettings::on_loopback(7070).listen);
        for everywhere in ["0.0.0.0:7071", "[::]:7071", "10.0.0.1:0"] {
            let listening = [here, ("http.listen", address(everywhere))];
            let error = SecuritySettings::default().check(&listening).unwrap_err();
            assert_eq!(error.key(), "http.listen");
            let text = error.to_string();
            assert!(text.contains(everywhere) && text.contains("--insecure"), "{text}");
            assert_eq!(SecuritySettings { insecure: true }.check(&listening), Ok(()));
        }
        assert_eq!(SecuritySettings::default().check(&[here, ("http.listen", address("[::1]:1"))]), Ok(()));
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
