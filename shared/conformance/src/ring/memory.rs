//! A transport within one process, for tests.

use ringtune_shared::ring::{LinkBroken, ReceiveHalf, SendHalf, Signal, Transport};
use tokio::sync::mpsc;

/// One rank's place in a ring of channels.
pub struct MemoryTransport {
    send: MemorySendHalf,
    receive: MemoryReceiveHalf,
}

/// What a channel carries: an end that is not announced is a break.
enum Parcel {
    Signal(Signal),
    Finish,
}

/// Its half that leads to the next rank.
pub struct MemorySendHalf {
    channel: Option<mpsc::Sender<Parcel>>,
}

/// Its half that comes from the previous rank.
pub struct MemoryReceiveHalf {
    channel: mpsc::Receiver<Parcel>,
    finished: bool,
}

/// The transports of all ranks of a ring, in the order of the ranks.
///
/// `capacity`: signals that a connection holds, at least 1.
pub fn ring(world_size: usize, capacity: usize) -> Vec<MemoryTransport> {
    let (senders, mut receivers): (Vec<_>, Vec<_>) =
        (0..world_size).map(|_| mpsc::channel(capacity.max(1))).unzip();
    // Channel r leads from rank r to rank r + 1.
    if world_size > 0 {
        receivers.rotate_right(1);
    }
    senders
        .into_iter()
        .zip(receivers)
        .map(|(sender, receiver)| MemoryTransport {
            send: MemorySendHalf { channel: Some(sender) },
            receive: MemoryReceiveHalf { channel: receiver, finished: false },
        })
        .collect()
}

impl Transport for MemoryTransport {
    type Send = MemorySendHalf;
    type Receive = MemoryReceiveHalf;

    fn split(self) -> (MemorySendHalf, MemoryReceiveHalf) {
        (self.send, self.receive)
    }
}

impl SendHalf for MemorySendHalf {
    async fn send(&mut self, mut signal: Signal) -> Result<(), LinkBroken> {
        // As over a network: what was sent is the sender's own again, whatever the next rank does with what came.
        if let Signal::Frame(frame) = &mut signal {
            frame.payload = frame.payload.to_vec().into();
        }
        let channel = self.channel.as_ref().ok_or_else(|| LinkBroken("it was finished before".into()))?;
        channel.send(Parcel::Signal(signal)).await.map_err(|_| LinkBroken("the next rank is gone".into()))
    }

    async fn finish(&mut self) -> Result<(), LinkBroken> {
        let Some(channel) = &self.channel else { return Ok(()) };
        channel.send(Parcel::Finish).await.map_err(|_| LinkBroken("the next rank is gone".into()))?;
        self.channel = None;
        Ok(())
    }
}

impl ReceiveHalf for MemoryReceiveHalf {
    async fn receive(&mut self) -> Result<Option<Signal>, LinkBroken> {
        if self.finished {
            return Ok(None);
        }
        match self.channel.recv().await {
            Some(Parcel::Signal(signal)) => Ok(Some(signal)),
            Some(Parcel::Finish) => {
                self.finished = true;
                Ok(None)
            }
            None => Err(LinkBroken("the previous rank is gone".into())),
        }
    }
}
