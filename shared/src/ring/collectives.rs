//! The two collectives; see the ring's description in prose.

use std::ops::Range;

use super::frame;
use super::hops::Motion;
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
        let mut motion = Gather { place: self.place, width, rows, gathered };
        self.run(&mut motion).await?;
        Ok(motion.gathered)
    }

    /// Replaces `buffer` by its sum over all ranks, number by number, in fp32.
    ///
    /// `buffer` has the same length on all ranks. Chunk c of [`block_of`]`(c, world_size, length)`
    /// is added up in the order of ranks c, c + 1, …, c - 1: the same bits on every rank, and the
    /// same bits whenever the world size is the same. After an error its content is of no use.
    pub async fn all_reduce(&mut self, buffer: &mut [f32]) -> Result<(), RingError> {
        if buffer.len() > LARGEST_BUFFER {
            let problem = format!("all_reduce: got {} numbers; allowed: {LARGEST_BUFFER}", buffer.len());
            return Err(self.failed_with(RingError::Misuse(problem)));
        }
        self.run(&mut Reduce { place: self.place, buffer }).await
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

    fn read(&self, place: Range<usize>) -> &[f32] {
        &self.gathered[place]
    }

    fn take_in(&mut self, _hop: usize, place: Range<usize>, payload: &[u8]) {
        frame::replace(&mut self.gathered[place], payload);
    }
}

struct Reduce<'buffer> {
    place: Place,
    buffer: &'buffer mut [f32],
}

impl Motion for Reduce<'_> {
    fn hops(&self) -> usize {
        2 * (self.place.world_size - 1)
    }

    fn sent_at(&self, hop: usize) -> Range<usize> {
        block_of(travelling(self.place, hop), self.place.world_size, self.buffer.len())
    }

    fn received_at(&self, hop: usize) -> Range<usize> {
        self.sent_at(hop + 1)
    }

    fn read(&self, place: Range<usize>) -> &[f32] {
        &self.buffer[place]
    }

    fn take_in(&mut self, hop: usize, place: Range<usize>, payload: &[u8]) {
        let adding = hop < self.place.world_size - 1;
        let take_in = if adding { frame::add } else { frame::replace };
        take_in(&mut self.buffer[place], payload);
    }
}
