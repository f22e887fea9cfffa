//! The encoding of travelling numbers.
//!
//! In bf16 half as many bytes travel. A rank adds in fp32 what comes to what it has, and rounds, to the nearest and of two equally
//! near ones to the even, what it sends. Whoever has a sum first rounds it as well and keeps it rounded: what it then hands on
//! is what it has, and all ranks come to the same bits.

use bytes::BytesMut;

use super::frame;
use crate::checksum::Crc32c;

/// The encoding of a travelling number, little-endian.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Element {
    /// As in memory.
    #[default]
    Fp32,
    /// Its upper half, rounded: 8 bits of precision.
    Bf16,
}

/// Bytes of a number in bf16.
const HALF: usize = size_of::<u16>();

/// Numbers that are worked on at a time: they stay in a core's nearest memory.
const SOME: usize = 4096;

impl Element {
    /// Bytes of a number on its way.
    pub fn bytes(self) -> usize {
        match self {
            Self::Fp32 => frame::WIDTH,
            Self::Bf16 => HALF,
        }
    }
}

// The loops below are fast with these in them.

/// The nearest number in bf16. What is no number stays none.
#[inline(always)]
fn rounded(number: f32) -> u16 {
    let bits = number.to_bits();
    let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    // A NaN whose marks are all in the lower half would become infinite.
    let of_nan = bits | 0x0040_0000;
    ((if number.is_nan() { of_nan } else { nearest }) >> 16) as u16
}

#[inline(always)]
fn widened(bytes: [u8; HALF]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

// None of what follows is to be inlined: see frame.rs.

/// Appends numbers as they travel in bf16; the checksum of what was appended.
#[inline(never)]
pub(super) fn encode(numbers: &[f32], bytes: &mut BytesMut) -> u32 {
    let (mut some, mut sent) = ([0; SOME * HALF], Crc32c::new());
    for numbers in numbers.chunks(SOME) {
        for (encoded, number) in some.as_chunks_mut::<HALF>().0.iter_mut().zip(numbers) {
            *encoded = rounded(*number).to_le_bytes();
        }
        let encoded = &some[..numbers.len() * HALF];
        sent.update(encoded);
        bytes.extend_from_slice(encoded);
    }
    sent.finish()
}

/// Puts the numbers of a payload in bf16 in place of others; the payload's checksum. Its length must have been checked to fit.
#[inline(never)]
pub(super) fn replace(kept: &mut [f32], payload: &[u8]) -> u32 {
    take_in(kept, payload, |_, came| came)
}

/// Adds others to the numbers of a payload in bf16, in this order; the payload's checksum. Its length must have been checked to
/// fit.
#[inline(never)]
pub(super) fn add(kept: &mut [f32], payload: &[u8]) -> u32 {
    take_in(kept, payload, |kept, came| kept + came)
}

/// As above with the last summand: the whole sum is kept as rounded.
#[inline(never)]
pub(super) fn add_last(kept: &mut [f32], payload: &[u8]) -> u32 {
    take_in(kept, payload, |kept, came| widened(rounded(kept + came).to_le_bytes()))
}

#[inline(always)]
fn take_in(kept: &mut [f32], payload: &[u8], becomes: impl Fn(f32, f32) -> f32) -> u32 {
    let mut came = Crc32c::new();
    for (kept, payload) in kept.chunks_mut(SOME).zip(payload.chunks(SOME * HALF)) {
        came.update(payload);
        for (kept, bytes) in kept.iter_mut().zip(payload.as_chunks().0) {
            *kept = becomes(*kept, widened(*bytes));
        }
    }
    came.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::checksum::crc32c;

    fn there_and_back(number: f32) -> f32 {
        widened(rounded(number).to_le_bytes())
    }

    #[test]
    fn a_number_goes_to_the_nearest_and_to_the_even_one_between_two() {
        let (one, next, after) = (1.0, 1.0 + 1.0 / 128.0, 1.0 + 2.0 / 128.0);
        for (number, nearest) in [
            (1.0, one),
            (1.0 + 1.0 / 256.0, one),
            (1.0 + 1.01 / 256.0, next),
            (1.0 + 2.99 / 256.0, next),
            (1.0 + 3.0 / 256.0, after),
            (-1.0 - 3.0 / 256.0, -after),
            (0.0, 0.0),
            (-0.0, -0.0),
            // Larger than all others: the sum is not finite, and all ranks leave the step out.
            (f32::MAX, f32::INFINITY),
            (f32::NEG_INFINITY, f32::NEG_INFINITY),
            (f32::from_bits(0x0000_8000), 0.0),
            (f32::from_bits(0x0000_8001), f32::from_bits(0x0001_0000)),
        ] {
            assert_eq!(there_and_back(number).to_bits(), f32::to_bits(nearest), "{number:e}");
        }
        for nan in [0x7f80_0001, 0x7fff_ffff, 0xffff_ffff, 0xff80_ffff] {
            assert!(there_and_back(f32::from_bits(nan)).is_nan(), "{nan:#x}");
        }
    }

    #[test]
    fn what_is_taken_in_has_its_checksum_and_is_added_in_fp32() {
        for length in [0, 1, 100, SOME, SOME + 1, 3 * SOME - 1] {
            let numbers: Vec<f32> = (0..length).map(|number| (number as f32).sin() * 3.0).collect();
            let mut payload = BytesMut::new();
            let sent = encode(&numbers, &mut payload);
            assert_eq!((payload.len(), sent), (2 * length, crc32c(&payload)), "{length}");
            let travelled: Vec<f32> = numbers.iter().map(|number| there_and_back(*number)).collect();
            let all = |makes: fn(f32, f32) -> f32| -> Vec<f32> {
                numbers.iter().zip(&travelled).map(|(kept, came)| makes(*kept, *came)).collect()
            };
            let mut kept = numbers.clone();
            assert_eq!((add(&mut kept, &payload), &kept), (sent, &all(|kept, came| kept + came)));
            let mut kept = numbers.clone();
            let sums = all(|kept, came| there_and_back(kept + came));
            assert_eq!((add_last(&mut kept, &payload), &kept), (sent, &sums));
            assert_eq!((replace(&mut kept, &payload), &kept), (sent, &travelled));
        }
    }

    proptest! {
        #[test]
        fn rounding_errs_by_half_a_place_at_most_and_once(bits in any::<u32>()) {
            let number = f32::from_bits(bits);
            let there = there_and_back(number);
            prop_assert_eq!(there.is_nan(), number.is_nan());
            if number.is_finite() && there.is_finite() {
                // No other number in bf16 is nearer.
                let place = f64::from(there.abs().next_up_bf16()) - f64::from(there.abs());
                prop_assert!((f64::from(number) - f64::from(there)).abs() <= place / 2.0);
            }
            if !there.is_nan() {
                prop_assert_eq!(there_and_back(there).to_bits(), there.to_bits());
            }
        }
    }

    trait Bf16 {
        fn next_up_bf16(self) -> Self;
    }

    impl Bf16 for f32 {
        /// Of a number that is not negative.
        fn next_up_bf16(self) -> f32 {
            let next = f32::from_bits((self.to_bits() & 0xffff_0000).saturating_add(0x1_0000));
            if next.is_finite() { next } else { f32::MAX }
        }
    }
}
