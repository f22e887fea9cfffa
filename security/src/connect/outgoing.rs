//! A connection that was made, as clients read and write it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use super::ending::{Ending, Following};
use super::error::ConnectError;
use super::explain::{Mine, explain};
use crate::certificate::{Facts, Validity};
use crate::plaintext::{Answer, PREFACE};
use crate::socket;

/// More than our own answer to plain text on a port with TLS.
const FIRST_BYTES: usize = 128;

/// A connection that was made. Where the other side turns out to speak something else, or refuses this side's
/// certificate after the handshake, reading fails with a [`ConnectError`] within the `io::Error`. It also ends when the
/// server's certificate does, or is revoked.
#[derive(Debug)]
pub struct Outgoing {
    stream: Stream,
    address: String,
    /// Nothing was read yet.
    fresh: bool,
    /// How much of the preface the client is still to write: the other side has it already.
    sent: &'static [u8],
    valid: Option<Validity>,
    /// What the server's certificate says.
    facts: Option<Facts>,
    ending: Option<Ending>,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Secure(Box<TlsStream<TcpStream>>, Mine),
    Local(UnixStream),
}

impl Outgoing {
    /// Begins to speak HTTP/2 without TLS, and listens for `patience` whether the other side does too. What a client of
    /// HTTP/2 sends first is always the same, so it is sent here, and then taken from the client without a word.
    pub(super) async fn plain(
        mut stream: TcpStream,
        address: String,
        patience: Duration,
    ) -> Result<Self, ConnectError> {
        // Where the other side has closed already, what it said is still there to be read.
        let _ = stream.write_all(PREFACE).await;
        let mut first = [0; FIRST_BYTES];
        match timeout(patience, stream.peek(&mut first)).await {
            Ok(Ok(0)) => return Err(ConnectError::Closed { address, cause: None }),
            Ok(Ok(length)) => check(Answer::of(first.get(..length).unwrap_or_default()), &address)?,
            Ok(Err(error)) => return Err(ConnectError::Closed { address, cause: Some(error) }),
            Err(_) => {}
        }
        Ok(Self::of(Stream::Plain(stream), address))
    }

    /// As above, within TLS. With TLS 1.3 a client is done before the server has looked at its certificate; the server's
    /// first word says whether it takes it.
    pub(super) async fn secure(
        mut stream: TlsStream<TcpStream>,
        address: String,
        mine: Mine,
        patience: Duration,
    ) -> Result<Self, ConnectError> {
        if stream.write_all(PREFACE).await.is_ok() {
            let _ = stream.flush().await;
        }
        let heard = timeout(patience, stream.fill_buf()).await;
        match heard.map(|heard| heard.map(<[u8]>::is_empty)) {
            Ok(Ok(true)) => return Err(ConnectError::Closed { address, cause: None }),
            Ok(Err(error)) => return Err(explain(&address, &mine, error)),
            Ok(Ok(false)) | Err(_) => {}
        }
        Ok(Self::of(Stream::Secure(Box::new(stream), mine), address))
    }

    /// As above, through a local socket that has accepted the invitation.
    pub(super) async fn local(mut stream: UnixStream, address: String) -> Result<Self, ConnectError> {
        socket::prepare_local(&stream);
        let sent = stream.write_all(PREFACE).await;
        sent.map_err(|cause| ConnectError::Closed { address: address.clone(), cause: Some(cause) })?;
        Ok(Self::of(Stream::Local(stream), address))
    }

