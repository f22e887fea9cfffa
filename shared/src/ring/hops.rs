//! The motion that all collectives share: at hop 0 a rank sends what it has, and at hop h + 1 what
//! came in at hop h.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::link::{Received, Status, failure};
use super::member::Links;
use super::pool::Pool;
use super::{Element, Exchange, Frame, Payload, Place, Ring, RingError};
use crate::checksum::crc32c;
use crate::tasks;

/// A collective's handling of travelling numbers.
pub(super) trait Motion: Send {
    /// Hops of the collective, as many on all ranks.
    fn hops(&self) -> usize;

    /// Range of the message that this rank sends at `hop`.
    fn sent_at(&self, hop: usize) -> Range<usize>;

    /// Range of the message that this rank receives at `hop`; the same
    /// that it sends from at `hop + 1`.
    fn received_at(&self, hop: usize) -> Range<usize>;

    /// Numbers of a place that one segment has at most.
    fn segment_floats(&self) -> usize;

    /// Numbers that come for a segment.
    fn comes_as(&self, segment: &Segment) -> usize {
        segment.place.len()
    }

    /// The encoding of its numbers.
    fn element(&self) -> Element {
        Element::Fp32
    }

    /// A segment that is sent, as it travels, and its checksum where it was made with it.
    fn payload(&mut self, segment: &Segment, pool: &mut Pool) -> (Payload, Option<u32>);

    /// Takes in a segment that came, as many numbers as [`Motion::comes_as`] says. What goes on of it may lie in room of the pool.
    fn take_in(&mut self, segment: &Segment, payload: &[u8], pool: &mut Pool) -> TakenIn;

    /// Whether `hop`'s numbers are handed on unchanged.
    fn hands_on(&self, hop: usize) -> bool;

    /// Whether the numbers sent after `hop` stay in the buffer until then.
    fn keeps(&self, _hop: usize) -> bool {
        false
    }

    /// Whether nothing of the buffer is on its way.
    fn is_whole(&self) -> bool {
        true
    }

    /// Waits until a part of the buffer that was on its way has been sent, if there is one.
    fn returned(&self) -> impl Future<Output = ()> + Send;
}

/// The outcome of a received segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakenIn {
    /// It could not be taken in: what is in its place is still on its way.
    Late,
    /// It is in its place.
    Whole {
        /// Its checksum, made of it as it came.
        came: u32,
        /// Checksum of the onward payload, if it was computed along.
        onward: Option<u32>,
    },
}

/// Segments that go on as they came, without being read from the buffer again: while they are near. More of them wait in
/// the buffer, where they cost no memory.
const MOST_HANDED_ON: usize = 8;

/// A segment that waits to be sent.
struct Waiting {
    segment: Segment,
    /// The payload, unless it is read from the buffer.
    payload: Option<Payload>,
    /// Its checksum, if known.
    checksum: Option<u32>,
}

/// One segment: its hop, its number within the message, and its place in the buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) hop: usize,
    pub(super) number: usize,
    pub(super) place: Range<usize>,
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
    /// Runs a collective from its first frame to its last, where the ring's own tasks run; gives back what it was about.
    pub(super) async fn run<M: Motion + 'static>(&mut self, mut motion: M) -> Result<M, RingError> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        self.collective += 1;
        // Alone, or with nothing left to move.
        if self.place.world_size == 1 || motion.hops() == 0 {
            self.last_exchange = Exchange::default();
            return Ok(motion);
        }
        // Taken out for the time of the collective: a future that is dropped half-way drops them
        // too, which breaks the ring for the neighbours, and leaves none for the next collective.
        let Some(mut links) = self.links.take() else { return Err(self.failed_with(RingError::Cancelled)) };
        let mover = Mover { place: self.place, collective: self.collective, status: self.status.clone() };
        let began = Instant::now();
        let moving = tasks::spawn_on(&links.runtime.clone(), async move {
            let moved = mover.move_all(&mut links, &mut motion, began).await;
            (moved, links, motion)
        });
        let (moved, links, motion) = match AbortOnDropHandle::new(moving).await {
            Ok(moved) => moved,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // A runtime that ends takes the connections with it.
            Err(_) => return Err(self.failed_with(RingError::Cancelled)),
        };
        self.links = Some(links);
        match moved {
            Ok(moved) => {
                let Moved { wait, sent_bytes, sent_segments } = moved;
                self.last_exchange = Exchange { total: began.elapsed(), wait, sent_bytes, sent_segments };
                Ok(motion)
            }
            Err(error) => Err(self.failed_with(error)),
        }
    }
}

/// Totals of a collective.
#[derive(Debug, Clone, Copy, Default)]
struct Moved {
    /// Time to the first segment.
    wait: Duration,
    sent_bytes: u64,
    sent_segments: u64,
}

/// A collective in progress.
struct Mover {
    place: Place,
    collective: u64,
    status: watch::Sender<Status>,
}

