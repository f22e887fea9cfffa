//! Connections go out from here, to coordinators and workers, with TLS where the URL says https.

mod ending;
mod error;
mod explain;
mod local;
mod outgoing;

use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use uuid::Uuid;

use self::ending::Following;
pub use self::error::ConnectError;
use self::explain::{Mine, explain};
pub use self::outgoing::Outgoing;
use crate::accept::Invitation;
use crate::certificate::{self, Facts, Validity};
use crate::names::Internal;
use crate::roots::Roots;
use crate::socket;
use crate::tls::{self, Expected, HTTP1, HTTP2, Known, TlsError};
use crate::token::JoinToken;
use crate::trust::{State, Trust};

/// How long one try may take, from the name's resolution to the end of the handshake.
const TIME: Duration = Duration::from_secs(10);
/// How long a foreign server may stay silent before it is taken for one that waits for the client.
const PATIENCE: Duration = Duration::from_millis(500);

/// Whom a connector calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// The coordinator.
    Coordinator,
    /// The worker with that id.
    Worker(Uuid),
    /// Any worker of the cluster: what is sent must be fit for all of them.
    AnyWorker,
}

/// A connection to a port that serves pages.
pub trait PageStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<Stream: AsyncRead + AsyncWrite + Send + Unpin> PageStream for Stream {}

/// Makes connections; for tonic's `Endpoint::connect_with_connector`. Clones share what they know.
#[derive(Debug, Clone)]
pub struct Connector {
    secure: Option<Arc<Secure>>,
    time: Duration,
    last: Arc<Mutex<Last>>,
}

/// What is needed for https.
#[derive(Debug)]
enum Secure {
    /// Verifies by the trust at the moment of the connection.
    Trusting {
        trust: Trust,
        server: Server,
        /// The last rustls configuration and the trust that it was made from.
        config: Mutex<Option<(Arc<State>, Arc<ClientConfig>)>>,
    },
    /// Verifies by the root hash in a token.
    Joining { authority: [u8; 32], expected: Expected },
    /// Verifies by host name, for servers outside the cluster.
    Outside { config: Arc<ClientConfig> },
}

/// rustls for one connection, and what its error texts need.
struct Ready {
    config: Arc<ClientConfig>,
    mine: Mine,
    /// The trust that the connection follows while it is open.
    trust: Following,
}

/// The last connection that was made.
#[derive(Debug, Clone, Default)]
struct Last {
    valid: Option<Validity>,
    facts: Option<Facts>,
}

impl Connector {
    /// For http alone: loopback and insecure networks.
    pub fn plain() -> Self {
        Self::of(None)
    }

    fn of(secure: Option<Secure>) -> Self {
        Self { secure: secure.map(Arc::new), time: TIME, last: Arc::default() }
    }

    /// For https with the credentials and roots of `trust`, and for http.
    pub fn to(trust: Trust, server: Server) -> Self {
        let secure = Secure::Trusting { trust, server, config: Mutex::new(None) };
        Self::of(Some(secure))
    }

    /// For the one call that exchanges a token for a certificate: the coordinator has to send the root that the token
    /// names. http is refused, because the secret would go in the clear to whoever listens.
    pub fn joining(token: &JoinToken) -> Self {
        let secure =
            Secure::Joining { authority: token.authority, expected: Expected::Coordinator(token.cluster) };
        Self::of(Some(secure))
    }

    /// For a server that is none of the cluster's, and http: its certificate has to name its host, and to come from one of
    /// these roots.
    ///
    /// # Errors
    /// rustls refuses the roots.
    pub fn outside(roots: &Roots) -> Result<Self, TlsError> {
        Ok(Self::of(Some(Secure::Outside { config: Arc::new(tls::outside(roots)?) })))
    }

    /// Sets the timeout of one attempt, 10 seconds by default.
    #[must_use]
    pub fn within(self, time: Duration) -> Self {
        Self { time, ..self }
    }

    /// Intersection of the validity of this side's certificate and the server's, for the last connection made. None: there
    /// was no connection, or one without TLS.
    pub fn valid(&self) -> Option<Validity> {
        self.last().valid
    }

