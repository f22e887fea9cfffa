//! A connection that was made, as clients read and write it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::error::ConnectError;
use super::explain::{Mine, explain};
use crate::plaintext::Answer;

/// A connection that was made. Where the other side turns out to speak something else, or refuses this side's
/// certificate after the handshake, reading fails with a [`ConnectError`] within the `io::Error`.
#[derive(Debug)]
pub struct Outgoing {
    stream: Stream,
    address: String,
    /// Nothing was read yet.
    fresh: bool,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Secure(Box<TlsStream<TcpStream>>, Mine),
}

impl Outgoing {
    pub(super) fn plain(stream: TcpStream, address: String) -> Self {
        Self { stream: Stream::Plain(stream), address, fresh: true }
    }

    pub(super) fn secure(stream: TlsStream<TcpStream>, address: String, mine: Mine) -> Self {
        Self { stream: Stream::Secure(Box::new(stream), mine), address, fresh: true }
    }

    fn writer(&mut self) -> Pin<&mut (dyn AsyncWrite + Send + 'static)> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream),
            Stream::Secure(stream, _) => Pin::new(stream.as_mut()),
        }
    }
}

/// What the first bytes of a server in plain text tell.
fn check(answer: Answer, address: &str) -> io::Result<()> {
    let address = address.to_owned();
    let error = match answer {
        Answer::Fine => return Ok(()),
        Answer::Tls => ConnectError::Tls { address },
        Answer::Http1 => ConnectError::NoHttp2 { address },
    };
    Err(io::Error::new(io::ErrorKind::InvalidData, error))
}

impl AsyncRead for Outgoing {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, address, fresh } = self.get_mut();
        let before = buffer.filled().len();
        match stream {
            Stream::Plain(stream) => {
                ready!(Pin::new(stream).poll_read(context, buffer))?;
                if std::mem::take(fresh) {
                    check(Answer::of(buffer.filled().get(before..).unwrap_or_default()), address)?;
                }
                Poll::Ready(Ok(()))
            }
            Stream::Secure(stream, mine) => {
                let read = ready!(Pin::new(stream.as_mut()).poll_read(context, buffer));
                let is_tls =
                    |error: &io::Error| error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
                Poll::Ready(read.map_err(|error| match is_tls(&error) {
                    true => io::Error::new(error.kind(), explain(address, mine, error)),
                    false => error,
                }))
            }
        }
    }
}

impl AsyncWrite for Outgoing {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writer().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writer().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Secure(stream, _) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer().poll_shutdown(context)
    }
}
