//! The motion that all collectives share: at hop 0 a rank sends what it has, and at hop h + 1 what
//! came in at hop h.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::link::{Received, Status};
use super::member::Links;
use super::{Exchange, Frame, Ring, RingError};

/// What a collective does with the numbers that travel.
pub(super) trait Motion: Send {
    /// Hops of the collective.
    fn hops(&self) -> usize;

    /// Where in the buffer the message lies that this rank sends at `hop`.
    fn sent_at(&self, hop: usize) -> Range<usize>;

    /// Where in the buffer the message belongs that this rank receives at `hop`; the same place
    /// that it sends from at `hop + 1`.
    fn received_at(&self, hop: usize) -> Range<usize>;

    /// The numbers at a place in the buffer.
    fn read(&self, place: Range<usize>) -> &[f32];

    /// Takes in what came at `hop` for a place in the buffer: as many numbers as the place has.
    fn take_in(&mut self, hop: usize, place: Range<usize>, payload: &[u8]);
}

/// One segment: its hop, its number within the message, and its place in the buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    hop: usize,
    number: usize,
    place: Range<usize>,
}

/// The segments of one hop's message, in order. An empty message is one empty segment: so whoever
/// has received all of a collective knows that every rank has begun it.
fn segments(hop: usize, message: Range<usize>, segment_floats: usize) -> VecDeque<Segment> {
    let count = message.len().div_ceil(segment_floats).max(1);
    let segment = |number| {
        let start = message.start + number * segment_floats;
        Segment { hop, number, place: start..message.end.min(start + segment_floats) }
    };
    (0..count).map(segment).collect()
}

impl Ring {
    /// Runs a collective from its first frame to its last.
    pub(super) async fn run(&mut self, motion: &mut dyn Motion) -> Result<(), RingError> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        self.collective += 1;
        let began = Instant::now();
        if self.place.world_size == 1 {
            self.last_exchange = Exchange::default();
            return Ok(());
        }
        // Taken out for the time of the collective: a future that is dropped half-way drops them
        // too, which breaks the ring for the neighbours, and leaves none for the next collective.
        let Some(mut links) = self.links.take() else { return Err(self.failed_with(RingError::Cancelled)) };
        let moved = self.move_all(&mut links, motion, began).await;
        self.links = Some(links);
        match moved {
            Ok(wait) => {
                self.last_exchange = Exchange { total: began.elapsed(), wait };
                Ok(())
            }
            Err(error) => Err(self.failed_with(error)),
        }
    }

    /// Sends and receives every segment; gives how long it took until the first one came.
    async fn move_all(
        &self,
        links: &mut Links,
        motion: &mut dyn Motion,
        began: Instant,
    ) -> Result<Duration, RingError> {
        let hops = motion.hops();
        let cut = self.segment_floats;

        // 1. What comes in, in this order and no other; what goes out, first this rank's own.
        let mut hop = 0;
        let mut to_receive = segments(hop, motion.received_at(hop), cut);
        let mut to_send = segments(0, motion.sent_at(0), cut);
        let mut wait = None;

        // 2. Always take in, whatever the sending waits for.
        while !to_receive.is_empty() || !to_send.is_empty() {
            tokio::select! {
                biased;
                changed = links.status.changed() => {
                    changed.map_err(|_| RingError::Cancelled)?;
                    if let Status::Failed(error) = &*links.status.borrow_and_update() {
                        return Err(error.clone());
                    }
                }
                received = links.incoming.recv(), if !to_receive.is_empty() => {
                    let (Some(Received { frame, .. }), Some(segment)) = (received, to_receive.pop_front()) else {
                        return Err(self.previous_is_gone());
                    };
                    wait.get_or_insert_with(|| began.elapsed());
                    self.check(&frame, &segment)?;
                    motion.take_in(segment.hop, segment.place.clone(), &frame.payload);
                    if segment.hop + 1 < hops {
                        to_send.push_back(Segment { hop: segment.hop + 1, ..segment });
                    }
                    if to_receive.is_empty() && hop + 1 < hops {
                        hop += 1;
                        to_receive = segments(hop, motion.received_at(hop), cut);
                    }
                }
                permit = links.outgoing.reserve(), if !to_send.is_empty() => {
                    let Ok(permit) = permit else { return Err(self.next_is_gone()) };
                    if let Some(segment) = to_send.pop_front() {
                        let payload = links.pool.encode(motion.read(segment.place.clone()));
                        permit.send(self.frame(&segment, payload));
                    }
                }
                // All has come, so all ranks have begun: the next one computes no more, and takes in
                // whatever else it waits for. One that has not begun yet may take as long as it likes,
                // for then not all has come. If it does not take in for a whole lease (measured anew
                // whenever something moves), nobody else may be able to tell: the previous rank may
                // be done, or ahead and shut out by the full queue.
                () = links.lease.over(), if to_receive.is_empty() => {
                    let silent = links.lease.length();
                    return Err(RingError::Stalled { rank: self.place.next(), silent });
                }
            }
        }
        Ok(wait.unwrap_or_default())
    }

    fn frame(&self, segment: &Segment, payload: Bytes) -> Frame {
        let frame = Frame {
            job: self.place.job,
            epoch: self.place.epoch,
            collective: self.collective,
            // Both fit: hops are at most twice the ranks, segments are checked when a run begins.
            hop: u32::try_from(segment.hop).unwrap_or(u32::MAX),
            segment: u32::try_from(segment.number).unwrap_or(u32::MAX),
            payload,
            checksum: None,
        };
        frame.sealed()
    }

    /// Job and epoch were checked when the frame came in; the rest is known only here.
    fn check(&self, frame: &Frame, segment: &Segment) -> Result<(), RingError> {
        let got = (frame.collective, frame.hop as usize, frame.segment as usize, frame.payload.len());
        let expected = (self.collective, segment.hop, segment.number, segment.place.len() * 4);
        if got == expected {
            return Ok(());
        }
        let problem = format!(
            "it sent (collective, hop, segment, bytes) {got:?}, but {expected:?} was to come; \
             do all ranks have the same job, ring and segment size?"
        );
        Err(RingError::Protocol { rank: self.place.previous(), problem })
    }

    fn previous_is_gone(&self) -> RingError {
        self.failure().unwrap_or_else(|| RingError::PeerLost {
            rank: self.place.previous(),
            reason: "it left the ring before the exchange was over".into(),
        })
    }

    fn next_is_gone(&self) -> RingError {
        self.failure().unwrap_or_else(|| RingError::PeerLost {
            rank: self.place.next(),
            reason: "nothing can be sent to it any more".into(),
        })
    }
}
