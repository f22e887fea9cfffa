//! The address of a coordinator, as people write it.

use std::{ffi::OsStr, fmt, net::IpAddr, str::FromStr};

use clap::{
    Arg, Command,
    builder::{TypedValueParser, ValueParserFactory},
    error::ErrorKind,
    parser::ValueSource,
};
use http::Uri;
use ringtune_shared::user_info::without_user_info;

/// The port of a coordinator's gRPC service when none is given.
const DEFAULT_PORT: u16 = 7070;

/// A coordinator's address: `https://HOST:PORT` or `http://HOST:PORT`. `:7070` may be left out, and the scheme too: it is
/// http where the host is this machine's loopback, and https elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoordinatorUrl {
    uri: Uri,
}

/// A text that is not a coordinator's address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} is not a coordinator's address: {problem}; write https://HOST:PORT, or http://HOST:PORT where nothing is encrypted"
)]
pub struct InvalidUrl {
    given: String,
    problem: String,
}

impl CoordinatorUrl {
    /// The coordinator that is asked where nobody names one: this machine's, on the usual port.
    pub fn on_this_machine() -> Self {
        Self { uri: Uri::from_static("http://127.0.0.1:7070/") }
    }

    /// The whole address: scheme, host and port.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Whether it is reached with TLS.
    pub fn is_secure(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    /// Whether it is this machine, by an address that no other machine can reach.
    pub fn is_loopback(&self) -> bool {
        is_loopback(self.host())
    }

    /// The same host and port with TLS.
    #[must_use]
    pub fn secured(&self) -> Self {
        self.with("https", self.authority())
    }

    /// The same host and port without TLS.
    #[must_use]
    pub fn in_the_clear(&self) -> Self {
        self.with("http", self.authority())
    }

    /// This address with another host: a name or an IPv4 address.
    #[must_use]
    pub fn at_host(&self, host: &str) -> Self {
        let port = self.uri.port_u16().unwrap_or(DEFAULT_PORT);
        self.with(self.uri.scheme_str().unwrap_or("https"), &format!("{host}:{port}"))
    }

    /// A folder's name that no other host and port has: `head-node_7070`.
    pub fn folder_name(&self) -> String {
        let host = self.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        // Nothing else is in a host, but nothing else may get into a path either.
        let kept = |c: char| if c.is_ascii_alphanumeric() || "-.:".contains(c) { c } else { '-' };
        let host: String = host.chars().map(kept).collect();
        format!("{host}_{}", self.uri.port_u16().unwrap_or(DEFAULT_PORT))
    }

    /// Host and port.
    fn authority(&self) -> &str {
        self.uri.authority().map_or("", |authority| authority.as_str())
    }

    fn host(&self) -> &str {
        self.uri.host().unwrap_or_default()
    }

    /// What is no address leaves the address as it was.
    fn with(&self, scheme: &str, authority: &str) -> Self {
        let uri = format!("{scheme}://{authority}/").parse().unwrap_or_else(|_| self.uri.clone());
        Self { uri }
    }
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

impl fmt::Display for CoordinatorUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}://{}", self.uri.scheme_str().unwrap_or("http"), self.authority())
    }
}

impl FromStr for CoordinatorUrl {
    type Err = InvalidUrl;

    fn from_str(given: &str) -> Result<Self, InvalidUrl> {
        let invalid =
            |problem: &str| InvalidUrl { given: without_user_info(given), problem: problem.to_owned() };
        if given.contains('@') {
            return Err(invalid(
                "there is a user name in it, and `ringtune login` is how to show who you are",
            ));
        }
        let (scheme, rest) =
            given.split_once("://").map_or((None, given), |(scheme, rest)| (Some(scheme), rest));
        if let Some(other) = scheme.filter(|scheme| !["http", "https"].contains(scheme)) {
            return Err(invalid(&format!("the scheme {other}:// is not known")));
        }
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#']) {
            return Err(invalid("there is more in it than a host and a port"));
        }
        let parsed: http::uri::Authority = authority.parse().map_err(|_| invalid("the host is not valid"))?;
        if parsed.host().is_empty() {
            return Err(invalid("there is no host in it"));
        }
        let scheme = scheme.unwrap_or(if is_loopback(parsed.host()) { "http" } else { "https" });
        let authority = match parsed.port() {
            Some(_) => authority.to_owned(),
            None => format!("{authority}:{DEFAULT_PORT}"),
        };
        let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none_or(|port| port == 0) {
            return Err(invalid("the port is not a number from 1 to 65535"));
        }
        let uri = format!("{scheme}://{authority}/").parse().map_err(|_| invalid("it is not a URL"))?;
        Ok(Self { uri })
    }
}

