//! The transport of a ring's frames.

use std::future::Future;

use super::Signal;

/// One rank's connection with its two neighbours in one epoch.
///
/// It carries signals in order, whole and at most once, and holds only a bounded number of them on
/// the way. The suite in `ringtune-conformance` checks all that is asked of a transport.
pub trait Transport: Send {
    /// The half towards the next rank.
    type Send: SendHalf;
    /// The half from the previous rank.
    type Receive: ReceiveHalf;

    /// Parts it, because a rank sends and receives at the same time.
    fn split(self) -> (Self::Send, Self::Receive);
}

/// The half that leads to the next rank.
///
/// Dropping it before [`SendHalf::finish`] breaks the connection: the next rank gets
/// [`LinkBroken`], perhaps before all that was sent.
pub trait SendHalf: Send + 'static {
    /// Sends a signal; waits while there is no room for it. A frame's payload is let go of as soon as it is sent, whatever
    /// the next rank does: it may be lent.
    fn send(&mut self, signal: Signal) -> impl Future<Output = Result<(), LinkBroken>> + Send;

    /// Says that no more will come. All that was sent arrives before it. An error is not taken for
    /// a failure: the next rank may have left before.
    fn finish(&mut self) -> impl Future<Output = Result<(), LinkBroken>> + Send;
}

/// The half that comes from the previous rank.
///
/// Dropping it breaks the connection for the previous rank, unless that one has finished.
pub trait ReceiveHalf: Send + 'static {
    /// The next signal; none when the previous rank has finished.
    ///
    /// Must lose nothing when the future is dropped before it is ready.
    fn receive(&mut self) -> impl Future<Output = Result<Option<Signal>, LinkBroken>> + Send;
}

/// A connection that is no more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LinkBroken(
    /// The cause, as far as the transport knows it.
    pub String,
);
