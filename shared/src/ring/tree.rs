//! The one order in which microbatches are added up, whoever computes them: a binary tree over all of them.
//!
//! A **node** is a range of microbatches. The root is all of them; a node of more than one is the sum of its left part,
//! the largest power of two that is less than all of it, and of the rest. So five microbatches are `((0+1)+(2+3))+4`. A rank
//! that has some microbatches in a row can add up those nodes that lie within them ([`cover`]), and no others.

use std::ops::{DerefMut, Range};

use super::frame::WIDTH;

/// Some microbatches in a row that are added up by themselves.
pub type Node = Range<usize>;

/// The two parts of a node; none for a single microbatch, or none at all.
fn parts(node: &Node) -> Option<(Node, Node)> {
    let left = node.len().checked_next_power_of_two().filter(|_| node.len() > 1)? / 2;
    let middle = node.start + left;
    Some((node.start..middle, middle..node.end))
}

/// The fewest nodes, in order, that together are just these of `total` microbatches.
pub fn cover(microbatches: &Range<usize>, total: usize) -> Vec<Node> {
    let mut found = Vec::new();
    descend(&(0..total), microbatches, &mut found);
    found
}

fn descend(node: &Node, wanted: &Range<usize>, found: &mut Vec<Node>) {
    if node.start >= wanted.end || wanted.start >= node.end {
        return;
    }
    match parts(node) {
        Some((left, right)) if node.start < wanted.start || wanted.end < node.end => {
            descend(&left, wanted, found);
            descend(&right, wanted, found);
        }
        _ => found.push(node.clone()),
    }
}

/// Numbers of a node, where they lie.
#[derive(Clone, Copy)]
pub(super) enum Numbers<'a> {
    Here(&'a [f32]),
    /// In the order in which they travel.
    Came(&'a [[u8; WIDTH]]),
}

impl Numbers<'_> {
    fn copy_to(self, to: &mut [f32]) {
        match self {
            Self::Here(numbers) => to.copy_from_slice(numbers),
            Self::Came(numbers) => copy_travelled(to, numbers),
        }
    }

    fn add_to(self, sum: &mut [f32]) {
        match self {
            Self::Here(numbers) => add(sum, numbers),
            Self::Came(numbers) => add_travelled(sum, numbers),
        }
    }
}

/// Adds a node up from nodes that are known: `known` gives the numbers of one, if it is.
///
/// `sum` gets the node's numbers. Nothing is added where the node itself is known. `room`: as many numbers as the sum has,
/// [`depth`] times. Returns false where something is missing.
pub(super) fn add_up<'a>(
    node: &Node,
    known: &dyn Fn(&Node) -> Option<Numbers<'a>>,
    sum: &mut [f32],
    room: &mut [f32],
) -> bool {
    if let Some(numbers) = known(node) {
        numbers.copy_to(sum);
        return true;
    }
    let Some((left, right)) = parts(node) else { return false };
    if !add_up(&left, known, sum, room) {
        return false;
    }
    // Mostly the right part is known itself.
    if let Some(numbers) = known(&right) {
        numbers.add_to(sum);
        return true;
    }
    let Some((other, room)) = room.split_at_mut_checked(sum.len()) else { return false };
    let found = add_up(&right, known, other, room);
    add(sum, other);
    found
}

/// Sums that wait for others while a node of `total` microbatches is added up, at most.
pub(super) fn depth(total: usize) -> usize {
    total.next_power_of_two().ilog2() as usize
}

// Whoever uses the sums of another crate is not compiled for speed, and these are to stay here.
#[inline(never)]
fn add(sum: &mut [f32], numbers: &[f32]) {
    for (sum, number) in sum.iter_mut().zip(numbers) {
        *sum += number;
    }
}

#[inline(never)]
fn add_travelled(sum: &mut [f32], numbers: &[[u8; WIDTH]]) {
    for (sum, bytes) in sum.iter_mut().zip(numbers) {
        *sum += f32::from_le_bytes(*bytes);
    }
}

