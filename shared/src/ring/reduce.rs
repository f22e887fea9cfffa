//! The reducing collectives, which add in the order of the ring; see the ring's description in prose.

use std::ops::Range;

use bytes::BytesMut;

use super::collectives::{LARGEST_BUFFER, travelling};
use super::element;
use super::frame;
use super::hops::{Motion, Segment, TakenIn};
use super::lent::{Buffer, Cut, Lending};
use super::pool::Pool;
use super::{Element, Payload, Place, Reach, Ring, RingError, Spread};
use crate::checksum::crc32c;

impl Ring {
    /// The sum of all ranks' buffers, number by number, in fp32; it takes this rank's buffer for it.
    ///
    /// `buffer` has the same length on all ranks. Chunk c of [`block_of`]`(c, world_size, length)`
    /// is added up in the order of ranks c, c + 1, …, c - 1: the same bits on every rank, and the
    /// same bits whenever the world size is the same.
    pub async fn all_reduce<B: Buffer>(&mut self, buffer: B) -> Result<B, RingError> {
        self.all_reduce_as(buffer, Element::Fp32).await
    }

    /// As above with numbers that travel as `element`, the same on all ranks. In bf16 a rank adds in fp32, and rounds
    /// what it sends: a number is rounded once at each of the `world_size - 1` hops on which it is added up, and once where its sum is
    /// whole. What has no place in bf16 becomes infinite. All ranks have the same bits; a rank alone rounds nothing.
    pub async fn all_reduce_as<B: Buffer>(&mut self, buffer: B, element: Element) -> Result<B, RingError> {
        self.all_reduce_spread(buffer, element, Spread::EVEN).await
    }

    /// As above with other chunks, c again in the order of ranks c, c + 1, …, c - 1, and sums on all ranks or on two.
    pub async fn all_reduce_spread<B: Buffer>(
        &mut self,
        buffer: B,
        element: Element,
        spread: Spread,
    ) -> Result<B, RingError> {
        self.reduce(buffer, spread.reach.hops(self.place.world_size), element, spread.granule).await
    }

    /// Completes an all-reduce of [`Reach::Two`]: copies the two chunks of each rank to every rank.
    ///
    /// `buffer` has the same length on all ranks, and `granule` is that of the sum. The two ranks that have a chunk have the
    /// same numbers.
    pub async fn share_out<B: Buffer>(&mut self, buffer: B, granule: usize) -> Result<B, RingError> {
        self.reduce(buffer, Reach::Two.rest(self.place.world_size), Element::Fp32, granule).await
    }

    /// Runs these hops of an all-reduce.
    async fn reduce<B: Buffer>(
        &mut self,
        buffer: B,
        hops: Range<usize>,
        element: Element,
        granule: usize,
    ) -> Result<B, RingError> {
        if buffer.len() > LARGEST_BUFFER {
            let problem = format!("a sum: got {} numbers; allowed: {LARGEST_BUFFER}", buffer.len());
            return Err(self.failed_with(RingError::Misuse(problem)));
        }
        let (chunks, segment_floats) = (self.place.world_size, self.segment_of(buffer.len()));
        let cut = Cut { length: buffer.len(), chunks, granule, segment_floats };
        let reduce = Reduce { place: self.place, hops, element, cut, lending: Lending::new(buffer, cut) };
        Ok(self.run(reduce).await?.lending.into_buffer().await)
    }
}

/// Chunk after chunk of a buffer; each travels in segments, which are lent from where they lie unless they travel as something else.
struct Reduce<B: Buffer> {
    place: Place,
    /// The hops of an all-reduce that are run.
    hops: Range<usize>,
    element: Element,
    cut: Cut,
    lending: Lending<B>,
}

impl<B: Buffer> Reduce<B> {
    /// Number of the chunk that this rank sends at a hop.
    fn number(&self, hop: usize) -> usize {
        travelling(self.place, hop + self.hops.start)
    }

    fn chunk(&self, hop: usize) -> Range<usize> {
        self.cut.chunk(self.number(hop))
    }

    fn slot(&self, hop: usize, segment: &Segment) -> usize {
        self.cut.slot(self.number(hop), segment.number)
    }
}

impl<B: Buffer> Motion for Reduce<B> {
    fn hops(&self) -> usize {
        self.hops.len()
    }

    fn segment_floats(&self) -> usize {
        self.cut.segment_floats
    }

    fn sent_at(&self, hop: usize) -> Range<usize> {
        self.chunk(hop)
    }

    fn received_at(&self, hop: usize) -> Range<usize> {
        self.chunk(hop + 1)
    }

    fn element(&self) -> Element {
        self.element
    }

    fn payload(&mut self, segment: &Segment, pool: &mut Pool) -> (Payload, Option<u32>) {
        let slot = self.slot(segment.hop, segment);
        // Of an empty buffer there is no slot.
        match self.element {
            Element::Fp32 => (self.lending.lend(slot).unwrap_or_default(), None),
            Element::Bf16 => {
                let numbers = self.lending.write(slot).unwrap_or_default();
                let mut sent = 0;
                let encode = |bytes: &mut BytesMut| sent = element::encode(numbers, bytes);
                (pool.fill(numbers.len() * self.element.bytes(), encode).into(), Some(sent))
            }
        }
    }

    fn take_in(&mut self, segment: &Segment, payload: &[u8], _: &mut Pool) -> TakenIn {
        let hands_on = self.hands_on(segment.hop);
        let slot = self.slot(segment.hop + 1, segment);
        let becomes_whole = segment.hop + self.hops.start + 2 == self.place.world_size;
        match (self.lending.write(slot), self.element) {
            (Some(numbers), Element::Fp32) if hands_on => {
                let came = frame::replace(numbers, payload);
                TakenIn::Whole { came, onward: Some(came) }
            }
            (Some(numbers), Element::Fp32) => {
                let (came, sums) = frame::add(numbers, payload);
                TakenIn::Whole { came, onward: Some(sums) }
            }
            (Some(numbers), Element::Bf16) if hands_on => {
                let came = element::replace(numbers, payload);
                TakenIn::Whole { came, onward: Some(came) }
            }
            (Some(numbers), Element::Bf16) => {
                let add = if becomes_whole { element::add_last } else { element::add };
                TakenIn::Whole { came: add(numbers, payload), onward: None }
            }
            // Of an empty buffer there is no slot.
            (None, _) if payload.is_empty() => TakenIn::Whole { came: crc32c(&[]), onward: None },
            (None, _) => TakenIn::Late,
        }
    }

    /// Sums that are whole.
    fn hands_on(&self, hop: usize) -> bool {
        hop + self.hops.start + 1 >= self.place.world_size
    }

    /// Rounded when it is sent: all of a chunk may wait for that.
    fn keeps(&self, hop: usize) -> bool {
        self.element == Element::Bf16 && !self.hands_on(hop)
    }

    fn is_whole(&self) -> bool {
        self.lending.is_whole()
    }

    async fn returned(&self) {
        self.lending.returned().await;
    }
}
