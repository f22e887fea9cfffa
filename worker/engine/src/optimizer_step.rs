//! One step of the optimizer.

/// One step of AdamW over gradients that were added up.
///
/// Source: Loshchilov & Hutter 2019; torch/optim/adam.py, `_single_tensor_adam`; torch/nn/utils/clip_grad.py.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimizerStep {
    /// The step's number, from 1; steps that were skipped do not count.
    pub number: u64,
    /// At least 0. Steps are computed in fp32: this, `epsilon`, `weight_decay` and `max_grad_norm` are at most
    /// [`f32::MAX`].
    pub learning_rate: f64,
    /// Those of parameters whose [`Parameter::rate`](crate::Parameter::rate) is 1 or more; as `learning_rate`.
    pub other_rates: [f64; 2],
    /// How much of the gradients' running mean a step keeps, from 0 up to, but not, 1.
    pub beta1: f64,
    /// How much of the squared gradients' running mean a step keeps, as `beta1`.
    pub beta2: f64,
    /// Added to the denominator; at least [`f32::MIN_POSITIVE`].
    pub epsilon: f64,
    /// Share of the decayed parameters, times the learning rate, that a step takes away; at least 0.
    pub weight_decay: f64,
    /// The gradient's norm is held to this, above 0; none: it is not.
    pub max_grad_norm: Option<f64>,
    /// How many microbatches were added up: gradients are divided by it, before anything else. At least 1.
    pub divide_by: u32,
    /// Where an average of the parameters is kept: the share of it that the step keeps, from 0 to 1; the rest comes from the moved
    /// parameters: average -= (1 - share) (average - parameter). None: it stays. Source: diffusers, EMAModel.
    pub average_decay: Option<f64>,
}

/// One step over the movements of rounds that were added up: momentum = share momentum + movement; parameter -= rate (movement + share
/// momentum).
///
/// Source: torch/optim/sgd.py, `_single_tensor_sgd` with nesterov; Douillard et al. 2023, DiLoCo.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OuterStep {
    /// At least 0, at most [`f32::MAX`].
    pub learning_rate: f64,
    /// How much of the momentum a step keeps, from 0 up to, but not, 1.
    pub momentum: f64,
    /// As [`OptimizerStep::divide_by`].
    pub divide_by: u32,
    /// As [`OptimizerStep::average_decay`].
    pub average_decay: Option<f64>,
}

impl OuterStep {
    /// That all numbers are within their limits.
    ///
    /// # Errors
    /// The first field that is not, what was given, and what is allowed.
    pub fn check(&self) -> Result<(), WrongStep> {
        let Self { learning_rate, momentum, divide_by, average_decay } = *self;
        let as_step = OptimizerStep {
            number: 1,
            learning_rate,
            other_rates: [0.0; 2],
            beta1: 0.0,
            beta2: 0.0,
            epsilon: 1.0,
            weight_decay: 0.0,
            max_grad_norm: None,
            divide_by,
            average_decay,
        };
        if !(0.0..1.0).contains(&momentum) {
            let allowed = "from 0 up to, but not, 1";
            return Err(WrongStep { field: "momentum", given: momentum.to_string(), allowed });
        }
        as_step.check()
    }
}

impl OptimizerStep {
    /// That all numbers are within their limits.
    ///
    /// # Errors
    /// The first field that is not, what was given, and what is allowed.
    pub fn check(&self) -> Result<(), WrongStep> {
        let wrong = |field, given: f64, allowed| Err(WrongStep { field, given: given.to_string(), allowed });
        if self.number == 0 {
            return wrong("number", 0.0, "1 or more");
        }
        // What would be infinite in fp32, or zero where that is divided by, is none of a step's numbers.
        let (least, most) = (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX));
        let [second, third] = self.other_rates;
        for (field, given) in [
            ("learning_rate", self.learning_rate),
            ("other_rates", second),
            ("other_rates", third),
            ("weight_decay", self.weight_decay),
        ] {
            if !(0.0..=most).contains(&given) {
                return wrong(field, given, "from 0 to 3.4028234e38, the largest number of fp32");
            }
        }
        for (field, given) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&given) {
                return wrong(field, given, "from 0 up to, but not, 1");
            }
        }
        if !(least..=most).contains(&self.epsilon) {
            return wrong("epsilon", self.epsilon, "from 1.1754944e-38 to 3.4028234e38, the limits of fp32");
        }
        let max_grad_norm = self.max_grad_norm.unwrap_or(1.0);
        if !(max_grad_norm > 0.0 && max_grad_norm <= most) {
            let allowed = "above 0, up to 3.4028234e38, the largest number of fp32";
            return wrong("max_grad_norm", max_grad_norm, allowed);
        }
        if self.divide_by == 0 {
            return wrong("divide_by", 0.0, "1 or more");
        }
        if !(0.0..=1.0).contains(&self.average_decay.unwrap_or(0.0)) {
            return wrong("average_decay", self.average_decay.unwrap_or(0.0), "from 0 to 1");
        }
        Ok(())
    }

    /// The rate of parameters whose [`Parameter::rate`](crate::Parameter::rate) this is.
    pub fn rate(&self, number: usize) -> f64 {
        match number.checked_sub(1) {
            None => self.learning_rate,
            Some(other) => self.other_rates.get(other).copied().unwrap_or(self.learning_rate),
        }
    }

    /// The numbers that a step is made of, for such a parameter: worked out in 64 bits, and rounded once to what
    /// elements are computed in.
    pub fn scalars(&self, decayed: bool, rate: usize) -> AdamWScalars {
        let Self { number, beta1, beta2, epsilon, weight_decay, .. } = *self;
        let learning_rate = self.rate(rate);
        let correction = |beta: f64| 1.0 - libm::pow(beta, number as f64);
        AdamWScalars {
            keep: if decayed { 1.0 - learning_rate * weight_decay } else { 1.0 },
            new_mean: 1.0 - beta1,
            keep_square: beta2,
            new_square: 1.0 - beta2,
            scale: libm::sqrt(correction(beta2)),
            step_size: -learning_rate / correction(beta1),
            epsilon,
        }
    }
}

