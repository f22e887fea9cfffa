//! A bound on the connections that are open at a time.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::transport::server::{Connected, TcpConnectInfo};
use tracing::warn;

/// A connection and its place among those that may be open.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
}

/// Those of `incoming` that there is a place for; others are closed at once, so that a client hears of it and tries
/// again, rather than wait for an answer.
pub(super) fn bounded(
    incoming: impl Stream<Item = io::Result<TcpStream>> + Send + 'static,
    limit: usize,
) -> impl Stream<Item = io::Result<Connection>> + Send + 'static {
    let places = Arc::new(Semaphore::new(limit));
    let full = AtomicBool::new(false);
    incoming.filter_map(move |accepted| {
        let connection = accepted.map(|stream| match places.clone().try_acquire_owned() {
            Ok(place) => {
                full.store(false, Ordering::Relaxed);
                Some(Connection { stream, _place: place })
            }
            Err(_) => {
                // Said once, not for each of them.
                if !full.swap(true, Ordering::Relaxed) {
                    warn!(
                        limit,
                        "as many connections are open as limits.connections allows: closing new ones"
                    );
                }
                None
            }
        });
        std::future::ready(connection.transpose())
    })
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;

    use super::*;

    #[tokio::test]
    async fn a_connection_over_the_limit_is_closed_and_one_that_ends_makes_place() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = bounded(TcpListenerStream::new(listener), 1);
        tokio::pin!(connections);
        let mut one = TcpStream::connect(address).await.unwrap();
        let mut served = connections.next().await.unwrap().unwrap();
        let mut over = TcpStream::connect(address).await.unwrap();
        let mut next = TcpStream::connect(address).await.unwrap();
        let refused = async {
            let mut byte = [0];
            let closed = over.read(&mut byte).await;
            assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
        };
        tokio::select! {
            () = refused => {}
            accepted = connections.next() => panic!("{accepted:?}"),
        }
        one.write_all(b"x").await.unwrap();
        assert_eq!(served.read_u8().await.unwrap(), b'x');
        let closed = async { while next.read_u8().await.is_ok() {} };
        tokio::select! {
            () = closed => {}
            accepted = connections.next() => panic!("{accepted:?}"),
        }
        drop(served);
        let _again = TcpStream::connect(address).await.unwrap();
        connections.next().await.unwrap().unwrap();
    }
}
