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
use super::frame::{self, WIDTH};
use super::hops::{Motion, Segment, TakenIn};
use super::lent::{Buffer, Cut, Lending, bytes_of};
use super::pool::Pool;
use super::tree::{Node, Numbers, TreeSum, add_up, cover, depth};
use super::{Element, Payload, Place, Reach, Ring, RingConfig, RingError, Spread, block_of};
use crate::checksum::{Crc32c, crc32c};

/// The result of [`Ring::sum_exactly`].
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

    /// As above with other chunks, which decide no bit, and sums on all ranks or on two.
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
        // The first node's buffer has the sums.
        let (node, first) = if rows.is_empty() { (0..0, room()) } else { rows.remove(0) };
        if first.len() != length {
            let problem = format!("sum_exactly: got room for {} numbers, not {length}", first.len());
            return Err(self.failed_with(RingError::Misuse(problem)));
        }
        let segment_floats = narrowed(self.segment_of(length), total);
        let cut = Cut { length, chunks: place.world_size, granule: spread.granule, segment_floats };
        let own = Own { node, sums: Lending::new(first, cut), others: rows };
        let Exact { own: Own { sums, others, .. }, .. } =
            self.run(Exact::new(place, total, cut, spread.reach, own)).await?;
        let spare = others.into_iter().map(|(_, numbers)| numbers).collect();
        Ok(Summed { sum: sums.into_buffer().await, spare })
    }
}

/// Rows travel side by side: a segment is the same numbers of all of them, and no frame may be too large with that.
fn narrowed(segment_floats: usize, total: usize) -> usize {
    let most_rows = 2 * total.next_power_of_two().ilog2().max(1) as usize;
    segment_floats.min(RingConfig::LARGEST_SEGMENT / most_rows).max(1)
}

struct Exact<B: Buffer> {
    place: Place,
    cut: Cut,
    reach: Reach,
    /// The nodes that travel from this rank at each hop of the first half: of the ranks from the chunk's own to this one. The last are
    /// those of the sum, which is whole.
    sent: Vec<Vec<Node>>,
    /// The nodes that arrive at each hop.
    received: Vec<Vec<Node>>,
    own: Own<B>,
    /// Scratch space of an addition.
    room: Vec<f32>,
    /// The onward payload of the last segment, and its checksum.
    onward: Option<(Bytes, u32)>,
}

/// This rank's nodes.
struct Own<B: Buffer> {
    /// Its first node; of no microbatches, where it has none.
    node: Node,
    /// The numbers of that; of a chunk that has been around, the sum. They are lent from where they lie.
    sums: Lending<B>,
    /// The other nodes.
    others: Vec<(Node, B)>,
}

impl<B: Buffer> Own<B> {
    /// The part of a node that a segment is, if the node is this rank's.
    fn numbers(&self, node: &Node, slot: usize, place: &Range<usize>) -> Option<&[f32]> {
        if *node == self.node && !node.is_empty() {
            // Of an empty buffer there is no slot.
            return Some(self.sums.read(slot).unwrap_or_default());
        }
        self.others.iter().find(|(name, _)| name == node).map(|(_, numbers)| &numbers[place.clone()])
    }
}

impl<B: Buffer> Exact<B> {
    fn new(place: Place, total: usize, cut: Cut, reach: Reach, own: Own<B>) -> Self {
        let nodes =
            |hop: usize, ranks: usize| nodes_of(travelling(place, hop), ranks, place.world_size, total);
        Self {
            place,
            cut,
            reach,
            sent: (0..place.world_size).map(|hop| nodes(hop, hop + 1)).collect(),
            received: (1..place.world_size).map(|hop| nodes(hop, hop)).collect(),
            own,
            room: vec![0.0; (1 + depth(total)) * frame::SOME.min(cut.segment_floats)],
            onward: None,
        }
    }

    fn slot(&self, hop: usize, segment: &Segment) -> usize {
        self.cut.slot(travelling(self.place, hop), segment.number)
    }

    fn is_adding(&self, hop: usize) -> bool {
        hop + 1 < self.place.world_size
    }

