//! Growing by the nearest neighbour before a 3x3 convolution, as one operation where it doubles the sides.

use std::cell::RefCell;

use tch::{Kind, Tensor};

use crate::adapters::{self, Place};
use crate::convolution::{Conv2d, Conv2dConfig, Size};
use crate::error::Result;
use crate::mapped_file::Stored;
use crate::native::{self, ConvolutionArguments, ConvolutionGeometry};
use crate::packed_weights::{Packed, PackedWeights, Way};
use crate::runtime;
use crate::weights::Scope;

/// Rows of weights that are read at once: a few megabytes.
const ROWS_AT_ONCE: i64 = 64;

/// Each of four neighbours that were one pixel gets a 3x3 sum over four pixels of the small picture at most, so that
/// doubling and convolving are a transposed convolution with a kernel of 4x4 and steps of 2: 4/9 of the products. Its
/// gradient is a convolution with the same weights.
pub(crate) const DOUBLING: ConvolutionGeometry =
    ConvolutionGeometry { stride: 2, padding: 1, transposed: true };

/// Grows to a given size (nearest neighbour), then a 3x3 convolution that keeps the channels.
#[derive(Debug)]
pub struct GrowingConv2d {
    /// Of packed bf16, which reads its weights when they are first needed, in the form that is.
    stored: Option<Stored>,
    bias: Tensor,
    /// Packed weights of [`DOUBLING`].
    doubling: PackedWeights,
    /// For other sizes, and where nothing is packed for all; its adapter's place is this one's.
    plain: RefCell<Option<Conv2d>>,
    adapter: Place,
    config: Conv2dConfig,
    kind: Kind,
}

impl GrowingConv2d {
    /// Reads `weight` [channels, channels, 3, 3] and `bias` [channels].
    pub fn new(scope: &Scope, channels: i64, kind: Kind) -> Result<Self> {
        let config = Conv2dConfig::same_3x3(channels, channels);
        let is_trained = scope.is_trained("weight") || scope.is_trained("bias");
        let stored = if kind == Kind::BFloat16 && runtime::has_bf16() && !is_trained {
            Some(scope.stored("weight", &[channels, channels, 3, 3])?)
        } else {
            None
        };
        let plain = if stored.is_none() { Some(Conv2d::new(scope, config, kind)?) } else { None };
        let adapter = plain
            .as_ref()
            .map_or_else(|| scope.site(&[channels, channels, 3, 3]), |plain| plain.adapter().clone());
        let bias = scope.tensor("bias", &[channels], kind)?;
        Ok(GrowingConv2d {
            stored,
            bias,
            doubling: PackedWeights::default(),
            plain: RefCell::new(plain),
            adapter,
            config,
            kind,
        })
    }

    /// `x`: [batch, channels, height, width]; `size`: (height', width').
    pub fn forward(&self, x: &Tensor, size: (i64, i64)) -> Result<Tensor> {
        let (_, _, height, width) = x.size4()?;
        match &self.stored {
            Some(stored) if size == (2 * height, 2 * width) => self.double(x, stored),
            _ => self.grow(x, size),
        }
    }

    /// Packs the weights as [`GrowingConv2d::forward`] does for inputs of `from` that grow to `size`, with a `gradient` or
    /// without. Returns the result's size.
    pub(crate) fn lay_out(&self, from: Size, size: (i64, i64), gradient: bool) -> Result<Size> {
        let [batch, height, width] = from;
        let grown = [batch, size.0, size.1];
        match &self.stored {
            Some(stored) if size == (2 * height, 2 * width) => {
                self.doubling_for(from, stored, gradient)?;
            }
            _ => {
                self.read_plain();
                if let Some(convolution) = &*self.plain.borrow() {
                    convolution.lay_out(grown, gradient)?;
                }
            }
        }
        Ok(grown)
    }

    /// Reads the weights for other sizes than doubled ones, if not read before.
    fn read_plain(&self) {
        let mut plain = self.plain.borrow_mut();
        if let (Some(stored), None) = (&self.stored, &*plain) {
            let convolution = Conv2d::stored(stored.clone(), self.bias.shallow_clone(), self.config);
            *plain = Some(convolution.with_adapter(self.adapter.clone()));
        }
    }

    fn grow(&self, x: &Tensor, size: (i64, i64)) -> Result<Tensor> {
        self.read_plain();
        let grown = x.f_upsample_nearest2d([size.0, size.1], None, None)?;
        match &*self.plain.borrow() {
            Some(convolution) => convolution.forward(&grown),
            // A model whose weights are only checked computes nothing.
            None => Ok(grown),
        }
    }

    fn double(&self, x: &Tensor, stored: &Stored) -> Result<Tensor> {
        let (batch, _, height, width) = x.size4()?;
        let packed = self.doubling_for([batch, height, width], stored, x.requires_grad())?;
        let (forward, backward, bias) = (&packed.forward, packed.backward.as_ref(), &self.bias);
        let added = if self.adapter.is_filled() {
            let grown = x.f_upsample_nearest2d([2 * height, 2 * width], None, None)?;
            adapters::added_to_convolution(&self.adapter, &grown, 1, 1)?
        } else {
            None
        };
        let arguments = ConvolutionArguments { forward, backward, bias, residual: None, geometry: DOUBLING };
        let doubled = native::packed_convolution(x, arguments)?;
        added.map_or(Ok(doubled.shallow_clone()), |added| Ok(doubled.f_add(&added)?))
    }

    /// Weights of [`DOUBLING`], for inputs of `size`.
    fn doubling_for(&self, [batch, height, width]: Size, stored: &Stored, gradient: bool) -> Result<Packed> {
        let channels = self.config.inputs;
        let read = || self.doubled(stored);
        self.doubling.get(0, gradient, read, |plain, way| {
            let size = match way {
                Way::Forward => [batch, channels, height, width],
                Way::Backward => [batch, channels, 2 * height, 2 * width],
            };
            native::pack_convolution(plain, &size, DOUBLING, way == Way::Backward)
        })
    }

    /// The transposed convolution's weights, [inputs, outputs, 4, 4]: summed in fp32 from the stored values and rounded
    /// once, a few rows at a time.
    fn doubled(&self, stored: &Stored) -> Result<Tensor> {
        let outputs = self.config.outputs;
        let parts = (0..outputs)
            .step_by(ROWS_AT_ONCE as usize)
            .map(|first| {
                let rows = stored.rows(first, ROWS_AT_ONCE.min(outputs - first), Kind::Float)?;
                Ok(doubled_taps(&rows)?.f_to_kind(self.kind)?)
            })
            .collect::<Result<Vec<Tensor>>>()?;
        Ok(Tensor::f_cat(&parts, 0)?.f_transpose(0, 1)?)
    }
}

/// `weight`: [outputs, inputs, 3, 3] of a convolution behind a doubling; returns [outputs, inputs, 4, 4]: what pixel
/// (i, j) of the small picture adds to pixel (2 i + k - 1, 2 j + l - 1) of the large one.
fn doubled_taps(weight: &Tensor) -> Result<Tensor> {
    let along = |weight: &Tensor, side: i64| -> Result<Tensor> {
        let taps = [0, 1, 2].map(|tap| weight.f_select(side, tap));
        let [before, at, behind] = taps;
        let (before, at, behind) = (before?, at?, behind?);
        let sums = [behind.shallow_clone(), at.f_add(&behind)?, before.f_add(&at)?, before];
        Ok(Tensor::f_stack(&sums, side)?)
    };
    along(&along(weight, 2)?, 3)
}

#[cfg(test)]
#[path = "growing_tests.rs"]
mod tests;
