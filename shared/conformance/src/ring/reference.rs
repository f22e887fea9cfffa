//! What the collectives must give, computed in one place and one after the other.

use ringtune_shared::ring::block_of;

/// Number `index` of what `rank` contributes: of very different magnitudes and both signs, so that
/// another order of additions gives other bits.
pub(super) fn contribution(rank: usize, index: usize) -> f32 {
    let mixed = mix((rank as u64) << 40 ^ index as u64);
    match mixed % 61 {
        0 => 0.0,
        1 => -0.0,
        2 => f32::MIN_POSITIVE / 4.0,
        _ => {
            let fraction = ((mixed >> 32) as f32 / (1_u64 << 32) as f32) - 0.5;
            fraction * 2.0_f32.powi((mixed % 41) as i32 - 20)
        }
    }
}

/// SplitMix64's output function (Steele, Lea and Flood 2014).
pub(super) fn mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// What a rank brings to an all-reduce.
pub(super) fn buffer(rank: usize, size: usize) -> Vec<f32> {
    (0..size).map(|index| contribution(rank, index)).collect()
}

/// The sum of all ranks' buffers, each chunk in the order c, c + 1, …, c - 1.
pub(super) fn reduced(world_size: usize, size: usize) -> Vec<f32> {
    reduced_in_chunks(world_size, size, 1)
}

/// As above with chunks that begin at multiples of `granule`.
pub(super) fn reduced_in_chunks(world_size: usize, size: usize, granule: usize) -> Vec<f32> {
    let mut sums = Vec::with_capacity(size);
    let granules = size.div_ceil(granule);
    for chunk in 0..world_size {
        let block = block_of(chunk, world_size, granules);
        for index in block.start * granule..(block.end * granule).min(size) {
            let mut sum = contribution(chunk, index);
            for later in 1..world_size {
                sum += contribution((chunk + later) % world_size, index);
            }
            sums.push(sum);
        }
    }
    sums
}

/// As above with numbers that travel in bf16: each is rounded before it is added to, and the last sum once more. A rank alone rounds
/// nothing.
pub(super) fn reduced_in_bf16(world_size: usize, size: usize) -> Vec<f32> {
    let rounded = |number| if world_size == 1 { number } else { in_bf16(number) };
    let mut sums = Vec::with_capacity(size);
    for chunk in 0..world_size {
        for index in block_of(chunk, world_size, size) {
            let mut sum = rounded(contribution(chunk, index));
            for later in 1..world_size {
                sum = rounded(contribution((chunk + later) % world_size, index) + sum);
            }
            sums.push(sum);
        }
    }
    sums
}

/// The nearest number in bf16, the even one of two: of the numbers here, which are all finite.
fn in_bf16(number: f32) -> f32 {
    let below = f32::from_bits(number.to_bits() & 0xffff_0000);
    // Away from zero.
    let beyond = f32::from_bits((number.to_bits() & 0xffff_0000) + 0x1_0000);
    let (down, up) = (f64::from(number) - f64::from(below), f64::from(beyond) - f64::from(number));
    let below_is_even = below.to_bits() & 0x1_0000 == 0;
    if down.abs() < up.abs() || (down.abs() == up.abs() && below_is_even) { below } else { beyond }
}

/// The sum of so many microbatches' numbers by the one tree: halves of a power of two, and what is left.
pub(super) fn summed_by_the_tree(total: usize, size: usize) -> Vec<f32> {
    fn sum(first: usize, count: usize, index: usize) -> f32 {
        if count == 1 {
            return contribution(first, index);
        }
        let left = count.next_power_of_two() / 2;
        sum(first, left, index) + sum(first + left, count - left, index)
    }
    (0..size).map(|index| sum(0, total, index)).collect()
}

/// All rows of a gather. A row belongs to its microbatch, whichever rank computes it; one of its
/// numbers is a NaN with a mark, which must arrive as it is.
pub(super) fn rows(width: usize, rows: usize) -> Vec<f32> {
    (0..rows * width)
        .map(|index| if index % 53 == 7 { f32::from_bits(0x7fc0_0bad) } else { contribution(99, index) })
        .collect()
}

/// The rows that a rank contributes.
pub(super) fn own_rows(rank: usize, world_size: usize, width: usize, count: usize) -> Vec<f32> {
    let block = block_of(rank, world_size, count);
    rows(width, count)[block.start * width..block.end * width].to_vec()
}

/// Where two lists of numbers differ in their bits, if they do.
pub(super) fn difference(got: &[f32], expected: &[f32]) -> Option<String> {
    if got.len() != expected.len() {
        return Some(format!("got {} numbers, expected {}", got.len(), expected.len()));
    }
    let at = got.iter().zip(expected).position(|(got, expected)| got.to_bits() != expected.to_bits())?;
    Some(format!("number {at}: got {:?}, expected {:?}", got[at], expected[at]))
}
