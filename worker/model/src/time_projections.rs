//! The residual blocks' projections of the time embedding, all at once.

use tch::{Kind, Tensor};

use crate::error::{Error, Result};
use crate::layers::{Linear, LinearConfig};
use crate::weights::Scope;

/// Gathers the projections of residual blocks as they are loaded.
#[derive(Debug)]
pub struct TimeProjectionLoader {
    width: i64,
    layers: Vec<Linear>,
    outputs: i64,
}

/// A block's outputs among those of all blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeSlice {
    first: i64,
    count: i64,
}

/// The projections of all residual blocks; fp32, as the time embedding.
///
/// One product for all would need their weights side by side, 100 MB of private memory. Where they are stored as fp32,
/// they stay on the mapped file: a product of few rows only waits for its weights, wherever they are.
#[derive(Debug)]
pub struct TimeProjections {
    /// Of each block.
    layers: Vec<Linear>,
}

impl TimeProjectionLoader {
    /// `width`: that of the time embedding.
    pub fn new(width: i64) -> Self {
        TimeProjectionLoader { width, layers: Vec::new(), outputs: 0 }
    }

    /// Reads `weight` [outputs, width] and `bias` [outputs] of one block.
    pub fn add(&mut self, scope: &Scope, outputs: i64) -> Result<TimeSlice> {
        let config = LinearConfig { inputs: self.width, outputs, bias: true };
        self.layers.push(Linear::new(scope, config, Kind::Float)?);
        let slice = TimeSlice { first: self.outputs, count: outputs };
        self.outputs += outputs;
        Ok(slice)
    }

    /// The projections that were added.
    pub fn finish(self) -> Result<TimeProjections> {
        if self.layers.is_empty() {
            return Err(Error::argument("time projections", "none", "at least one"));
        }
        Ok(TimeProjections { layers: self.layers })
    }
}

impl TimeProjections {
    /// `time`: SiLU of the time embedding, [batch, width] fp32. Returns what each block adds, side by side:
    /// [batch, sum of outputs] fp32.
    pub fn forward(&self, time: &Tensor) -> Result<Tensor> {
        let each = self.layers.iter().map(|layer| layer.forward(time));
        Ok(Tensor::f_cat(&each.collect::<Result<Vec<_>>>()?, 1)?)
    }
}

impl TimeSlice {
    /// This block's projection: [batch, outputs], of the result of [`TimeProjections::forward`].
    pub fn of(self, times: &Tensor) -> Result<Tensor> {
        Ok(times.f_narrow(1, self.first, self.count)?)
    }
}