    /// Adds up what goes on of a segment that came, a row each, part by part: a core has each part near while it is added up, checked
    /// and given to `give`, with its place in the row. The checksum of all of it.
    fn put_together(
        &mut self,
        segment: &Segment,
        came: &[u8],
        mut give: impl FnMut(&mut Lending<B>, Range<usize>, &[f32]),
    ) -> u32 {
        let Segment { hop, place, .. } = segment;
        let (slot, wide) = (self.slot(hop + 1, segment), place.len());
        let (names, together) = (&self.received[*hop], &self.sent[hop + 1]);
        let (came, mut made) = (came.as_chunks::<WIDTH>().0, Crc32c::new());
        for node in together {
            for start in (0..wide).step_by(frame::SOME) {
                let part = start..wide.min(start + frame::SOME);
                let (sum, room) = self.room.split_at_mut(part.len());
                let known = |node: &Node| {
                    let row = names.iter().position(|name| name == node);
                    let came = row.map(|row| Numbers::Came(&came[row * wide..][part.clone()]));
                    let own =
                        || self.own.numbers(node, slot, place).map(|own| Numbers::Here(&own[part.clone()]));
                    came.or_else(own)
                };
                // All leaves of the ranks so far are known; a missing one would show in the sum.
                if !add_up(node, &known, sum, room) {
                    sum.fill(f32::NAN);
                }
                made.update(bytes_of(sum));
                give(&mut self.own.sums, part, sum);
            }
        }
        made.finish()
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
        self.reach.hops(self.place.world_size).end
    }

    fn sent_at(&self, hop: usize) -> Range<usize> {
        self.cut.chunk(travelling(self.place, hop))
    }

    fn received_at(&self, hop: usize) -> Range<usize> {
        self.sent_at(hop + 1)
    }

    fn segment_floats(&self) -> usize {
        self.cut.segment_floats
    }

    fn comes_as(&self, segment: &Segment) -> usize {
        self.received.get(segment.hop).map_or(1, Vec::len) * segment.place.len()
    }

    fn payload(&mut self, segment: &Segment, pool: &mut Pool) -> (Payload, Option<u32>) {
        if let Some((onward, made)) = self.onward.take() {
            return (onward.into(), Some(made));
        }
        let slot = self.slot(segment.hop, segment);
        match &self.sent[0] {
            // In the first half only this rank's own chunk begins here.
            rows if segment.hop == 0 && rows.len() != 1 => {
                let mut sent = Crc32c::new();
                let payload = pool.fill(rows.len() * segment.place.len() * WIDTH, |bytes| {
                    for own in rows.iter().filter_map(|node| self.own.numbers(node, slot, &segment.place)) {
                        frame::encode(own, bytes, &mut sent);
                    }
                });
                (payload.into(), Some(sent.finish()))
            }
            // Of an empty buffer there is no slot.
            _ => (self.own.sums.lend(slot).unwrap_or_default(), None),
        }
    }

    fn take_in(&mut self, segment: &Segment, payload: &[u8], pool: &mut Pool) -> TakenIn {
        let (hop, slot) = (segment.hop, self.slot(segment.hop + 1, segment));
        if !self.is_adding(hop) {
            return match self.own.sums.write(slot) {
                Some(sums) => {
                    let came = frame::replace(sums, payload);
                    TakenIn::Whole { came, onward: Some(came) }
                }
                // Of an empty buffer there is no slot.
                None if payload.is_empty() => TakenIn::Whole { came: crc32c(&[]), onward: None },
                None => TakenIn::Late,
            };
        }
        let came = crc32c(payload);
        if self.keeps(hop) {
            let made = self.put_together(segment, payload, |sums, part, sum| {
                // Nothing of it was lent before: of this rank's numbers its own chunk alone is, and this is the one after.
                if let Some(kept) = sums.write(slot) {
                    kept[part].copy_from_slice(sum);
                }
            });
            return TakenIn::Whole { came, onward: Some(made) };
        }
        let bytes = self.sent[hop + 1].len() * segment.place.len() * WIDTH;
        let mut made = 0;
        let onward = pool.fill(bytes, |bytes| {
            made = self.put_together(segment, payload, |_, _, sum| bytes.extend_from_slice(bytes_of(sum)));
        });
        self.onward = Some((onward, made));
        TakenIn::Whole { came, onward: Some(made) }
    }

    fn hands_on(&self, hop: usize) -> bool {
        !self.is_adding(hop)
    }

    /// The sum is whole.
    fn keeps(&self, hop: usize) -> bool {
        hop + 2 == self.place.world_size
    }

    fn is_whole(&self) -> bool {
        self.own.sums.is_whole()
    }

    async fn returned(&self) {
        self.own.sums.returned().await;
    }
}
