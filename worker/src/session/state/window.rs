//! Durations of a rank's steps, as means over about a second each. Their own durations are the clock.

use crate::{
    ring::Traffic,
    session::types::{StepSummary, Timings},
};
use ringtune_shared::ids::Epoch;

/// Of steps. They follow one another, so that no two of them end less than that apart.
const SECONDS: f64 = 1.0;

/// Steps whose means were not told yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    epoch: Option<Epoch>,
    steps: u32,
    /// Of those steps, with what is found out after each.
    seconds: f64,
    compute_seconds: f64,
    exchange_seconds: f64,
    wait_seconds: f64,
    /// The sums of all its numbers.
    traffic: Traffic,
}

impl Window {
    /// Takes in a step of this rank; the means, once there is enough. Those of one ring are never mixed with another's.
    pub(super) fn take(&mut self, step: &StepSummary) -> Option<Timings> {
        if self.epoch != Some(step.epoch) {
            *self = Self { epoch: Some(step.epoch), ..Self::default() };
        }
        self.steps += 1;
        self.seconds += step.step_seconds + step.validation_seconds + step.preview_seconds;
        self.compute_seconds += step.compute_seconds;
        self.exchange_seconds += step.exchange_seconds;
        self.wait_seconds += step.wait_seconds;
        self.traffic += step.traffic;
        if self.seconds < SECONDS {
            return None;
        }
        let of = std::mem::replace(self, Self { epoch: self.epoch, ..Self::default() });
        let steps = f64::from(of.steps);
        Some(Timings {
            step: step.step,
            compute_seconds: of.compute_seconds / steps,
            exchange_seconds: of.exchange_seconds / steps,
            wait_seconds: of.wait_seconds / steps,
            traffic: Traffic {
                hidden_seconds: of.traffic.hidden_seconds / steps,
                sent_bytes: of.traffic.sent_bytes / u64::from(of.steps),
                collective_seconds: of.traffic.collective_seconds / steps,
                bus_bytes: of.traffic.bus_bytes / steps,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(seconds: f64) -> Traffic {
        Traffic {
            hidden_seconds: seconds / 16.0,
            sent_bytes: (seconds * 100.0) as u64,
            collective_seconds: seconds / 2.0,
            bus_bytes: seconds * 200.0,
        }
    }

    fn step(number: u64, epoch: u64, seconds: f64) -> StepSummary {
        StepSummary {
            epoch: Epoch(epoch),
            step_seconds: seconds,
            compute_seconds: seconds / 2.0,
            exchange_seconds: seconds / 4.0,
            wait_seconds: seconds / 8.0,
            traffic: traffic(seconds),
            ..StepSummary::example(number)
        }
    }

    #[test]
    fn means_are_told_once_a_second_at_most() {
        let mut window = Window::default();
        assert_eq!(window.take(&step(1, 1, 0.5)), None);
        assert_eq!(window.take(&step(2, 1, 0.25)), None);
        let told = window.take(&step(3, 1, 0.75)).unwrap();
        let means = Timings {
            step: 3,
            compute_seconds: 0.25,
            exchange_seconds: 0.125,
            wait_seconds: 0.0625,
            traffic: traffic(0.5),
        };
        assert_eq!(told, means);
        // A long one is told by itself, and what was told does not come again.
        let told = window.take(&step(4, 1, 8.0)).unwrap();
        assert_eq!((told.step, told.compute_seconds, told.wait_seconds), (4, 4.0, 1.0));
        // Drawing pictures takes its time too, and is no part of a step.
        let shown = StepSummary { preview_seconds: 3.0, ..step(5, 1, 0.5) };
        assert_eq!(window.take(&shown).unwrap().compute_seconds, 0.25);
    }

    #[test]
    fn the_steps_of_two_rings_are_not_mixed() {
        let mut window = Window::default();
        assert_eq!(window.take(&step(1, 1, 0.75)), None);
        assert_eq!(window.take(&step(2, 2, 0.5)), None);
        assert_eq!(window.take(&step(3, 2, 0.5)).unwrap().compute_seconds, 0.25);
    }
}
