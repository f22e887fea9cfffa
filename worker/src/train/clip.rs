//! Gradient clipping by norm, as torch.nn.utils.clip_grad_norm_ does it for one tensor.
//! Source: Pascanu, Mikolov & Bengio 2013, algorithm 1; torch/nn/utils/clip_grad.py.
//!
//! The norm of parameters that the engine holds is divided by in 64 bits (`worker/model/src/parameters/optimizer.rs`): for one source
//! jobs would have other bits.

/// Added to the norm by torch, so that nothing is divided by zero.
const SMALL: f32 = 1e-6;

/// The gradient, shortened to a Euclidean norm of about `max_norm` where it is longer, in fp32.
///
/// The squares are added up in order in 64 bits, so every rank gets the same bits; torch adds them up in fp32.
pub fn clipped(gradient: &[f32], max_norm: f64) -> Vec<f32> {
    let squares: f64 = gradient.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    let norm = libm::sqrt(squares) as f32;
    // As torch divides a number by a tensor: by way of the tensor's reciprocal.
    let factor = (1.0 / (norm + SMALL) * max_norm as f32).min(1.0);
    gradient.iter().map(|value| value * factor).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn norm(values: &[f32]) -> f64 {
        values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
    }

    /// What torch 2.13 makes of [0.25, -1.5, 3e-4, 12, -0.0625], by norm.
    const TORCH: [(f64, [f32; 5]); 4] = [
        (0.5, [1.033_388_1e-2, -6.200_328_5e-2, 1.240_065_7e-5, 4.960_262_8e-1, -2.583_470_2e-3]),
        (3.0, [6.200_328_5e-2, -3.720_197e-1, 7.440_394e-5, 2.976_157_7, -1.550_082_1e-2]),
        (12.0, [2.480_131_4e-1, -1.488_078_8, 2.976_157_7e-4, 1.190_463e1, -6.200_328_5e-2]),
        (20.0, [0.25, -1.5, 3.0e-4, 12.0, -0.0625]),
    ];

    #[test]
    fn a_long_gradient_is_shortened_and_a_short_one_is_not() {
        let short = clipped(&[3.0, -4.0], 1.0);
        assert!((short[0] - 0.6).abs() < 1e-6 && (short[1] + 0.8).abs() < 1e-6, "{short:?}");
        // torch's small number keeps it a little below.
        assert!(norm(&short) < 1.0);
        for most in [5.1, 1e6] {
            assert_eq!(clipped(&[3.0, -4.0], most), [3.0, -4.0]);
        }
    }

    #[test]
    fn values_of_torch() {
        let gradient = [0.25f32, -1.5, 3.0e-4, 12.0, -0.0625];
        for (most, expected) in TORCH {
            for (ours, theirs) in clipped(&gradient, most).iter().zip(expected) {
                assert!((ours - theirs).abs() <= 2e-7 * theirs.abs(), "{most}: {ours}, torch {theirs}");
            }
        }
    }

    #[test]
    fn extremes_stay_numbers() {
        assert_eq!(clipped(&[0.0, 0.0], 1.0), [0.0, 0.0]);
        assert!(clipped(&[f32::MAX, f32::MAX], 1.0).iter().all(|value| value.is_finite()));
        assert_eq!(clipped(&[1.0], 1e-300), [0.0]);
        assert!(clipped(&[], 1.0).is_empty());
    }

    proptest! {
        #[test]
        fn never_longer_than_allowed_nor_than_before_and_never_turned(
            gradient in prop::collection::vec(-1e3f32..1e3, 1..50), most in 1e-3f64..1e3,
        ) {
            let short = clipped(&gradient, most);
            prop_assert!(norm(&short) <= most.min(norm(&gradient)) * (1.0 + 1e-5));
            prop_assert!(short.iter().zip(&gradient).all(|(a, b)| a * b >= 0.0));
        }
    }
}
