//! What a ring needs of whatever carries its frames.

use async_trait::async_trait;

use super::Signal;

/// One rank's connection with its two neighbours in one epoch.
///
/// It carries signals in order, whole and at most once, and holds only a bounded number of them on
/// the way. The suite in `ringtune-conformance` checks all that is asked of a transport.
pub trait Transport: Send {
    /// Parts it, because a rank sends and receives at the same time.
    fn split(self: Box<Self>) -> (Box<dyn SendHalf>, Box<dyn ReceiveHalf>);
}

/// The half that leads to the next rank.
///
/// Dropping it before [`SendHalf::finish`] breaks the connection: the next rank gets
/// [`LinkBroken`], perhaps before all that was sent.
#[async_trait]
pub trait SendHalf: Send {
    /// Sends a signal; waits while there is no room for it. A frame's payload is let go of as soon as it is sent, whatever
    /// the next rank does: it may be lent.
    async fn send(&mut self, signal: Signal) -> Result<(), LinkBroken>;

    /// Says that no more will come. All that was sent arrives before it. An error is not taken for
    /// a failure: the next rank may have left before.
    async fn finish(&mut self) -> Result<(), LinkBroken>;
}

/// The half that comes from the previous rank.
///
/// Dropping it breaks the connection for the previous rank, unless that one has finished.
#[async_trait]
pub trait ReceiveHalf: Send {
    /// The next signal; none when the previous rank has finished.
    ///
    /// Must lose nothing when the future is dropped before it is ready.
    async fn receive(&mut self) -> Result<Option<Signal>, LinkBroken>;
}

/// A connection that is no more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LinkBroken(
    /// What the transport knows about the cause.
    pub String,
);
