//! The options of a training of parameters.

use super::Exchange;
use crate::train::AdamWOptions;

/// What a job says of how its parameters are trained, whatever they are of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) exchange: Exchange,
    /// A step is a round of several that each microbatch's replica takes for itself.
    pub(crate) rounds: Option<Rounds>,
    /// The ranks have the optimizer together.
    pub(crate) shard_optimizer: bool,
    pub(crate) adamw: AdamWOptions,
    /// The gradient's norm is held to this; none: it is not.
    pub(crate) max_grad_norm: Option<f64>,
    /// After every so many steps the ranks compare their states; at least 1.
    pub(crate) compare_interval: u64,
    /// Validations without a lower loss that end training; 0: none do.
    pub(crate) early_stop_patience: u64,
    /// The result is the state with the lowest validation loss.
    pub(crate) select_best: bool,
}

/// How ranks train that exchange little. Source: Douillard et al. 2023, DiLoCo.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rounds {
    /// Steps of a replica in a round; at least 1.
    pub(crate) local_steps: u64,
    /// By which the mean of the replicas' movements moves the parameters.
    pub(crate) learning_rate: f64,
    /// How much of the movements before counts.
    pub(crate) momentum: f64,
}

impl Rounds {
    /// The local steps of round `step`, both from 1, as if all followed each other.
    pub(super) fn steps_of(self, step: u64) -> impl Iterator<Item = u64> {
        let first = (step.saturating_sub(1)).saturating_mul(self.local_steps);
        (1..=self.local_steps).map(move |number| first.saturating_add(number))
    }
}
