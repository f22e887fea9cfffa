//! The residual blocks' projections of the time embedding, all at once.

use tch::{Kind, Tensor};

use crate::adapters::{self, Place};
use crate::error::{Error, Result};
use crate::native;
use crate::native::Products;
use crate::weights::Scope;

/// Gathers the projections of residual blocks as they are loaded.
#[derive(Debug)]
pub struct TimeProjectionLoader {
    width: i64,
    weights: Vec<Tensor>,
    biases: Vec<Tensor>,
    adapters: Vec<Place>,
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
    /// Of each block, [outputs, width] and [outputs].
    weights: Vec<Tensor>,
    biases: Vec<Tensor>,
    adapters: Vec<Place>,
}

impl TimeProjectionLoader {
    /// `width`: that of the time embedding.
    pub fn new(width: i64) -> Self {
        TimeProjectionLoader {
            width,
            weights: Vec::new(),
            biases: Vec::new(),
            adapters: Vec::new(),
            outputs: 0,
        }
    }

    /// Reads `weight` [outputs, width] and `bias` [outputs] of one block.
    pub fn add(&mut self, scope: &Scope, outputs: i64) -> Result<TimeSlice> {
        self.weights.push(scope.tensor_in_place("weight", &[outputs, self.width], Kind::Float)?);
        self.biases.push(scope.tensor("bias", &[outputs], Kind::Float)?);
        self.adapters.push(scope.site(&[outputs, self.width]));
        let slice = TimeSlice { first: self.outputs, count: outputs };
        self.outputs += outputs;
        Ok(slice)
    }

    /// The projections that were added.
    pub fn finish(self) -> Result<TimeProjections> {
        if self.weights.is_empty() {
            return Err(Error::argument("time projections", "none", "at least one"));
        }
        Ok(TimeProjections { weights: self.weights, biases: self.biases, adapters: self.adapters })
    }
}

impl TimeProjections {
    /// `time`: SiLU of the time embedding, [batch, width] fp32. Returns what each block adds, side by side:
    /// [batch, sum of outputs] fp32.
    pub fn forward(&self, time: &Tensor) -> Result<Tensor> {
        let layers = self.weights.iter().zip(&self.biases).zip(&self.adapters);
        let each = layers.map(|((weight, bias), place)| {
            let frozen = native::linear(time, weight, Some(bias), Products::Exact)?;
            let added = adapters::added(std::slice::from_ref(place), time, bias.size1()?)?;
            added.map_or(Ok(frozen.shallow_clone()), |added| Ok(frozen.f_add(&added)?))
        });
        Ok(Tensor::f_cat(&each.collect::<Result<Vec<_>>>()?, 1)?)
    }
}

impl TimeSlice {
    /// This block's projection: [batch, outputs], of the result of [`TimeProjections::forward`].
    pub fn of(self, times: &Tensor) -> Result<Tensor> {
        Ok(times.f_narrow(1, self.first, self.count)?)
    }
}
