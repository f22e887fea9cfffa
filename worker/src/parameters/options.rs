//! The options of a training of parameters.

use super::Exchange;
use crate::train::AdamWOptions;

/// What a job says of how its parameters are trained, whatever they are of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) exchange: Exchange,
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
