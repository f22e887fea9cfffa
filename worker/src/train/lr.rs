//! Learning rate schedules, with the values of diffusers.optimization.get_scheduler.

use std::f64::consts::PI;

use ringtune_shared::job::{LearningRates, LrScheduler};

use super::Error;

/// Where the polynomial schedule ends (diffusers' default), of power 1.
const POLYNOMIAL_END: f64 = 1e-7;

/// A job's schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LrOptions {
    /// train.lr_scheduler.
    pub curve: LrScheduler,
    /// The highest learning rate: train.learning_rate after scale_lr.
    pub base: f64,
    /// train.lr_warmup_steps, in optimizer steps; the plain constant curve ignores it, as in diffusers.
    pub warmup_steps: u64,
    /// train.max_train_steps.
    pub total_steps: u64,
    /// train.lr_num_cycles: how often cosine_with_restarts falls to 0; the other curves ignore it, as in diffusers.
    pub cycles: u64,
}

/// The learning rate of each step of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct LrSchedule {
    rates: Rates,
    /// What takes their place, each from its step on, in the order of these.
    later: Vec<(u64, Rates)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Rates {
    Curve(LrOptions),
    /// Each times the number.
    Pieces(LearningRates, f64),
}

impl LrSchedule {
    /// # Errors
    /// A polynomial schedule that would not fall.
    pub fn new(options: LrOptions) -> Result<Self, Error> {
        if options.curve == LrScheduler::Polynomial && options.base <= POLYNOMIAL_END {
            return Err(Error::LearningRateBelowEnd { given: options.base, end: POLYNOMIAL_END });
        }
        Ok(Self { rates: Rates::Curve(options), later: Vec::new() })
    }

    /// train.learning_rates, each multiplied by `scale` (what scale_lr makes of it).
    pub fn piecewise(rates: LearningRates, scale: f64) -> Self {
        Self { rates: Rates::Pieces(rates, scale), later: Vec::new() }
    }

    /// The same up to step `first`, and `other` from there on.
    pub fn then(mut self, first: u64, other: Self) -> Self {
        self.later.push((first, other.rates));
        self
    }

    /// The learning rate of step `step` (from 1): the curve's value at `step` - 1, so that a warm-up starts at 0.
    ///
    /// That is what the training script does under accelerate: warm-up and total are multiplied by the number of
    /// processes there, and each optimizer step moves the schedule on as often.
    pub fn at(&self, step: u64) -> f64 {
        let later = self.later.iter().rev().find(|(first, _)| *first <= step);
        match later.map_or(&self.rates, |(_, rates)| rates) {
            Rates::Curve(options) => options.base * options.factor(step.saturating_sub(1)),
            Rates::Pieces(rates, scale) => rates.at(step) * scale,
        }
    }
}

impl LrOptions {
    fn factor(self, position: u64) -> f64 {
        let LrOptions { curve, base, warmup_steps, total_steps, cycles } = self;
        if curve == LrScheduler::Constant {
            return 1.0;
        }
        if position < warmup_steps {
            return position as f64 / warmup_steps.max(1) as f64;
        }
        let decay_steps = total_steps.saturating_sub(warmup_steps).max(1) as f64;
        let done = (position - warmup_steps) as f64 / decay_steps;
        match curve {
            LrScheduler::Constant | LrScheduler::ConstantWithWarmup => 1.0,
            LrScheduler::Linear => total_steps.saturating_sub(position) as f64 / decay_steps,
            LrScheduler::Cosine => half_cosine(done),
            LrScheduler::CosineWithRestarts if done >= 1.0 => 0.0,
            LrScheduler::CosineWithRestarts => half_cosine((cycles as f64 * done) % 1.0),
            LrScheduler::Polynomial if position > total_steps => POLYNOMIAL_END / base,
            LrScheduler::Polynomial => ((base - POLYNOMIAL_END) * (1.0 - done) + POLYNOMIAL_END) / base,
        }
    }
}

