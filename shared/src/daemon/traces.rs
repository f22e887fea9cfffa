//! Settings of both daemons about traces.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::settings::SettingsError;

/// `[traces]`: spans of jobs, sent to a collector by OTLP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TraceSettings {
    /// The collector to which the daemon sends spans by OTLP over gRPC; empty: to none.
    ///
    /// Allowed: empty, `http://HOST:PORT`, or `https://HOST:PORT` together with `traces.ca`.
    pub endpoint: String,
    /// Which share of the jobs is traced, chosen by their traces' ids; the same for all daemons, so that traces are whole.
    ///
    /// Allowed: 0 to 1.
    pub sample_ratio: f64,
    /// The roots that sign the collector's certificate, PEM.
    ///
    /// Allowed: empty, or a file.
    pub ca: PathBuf,
}

impl Default for TraceSettings {
    fn default() -> Self {
        Self { endpoint: String::new(), sample_ratio: 1.0, ca: PathBuf::new() }
    }
}

impl TraceSettings {
    /// Whether spans are sent at all.
    pub fn is_on(&self) -> bool {
        !self.endpoint.is_empty()
    }

    /// Everything that cannot be used.
    pub fn problems(&self) -> Vec<SettingsError> {
        let mut problems = Vec::new();
        if self.is_on() && !is_endpoint(&self.endpoint) {
            let allowed = "http://HOST:PORT and https://HOST:PORT are, as in http://127.0.0.1:4317";
            problems.push(SettingsError::text("traces.endpoint", &self.endpoint, allowed));
        }
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            let allowed = "it must be between 0 and 1";
            problems.push(SettingsError::number("traces.sample_ratio", self.sample_ratio, allowed));
        }
        let without_ca = self.ca.as_os_str().is_empty();
        if self.endpoint.starts_with("https://") && without_ca {
            let allowed = "an endpoint with https:// needs the file of the roots that sign its certificate";
            problems.push(SettingsError::text("traces.ca", "", allowed));
        }
        if !self.endpoint.starts_with("https://") && !without_ca {
            let allowed = "only an endpoint with https:// has a certificate: leave it empty";
            problems.push(SettingsError::text("traces.ca", &self.ca.to_string_lossy(), allowed));
        }
        problems
    }
}

/// Whether it has a scheme, a host and a port, and nothing else: credentials and paths would be ignored.
pub fn is_endpoint(text: &str) -> bool {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let Some(address) = rest.map(|rest| rest.strip_suffix('/').unwrap_or(rest)) else { return false };
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match bracketed {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
            !host.is_empty() && host.bytes().all(allowed)
        }
    };
    is_host && port.parse::<u16>().is_ok_and(|port| port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_used_is_refused_by_name() {
        let keys = |endpoint: &str, sample_ratio, ca: &str| {
            let settings = TraceSettings { endpoint: endpoint.to_owned(), sample_ratio, ca: ca.into() };
            settings.problems().iter().map(SettingsError::key).collect::<Vec<_>>()
        };
        let nothing: [&str; 0] = [];
        assert_eq!(keys("", 1.0, ""), nothing);
        assert_eq!(keys("http://collector.example:4317", 0.0, ""), nothing);
        assert_eq!(keys("https://[::1]:4317/", 0.5, "/ca.pem"), nothing);
        assert_eq!(keys("https://collector:4317", 1.0, ""), ["traces.ca"]);
        assert_eq!(keys("http://collector:4317", 1.0, "/ca.pem"), ["traces.ca"]);
        assert_eq!(keys("", 1.0, "/ca.pem"), ["traces.ca"]);
        for wrong in [
            "collector:4317",
            "http://collector",
            "http://:4317",
            "http://a:0",
            "http://a:b",
            "http://a b:1",
            "http://user:word@host:4317",
            "http://a:4317/v1/traces",
            "ftp://a:1",
            "http://::1:4317",
        ] {
            assert_eq!(keys(wrong, 1.0, ""), ["traces.endpoint"], "{wrong}");
        }
        assert_eq!(keys("", -0.1, ""), ["traces.sample_ratio"]);
        assert_eq!(keys("", f64::NAN, ""), ["traces.sample_ratio"]);
    }
}