/// AdamW's scalars of one step. With them a number moves so: weight *= keep; mean += new_mean (gradient - mean); square = keep_square
/// square + new_square gradient^2; weight += step_size mean / (sqrt(square) / scale + epsilon).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWScalars {
    /// What weight decay leaves of a weight.
    pub keep: f64,
    /// The gradient's share of the running mean.
    pub new_mean: f64,
    /// What is kept of the running mean of squares.
    pub keep_square: f64,
    /// The squared gradient's share of it.
    pub new_square: f64,
    /// Root of the second moment's bias correction.
    pub scale: f64,
    /// The learning rate, corrected for the first moment's bias, below 0.
    pub step_size: f64,
    /// Added to the denominator.
    pub epsilon: f64,
}

/// A number of an optimizer step that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {given}, allowed is {allowed}")]
pub struct WrongStep {
    /// The field of [`OptimizerStep`].
    pub field: &'static str,
    /// What was given.
    pub given: String,
    /// What is allowed.
    pub allowed: &'static str,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Applied {
    /// The norm of the whole gradient, after the division and before it was held to `max_grad_norm`.
    pub grad_norm: f64,
    /// Nothing has moved, as that is not finite.
    pub skipped: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_says_which_of_its_numbers_makes_no_sense() {
        let good = OptimizerStep {
            number: 1,
            learning_rate: 0.0,
            beta1: 0.0,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            max_grad_norm: None,
            divide_by: 1,
            other_rates: [0.0; 2],
            average_decay: None,
        };
        assert_eq!(good.check(), Ok(()));
        let (least, most) = (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX));
        let smallest = OptimizerStep { epsilon: least, ..good };
        let largest = OptimizerStep {
            learning_rate: most,
            weight_decay: most,
            epsilon: most,
            max_grad_norm: Some(most),
            ..good
        };
        assert_eq!((smallest.check(), largest.check()), (Ok(()), Ok(())));
        let wrong = [
            ("number", OptimizerStep { number: 0, ..good }),
            ("learning_rate", OptimizerStep { learning_rate: f64::NAN, ..good }),
            ("learning_rate", OptimizerStep { learning_rate: -1e-9, ..good }),
            ("learning_rate", OptimizerStep { learning_rate: 1e39, ..good }),
            ("other_rates", OptimizerStep { other_rates: [0.0, f64::NAN], ..good }),
            ("average_decay", OptimizerStep { average_decay: Some(1.5), ..good }),
            ("beta1", OptimizerStep { beta1: 1.0, ..good }),
            ("beta2", OptimizerStep { beta2: f64::NAN, ..good }),
            ("epsilon", OptimizerStep { epsilon: 0.0, ..good }),
            ("epsilon", OptimizerStep { epsilon: 1e-46, ..good }),
            ("epsilon", OptimizerStep { epsilon: 1e39, ..good }),
            ("epsilon", OptimizerStep { epsilon: f64::NAN, ..good }),
            ("weight_decay", OptimizerStep { weight_decay: f64::INFINITY, ..good }),
            ("weight_decay", OptimizerStep { weight_decay: 1e39, ..good }),
            ("max_grad_norm", OptimizerStep { max_grad_norm: Some(0.0), ..good }),
            ("max_grad_norm", OptimizerStep { max_grad_norm: Some(1e39), ..good }),
            ("max_grad_norm", OptimizerStep { max_grad_norm: Some(f64::NAN), ..good }),
            ("divide_by", OptimizerStep { divide_by: 0, ..good }),
        ];
        for (field, step) in wrong {
            let error = step.check().map_or_else(|error| error, |()| panic!("{field} was taken"));
            assert_eq!(error.field, field);
            assert!(error.to_string().starts_with(&format!("{field} is ")), "{error}");
        }
    }
}
