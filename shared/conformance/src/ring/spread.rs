//! Sums that end on two ranks, and what is left of their way.

use std::ops::Range;

use ringtune_shared::ring::tree::TreeSum;
use ringtune_shared::ring::{Element, Place, Reach, Ring, RingError, Spread, block_of, held_chunks};

use super::reference;

/// Sums that end on two ranks, and the rest of their way; and those that do not stop, in the same chunks.
pub(super) async fn sums_on_two_ranks(
    ring: &mut Ring,
    size: usize,
    granule: usize,
) -> Result<Option<String>, RingError> {
    let Place { rank, world_size, .. } = ring.place();
    let [all, two] = [Reach::All, Reach::Two].map(|reach| Spread { granule, reach });
    let held = held_chunks(rank, world_size, size, granule);
    // 1. In the ring's order.
    let expected = reference::reduced_in_chunks(world_size, size, granule);
    let sums = ring.all_reduce_spread(reference::buffer(rank, size), Element::Fp32, all).await?;
    if let Some(difference) = reference::difference(&sums, &expected) {
        return Ok(Some(format!("all_reduce_spread: {difference}")));
    }
    let sums = ring.all_reduce_spread(reference::buffer(rank, size), Element::Fp32, two).await?;
    if let Some(problem) = only_these(&sums, &expected, &held) {
        return Ok(Some(format!("all_reduce_spread to two ranks: {problem}")));
    }
    // 2. By the tree, which the chunks do not change.
    let total = 2 * world_size + 1;
    let mut sum: TreeSum<Vec<f32>> = TreeSum::new(total);
    for microbatch in block_of(rank, world_size, total) {
        sum.push(microbatch, reference::buffer(microbatch, size));
    }
    let summed = ring.sum_exactly_spread(sum, size, || vec![0.0; size], two).await?;
    let expected = reference::summed_by_the_tree(total, size);
    if let Some(problem) = only_these(&summed.sum, &expected, &held) {
        return Ok(Some(format!("sum_exactly_spread to two ranks: {problem}")));
    }
    // 3. What the two make of a chunk comes to all.
    let mut made = vec![f32::NAN; size];
    for held in held {
        let twice = expected[held.clone()].iter().map(|sum| 2.0 * sum);
        made[held].iter_mut().zip(twice).for_each(|(made, twice)| *made = twice);
    }
    let made = ring.share_out(made, granule).await?;
    let expected: Vec<f32> = expected.iter().map(|sum| 2.0 * sum).collect();
    Ok(reference::difference(&made, &expected).map(|difference| format!("share_out: {difference}")))
}

/// Where the places that are held differ from what is expected.
fn only_these(sums: &[f32], expected: &[f32], held: &[Range<usize>]) -> Option<String> {
    held.iter().find_map(|held| reference::difference(&sums[held.clone()], &expected[held.clone()]))
}