#[inline(never)]
fn copy_travelled(to: &mut [f32], numbers: &[[u8; WIDTH]]) {
    for (to, bytes) in to.iter_mut().zip(numbers) {
        *to = f32::from_le_bytes(*bytes);
    }
}

/// A rank's partial sums of its own microbatches; as few buffers as the tree allows, about the binary logarithm
/// of their number.
#[derive(Debug, Clone)]
pub struct TreeSum<B = Vec<f32>> {
    total: usize,
    /// In order, each with its numbers.
    nodes: Vec<(Node, B)>,
}

impl<B: DerefMut<Target = [f32]>> TreeSum<B> {
    /// Nothing yet, of `total` microbatches over all ranks.
    pub fn new(total: usize) -> Self {
        Self { total, nodes: Vec::new() }
    }

    /// Takes the next microbatch's numbers in: as many as those before have, and in order. Gives back a buffer that is not
    /// needed any more, to be used for the next microbatch.
    pub fn push(&mut self, microbatch: usize, numbers: B) -> Option<B> {
        self.nodes.push((microbatch..microbatch + 1, numbers));
        let mut spare = None;
        while let [.., (left, _), (right, _)] = self.nodes.as_slice() {
            let both = left.start..right.end;
            // Only two parts of one node are added; of what is of different lengths, a sum would hide it.
            let alike =
                self.nodes.iter().rev().take(2).all(|(_, numbers)| numbers.len() == self.nodes[0].1.len());
            if !alike || left.end != right.start || cover(&both, self.total) != [both.clone()] {
                break;
            }
            let Some((_, numbers)) = self.nodes.pop() else { break };
            if let Some((node, sum)) = self.nodes.last_mut() {
                add(sum, &numbers);
                *node = both;
            }
            spare = Some(numbers);
        }
        spare
    }

    /// The nodes, in order, each with its numbers.
    pub fn nodes(&self) -> impl Iterator<Item = (&Node, &[f32])> {
        self.nodes.iter().map(|(node, numbers)| (node, &**numbers))
    }

    /// Of how many microbatches over all ranks it is.
    pub fn total(&self) -> usize {
        self.total
    }

    /// The sum, where all microbatches are in it; else the sum as it is.
    ///
    /// # Errors
    /// Some are missing.
    pub fn into_whole(mut self) -> Result<B, Self> {
        if !matches!(self.nodes.as_slice(), [(node, _)] if *node == (0..self.total)) {
            return Err(self);
        }
        match self.nodes.pop() {
            Some((_, numbers)) => Ok(numbers),
            None => Err(self),
        }
    }

