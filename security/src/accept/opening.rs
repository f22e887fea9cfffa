//! From an accepted socket to an open connection: its first byte, and the handshake.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connection::{Connection, Stream, Transport};
use super::limits::Limits;
use super::places::Place;
use super::refusals::{Refusal, Refusals};
use crate::certificate::{self, Validity};
use crate::handed::Handed;
use crate::identity::{Identity, IdentityError};
use crate::peer::{Activity, Caller, Peer};
use crate::plaintext::{self, PREFACE, Spoken};
use crate::socket;
use crate::tls::{self, HTTP1, HTTP2, TlsError};
use crate::trust::{State, Trust};

/// How long a refused client may take to hear why.
const LINGER: Duration = Duration::from_secs(1);
/// How much it may have sent meanwhile.
const LINGER_BYTES: usize = 64 << 10;

/// Whether clients need a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clients {
    /// They may have one. Whoever has none is [`Caller::Anonymous`].
    Optional,
    /// They must have one.
    Required,
}

/// What is spoken within TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocols {
    /// gRPC.
    Http2,
    /// Both, as the client prefers.
    Http2AndHttp1,
    /// Browsers, Prometheus and probes.
    Http1,
}

impl Protocols {
    fn names(self) -> &'static [&'static [u8]] {
        match self {
            Self::Http2 => &[HTTP2],
            Self::Http2AndHttp1 => &[HTTP2, HTTP1],
            Self::Http1 => &[HTTP1],
        }
    }
}

/// TLS of a port. Follows its trust.
#[derive(Debug)]
pub(super) struct Secure {
    pub(super) trust: Trust,
    clients: Clients,
    protocols: Protocols,
    /// The last rustls configuration and the trust that it was made from.
    config: Mutex<(Arc<State>, Arc<ServerConfig>)>,
}

impl Secure {
    pub(super) fn new(trust: Trust, clients: Clients, protocols: Protocols) -> Result<Self, TlsError> {
        let state = trust.state();
        let config = configure(&state, clients, protocols)?;
        Ok(Self { trust, clients, protocols, config: Mutex::new((state, Arc::new(config))) })
    }

    /// rustls, configured for the present trust.
    fn config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let state = self.trust.state();
        let mut last = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&last.0, &state) {
            let config = configure(&state, self.clients, self.protocols)?;
            *last = (state, Arc::new(config));
        }
        Ok(last.1.clone())
    }
}

fn configure(state: &State, clients: Clients, protocols: Protocols) -> Result<ServerConfig, TlsError> {
    tls::server(state, clients == Clients::Required, protocols.names())
}

/// What opens the connections of a port.
#[derive(Debug)]
pub(super) struct Opener {
    /// None: without TLS.
    pub(super) secure: Option<Secure>,
    pub(super) limits: Limits,
    pub(super) refusals: Refusals,
    pub(super) ready: mpsc::Sender<Connection>,
}

/// Why a connection did not open.
struct NotOpened {
    refusal: Refusal,
    detail: String,
    /// The connection and the last word to it. None: there is nobody to tell.
    last: Option<(TcpStream, Vec<u8>)>,
}

impl NotOpened {
    fn new(refusal: Refusal, detail: impl ToString) -> Self {
        Self { refusal, detail: detail.to_string(), last: None }
    }

    fn saying(self, word: Vec<u8>, to: TcpStream) -> Self {
        Self { last: Some((to, word)), ..self }
    }
}

impl From<Refusal> for NotOpened {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal, refusal.text())
    }
}

