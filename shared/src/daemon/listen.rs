//! Ports: bound before anything else is done, so that a taken one is an error at the start.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    sync::Arc,
};

use tokio::{net::TcpListener, sync::Notify};
use tracing::info;

use super::notify::Notifier;

/// How a daemon was started.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// Replace a taken port by a free one.
    pub free_ports: bool,
    /// Tell on stdout where it listens.
    pub announce: bool,
    /// The service manager.
    pub notifier: Notifier,
    /// Wakes whoever reads files that others replace, such as certificates.
    pub reread: Arc<Notify>,
}

/// A port that could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("{key}: cannot listen on {address}: {source}{hint}")]
pub struct ListenError {
    /// `section.key`.
    pub key: &'static str,
    /// As given.
    pub address: SocketAddr,
    /// Why.
    pub source: io::Error,
    hint: &'static str,
}

/// Binds an address; port 0 takes any free one.
///
/// `key` is the setting that it came from, `section.key`. With `free_ports` a taken port is replaced by a free one
/// of the same address, and the log says so.
///
/// # Errors
/// The system's: a taken port, an address that is not this machine's, a privileged port.
pub async fn bind(
    key: &'static str,
    address: SocketAddr,
    free_ports: bool,
) -> Result<TcpListener, ListenError> {
    let failed = |source: io::Error| {
        let hint = match source.kind() {
            io::ErrorKind::AddrInUse => "; another process listens there: give another port, or 0 for any",
            io::ErrorKind::AddrNotAvailable => "; no interface of this machine has that address",
            _ => "",
        };
        ListenError { key, address, source, hint }
    };
    match TcpListener::bind(address).await {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && free_ports => {
            let listener = TcpListener::bind(SocketAddr::new(address.ip(), 0)).await.map_err(failed)?;
            let bound = listener.local_addr().map_err(failed)?;
            info!(%address, %bound, "{key} is taken: listening on a free port instead");
            Ok(listener)
        }
        bound => bound.map_err(failed),
    }
}

/// Tells the parent process where this daemon listens: one JSON line on stdout.
///
/// `id` is a worker's UUID, or empty.
///
/// # Errors
/// The pipe's.
pub fn announce(grpc: SocketAddr, http: SocketAddr, id: &str) -> io::Result<()> {
    let line = serde_json::json!({
        "event": "listening",
        "grpc": grpc.to_string(),
        "http": http.to_string(),
        "id": id,
    });
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_taken_port_is_an_error_or_replaced() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let first = bind("grpc.listen", any, false).await.unwrap();
        let taken = first.local_addr().unwrap();
        let error = bind("grpc.listen", taken, false).await.unwrap_err();
        assert_eq!((error.key, error.source.kind()), ("grpc.listen", io::ErrorKind::AddrInUse));
        let other = bind("grpc.listen", taken, true).await.unwrap();
        assert_ne!(other.local_addr().unwrap(), taken);
    }
}
