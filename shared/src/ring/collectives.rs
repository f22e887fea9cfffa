//! The collectives that hand numbers on unchanged; see the ring's description in prose.

use std::ops::Range;

use super::frame;
use super::hops::{Motion, Segment, TakenIn};
use super::pool::Pool;
use super::{Payload, Place, Ring, RingError, block_of};
use crate::checksum::Crc32c;

/// A buffer may have this many numbers (16 GiB), so that every segment's number fits its frame.
pub(super) const LARGEST_BUFFER: usize = u32::MAX as usize;

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
        let ranks = self.place.world_size;
        let block = |rank| block_of(rank, ranks, rows);
        let blocks = (0..ranks).map(block).map(|block| block.start * width..block.end * width).collect();
        let (place, segment_floats) = (self.place, self.segment_of(length));
        Ok(self.run(Gather { place, segment_floats, blocks, gathered }).await?.gathered)
    }

    /// Waits for all ranks.
    pub async fn barrier(&mut self) -> Result<(), RingError> {
        self.gather_rows(&[], 0, 0).await.map(drop)
    }

    /// Copies rank `root`'s numbers to every rank.
    ///
    /// `numbers`: the root's, and whatever has the same length on the others; `root` is the same on all ranks.
    pub async fn broadcast(&mut self, numbers: Vec<f32>, root: usize) -> Result<Vec<f32>, RingError> {
        if numbers.len() > LARGEST_BUFFER || root >= self.place.world_size {
            let (got, ranks) = (numbers.len(), self.place.world_size);
            let problem = format!("broadcast: got {got} numbers from rank {root} of {ranks}");
            return Err(self.failed_with(RingError::Misuse(problem)));
        }
        let blocks =
            (0..self.place.world_size).map(|rank| if rank == root { 0..numbers.len() } else { 0..0 });
        let blocks = blocks.collect();
        let (place, segment_floats) = (self.place, self.segment_of(numbers.len()));
        Ok(self.run(Gather { place, segment_floats, blocks, gathered: numbers }).await?.gathered)
    }
}

/// The block or chunk that travels from `rank` at `hop`: at hop 0 its own, then what came last.
pub(super) fn travelling(place: Place, hop: usize) -> usize {
    let world_size = place.world_size;
    (place.rank + world_size - hop % world_size) % world_size
}

struct Gather {
    place: Place,
    segment_floats: usize,
    /// Range of each rank's numbers.
    blocks: Box<[Range<usize>]>,
    gathered: Vec<f32>,
}

impl Motion for Gather {
    fn hops(&self) -> usize {
        self.place.world_size - 1
    }

    fn segment_floats(&self) -> usize {
        self.segment_floats
    }

    fn sent_at(&self, hop: usize) -> Range<usize> {
        self.blocks[travelling(self.place, hop)].clone()
    }

    fn received_at(&self, hop: usize) -> Range<usize> {
        self.sent_at(hop + 1)
    }

    fn payload(&mut self, segment: &Segment, pool: &mut Pool) -> (Payload, Option<u32>) {
        let rows = &self.gathered[segment.place.clone()];
        let mut sent = Crc32c::new();
        let payload = pool.fill(rows.len() * frame::WIDTH, |bytes| frame::encode(rows, bytes, &mut sent));
        (payload.into(), Some(sent.finish()))
    }

    fn take_in(&mut self, segment: &Segment, payload: &[u8], _: &mut Pool) -> TakenIn {
        let came = frame::replace(&mut self.gathered[segment.place.clone()], payload);
        TakenIn::Whole { came, onward: Some(came) }
    }

    fn hands_on(&self, _hop: usize) -> bool {
        true
    }

    async fn returned(&self) {}
}
