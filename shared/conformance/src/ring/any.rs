//! Any transport, for a suite that does not know which one it runs over, and wraps it in faults and delays.

use async_trait::async_trait;
use ringtune_shared::ring::{LinkBroken, ReceiveHalf, SendHalf, Signal, Transport};

/// A transport whose halves may be of any kind. Where it is used an allocation for each signal is no matter.
pub struct AnyTransport {
    send: AnySendHalf,
    receive: AnyReceiveHalf,
}

/// The half that leads to the next rank.
pub struct AnySendHalf(Box<dyn ErasedSendHalf>);

/// The half that comes from the previous rank.
pub struct AnyReceiveHalf(Box<dyn ErasedReceiveHalf>);

impl AnyTransport {
    /// Wraps a transport.
    pub fn new(transport: impl Transport) -> Self {
        let (send, receive) = transport.split();
        Self { send: AnySendHalf(Box::new(send)), receive: AnyReceiveHalf(Box::new(receive)) }
    }
}

impl Transport for AnyTransport {
    type Send = AnySendHalf;
    type Receive = AnyReceiveHalf;

    fn split(self) -> (AnySendHalf, AnyReceiveHalf) {
        (self.send, self.receive)
    }
}

#[async_trait]
trait ErasedSendHalf: Send {
    async fn send_one(&mut self, signal: Signal) -> Result<(), LinkBroken>;
    async fn finish_all(&mut self) -> Result<(), LinkBroken>;
}

#[async_trait]
impl<Half: SendHalf> ErasedSendHalf for Half {
    async fn send_one(&mut self, signal: Signal) -> Result<(), LinkBroken> {
        self.send(signal).await
    }

    async fn finish_all(&mut self) -> Result<(), LinkBroken> {
        self.finish().await
    }
}

impl SendHalf for AnySendHalf {
    async fn send(&mut self, signal: Signal) -> Result<(), LinkBroken> {
        self.0.send_one(signal).await
    }

    async fn finish(&mut self) -> Result<(), LinkBroken> {
        self.0.finish_all().await
    }
}

#[async_trait]
trait ErasedReceiveHalf: Send {
    async fn receive_one(&mut self) -> Result<Option<Signal>, LinkBroken>;
}

#[async_trait]
impl<Half: ReceiveHalf> ErasedReceiveHalf for Half {
    async fn receive_one(&mut self) -> Result<Option<Signal>, LinkBroken> {
        self.receive().await
    }
}

impl ReceiveHalf for AnyReceiveHalf {
    async fn receive(&mut self) -> Result<Option<Signal>, LinkBroken> {
        self.0.receive_one().await
    }
}
