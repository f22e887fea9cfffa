//! A sum whose bits do not depend on the ring: by the tree of [`super::tree`], whatever ranks have which microbatches.
//!
//! As in an all-reduce a chunk starts at its own rank and goes once around, and the rank before that one then has the sum.
//! But what travels is not one sum: it is the nodes of the tree that the microbatches so far make, each a row. A rank adds
//! its own nodes, and adds up what has become whole. Where the ranks, and the microbatches of each, are powers of two, this
//! is one row for two ranks and a row and a half on average for four; it is never more than one, or twice the binary
//! logarithm of the microbatches. The second half, in which whole sums are handed on, is that of an all-reduce.

use std::ops::Range;

use bytes::Bytes;

use super::collectives::{LARGEST_BUFFER, travelling};
use super::frame;
use super::hops::{Motion, Segment, TakenIn};
use super::lent::Buffer;
use super::pool::Pool;
use super::tree::{Node, TreeSum, add_up, cover};
use super::{Element, Place, Reach, Ring, RingConfig, RingError, Spread, block_of, chunk_of};

/// What [`Ring::sum_exactly`] gives back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summed<B> {
    /// The sum, in memory that went in.
    pub sum: B,
    /// The rest of that memory.
    pub spare: Vec<B>,
}

impl Ring {
    /// The sum of all microbatches' numbers, the same bits for any number of ranks.
    ///
    /// `own`: what this rank has added up of its microbatches, which are [`block_of`]`(rank, world_size, total)`; `length`:
    /// numbers of each; `room`: memory for as many, asked for where this rank has no microbatch. `own`'s total and `length` are
    /// the same on all ranks. What has come and been put together lies in memory until it is sent on, in the worst case the
    /// rows of a chunk for each rank but two.
    pub async fn sum_exactly<B: Buffer>(
        &mut self,
        own: TreeSum<B>,
        length: usize,
        room: impl FnOnce() -> B,
    ) -> Result<Summed<B>, RingError> {
        self.sum_exactly_spread(own, length, room, Spread::EVEN).await
    }

    /// The same in other chunks, which decide no bit; and their sums on all ranks or on two.
    pub async fn sum_exactly_spread<B: Buffer>(
        &mut self,
        own: TreeSum<B>,
        length: usize,
        room: impl FnOnce() -> B,
        spread: Spread,
    ) -> Result<Summed<B>, RingError> {
        let (place, total) = (self.place, own.total());
        let expected = cover(&block_of(place.rank, place.world_size, total), total);
        let given: Vec<Node> = own.nodes().map(|(node, _)| node.clone()).collect();
        let wrong =
            own.nodes().find(|(_, numbers)| numbers.len() != length).map(|(_, numbers)| numbers.len());
        let problem = if total == 0 || length > LARGEST_BUFFER {
            Some(format!("{length} numbers of {total} microbatches"))
        } else if given != expected {
            Some(format!("microbatches {given:?}; rank {} has {expected:?}", place.rank))
        } else {
            wrong.map(|wrong| format!("{wrong} numbers of a microbatch, not {length}"))
        };
        if let Some(problem) = problem {
            return Err(self.failed_with(RingError::Misuse(format!("sum_exactly: got {problem}"))));
        }
        let blocks = (0..place.world_size).map(|rank| block_of(rank, place.world_size, total));
        let mut rows = own.into_nodes();
        if place.world_size == 2 && blocks.into_iter().all(|block| cover(&block, total).len() == 1) {
            // Of two numbers the sum is the same in either order.
            if let Some((_, numbers)) = rows.pop() {
                let sum = self.all_reduce_spread(numbers, Element::Fp32, spread).await?;
                return Ok(Summed { sum, spare: Vec::new() });
            }
        }
        // What was summed first is where the sums are.
        let (node, first) = if rows.is_empty() { (0..0, room()) } else { rows.remove(0) };
        if first.len() != length {
            let problem = format!("sum_exactly: got room for {} numbers, not {length}", first.len());
            return Err(self.failed_with(RingError::Misuse(problem)));
        }
        let segment_floats = narrowed(self.segment_of(length), total);
        let (came, onward) = (Vec::new(), None);
        let sums = first;
        let exact =
            Exact { place, spread, segment_floats, total, length, node, sums, others: rows, came, onward };
        let Exact { sums: sum, others, .. } = self.run(exact).await?;
        Ok(Summed { sum, spare: others.into_iter().map(|(_, numbers)| numbers).collect() })
    }
}

/// Rows travel side by side: a segment is the same numbers of all of them, and no frame may be too large with that.
fn narrowed(segment_floats: usize, total: usize) -> usize {
    let most_rows = 2 * total.next_power_of_two().ilog2().max(1) as usize;
    segment_floats.min(RingConfig::LARGEST_SEGMENT / most_rows).max(1)
}

struct Exact<B: Buffer> {
    place: Place,
    spread: Spread,
    segment_floats: usize,
    total: usize,
    length: usize,
    /// The first of this rank's own nodes; of no microbatches, where it has none.
    node: Node,
    /// Its numbers; of a chunk that has been around, the sum.
    sums: B,
    /// This rank's other nodes.
    others: Vec<(Node, B)>,
    /// The segment that came last; its room is used again.
    came: Vec<f32>,
    /// What goes on of it.
    onward: Option<Vec<f32>>,
}

