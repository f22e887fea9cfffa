//! Whole numbers among the floats of a row.
//!
//! A row may be copied, compared or printed by anybody on its way, and the bits of a float that is not a number need not
//! survive that. So a whole number never travels as a float's bits, but as a few small whole floats, which are exact.

/// Floats that a 64-bit number takes: 16 bits each, the lowest first.
pub const FLOATS: usize = 4;

/// The floats of a number.
pub fn to_floats(number: u64) -> [f32; FLOATS] {
    let parts = [number, number >> 16, number >> 32, number >> 48];
    // The lowest 16 bits of each.
    parts.map(|part| f32::from(part as u16))
}

/// The number of its floats. None: these are no number's.
pub fn from_floats(floats: &[f32]) -> Option<u64> {
    let floats: &[f32; FLOATS] = floats.try_into().ok()?;
    floats.iter().rev().try_fold(0, |number, float| {
        let whole = (0.0..65_536.0).contains(float) && float.fract() == 0.0;
        whole.then_some(number << 16 | u64::from(*float as u16))
    })
}

/// Decodes a byte; None if malformed.
pub(super) fn byte(float: f32) -> Option<u8> {
    let whole = (0.0..256.0).contains(&float) && float.fract() == 0.0;
    whole.then_some(float as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_nothing_else_is_one() {
        for number in [0, 1, 65_535, 65_536, 0x1234_5678_9abc_def0, u64::MAX] {
            assert_eq!(from_floats(&to_floats(number)), Some(number));
        }
        assert_eq!(to_floats(0x0004_0003_0002_0001), [1.0, 2.0, 3.0, 4.0]);
        for wrong in [-1.0, 0.5, 65_536.0, f32::NAN, f32::INFINITY] {
            assert_eq!(from_floats(&[0.0, 0.0, wrong, 0.0]), None, "{wrong}");
        }
        assert_eq!(from_floats(&[0.0; 3]), None);
    }
}