impl Mover {
    /// Sends and receives every segment.
    async fn move_all(
        &self,
        links: &mut Links,
        motion: &mut impl Motion,
        began: Instant,
    ) -> Result<Moved, RingError> {
        let hops = motion.hops();
        let cut = motion.segment_floats();

        // 1. What comes in, in this order and no other; what goes out, first this rank's own.
        let mut hop = 0;
        let mut to_receive = segments(hop, motion.received_at(hop), cut);
        let own = segments(0, motion.sent_at(0), cut);
        let mut to_send: VecDeque<Waiting> =
            own.into_iter().map(|segment| Waiting { segment, payload: None, checksum: None }).collect();
        let (mut handed_on, mut first_came, mut moved) = (0, false, Moved::default());
        // Segments for a range that was still being sent.
        let mut late: Vec<(Segment, Payload)> = Vec::new();

        // 2. Always take in, whatever the sending waits for.
        loop {
            let is_late = |taken| taken == TakenIn::Late;
            late.retain(|(segment, payload)| is_late(motion.take_in(segment, payload, &mut links.pool)));
            let (all_came, all_sent) = (to_receive.is_empty(), to_send.is_empty());
            if all_came && all_sent && late.is_empty() && motion.is_whole() {
                return Ok(moved);
            }
            tokio::select! {
                biased;
                changed = links.status.changed() => {
                    changed.map_err(|_| RingError::Cancelled)?;
                    if let Status::Failed(error) = &*links.status.borrow_and_update() {
                        return Err(error.clone());
                    }
                }
                received = links.incoming.recv(), if !all_came => {
                    let (Some(Received { frame, .. }), Some(segment)) = (received, to_receive.pop_front()) else {
                        return Err(self.previous_is_gone());
                    };
                    if !std::mem::replace(&mut first_came, true) {
                        moved.wait = began.elapsed();
                    }
                    self.check(&frame, &segment, motion.comes_as(&segment) * motion.element().bytes())?;
                    let taken = motion.take_in(&segment, &frame.payload, &mut links.pool);
                    let (came, onward) = match taken {
                        TakenIn::Whole { came, onward } => (came, onward),
                        TakenIn::Late => (crc32c(&frame.payload), None),
                    };
                    self.check_payload(frame.checksum, came)?;
                    if segment.hop + 1 < hops {
                        let next = Segment { hop: segment.hop + 1, ..segment.clone() };
                        let (payload, checksum) = if motion.keeps(segment.hop) {
                            (None, onward)
                        } else if !motion.hands_on(segment.hop) {
                            let (payload, checksum) = motion.payload(&next, &mut links.pool);
                            (Some(payload), onward.or(checksum))
                        } else if handed_on < MOST_HANDED_ON || taken == TakenIn::Late {
                            handed_on += 1;
                            (Some(frame.payload.clone()), Some(came))
                        } else {
                            (None, Some(came))
                        };
                        to_send.push_back(Waiting { segment: next, payload, checksum });
                    }
                    if taken == TakenIn::Late {
                        late.push((segment, frame.payload));
                    }
                    if to_receive.is_empty() && hop + 1 < hops {
                        hop += 1;
                        to_receive = segments(hop, motion.received_at(hop), cut);
                    }
                }
                permit = links.outgoing.reserve(), if !all_sent => {
                    let Ok(permit) = permit else { return Err(self.next_is_gone()) };
                    if let Some(Waiting { segment, payload, checksum }) = to_send.pop_front() {
                        if payload.is_some() && motion.hands_on(segment.hop - 1) {
                            handed_on -= 1;
                        }
                        let (payload, checksum) = match payload {
                            Some(payload) => (payload, checksum),
                            None => {
                                let (payload, made) = motion.payload(&segment, &mut links.pool);
                                (payload, checksum.or(made))
                            }
                        };
                        let checksum = checksum.unwrap_or_else(|| crc32c(&payload));
                        moved.sent_bytes += payload.len() as u64;
                        moved.sent_segments += 1;
                        permit.send(self.frame(&segment, payload, checksum));
                    }
                }
                () = motion.returned(), if all_came && all_sent => {}
                // All has come, so all ranks have begun: the next one computes no more, and takes in
                // whatever else it waits for. One that has not begun yet may take as long as it likes,
                // for then not all has come. If it does not take in for a whole lease (measured anew
                // whenever something moves), nobody else may be able to tell: the previous rank may
                // be done, or ahead and shut out by the full queue.
                () = links.lease.over(), if all_came => {
                    let silent = links.lease.length();
                    return Err(RingError::Stalled { rank: self.place.next(), silent });
                }
            }
        }
    }

    fn frame(&self, segment: &Segment, payload: Payload, checksum: u32) -> Frame {
        Frame {
            job: self.place.job,
            epoch: self.place.epoch,
            collective: self.collective,
            // Both fit: hops are at most twice the ranks, segments are checked when a run begins.
            hop: u32::try_from(segment.hop).unwrap_or(u32::MAX),
            segment: u32::try_from(segment.number).unwrap_or(u32::MAX),
            payload,
            checksum: Some(checksum),
        }
    }

    /// Job and epoch were checked when the frame came in; the rest is known only here.
    fn check(&self, frame: &Frame, segment: &Segment, bytes: usize) -> Result<(), RingError> {
        let got = (frame.collective, frame.hop as usize, frame.segment as usize, frame.payload.len());
        let expected = (self.collective, segment.hop, segment.number, bytes);
        if got == expected {
            return Ok(());
        }
        let problem = format!(
            "it sent (collective, hop, segment, bytes) {got:?}, but {expected:?} was to come; \
             do all ranks have the same job, ring and segment size?"
        );
        Err(RingError::Protocol { rank: self.place.previous(), problem })
    }

    /// Verifies a segment's checksum, if it has one.
    fn check_payload(&self, expected: Option<u32>, found: u32) -> Result<(), RingError> {
        match expected {
            Some(expected) if expected != found => {
                Err(RingError::Damaged { rank: self.place.previous(), expected, found })
            }
            _ => Ok(()),
        }
    }

    fn previous_is_gone(&self) -> RingError {
        failure(&self.status).unwrap_or_else(|| RingError::PeerLost {
            rank: self.place.previous(),
            reason: "it left the ring before the exchange was over".into(),
        })
    }

    fn next_is_gone(&self) -> RingError {
        failure(&self.status).unwrap_or_else(|| RingError::PeerLost {
            rank: self.place.next(),
            reason: "nothing can be sent to it any more".into(),
        })
    }
}