/// Opens one connection, and hands it on.
pub(super) async fn open(opener: Arc<Opener>, stream: TcpStream, address: SocketAddr, mut place: Place) {
    let opened = match &opener.secure {
        None => timeout(opener.limits.opening, open_plain(stream)).await,
        Some(secure) => timeout(opener.limits.opening, Box::pin(open_secure(secure, stream))).await,
    };
    let (stream, spoken, shown) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(NotOpened { refusal, detail, last })) => {
            // Counted before it is told: whoever has the answer finds it in the metrics.
            opener.refusals.note(refusal, Some(address), &detail);
            if let Some((stream, word)) = last {
                say(stream, &word).await;
            }
            return;
        }
        Err(_) => return opener.refusals.note(Refusal::Slow, Some(address), &Refusal::Slow.text()),
    };
    // It is in the list first: a revocation from now on finds it there, and one before is seen below.
    let close = place.opened(shown.as_ref().and_then(|shown| shown.identity.as_ref().ok()).cloned());
    let valid = shown.as_ref().and_then(|shown| shown.valid);
    let caller = match &opener.secure {
        None => Caller::Open,
        Some(secure) => Caller::of(shown.map(|shown| shown.identity), &secure.trust.state()),
    };
    let (activity, handed) = (Activity::new(), Handed::default());
    let peer = Peer { address, caller, valid, activity, handed };
    let connection = Connection::new(
        Transport { stream, spoken },
        peer,
        place,
        close,
        opener.limits,
        opener.refusals.clone(),
    );
    // Only fails where the listener was dropped: then nobody wants it.
    let _ = opener.ready.send(connection).await;
}

/// What a connection's certificate says.
struct Shown {
    identity: Result<Identity, IdentityError>,
    /// None: it cannot be read.
    valid: Option<Validity>,
}

async fn open_plain(stream: TcpStream) -> Result<(Stream, Spoken, Option<Shown>), NotOpened> {
    let spoken = spoken(&stream).await?;
    if spoken == Spoken::Tls {
        return Err(NotOpened::from(Refusal::Tls).saying(plaintext::use_http(), stream));
    }
    socket::prepare(&stream);
    Ok((Stream::Plain(stream), spoken, None))
}

async fn open_secure(
    secure: &Secure,
    stream: TcpStream,
) -> Result<(Stream, Spoken, Option<Shown>), NotOpened> {
    let spoken = spoken(&stream).await?;
    if spoken != Spoken::Tls {
        return Err(NotOpened::from(Refusal::Plaintext).saying(plaintext::use_https(spoken), stream));
    }
    socket::prepare(&stream);
    let config = secure.config().map_err(|error| NotOpened::new(Refusal::Handshake, error))?;
    match TlsAcceptor::from(config).accept(stream).into_fallible().await {
        Ok(stream) => {
            let shown = shown(&stream);
            Ok((Stream::Tls(Box::new(stream)), spoken, shown))
        }
        Err((error, stream)) => {
            // The alert is on its way, and is lost if the socket is closed with something unread.
            Err(NotOpened::new(refusal_of(&error), error).saying(Vec::new(), stream))
        }
    }
}

/// What the client begins with, left for whoever reads.
async fn spoken(stream: &TcpStream) -> Result<Spoken, NotOpened> {
    let mut first = [0; PREFACE.len()];
    match stream.peek(&mut first).await {
        Ok(0) => Err(Refusal::Silent.into()),
        Ok(length) => Ok(Spoken::of(first.get(..length).unwrap_or_default())),
        Err(error) => Err(NotOpened::new(Refusal::Silent, error)),
    }
}

/// Says a last word, if there is one, and closes in a way that lets it arrive. It is no harm if it does not.
pub(crate) async fn say(mut stream: impl AsyncRead + AsyncWrite + Unpin, word: &[u8]) {
    let last = async {
        stream.write_all(word).await?;
        stream.shutdown().await?;
        let (mut discarded, mut buffer) = (0, [0; 1024]);
        while discarded < LINGER_BYTES {
            match stream.read(&mut buffer).await? {
                0 => break,
                read => discarded += read,
            }
        }
        Ok::<_, io::Error>(())
    };
    let _ = timeout(LINGER, last).await;
}

/// None: it showed no certificate.
fn shown(stream: &TlsStream<TcpStream>) -> Option<Shown> {
    let leaf = stream.get_ref().1.peer_certificates()?.first()?;
    Some(match certificate::facts(leaf) {
        Some(facts) => Shown { identity: facts.identity, valid: Some(facts.validity) },
        None => Shown { identity: Err(IdentityError::Unreadable), valid: None },
    })
}

/// The reason that fits a failed handshake.
fn refusal_of(error: &io::Error) -> Refusal {
    let tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(_)) => Refusal::Certificate,
        Some(rustls::Error::NoCertificatesPresented) => Refusal::NoCertificate,
        Some(rustls::Error::AlertReceived(_)) => Refusal::Disbelieved,
        _ => Refusal::Handshake,
    }
}
