//! The connection below a client: with TLS or without, and with a token or without.

use std::{error::Error, io, time::Duration};

use ringtune_security::{AccessToken, ConnectError, Connector};
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

use super::CoordinatorUrl;

/// How long a connection may take to come up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that is made with its first call, and again when it is lost.
pub(super) type Link = InterceptedService<Channel, Bearer>;

/// What shows with each call who makes it, where no certificate does.
#[derive(Debug, Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Bearer {
    /// Nothing: a certificate says it, or nobody asks.
    pub fn none() -> Self {
        Self(None)
    }

    /// An access token. Only for connections with TLS: whoever reads it can use it.
    pub fn token(token: &AccessToken) -> Self {
        let header = format!("Bearer {}", token.reveal()).parse();
        // Letters of base64 are always a header's.
        let header = header.map(|mut value: MetadataValue<Ascii>| {
            value.set_sensitive(true);
            value
        });
        Self(header.ok())
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(header) = &self.0 {
            request.metadata_mut().insert("authorization", header.clone());
        }
        Ok(request)
    }
}

pub(super) fn open(url: &CoordinatorUrl, connector: Connector, bearer: Bearer) -> Link {
    let channel = Endpoint::from(url.uri().clone())
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(20))
        .connect_with_connector_lazy(connector.within(CONNECT_TIMEOUT));
    InterceptedService::new(channel, bearer)
}

/// Connects and hangs up: whether the coordinator speaks TLS as this side expects.
///
/// # Errors
/// Why there is no connection.
pub async fn probe(url: &CoordinatorUrl, connector: Connector) -> Result<(), ConnectError> {
    connector.within(CONNECT_TIMEOUT).connect(url.uri()).await.map(drop)
}

/// Why there is no connection, if that is why a call failed.
pub(super) fn connect_error(status: &Status) -> Option<&ConnectError> {
    let mut next: Option<&(dyn Error + 'static)> = status.source();
    while let Some(error) = next {
        let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let here = error.downcast_ref().or_else(|| within.and_then(|inner| inner.downcast_ref()));
        if here.is_some() {
            return here;
        }
        next = error.source();
    }
    None
}

/// As above, if another try would be no better: the sides reach each other and do not understand each other.
pub(super) fn misunderstanding(status: &Status) -> Option<&ConnectError> {
    let passes = |error: &&ConnectError| {
        !matches!(
            error,
            ConnectError::Unreachable { .. }
                | ConnectError::Slow { .. }
                | ConnectError::Closed { .. }
                | ConnectError::Handshake { .. }
        )
    };
    connect_error(status).filter(passes)
}

/// What is wrong, and the command that helps.
pub(super) fn problem_of(error: &ConnectError, url: &str) -> String {
    match error {
        ConnectError::Refused { .. } | ConnectError::UnknownAuthority { .. } => {
            format!("{error}\n  with a new token: ringtune login {url}")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(error: ConnectError) -> Status {
        Status::from_error(Box::new(io::Error::other(error)))
    }

    #[test]
    fn what_another_try_cannot_mend_is_told_apart() {
        let tls = status(ConnectError::Tls { address: "a:1".into() });
        assert!(misunderstanding(&tls).expect("final").to_string().contains("https://a:1"));
        let cause = io::Error::from(io::ErrorKind::ConnectionRefused);
        let away = status(ConnectError::Unreachable { address: "a:1".into(), cause });
        assert!(misunderstanding(&away).is_none() && connect_error(&away).is_some());
        assert!(connect_error(&Status::unavailable("shutting down")).is_none());
    }

    #[test]
    fn a_token_goes_with_each_call_and_is_never_shown() {
        let token = AccessToken::new().expect("random bytes");
        let mut bearer = Bearer::token(&token);
        let request = bearer.call(Request::new(())).expect("passes");
        let header = request.metadata().get("authorization").expect("a header");
        assert_eq!(header.to_str().expect("text"), format!("Bearer {}", token.reveal()));
        for shown in [format!("{bearer:?}"), format!("{request:?}")] {
            assert!(!shown.contains("rta1"), "{shown}");
        }
        let request = Bearer::none().call(Request::new(())).expect("passes");
        assert!(request.metadata().is_empty());
    }
}
