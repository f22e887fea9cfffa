//! The two collectives; see the ring's description in prose.

use std::ops::Range;

use bytes::Bytes;

use super::frame;
use super::hops::{Motion, Segment};
use super::lent::{Cut, Lending};
use super::pool::Pool;
use super::{Place, Ring, RingError, block_of};

/// A buffer may have this many numbers (16 GiB), so that every segment's number fits its frame.
const LARGEST_BUFFER: usize = u32::MAX as usize;

impl Ring {
    /// Every rank's rows on every rank, in the order of the microbatches.
    ///
    /// `own`: this rank's rows, [`block_of`]`(rank, world_size, rows)` of them, each `width` numbers.
    /// `rows`: rows over all ranks (microbatches of a step); `width` and `rows` are the same on all
    /// ranks. Returns `rows * width` numbers, the same bits on every rank.
    pub async fn gather_rows(
        &mut self,
        own: &[f32],
        width: usize,
        rows: usize,
    ) -> Result<Vec<f32>, RingError> {
        let block = block_of(self.place.rank, self.place.world_size, rows);
        let length = rows.checked_mul(width).filter(|length| *length <= LARGEST_BUFFER).ok_or_else(|| {
            self.failed_with(RingError::Misuse(format!(
                "{rows} rows of {width} numbers are too many to gather"
            )))
        })?;
        if own.len() != block.len() * width {
            let (got, expected) = (own.len(), block.len());
            return Err(self.failed_with(RingError::Misuse(format!(
                "gather_rows: got {got} numbers; rank {} has {expected} rows of {width}",
                self.place.rank
            ))));
        }
        let mut gathered = vec![0.0; length];
        gathered[block.start * width..block.end * width].copy_from_slice(own);
        Ok(self.run(Gather { place: self.place, width, rows, gathered }).await?.gathered)
    }

    /// The sum of all ranks' buffers, number by number, in fp32; it takes this rank's buffer for it.
    ///
    /// `buffer` has the same length on all ranks. Chunk c of [`block_of`]`(c, world_size, length)`
    /// is added up in the order of ranks c, c + 1, …, c - 1: the same bits on every rank, and the
    /// same bits whenever the world size is the same.
    pub async fn all_reduce(&mut self, buffer: Vec<f32>) -> Result<Vec<f32>, RingError> {
        if buffer.len() > LARGEST_BUFFER {
            let problem = format!("all_reduce: got {} numbers; allowed: {LARGEST_BUFFER}", buffer.len());
            return Err(self.failed_with(RingError::Misuse(problem)));
        }
        let (chunks, segment_floats) = (self.place.world_size, self.segment_floats);
        let cut = Cut { length: buffer.len(), chunks, segment_floats };
        let summed = self.run(Reduce { place: self.place, cut, lending: Lending::new(buffer, cut) }).await?;
        // Nothing is lent any more when all has come and gone.
        summed.lending.into_buffer().ok_or_else(|| self.failed_with(RingError::Cancelled))
    }
}

/// The block or chunk that travels from `rank` at `hop`: at hop 0 its own, then what came last.
fn travelling(place: Place, hop: usize) -> usize {
    let world_size = place.world_size;
    (place.rank + world_size - hop % world_size) % world_size
}

struct Gather {
    place: Place,
    width: usize,
    rows: usize,
    gathered: Vec<f32>,
}

impl Gather {
    fn block(&self, of: usize) -> Range<usize> {
        let block = block_of(of, self.place.world_size, self.rows);
        block.start * self.width..block.end * self.width
    }
}

impl Motion for Gather {
    fn hops(&self) -> usize {
        self.place.world_size - 1
    }

    fn sent_at(&self, hop: usize) -> Range<usize> {
        self.block(travelling(self.place, hop))
    }

    fn received_at(&self, hop: usize) -> Range<usize> {
        self.sent_at(hop + 1)
    }

    fn payload(&mut self, segment: &Segment, pool: &mut Pool) -> Bytes {
        let rows = &self.gathered[segment.place.clone()];
        pool.fill(rows.len() * frame::WIDTH, |bytes| frame::encode(rows, bytes))
    }

    fn take_in(&mut self, segment: &Segment, payload: &[u8]) -> bool {
        frame::replace(&mut self.gathered[segment.place.clone()], payload);
        true
    }

    fn hands_on(&self, _hop: usize) -> bool {
        true
    }

    async fn all_returned(&self) {}
}

/// Chunk after chunk of a buffer; each travels in segments, which are lent from where they lie.
struct Reduce {
    place: Place,
    cut: Cut,
    lending: Lending,
}

impl Reduce {
    fn chunk(&self, hop: usize) -> Range<usize> {
        block_of(travelling(self.place, hop), self.place.world_size, self.cut.length)
    }

    fn slot(&self, hop: usize, segment: &Segment) -> usize {
        self.cut.slot(travelling(self.place, hop), segment.number)
    }
}

impl Motion for Reduce {
    fn hops(&self) -> usize {
        2 * (self.place.world_size - 1)
    }

    fn sent_at(&self, hop: usize) -> Range<usize> {
        self.chunk(hop)
    }

    fn received_at(&self, hop: usize) -> Range<usize> {
        self.chunk(hop + 1)
    }

    fn payload(&mut self, segment: &Segment, _pool: &mut Pool) -> Bytes {
        // Of an empty buffer there is no slot.
        self.lending.lend(self.slot(segment.hop, segment)).unwrap_or_default()
    }

    fn take_in(&mut self, segment: &Segment, payload: &[u8]) -> bool {
        let take_in = if self.hands_on(segment.hop) { frame::replace } else { frame::add };
        let slot = self.slot(segment.hop + 1, segment);
        match self.lending.write(slot) {
            Some(numbers) => take_in(numbers, payload),
            None => return payload.is_empty(),
        }
        true
    }

    /// Sums that are whole.
    fn hands_on(&self, hop: usize) -> bool {
        hop + 1 >= self.place.world_size
    }

    async fn all_returned(&self) {
        self.lending.all_returned().await;
    }
}