    fn last(&self) -> Last {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes one connection.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub async fn connect(&self, uri: &Uri) -> Result<Outgoing, ConnectError> {
        let target = Target::of(uri)?;
        let late = || ConnectError::Slow { address: target.address(), time: self.time };
        let made = timeout(self.time, Box::pin(self.try_to(&target))).await.map_err(|_| late())??;
        let last = Last { valid: made.valid(), facts: made.facts().cloned() };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
        Ok(made)
    }

    /// Makes one connection through a local socket, to the server of the last connection, which invited this side there. It ends
    /// as that one would have ended. `files`, two at most, are handed over: [`Peer::handed`](crate::Peer::handed) has them there.
    ///
    /// # Errors
    /// There is no such socket on this side, it is another user's, or this side is not welcome.
    pub async fn connect_locally(
        &self,
        invitation: &Invitation,
        files: &[BorrowedFd<'_>],
    ) -> Result<Outgoing, ConnectError> {
        let address = invitation.path.display().to_string();
        let late = || ConnectError::Slow { address: address.clone(), time: self.time };
        let trust = match self.secure.as_deref() {
            Some(Secure::Trusting { trust, .. }) => Some(trust.follow()),
            _ => None,
        };
        let made = timeout(self.time, local::connect(invitation, files)).await.map_err(|_| late())??;
        let Last { valid, facts } = self.last();
        Ok(made.until(valid, facts, trust))
    }

    /// Makes one connection to a port that serves pages, for one request of HTTP/1, whose client has the first word. It is not
    /// followed any further: what happens to a certificate after the handshake does not end it.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub async fn connect_to_pages(&self, uri: &Uri) -> Result<Box<dyn PageStream>, ConnectError> {
        let target = Target::of(uri)?;
        let late = || ConnectError::Slow { address: target.address(), time: self.time };
        timeout(self.time, Box::pin(self.try_pages(&target))).await.map_err(|_| late())?
    }

    async fn try_pages(&self, target: &Target) -> Result<Box<dyn PageStream>, ConnectError> {
        let ready = match (target.secure, self.secure.as_deref()) {
            (false, _) => None,
            (true, None) => return Err(ConnectError::NoCredentials { address: target.address() }),
            (true, Some(secure)) => Some(secure.ready(target)?),
        };
        let tcp = TcpStream::connect((target.host.as_str(), target.port)).await;
        let tcp = tcp.map_err(|cause| ConnectError::Unreachable { address: target.address(), cause })?;
        let Some(Ready { config, mine, .. }) = ready else { return Ok(Box::new(tcp)) };
        let mut config = ClientConfig::clone(&config);
        config.alpn_protocols = vec![HTTP1.to_vec()];
        let stream = TlsConnector::from(Arc::new(config)).connect(target.server_name()?, tcp).await;
        Ok(Box::new(stream.map_err(|error| explain(&target.address(), &mine, error))?))
    }

    async fn try_to(&self, target: &Target) -> Result<Outgoing, ConnectError> {
        let ready = match (target.secure, self.secure.as_deref()) {
            (false, Some(Secure::Joining { .. })) => {
                return Err(ConnectError::JoinInTheClear { address: target.address() });
            }
            (false, _) => None,
            (true, None) => return Err(ConnectError::NoCredentials { address: target.address() }),
            (true, Some(secure)) => Some(secure.ready(target)?),
        };
        let tcp = TcpStream::connect((target.host.as_str(), target.port)).await;
        let tcp = tcp.map_err(|cause| ConnectError::Unreachable { address: target.address(), cause })?;
        socket::prepare(&tcp);
        match ready {
            None => Outgoing::plain(tcp, target.address(), PATIENCE).await,
            Some(ready) => target.handshake(tcp, ready).await,
        }
    }
}

impl Secure {
    fn ready(&self, target: &Target) -> Result<Ready, ConnectError> {
        let failed = |error: TlsError| ConnectError::SetUp { address: target.address(), cause: error };
        match self {
            Self::Joining { authority, expected } => {
                let config = tls::client(Known::Hash(*authority), *expected, None).map_err(failed)?;
                let mine = Mine { expected: expected.name(), valid: None };
                Ok(Ready { config: Arc::new(config), mine, trust: None })
            }
            Self::Outside { config } => {
                let mine = Mine { expected: target.address(), valid: None };
                Ok(Ready { config: config.clone(), mine, trust: None })
            }
            Self::Trusting { trust, server, config } => {
                // Followed from before the handshake: no revocation is missed.
                let (follow, state) = (trust.follow(), trust.state());
                let expected = match *server {
                    Server::Coordinator => Expected::Coordinator(state.cluster),
                    Server::Worker(id) => Expected::Worker(id, state.cluster),
                    Server::AnyWorker => Expected::AnyWorker(state.cluster),
                };
                let valid = state.credentials.as_ref().map(|credentials| credentials.validity());
                let mine = Mine { expected: expected.name(), valid };
                let mut last = config.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((for_state, config)) = last.as_ref()
                    && Arc::ptr_eq(for_state, &state)
                {
                    return Ok(Ready { config: config.clone(), mine, trust: Some(follow) });
                }
                let known = Known::Roots(state.store.clone(), state.revoked.clone());
                let made = tls::client(known, expected, state.credentials.as_deref()).map_err(failed)?;
                let made = Arc::new(made);
                *last = Some((state, made.clone()));
                Ok(Ready { config: made, mine, trust: Some(follow) })
            }
        }
    }
}

/// Where to.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    secure: bool,
    host: String,
    port: u16,
}