    /// Whether both ends are on this machine.
    pub fn is_within_this_machine(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => socket::is_within_this_machine(stream),
            Stream::Secure(stream, _) => socket::is_within_this_machine(stream.get_ref().0),
            Stream::Local(_) => true,
        }
    }

    fn of(stream: Stream, address: String) -> Self {
        Self { stream, address, fresh: true, sent: PREFACE, valid: None, facts: None, ending: None }
    }

    /// Ends the connection when `valid` ends, which is the intersection of both certificates' validity, or when the server's
    /// certificate is revoked.
    pub(super) fn until(self, valid: Option<Validity>, facts: Option<Facts>, trust: Following) -> Self {
        let ending = facts.clone().map(|facts| Ending::of(&self.address, facts, trust));
        Self { valid, facts, ending, ..self }
    }

    /// What the server's certificate says.
    pub(super) fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    /// Intersection of both certificates' validity. None: without TLS.
    pub(super) fn valid(&self) -> Option<Validity> {
        self.valid
    }

    fn check_end(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.ending.as_mut().map_or(Ok(()), |ending| ending.check(context))
    }

    /// Takes the part of the preface that the other side has already out of what the client writes; 0: nothing.
    fn take_sent(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.sent.len().min(bytes.len());
        let (expected, rest) = self.sent.split_at(taken);
        if !bytes.starts_with(expected) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "this connection is for HTTP/2 alone"));
        }
        self.sent = rest;
        Ok(taken)
    }

    fn writer(&mut self) -> Pin<&mut (dyn AsyncWrite + Unpin)> {
        let stream: &mut (dyn AsyncWrite + Unpin) = match &mut self.stream {
            Stream::Plain(stream) => stream,
            Stream::Secure(stream, _) => stream.as_mut(),
            Stream::Local(stream) => stream,
        };
        Pin::new(stream)
    }
}

/// What the first bytes of a server in plain text tell.
fn check(answer: Answer, address: &str) -> Result<(), ConnectError> {
    let address = address.to_owned();
    match answer {
        Answer::Fine => Ok(()),
        Answer::Tls => Err(ConnectError::Tls { address }),
        Answer::Http1 => Err(ConnectError::NoHttp2 { address }),
    }
}

impl AsyncRead for Outgoing {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_end(context)?;
        let Self { stream, address, fresh, .. } = self.get_mut();
        let before = buffer.filled().len();
        match stream {
            Stream::Plain(stream) => {
                ready!(Pin::new(stream).poll_read(context, buffer))?;
                if std::mem::take(fresh) {
                    let answer = Answer::of(buffer.filled().get(before..).unwrap_or_default());
                    check(answer, address)
                        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
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
            Stream::Local(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Outgoing {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_end(context)?;
        match self.take_sent(bytes)? {
            0 => self.writer().poll_write(context, bytes),
            taken => Poll::Ready(Ok(taken)),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_end(context)?;
        let first = slices.iter().find(|slice| !slice.is_empty());
        match first.map_or(Ok(0), |first| self.take_sent(first))? {
            0 => self.writer().poll_write_vectored(context, slices),
            taken => Poll::Ready(Ok(taken)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Secure(stream, _) => stream.is_write_vectored(),
            Stream::Local(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_end(context)?;
        self.writer().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    const SOON: Duration = Duration::from_millis(200);

    #[tokio::test]
    async fn the_preface_is_sent_once_however_the_client_cuts_it() {
        for cut in [1, 7, 23, 24, 30] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (mut server, _) = listener.accept().await.unwrap();
            server.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
            let mut client = Outgoing::plain(tcp, String::new(), SOON).await.unwrap();
            let all = [PREFACE.as_slice(), b"and frames"].concat();
            let (one, two) = all.split_at(cut);
            client.write_all(one).await.unwrap();
            let mut slices = [IoSlice::new(&[]), IoSlice::new(two)];
            let mut left: &mut [IoSlice<'_>] = &mut slices;
            while left.iter().any(|slice| !slice.is_empty()) {
                let written = client.write_vectored(left).await.unwrap();
                IoSlice::advance_slices(&mut left, written);
            }
            client.shutdown().await.unwrap();
            let mut got = Vec::new();
            server.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, all, "{cut}");
            let mut settings = [0; 9];
            client.read_exact(&mut settings).await.unwrap();
            assert_eq!(settings[3], 4);
        }
    }

    #[tokio::test]
    async fn a_server_that_waits_is_waited_for_and_other_protocols_are_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut client = Outgoing::plain(tcp, String::new(), SOON).await.unwrap();
        let error = client.write_all(b"GET / HTTP/1.1").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
