//! The visited timesteps, from the noisiest (Lin et al. 2023, table 2), with numpy's rounding.

use crate::config::{SamplerConfig, TimestepSpacing};

/// The timesteps of DDIM, PNDM, Euler and LMS, before those that want whole numbers round them.
pub(super) fn timesteps(config: &SamplerConfig, steps: usize) -> Vec<f64> {
    let train = config.schedule.num_train_timesteps;
    match config.spacing {
        TimestepSpacing::Leading => leading(train / steps, steps, config.steps_offset),
        TimestepSpacing::Trailing => trailing(train as f64, train as f64 / steps as f64),
        TimestepSpacing::Linspace => linspace((train - 1) as f64, steps),
    }
}

/// Multiples of `stride` from 0, plus the offset.
pub(super) fn leading(stride: usize, count: usize, offset: i64) -> Vec<f64> {
    (0..count).rev().map(|index| ((index * stride) as i64 + offset) as f64).collect()
}

/// From `start` down in steps of `stride`, rounded, minus 1.
///
/// Source: numpy.arange, which adds multiples of the difference of its first two values. Where it makes one value
/// too many for rounding (61 steps of 1000), the timestep -1 that diffusers then visits is left out.
pub(super) fn trailing(start: f64, stride: f64) -> Vec<f64> {
    let count = (start / stride - 1e-6).ceil() as usize;
    let difference = (start - stride) - start;
    (0..count).map(|index| (start + index as f64 * difference).round_ties_even() - 1.0).collect()
}

/// Evenly from `last` to 0, both included.
pub(super) fn linspace(last: f64, count: usize) -> Vec<f64> {
    let stride = if count == 1 { 0.0 } else { last / (count - 1) as f64 };
    let value = |index| if count > 1 && index == count - 1 { last } else { index as f64 * stride };
    (0..count).rev().map(value).collect()
}

/// Rounds and clamps timesteps to the schedule: an offset can push the first one over its end.
pub(super) fn whole(timesteps: &[f64], train: usize) -> Vec<i64> {
    timesteps.iter().map(|step| (step.round_ties_even() as i64).clamp(0, train as i64 - 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_steps_has_that_many_timesteps_within_the_schedule() {
        for steps in 1..=1000 {
            for timesteps in [
                leading(1000 / steps, steps, 0),
                trailing(1000.0, 1000.0 / steps as f64),
                linspace(999.0, steps),
            ] {
                assert_eq!(timesteps.len(), steps);
                assert!(timesteps.iter().all(|step| (0.0..=999.0).contains(step)), "{steps}: {timesteps:?}");
                assert!(timesteps.windows(2).all(|pair| pair[0] > pair[1]), "{steps}: {timesteps:?}");
            }
        }
    }

    #[test]
    fn trailing_rounds_as_numpy_does() {
        // numpy.round(numpy.arange(1000, 0, -1000 / 48)) - 1. The exact value of the fourth, 937.5, would give 937.
        let expected = [999.0, 978.0, 957.0, 936.0, 916.0];
        assert_eq!(trailing(1000.0, 1000.0 / 48.0)[..5], expected);
    }
}