/// From 1 at 0 to 0 at 1.
fn half_cosine(done: f64) -> f64 {
    (0.5 * (1.0 + libm::cos(PI * done))).max(0.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CURVES: [LrScheduler; 6] = [
        LrScheduler::Constant,
        LrScheduler::ConstantWithWarmup,
        LrScheduler::Linear,
        LrScheduler::Cosine,
        LrScheduler::CosineWithRestarts,
        LrScheduler::Polynomial,
    ];

    fn schedule(curve: LrScheduler, warmup_steps: u64, total_steps: u64) -> LrSchedule {
        LrSchedule::new(LrOptions { curve, base: 2e-3, warmup_steps, total_steps, cycles: 1 }).unwrap()
    }

    #[test]
    fn a_warm_up_starts_at_zero_and_reaches_the_base() {
        for curve in CURVES {
            let schedule = schedule(curve, 10, 100);
            let first = if curve == LrScheduler::Constant { 2e-3 } else { 0.0 };
            assert_eq!(schedule.at(1), first, "{curve:?}");
            assert_eq!(schedule.at(11), 2e-3, "{curve:?}");
        }
    }

    #[test]
    fn what_takes_a_schedules_place_holds_from_its_step_on() {
        let whole = schedule(LrScheduler::Linear, 0, 100);
        let constant = |rate: &str| LrSchedule::piecewise(rate.parse().unwrap(), 1.0);
        let ordered = whole.clone().then(11, constant("0.5")).then(51, whole.clone());
        for step in [1, 10, 51, 100] {
            assert_eq!(ordered.at(step), whole.at(step), "{step}");
        }
        assert_eq!([11, 50].map(|step| ordered.at(step)), [0.5; 2]);
    }

    #[test]
    fn halfway_values() {
        let half = |curve| schedule(curve, 0, 100).at(51);
        assert_eq!(half(LrScheduler::Linear), 1e-3);
        for curve in [LrScheduler::Cosine, LrScheduler::CosineWithRestarts] {
            assert!((half(curve) - 1e-3).abs() < 1e-15);
        }
        assert!((half(LrScheduler::Polynomial) - (1e-3 + 0.5e-7)).abs() < 1e-15);
    }

    #[test]
    fn every_cycle_starts_at_the_base_again() {
        let curve = LrScheduler::CosineWithRestarts;
        let options = LrOptions { curve, base: 2e-3, warmup_steps: 4, total_steps: 34, cycles: 3 };
        let schedule = LrSchedule::new(options).unwrap();
        for cycle in 0..3 {
            let first = 5 + 10 * cycle;
            assert!((schedule.at(first) - 2e-3).abs() < 1e-15, "{cycle}");
            assert!((schedule.at(first + 5) - 1e-3).abs() < 1e-15, "{cycle}");
            assert!(schedule.at(first + 9) < 1e-4, "{cycle}");
        }
        let others = CURVES.into_iter().filter(|other| *other != curve);
        for curve in others {
            let (once, thrice) = (LrOptions { curve, cycles: 1, ..options }, LrOptions { curve, ..options });
            let [once, thrice] = [once, thrice].map(|options| LrSchedule::new(options).unwrap());
            assert!((1..=34).all(|step| once.at(step) == thrice.at(step)), "{curve:?}");
        }
    }

    #[test]
    fn pieces_are_taken_as_they_are_and_scaled() {
        let schedule = LrSchedule::piecewise("0.005:2, 1e-3".parse().unwrap(), 4.0);
        let rates: Vec<f64> = (1..=4).map(|step| schedule.at(step)).collect();
        assert_eq!(rates, [0.02, 0.02, 0.004, 0.004]);
    }

    #[test]
    fn a_polynomial_has_to_fall() {
        let curve = LrScheduler::Polynomial;
        let options = LrOptions { curve, base: 1e-7, warmup_steps: 0, total_steps: 9, cycles: 1 };
        assert!(matches!(LrSchedule::new(options), Err(Error::LearningRateBelowEnd { .. })));
        assert!(LrSchedule::new(LrOptions { curve: LrScheduler::Linear, ..options }).is_ok());
    }

    proptest! {
        #[test]
        fn between_zero_and_the_base_and_falling_after_the_warm_up(
            curve in prop::sample::select(&CURVES[..]), warmup in 0u64..60, total in 1u64..60,
        ) {
            let schedule = schedule(curve, warmup, total);
            let rates: Vec<f64> = (1..=total).map(|step| schedule.at(step)).collect();
            prop_assert!(rates.iter().all(|rate| (0.0..=2e-3 * (1.0 + 1e-12)).contains(rate)), "{rates:?}");
            let fallen = rates.iter().skip(warmup as usize);
            prop_assert!(fallen.clone().zip(fallen.skip(1)).all(|(a, b)| b <= a), "{rates:?}");
        }
    }
}
