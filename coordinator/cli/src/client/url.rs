//! The address of a coordinator, as people write it.

use std::{fmt, str::FromStr};

use http::Uri;

/// The port of a coordinator's gRPC service when none is given.
const DEFAULT_PORT: u16 = 7070;

/// A coordinator's address: `http://HOST:PORT`, where `http://` and `:7070` may be left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoordinatorUrl {
    uri: Uri,
}

/// A text that is not a coordinator's address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a coordinator's address: {problem}; write http://HOST:PORT")]
pub struct InvalidUrl {
    given: String,
    problem: String,
}

impl CoordinatorUrl {
    /// The whole address: scheme, host and port.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }
}

impl fmt::Display for CoordinatorUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "http://{}", self.uri.authority().map_or("", |authority| authority.as_str()))
    }
}

impl FromStr for CoordinatorUrl {
    type Err = InvalidUrl;

    fn from_str(given: &str) -> Result<Self, InvalidUrl> {
        let invalid = |problem: &str| InvalidUrl { given: given.to_owned(), problem: problem.to_owned() };
        let (scheme, rest) = given.split_once("://").unwrap_or(("http", given));
        match scheme {
            "http" => (),
            "https" => return Err(invalid("TLS is not there yet")),
            other => return Err(invalid(&format!("the scheme {other}:// is not known"))),
        }
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#', '@']) {
            return Err(invalid("there is more in it than a host and a port"));
        }
        let parsed: http::uri::Authority = authority.parse().map_err(|_| invalid("the host is not valid"))?;
        if parsed.host().is_empty() {
            return Err(invalid("there is no host in it"));
        }
        let authority = match parsed.port() {
            Some(_) => authority.to_owned(),
            None => format!("{authority}:{DEFAULT_PORT}"),
        };
        let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if port.is_none_or(|port| port == 0) {
            return Err(invalid("the port is not a number from 1 to 65535"));
        }
        let uri = format!("http://{authority}/").parse().map_err(|_| invalid("it is not a URL"))?;
        Ok(Self { uri })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheme_and_port_may_be_left_out() {
        for given in ["http://node:7070", "node:7070", "node", "http://node/", "http://node"] {
            let url: CoordinatorUrl = given.parse().expect(given);
            assert_eq!(url.to_string(), "http://node:7070", "{given}");
        }
        let url: CoordinatorUrl = "[::1]:9".parse().expect("IPv6");
        assert_eq!(url.to_string(), "http://[::1]:9");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for given in
            ["", "https://node", "ftp://node", "http://", "node:0", "node:99999", "node:x", "node/a", ":7070"]
        {
            assert!(given.parse::<CoordinatorUrl>().is_err(), "{given:?} was taken");
        }
    }
}
