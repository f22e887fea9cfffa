//! Loss weights by signal-to-noise ratio, so that the timesteps with little noise do not rule the gradient.
//!
//! Source: Hang et al. 2023 (min-SNR), section 3.4; diffusers examples/text_to_image/train_text_to_image.py with
//! `--snr_gamma`, and training_utils.compute_snr.

use ringtune_engine::PredictionType;

use crate::error::{Error, Result};
use crate::schedule::NoiseSchedule;

/// A weight per timestep, in fp32: min(snr, gamma) / snr where the network predicts the noise, and
/// min(snr, gamma) / (snr + 1) where it predicts the velocity. `gamma` is above 0.
///
/// # Errors
/// A timestep that the schedule does not have, or a gamma that is not above 0.
pub fn weights(schedule: &NoiseSchedule, timesteps: &[i64], gamma: f64) -> Result<Vec<f32>> {
    // Written so that NaN fails it.
    if !(gamma > 0.0 && gamma.is_finite()) {
        return Err(Error::argument("snr_gamma", gamma, "a number above 0"));
    }
    let alphas = schedule.alphas_cumprod();
    let one = |timestep: &i64| {
        let alpha =
            usize::try_from(*timestep).ok().and_then(|timestep| alphas.get(timestep)).ok_or_else(|| {
                Error::argument("timesteps", timestep, format!("each from 0 to {}", alphas.len() - 1))
            })?;
        Ok(weight(*alpha, schedule.prediction(), gamma as f32))
    };
    timesteps.iter().map(one).collect()
}

/// The weight where the cumulative product of 1 - beta is `alpha_cumprod`, rounded where diffusers rounds.
fn weight(alpha_cumprod: f32, prediction: PredictionType, gamma: f32) -> f32 {
    let ratio = alpha_cumprod.sqrt() / (1.0 - alpha_cumprod).sqrt();
    let snr = ratio * ratio;
    let least = snr.min(gamma);
    match prediction {
        // A schedule of zero terminal SNR ends at 0 / 0: the weight is 1 there, as at every other low ratio (and as
        // diffusers' script once set it; it now yields NaN).
        PredictionType::Epsilon if snr == 0.0 => 1.0,
        PredictionType::Epsilon => least / snr,
        // The added 1 keeps zero terminal SNR finite: its weight is 0, as in diffusers.
        PredictionType::VPrediction => least / (snr + 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_follow_the_formulas() {
        // alpha 0.8 is a ratio of 4, 0.5 of 1, 0.2 of a quarter.
        for (alpha, gamma, epsilon, velocity) in [
            (0.8, 5.0, 1.0, 0.8),
            (0.8, 1.0, 0.25, 0.2),
            (0.5, 5.0, 1.0, 0.5),
            (0.5, 0.5, 0.5, 0.25),
            (0.2, 5.0, 1.0, 0.2),
            (0.2, 0.125, 0.5, 0.1),
        ] {
            for (prediction, expected) in
                [(PredictionType::Epsilon, epsilon), (PredictionType::VPrediction, velocity)]
            {
                let found = weight(alpha, prediction, gamma);
                assert!((found - expected).abs() < 1e-6, "{alpha} {gamma} {prediction:?}: {found}");
            }
        }
    }

    #[test]
    fn the_ends_of_a_schedule_have_weights() {
        for (prediction, pure_noise) in [(PredictionType::Epsilon, 1.0), (PredictionType::VPrediction, 0.0)] {
            assert_eq!(weight(0.0, prediction, 5.0), pure_noise);
            assert_eq!(weight(1.0, prediction, 5.0), 0.0);
        }
        // A ratio so small that its square is 0 in fp32.
        assert_eq!(weight(f32::from_bits(1), PredictionType::Epsilon, 5.0), 1.0);
    }
}