impl Target {
    fn of(uri: &Uri) -> Result<Self, ConnectError> {
        let wrong = |problem| ConnectError::Address { given: uri.to_string(), problem };
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("it begins with neither http:// nor https://")),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("it has no host"))?;
        // An IPv6 address stands in brackets.
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { secure, host, port: uri.port_u16().unwrap_or(if secure { 443 } else { 80 }) })
    }

    /// As texts name it.
    fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    fn server_name(&self) -> Result<ServerName<'static>, ConnectError> {
        ServerName::try_from(self.host.clone()).map_err(|_| ConnectError::Address {
            given: self.host.clone(),
            problem: "it is neither a host name nor an IP address",
        })
    }

    async fn handshake(&self, tcp: TcpStream, ready: Ready) -> Result<Outgoing, ConnectError> {
        let Ready { config, mine, trust } = ready;
        let stream = TlsConnector::from(config).connect(self.server_name()?, tcp).await;
        let stream = stream.map_err(|error| explain(&self.address(), &mine, error))?;
        if stream.get_ref().1.alpn_protocol() != Some(HTTP2) {
            return Err(ConnectError::NoHttp2 { address: self.address() });
        }
        let facts = facts(&stream);
        // Our own servers answer at once; others may want to hear more first.
        let patience = if facts.as_ref().is_some_and(is_ours) { TIME } else { PATIENCE };
        let valid = facts.as_ref().map(|facts| facts.validity.sooner(mine.valid));
        let made = Outgoing::secure(stream, self.address(), mine, patience).await?;
        Ok(made.until(valid, facts, trust))
    }
}

/// What the server's certificate says.
fn facts(stream: &TlsStream<TcpStream>) -> Option<Facts> {
    stream.get_ref().1.peer_certificates()?.first().and_then(certificate::facts)
}

/// Whether it is one of a cluster's own CA.
fn is_ours(facts: &Facts) -> bool {
    facts.names.iter().any(|name| Internal::parse(name).is_some())
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Outgoing>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.connect(&uri).await.map(TokioIo::new) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let of = |uri: &'static str| Target::of(&Uri::from_static(uri));
        for (uri, secure, host, port, address) in [
            ("http://a.example:7070", false, "a.example", 7070, "a.example:7070"),
            ("https://10.0.0.1", true, "10.0.0.1", 443, "10.0.0.1:443"),
            ("https://[::1]:7070/", true, "::1", 7070, "[::1]:7070"),
            ("http://localhost", false, "localhost", 80, "localhost:80"),
        ] {
            let target = of(uri).unwrap();
            assert_eq!(target, Target { secure, host: host.into(), port });
            assert_eq!(target.address(), address);
        }
        for uri in ["ftp://a:1", "a:7070", "/path"] {
            assert!(matches!(of(uri), Err(ConnectError::Address { .. })), "{uri}");
        }
    }
}
