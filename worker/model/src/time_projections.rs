//! What the residual blocks make of the time embedding: one product for all of them.

use tch::{Kind, Tensor};

use crate::error::{Error, Result};
use crate::weights::Scope;

/// Gathers the projections of residual blocks as they are loaded. Their weights are put together once, and the blocks
/// keep none.
#[derive(Debug)]
pub struct TimeProjectionLoader {
    width: i64,
    weights: Vec<Tensor>,
    biases: Vec<Tensor>,
    outputs: i64,
    dry: bool,
}

/// One block's outputs among those of all blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeSlice {
    first: i64,
    count: i64,
}

/// The projections of all residual blocks; fp32, as the time embedding.
#[derive(Debug)]
pub struct TimeProjections {
    /// [sum of all blocks' outputs, width]
    weight: Tensor,
    bias: Tensor,
}

impl TimeProjectionLoader {
    /// `width`: that of the time embedding.
    pub fn new(width: i64) -> Self {
        TimeProjectionLoader { width, weights: Vec::new(), biases: Vec::new(), outputs: 0, dry: false }
    }

    /// Reads `weight` [outputs, width] and `bias` [outputs] of one block.
    pub fn add(&mut self, scope: &Scope, outputs: i64) -> Result<TimeSlice> {
        self.weights.push(scope.tensor("weight", &[outputs, self.width], Kind::Float)?);
        self.biases.push(scope.tensor("bias", &[outputs], Kind::Float)?);
        self.dry = scope.is_dry();
        let slice = TimeSlice { first: self.outputs, count: outputs };
        self.outputs += outputs;
        Ok(slice)
    }

    /// All that were added, as one product.
    pub fn finish(self) -> Result<TimeProjections> {
        if self.weights.is_empty() {
            return Err(Error::argument("time projections", "none", "at least one"));
        }
        if self.dry {
            return Ok(TimeProjections { weight: Tensor::new(), bias: Tensor::new() });
        }
        Ok(TimeProjections {
            weight: Tensor::f_cat(&self.weights, 0)?,
            bias: Tensor::f_cat(&self.biases, 0)?,
        })
    }
}

impl TimeProjections {
    /// `time`: SiLU of the time embedding, [batch, width] fp32. Returns what each block adds, side by side:
    /// [batch, sum of outputs] fp32.
    pub fn forward(&self, time: &Tensor) -> Result<Tensor> {
        Ok(time.f_linear(&self.weight, Some(&self.bias))?)
    }
}

impl TimeSlice {
    /// What this block adds: [batch, outputs], of the result of [`TimeProjections::forward`].
    pub fn of(self, times: &Tensor) -> Result<Tensor> {
        Ok(times.f_narrow(1, self.first, self.count)?)
    }
}