impl<B: Buffer> Exact<B> {
    fn chunk(&self, hop: usize) -> Range<usize> {
        chunk_of(travelling(self.place, hop), self.place.world_size, self.length, self.spread.granule)
    }

    /// The nodes that travel from this rank at `hop` of the first half: of the ranks from the chunk's own to this one.
    fn nodes_sent_at(&self, hop: usize) -> Vec<Node> {
        nodes_of(travelling(self.place, hop), hop + 1, self.place.world_size, self.total)
    }

    /// Those that come at `hop`.
    fn nodes_received_at(&self, hop: usize) -> Vec<Node> {
        nodes_of(travelling(self.place, hop + 1), hop + 1, self.place.world_size, self.total)
    }

    fn is_adding(&self, hop: usize) -> bool {
        hop + 1 < self.place.world_size
    }

    /// This rank's own nodes.
    fn rows(&self) -> impl Iterator<Item = (&Node, &[f32])> {
        let first = (!self.node.is_empty()).then_some((&self.node, &*self.sums));
        first.into_iter().chain(self.others.iter().map(|(node, numbers)| (node, &**numbers)))
    }

    /// What the nodes that came and this rank's own make together, a row each; `came`: rows of the place's length.
    fn put_together(&self, segment: &Segment, came: &[f32]) -> Vec<f32> {
        let (hop, place) = (segment.hop, &segment.place);
        let names = self.nodes_received_at(hop);
        let wide = place.len();
        let known = |node: &Node| {
            let came = names.iter().position(|name| name == node).map(|row| &came[row * wide..][..wide]);
            let own = || self.rows().find(|(name, _)| *name == node).map(|(_, own)| &own[place.clone()]);
            came.or_else(own)
        };
        let together = self.nodes_sent_at(hop + 1);
        let mut rows = vec![0.0; together.len() * wide];
        if wide > 0 {
            for (node, row) in together.iter().zip(rows.chunks_exact_mut(wide)) {
                // All of it is known: these are the leaves of all ranks so far. What were not would show in the sum.
                if !add_up(node, &known, row) {
                    row.fill(f32::NAN);
                }
            }
        }
        rows
    }

    /// A segment that is sent, as it travels.
    fn encoded(&mut self, segment: &Segment, pool: &mut Pool) -> Bytes {
        if let Some(onward) = self.onward.take() {
            return pool.fill(onward.len() * frame::WIDTH, |bytes| frame::encode(&onward, bytes));
        }
        let place = segment.place.clone();
        if self.is_adding(segment.hop) {
            // Only its own chunk begins here.
            return pool.fill(self.rows().count() * place.len() * frame::WIDTH, |bytes| {
                self.rows().for_each(|(_, own)| frame::encode(&own[place.clone()], bytes));
            });
        }
        let sums = &self.sums[place];
        pool.fill(sums.len() * frame::WIDTH, |bytes| frame::encode(sums, bytes))
    }
}

/// The nodes that `count` ranks make from `first` on, over the last rank on to rank 0.
fn nodes_of(first: usize, count: usize, world_size: usize, total: usize) -> Vec<Node> {
    if count == world_size {
        return cover(&(0..total), total);
    }
    let block = |rank| block_of(rank, world_size, total);
    let last = first + count - 1;
    if last < world_size {
        return cover(&(block(first).start..block(last).end), total);
    }
    let mut nodes = cover(&(0..block(last - world_size).end), total);
    nodes.extend(cover(&(block(first).start..total), total));
    nodes
}

impl<B: Buffer> Motion for Exact<B> {
    fn hops(&self) -> usize {
        let all = 2 * (self.place.world_size - 1);
        match self.spread.reach {
            Reach::All => all,
            Reach::Two => self.place.world_size.min(all),
        }
    }

    fn sent_at(&self, hop: usize) -> Range<usize> {
        self.chunk(hop)
    }

    fn received_at(&self, hop: usize) -> Range<usize> {
        self.chunk(hop + 1)
    }

    fn segment_floats(&self) -> usize {
        self.segment_floats
    }

    fn comes_as(&self, segment: &Segment) -> usize {
        let rows = if self.is_adding(segment.hop) { self.nodes_received_at(segment.hop).len() } else { 1 };
        rows * segment.place.len()
    }

    fn payload(&mut self, segment: &Segment, pool: &mut Pool) -> (Bytes, Option<u32>) {
        (self.encoded(segment, pool), None)
    }

    fn take_in(&mut self, segment: &Segment, payload: &[u8]) -> TakenIn {
        let place = segment.place.clone();
        if !self.is_adding(segment.hop) {
            let came = frame::replace(&mut self.sums[place], payload);
            return TakenIn::Whole { came, onward: Some(came) };
        }
        let mut rows = std::mem::take(&mut self.came);
        let length = self.comes_as(segment);
        // It never shrinks: zeros that are written over at once cost as much as the sum.
        if rows.len() < length {
            rows.resize(length, 0.0);
        }
        let came = frame::replace(&mut rows[..length], payload);
        let together = self.put_together(segment, &rows[..length]);
        self.came = rows;
        if self.keeps(segment.hop) {
            self.sums[place].copy_from_slice(&together);
        } else {
            self.onward = Some(together);
        }
        TakenIn::Whole { came, onward: None }
    }

    fn hands_on(&self, hop: usize) -> bool {
        !self.is_adding(hop)
    }

    /// The sum is whole.
    fn keeps(&self, hop: usize) -> bool {
        hop + 2 == self.place.world_size
    }

    async fn returned(&self) {}
}
