//! Connections come in here, with TLS or without, and bounded in every way.
//!
//! A task accepts. Each connection takes a place among all and among those of its address; over a bound it is closed at
//! once, so that the other side hears of it and tries again. It then has ten seconds to open: to say something, and with
//! TLS to do its handshake. Only then does the server that is built on top see it. From then on it is closed when it has
//! no first call soon, when it stands long without calls, when its other side does not take what is sent to it, and at once
//! when its certificate is revoked. Every reason is counted.

mod connection;
mod deadline;
mod limits;
pub(crate) mod local;
pub(crate) mod opening;
mod places;
mod refusals;

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

pub use self::connection::Connection;
pub use self::limits::Limits;
pub use self::local::{Invitation, LocalDoor, NotInvited};
pub use self::opening::{Clients, Protocols};
use self::opening::{Opener, Secure};
pub use self::places::Connections;
pub use self::refusals::{Refusal, Refusals};
use crate::tls::TlsError;
use crate::trust::Trust;

/// How many connections wait for the server: it takes them as fast as it can be woken.
const WAITING: usize = 64;
/// How long nothing is accepted after accepting failed: the process has no file descriptors or memory left.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections cannot be accepted.
#[derive(Debug, thiserror::Error)]
pub enum ListenerError {
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The socket does not listen.
    #[error("cannot accept connections: {0}")]
    Socket(#[from] io::Error),
}

/// How the connections of a port are protected.
#[derive(Debug, Clone)]
pub enum Protection {
    /// Not at all: on loopback, and where somebody chose `--insecure`.
    Plain,
    /// TLS.
    Tls {
        /// The certificate to serve with, and the roots for clients.
        trust: Trust,
        /// Whether clients need one.
        clients: Clients,
        /// What is spoken within.
        protocols: Protocols,
    },
}

/// A port. Once it is dropped, nothing more is accepted; connections that are open stay.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    ready: mpsc::Receiver<Connection>,
    connections: Connections,
    refusals: Refusals,
    opener: Arc<Opener>,
    _accepting: AbortOnDropHandle<()>,
}

impl Listener {
    /// Begins to accept, in a task of the runtime that this is called in.
    ///
    /// # Errors
    /// There is no certificate to serve with, or the socket does not listen.
    pub fn start(
        tcp: TcpListener,
        protection: Protection,
        limits: Limits,
        refusals: Refusals,
    ) -> Result<Self, ListenerError> {
        Self::start_with(&Handle::current(), tcp, protection, limits, refusals)
    }

    /// As [`Listener::start`], but connections open, with what a handshake computes, in the runtime `openings`.
    ///
    /// # Errors
    /// As for [`Listener::start`].
    pub fn start_with(
        openings: &Handle,
        tcp: TcpListener,
        protection: Protection,
        limits: Limits,
        refusals: Refusals,
    ) -> Result<Self, ListenerError> {
        let address = tcp.local_addr()?;
        let connections = Connections::new(limits);
        let (send, ready) = mpsc::channel(WAITING);
        let secure = match protection {
            Protection::Plain => None,
            Protection::Tls { trust, clients, protocols } => Some(Secure::new(trust, clients, protocols)?),
        };
        let opener = Arc::new(Opener { secure, limits, refusals: refusals.clone(), ready: send });
        let accepting = tokio::spawn(accept_all(tcp, opener.clone(), connections.clone(), openings.clone()));
        Ok(Self {
            address,
            ready,
            connections,
            refusals,
            opener,
            _accepting: AbortOnDropHandle::new(accepting),
        })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Opens a door beside the port, at this path, for those who are invited; they come where the others come. It is served in
    /// the runtime that this is called in.
    ///
    /// # Errors
    /// There can be no socket at the path: it is too long for one, or something else is there.
    pub fn open_locally(&self, path: &Path) -> io::Result<LocalDoor> {
        LocalDoor::open(path, self.opener.clone(), self.connections())
    }

    /// A handle on those that are open.
    pub fn connections(&self) -> Connections {
        self.connections.clone()
    }

    /// The counters of refused connections.
    pub(crate) fn refusals(&self) -> Refusals {
        self.refusals.clone()
    }

    /// The next connection. Nothing is lost when this is dropped.
    pub async fn accept(&mut self) -> Connection {
        match self.ready.recv().await {
            Some(connection) => connection,
            // The task ends with this listener only.
            None => std::future::pending().await,
        }
    }
}

impl Stream for Listener {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(context).map(|next| next.map(Ok))
    }
}

async fn accept_all(tcp: TcpListener, opener: Arc<Opener>, connections: Connections, runtime: Handle) {
    // Dropped with this task, and then all that are opening end too.
    let mut openings = JoinSet::new();
    let mut trust = opener.secure.as_ref().map(|secure| secure.trust.follow());
    loop {
        tokio::select! {
            accepted = tcp.accept() => match accepted {
                Ok((stream, address)) => match connections.admit(address.ip()) {
                    Ok(place) => {
                        openings.spawn_on(opening::open(opener.clone(), stream, address, place), &runtime);
                    }
                    Err(refusal) => opener.refusals.note(refusal, Some(address), &refusal.text()),
                },
                // The other side was gone before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    opener.refusals.note(Refusal::Accept, None, &error);
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(_) = openings.join_next(), if !openings.is_empty() => {}
            () = changed(&mut trust) => {
                if let Some(secure) = &opener.secure {
                    let revoked = secure.trust.revoked();
                    let closed = connections.close_where(|identity| revoked.has(identity));
                    opener.refusals.add(Refusal::Revoked, closed as u64);
                }
            }
        }
    }
}

/// Waits for the next change of the trust; for ever where there is none.
async fn changed<T>(trust: &mut Option<tokio::sync::watch::Receiver<T>>) {
    if let Some(trust) = trust
        && trust.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}
