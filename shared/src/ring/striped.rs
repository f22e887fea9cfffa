//! Several streams as one connection: signals are dealt out to them in turns, and taken from them in the same turns.
//!
//! So they keep their order without numbers, and a stream that is slower than the others makes them as slow as itself.

use super::{LinkBroken, ReceiveHalf, SendHalf, Signal};

/// The streams to the next rank.
#[derive(Debug)]
pub struct StripedSend<S> {
    streams: Vec<S>,
    /// Index of the stream whose turn it is.
    turn: usize,
}

/// The streams from the previous rank, in the order in which that one has them.
#[derive(Debug)]
pub struct StripedReceive<R> {
    streams: Vec<R>,
    turn: usize,
    /// Streams that have ended.
    finished: usize,
}

impl<S> StripedSend<S> {
    /// Of at least one stream; nothing was sent on any.
    pub fn new(streams: Vec<S>) -> Self {
        Self { streams, turn: 0 }
    }

    /// In their order.
    pub fn streams(&self) -> &[S] {
        &self.streams
    }
}

impl<R> StripedReceive<R> {
    /// Of at least one stream; nothing was taken from any.
    pub fn new(streams: Vec<R>) -> Self {
        Self { streams, turn: 0, finished: 0 }
    }

    /// In their order.
    pub fn streams(&self) -> &[R] {
        &self.streams
    }
}

fn after(turn: usize, streams: usize) -> usize {
    if turn + 1 < streams { turn + 1 } else { 0 }
}

fn none() -> LinkBroken {
    LinkBroken("it is of no stream".to_owned())
}

impl<S: SendHalf> SendHalf for StripedSend<S> {
    async fn send(&mut self, signal: Signal) -> Result<(), LinkBroken> {
        let stream = self.streams.get_mut(self.turn).ok_or_else(none)?;
        stream.send(signal).await?;
        self.turn = after(self.turn, self.streams.len());
        Ok(())
    }

    /// One after the other, from the one whose turn it is: the next rank takes their ends in this order too, and a stream may wait
    /// until its end was taken.
    async fn finish(&mut self) -> Result<(), LinkBroken> {
        for _ in 0..self.streams.len() {
            self.streams.get_mut(self.turn).ok_or_else(none)?.finish().await?;
            self.turn = after(self.turn, self.streams.len());
        }
        Ok(())
    }
}

impl<R: ReceiveHalf> ReceiveHalf for StripedReceive<R> {
    async fn receive(&mut self) -> Result<Option<Signal>, LinkBroken> {
        while self.finished < self.streams.len() {
            let stream = self.streams.get_mut(self.turn).ok_or_else(none)?;
            let signal = stream.receive().await?;
            self.turn = after(self.turn, self.streams.len());
            match signal {
                None => self.finished += 1,
                Some(_) if self.finished > 0 => {
                    return Err(LinkBroken("one of its streams has ended, and another goes on".to_owned()));
                }
                signal => return Ok(signal),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::ids::{Epoch, JobId};

    struct Channel(mpsc::UnboundedReceiver<Option<Signal>>);

    impl ReceiveHalf for Channel {
        async fn receive(&mut self) -> Result<Option<Signal>, LinkBroken> {
            self.0.recv().await.ok_or_else(|| LinkBroken("it is gone".to_owned()))
        }
    }

    fn pulse(epoch: u64) -> Option<Signal> {
        Some(Signal::Pulse { job: JobId(uuid::Uuid::from_u128(1)), epoch: Epoch(epoch) })
    }

    fn striped(streams: usize) -> (Vec<mpsc::UnboundedSender<Option<Signal>>>, StripedReceive<Channel>) {
        let (senders, receivers) =
            (0..streams).map(|_| mpsc::unbounded_channel()).unzip::<_, _, Vec<_>, Vec<_>>();
        (senders, StripedReceive::new(receivers.into_iter().map(Channel).collect()))
    }

    #[tokio::test]
    async fn nothing_is_lost_where_waiting_for_a_stream_is_given_up() {
        let (streams, mut receive) = striped(2);
        streams[1].send(pulse(2)).unwrap();
        for _ in 0..3 {
            tokio::select! {
                biased;
                came = receive.receive() => panic!("out of turn: {came:?}"),
                () = tokio::task::yield_now() => {}
            }
        }
        streams[0].send(pulse(1)).unwrap();
        assert_eq!(receive.receive().await, Ok(pulse(1)));
        assert_eq!(receive.receive().await, Ok(pulse(2)));
        // The ends too.
        streams[0].send(None).unwrap();
        tokio::select! {
            biased;
            came = receive.receive() => panic!("only one has ended: {came:?}"),
            () = tokio::task::yield_now() => {}
        }
        streams[1].send(None).unwrap();
        for _ in 0..2 {
            assert_eq!(receive.receive().await, Ok(None));
        }
    }

    #[tokio::test]
    async fn a_stream_that_goes_on_behind_anothers_end_breaks_all_of_them() {
        let (streams, mut receive) = striped(2);
        streams[0].send(None).unwrap();
        streams[1].send(pulse(1)).unwrap();
        let broken = receive.receive().await.unwrap_err();
        assert!(broken.to_string().contains("another goes on"), "{broken}");
        // Likewise one that breaks after the other has ended.
        let (mut streams, mut receive) = striped(2);
        streams[0].send(None).unwrap();
        streams.clear();
        assert!(receive.receive().await.is_err());
    }
}