/// Reads the addresses of command lines. Unlike clap's own way of refusing them it shows nobody's password.
#[derive(Clone, Copy, Debug)]
pub struct UrlParser;

impl ValueParserFactory for CoordinatorUrl {
    type Parser = UrlParser;

    fn value_parser() -> UrlParser {
        UrlParser
    }
}

impl TypedValueParser for UrlParser {
    type Value = CoordinatorUrl;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        given: &OsStr,
    ) -> Result<CoordinatorUrl, clap::Error> {
        self.parse_ref_(command, argument, given, ValueSource::CommandLine)
    }

    fn parse_ref_(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        given: &OsStr,
        source: ValueSource,
    ) -> Result<CoordinatorUrl, clap::Error> {
        given.to_string_lossy().parse().map_err(|error: InvalidUrl| {
            let variable = argument.and_then(Arg::get_env).filter(|_| source == ValueSource::EnvVariable);
            let name = match (variable, argument) {
                (Some(variable), _) => format!("{}: ", variable.to_string_lossy()),
                (None, Some(argument)) => format!("{argument}: "),
                (None, None) => String::new(),
            };
            clap::Error::raw(ErrorKind::ValueValidation, format!("{name}{error}\n")).with_cmd(command)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(given: &str) -> CoordinatorUrl {
        given.parse().expect(given)
    }

    #[test]
    fn scheme_and_port_may_be_left_out() {
        for (given, means) in [
            ("http://node:7070", "http://node:7070"),
            ("http://node/", "http://node:7070"),
            ("https://node", "https://node:7070"),
            ("https://10.0.0.1:443/", "https://10.0.0.1:443"),
            ("node", "https://node:7070"),
            ("node:9", "https://node:9"),
            ("10.0.0.1", "https://10.0.0.1:7070"),
            ("[fe80::1]", "https://[fe80::1]:7070"),
            ("localhost", "http://localhost:7070"),
            ("LocalHost:9", "http://LocalHost:9"),
            ("127.0.0.1", "http://127.0.0.1:7070"),
            ("127.9.9.9:1", "http://127.9.9.9:1"),
            ("[::1]:9", "http://[::1]:9"),
            ("https://[::1]:9", "https://[::1]:9"),
            ("localhost.example", "https://localhost.example:7070"),
        ] {
            let read = url(given);
            assert_eq!(read.to_string(), means, "{given}");
            assert_eq!(read.is_secure(), means.starts_with("https"), "{given}");
            assert_eq!(url(&read.to_string()), read, "{given}");
        }
        assert_eq!(CoordinatorUrl::on_this_machine(), url("127.0.0.1"));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for given in
            ["", "ftp://node", "http://", "https://", "node:0", "node:99999", "node:x", "node/a", ":7070"]
        {
            assert!(given.parse::<CoordinatorUrl>().is_err(), "{given:?} was taken");
        }
    }

    #[test]
    fn a_password_in_an_address_is_refused_and_not_shown() {
        for given in ["https://ada:lovelace@node:7070", "ada:lovelace@node"] {
            let line = Command::new("x").arg(Arg::new("url").long("url").value_parser(UrlParser));
            let refused = line.try_get_matches_from(["x", "--url", given]).expect_err(given);
            assert_eq!((refused.kind(), refused.exit_code()), (ErrorKind::ValueValidation, 2));
            let text = refused.to_string();
            assert!(text.contains("--url <url>: ") && text.contains("[removed]@node"), "{text}");
            assert!(!text.contains("lovelace"), "{text}");
        }
    }

    #[test]
    fn every_host_and_port_has_a_folder_of_its_own() {
        assert_eq!(url("Head-Node").folder_name(), "head-node_7070");
        assert_eq!(url("[::1]:9").folder_name(), "::1_9");
        assert_eq!(url("http://10.0.0.1:1").folder_name(), url("https://10.0.0.1:1").folder_name());
        for given in ["..:1", "-:1", "https://[fe80::1]"] {
            let name = given.parse::<CoordinatorUrl>().map(|url| url.folder_name()).unwrap_or_default();
            assert!(!name.contains('/') && name != "..", "{name}");
        }
    }

    #[test]
    fn an_address_is_written_anew_for_others() {
        let here = url("127.0.0.1:9");
        assert!(here.is_loopback() && !url("node").is_loopback());
        assert_eq!(here.secured().to_string(), "https://127.0.0.1:9");
        assert_eq!(here.secured().at_host("head-node").to_string(), "https://head-node:9");
        assert_eq!(here.at_host("no host").to_string(), "http://127.0.0.1:9");
    }
}
