//! An open connection, as servers read and write it.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use super::deadline::{Verdict, verdict};
use super::limits::Limits;
use super::places::Place;
use super::refusals::{Refusal, Refusals};
use crate::certificate::Validity;
use crate::peer::Peer;
use crate::plaintext::Spoken;
use crate::times;

/// How long calls have, once the certificate is over, to be answered that it is.
const LAST_WORD: Duration = Duration::from_millis(500);

/// The bytes of a connection.
#[derive(Debug)]
pub(super) enum Stream {
    /// Plain TCP.
    Plain(TcpStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<TcpStream>>),
    /// A Unix socket: the bytes never leave this machine.
    Local(UnixStream),
}

/// What a connection runs over, and with what the client began on it.
#[derive(Debug)]
pub(super) struct Transport {
    pub(super) stream: Stream,
    pub(super) spoken: Spoken,
}

/// Why a connection fails though both sides live.
#[derive(Debug, Clone, Copy)]
enum Why {
    /// Its certificate was revoked.
    Revoked,
    /// Its certificate is over.
    Expired(Validity),
}

/// Waits for the reason.
struct Closing(Pin<Box<dyn Future<Output = Why> + Send>>);

impl fmt::Debug for Closing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Closing")
    }
}

impl Closing {
    fn of(close: CancellationToken, valid: Option<Validity>) -> Self {
        Self(Box::pin(async move {
            tokio::select! {
                biased;
                () = close.cancelled() => Why::Revoked,
                why = expired(valid) => why,
            }
        }))
    }
}

/// Waits until the certificate is over; for ever where there is none.
async fn expired(valid: Option<Validity>) -> Why {
    let Some(valid) = valid else { return std::future::pending().await };
    valid.over().await;
    sleep(LAST_WORD).await;
    Why::Expired(valid)
}

/// An open connection. Reading it ends (as if the other side had closed it) when it had no calls for too long, writing it
/// fails when the other side takes nothing for too long, and both fail when it is closed from outside, because its
/// certificate was revoked, and when that is over.
#[derive(Debug)]
pub struct Connection {
    transport: Transport,
    peer: Peer,
    /// One for the reader and one for the writer: they may be different tasks.
    closing: [Closing; 2],
    closed: Option<Why>,
    look: Pin<Box<Sleep>>,
    /// Set when there were no calls for too long.
    over: bool,
    /// Runs while something waits to be written.
    unread: Option<Pin<Box<Sleep>>>,
    /// Set when `unread` ran out.
    deaf: bool,
    limits: Limits,
    refusals: Refusals,
    _place: Place,
}

const READER: usize = 0;
const WRITER: usize = 1;

impl Connection {
    pub(super) fn new(
        transport: Transport,
        peer: Peer,
        place: Place,
        close: CancellationToken,
        limits: Limits,
        refusals: Refusals,
    ) -> Self {
        let closing = [Closing::of(close.clone(), peer.valid), Closing::of(close, peer.valid)];
        let first = match verdict(peer.activity.standing(), &limits) {
            Verdict::Wait(wait) => wait,
            Verdict::Close(_) => Duration::ZERO,
        };
        let look = Box::pin(sleep(first));
        Self {
            transport,
            peer,
            closing,
            closed: None,
            look,
            over: false,
            unread: None,
            deaf: false,
            limits,
            refusals,
            _place: place,
        }
    }

    /// Who is on the other side.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Whether it began with HTTP/2, without TLS.
    pub(crate) fn is_plain_http2(&self) -> bool {
        self.transport.spoken == Spoken::Http2
    }

    /// Fails when the connection was closed from outside or its certificate is over; else the waker is registered for that.
    fn check_closed(&mut self, side: usize, context: &mut Context<'_>) -> io::Result<()> {
        if self.closed.is_none()
            && let Poll::Ready(why) = self.closing[side].0.as_mut().poll(context)
        {
            self.closed = Some(why);
            if matches!(why, Why::Expired(_)) {
                self.note(Refusal::Expired);
            }
        }
        let text = match self.closed {
            None => return Ok(()),
            Some(Why::Revoked) => "the connection was closed: its certificate was revoked".to_owned(),
            Some(Why::Expired(valid)) => {
                let (caller, until) = (&self.peer.caller, times::text(valid.until));
                format!("the connection was closed: the certificate of {caller} ended at {until}")
            }
        };
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, text))
    }

    /// Whether the connection had no calls for too long; else the waker is registered for the next look.
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        while !self.over && self.look.as_mut().poll(context).is_ready() {
            match verdict(self.peer.activity.standing(), &self.limits) {
                Verdict::Wait(wait) => self.look.as_mut().reset(Instant::now() + wait),
                Verdict::Close(refusal) => {
                    self.over = true;
                    self.note(refusal);
                }
            }
        }
        self.over
    }

    fn note(&self, refusal: Refusal) {
        self.refusals.note(refusal, Some(self.peer.address), &self.peer.caller);
    }

    /// The result of a write, which fails when it has waited for too long. The time is looked at last, so that a process that
    /// was itself stopped does not blame the other side.
    fn written<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.unread = None;
            return written;
        }
        let wait = self.limits.unread;
        let unread = self.unread.get_or_insert_with(|| Box::pin(sleep(wait)));
        ready!(unread.as_mut().poll(context));
        self.unread = None;
        self.deaf = true;
        self.note(Refusal::Unread);
        Poll::Ready(Err(deaf()))
    }

    fn writer(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut (dyn AsyncWrite + Unpin)>> {
        self.check_closed(WRITER, context)?;
        if self.deaf {
            return Err(deaf());
        }
        let stream: &mut (dyn AsyncWrite + Unpin) = match &mut self.transport.stream {
            Stream::Plain(stream) => stream,
            Stream::Tls(stream) => stream.as_mut(),
            Stream::Local(stream) => stream,
        };
        Ok(Pin::new(stream))
    }
}

fn deaf() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, Refusal::Unread.text())
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_closed(READER, context)?;
        if self.is_over(context) {
            return Poll::Ready(Ok(()));
        }
        match &mut self.transport.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_read(context, buffer),
            Stream::Local(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.writer(context)?.poll_write(context, bytes);
        self.written(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.writer(context)?.poll_write_vectored(context, slices);
        self.written(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
            Stream::Local(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = self.writer(context)?.poll_flush(context);
        self.written(written, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = self.writer(context)?.poll_shutdown(context);
        self.written(written, context)
    }
}