    /// As above, by value.
    pub(super) fn into_nodes(self) -> Vec<(Node, B)> {
        self.nodes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sums by the tree's definition, from leaves alone.
    fn described(node: &Node, leaf: &impl Fn(usize) -> f32) -> f32 {
        match parts(node) {
            None => leaf(node.start),
            Some((left, right)) => described(&left, leaf) + described(&right, leaf),
        }
    }

    fn leaf(index: usize) -> f32 {
        (index as f32 + 0.3).sin() * 10f32.powi(index as i32 % 9 - 4)
    }

    #[test]
    fn five_are_added_as_it_is_written() {
        let expected = ((leaf(0) + leaf(1)) + (leaf(2) + leaf(3))) + leaf(4);
        assert_eq!(described(&(0..5), &leaf).to_bits(), expected.to_bits());
        assert_eq!(cover(&(1..5), 5), [1..2, 2..4, 4..5]);
        assert_eq!(cover(&(0..4), 5).first(), Some(&(0..4)));
        assert!(cover(&(2..2), 5).is_empty());
        assert!(cover(&(0..0), 0).is_empty());
    }

    #[test]
    fn only_the_sum_of_all_is_whole() {
        let mut sum = TreeSum::new(3);
        for microbatch in 0..3 {
            sum = sum.into_whole().map_or_else(|sum| sum, |whole| panic!("{whole:?} is not all"));
            sum.push(microbatch, vec![leaf(microbatch)]);
        }
        assert_eq!(sum.into_whole().unwrap(), [(leaf(0) + leaf(1)) + leaf(2)]);
    }

    proptest! {
        #[test]
        fn a_cover_is_what_was_wanted_and_no_two_of_it_are_one_node(
            total in 1..300usize, ends in (0..300usize, 0..300usize)
        ) {
            let wanted = ends.0.min(ends.1).min(total)..ends.0.max(ends.1).min(total);
            let found = cover(&wanted, total);
            let all: Vec<usize> = found.iter().cloned().flatten().collect();
            prop_assert_eq!(all, wanted.clone().collect::<Vec<_>>());
            let most = 2 * total.next_power_of_two().ilog2().max(1) as usize;
            prop_assert!(found.len() <= most, "{} nodes of {}", found.len(), total);
        }

        #[test]
        fn what_is_pushed_is_added_by_the_tree(total in 1..100usize, ends in (0..100usize, 0..100usize)) {
            let own = ends.0.min(ends.1).min(total)..ends.0.max(ends.1).min(total);
            let mut sum = TreeSum::new(total);
            for microbatch in own.clone() {
                sum.push(microbatch, vec![leaf(microbatch), 1.0]);
            }
            prop_assert_eq!(sum.nodes().map(|(node, _)| node.clone()).collect::<Vec<_>>(), cover(&own, total));
            for (node, numbers) in sum.nodes() {
                prop_assert_eq!(numbers[0].to_bits(), described(node, &leaf).to_bits());
                prop_assert_eq!(numbers[1], node.len() as f32);
            }
        }

        #[test]
        fn any_blocks_make_the_whole(total in 1..80usize, cuts in prop::collection::vec(0..80usize, 0..6)) {
            let mut ends: Vec<usize> = cuts.into_iter().map(|cut| cut.min(total)).chain([0, total]).collect();
            ends.sort_unstable();
            let blocks = ends.windows(2).map(|ends| ends[0]..ends[1]);
            let known: Vec<(Node, Vec<f32>)> = blocks
                .flat_map(|block| cover(&block, total))
                .map(|node| (node.clone(), vec![described(&node, &leaf)]))
                .collect();
            // Every other one as it travels.
            let travelled: Vec<Vec<[u8; 4]>> =
                known.iter().map(|(_, numbers)| numbers.iter().map(|number| number.to_le_bytes()).collect()).collect();
            let find = |node: &Node| {
                let place = known.iter().position(|(known, _)| known == node)?;
                let came = Numbers::Came(&travelled[place]);
                Some(if place % 2 == 0 { Numbers::Here(&known[place].1) } else { came })
            };
            let (mut sum, mut room) = ([0.0], vec![f32::NAN; depth(total)]);
            prop_assert!(add_up(&(0..total), &find, &mut sum, &mut room));
            prop_assert_eq!(sum[0].to_bits(), described(&(0..total), &leaf).to_bits());
        }
    }

    #[test]
    fn what_is_of_another_length_is_not_added() {
        let mut sum = TreeSum::new(2);
        sum.push(0, vec![1.0; 10]);
        assert_eq!(sum.push(1, vec![1.0; 8]), None);
        assert_eq!(sum.nodes().map(|(_, numbers)| numbers.len()).collect::<Vec<_>>(), [10, 8]);
    }

    #[test]
    fn what_is_missing_is_told() {
        let one = [1.0];
        let known = |node: &Node| (*node == (0..2)).then_some(Numbers::Here(&one));
        assert!(!add_up(&(0..3), &known, &mut [0.0], &mut [0.0; 2]));
        assert!(add_up(&(0..2), &known, &mut [0.0], &mut []));
    }
}
