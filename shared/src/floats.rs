//! The types that files have floating-point numbers in, all little-endian, as fp32 and back.

use half::{bf16, f16};
use safetensors::Dtype;

/// The type of stored numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatKind {
    /// fp32.
    F32,
    /// fp16.
    F16,
    /// bf16.
    Bf16,
}

impl FloatKind {
    /// None of other types than these.
    pub fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::F32),
            Dtype::F16 => Some(Self::F16),
            Dtype::BF16 => Some(Self::Bf16),
            _ => None,
        }
    }

    /// As safetensors files call it.
    pub fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
            Self::Bf16 => Dtype::BF16,
        }
    }

    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// Numbers of this type, exactly.
    pub fn widened(self, data: &[u8]) -> Vec<f32> {
        let halves = || data.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
        match self {
            Self::F32 => data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            Self::F16 => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
            Self::Bf16 => halves().map(|bits| f32::from_bits(u32::from(bits) << 16)).collect(),
        }
    }

    /// Numbers in this type, each the nearest that it has.
    pub fn narrowed(self, numbers: &[f32]) -> Vec<u8> {
        match self {
            Self::F32 => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
            Self::F16 => numbers.iter().flat_map(|number| f16::from_f32(*number).to_le_bytes()).collect(),
            Self::Bf16 => numbers.iter().flat_map(|number| bf16::from_f32(*number).to_le_bytes()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_widened_exactly_and_narrowed_to_the_nearest() {
        assert_eq!(FloatKind::F16.widened(&[0x00, 0xc5, 0x01, 0x00]), [-5.0, 2f32.powi(-24)]);
        assert_eq!(FloatKind::Bf16.widened(&[0x80, 0x3f, 0x20, 0xc0]), [1.0, -2.5]);
        assert_eq!(FloatKind::F16.narrowed(&[-5.0, 2f32.powi(-24)]), [0x00, 0xc5, 0x01, 0x00]);
        // Half-way between two of bf16: the even one.
        assert_eq!(FloatKind::Bf16.narrowed(&[1.0 + 2f32.powi(-8), -2.5]), [0x80, 0x3f, 0x20, 0xc0]);
    }
}
