//! Convolutions.

use tch::{Kind, Tensor};

use crate::adapters::{self, Place};
use crate::error::Result;
use crate::mapped_file::Stored;
use crate::native::{self, ConvolutionArguments, ConvolutionGeometry, PlainConvolution};
use crate::packed_weights::{Packed, PackedWeights, Way};
use crate::runtime;
use crate::trained::LayerTensor;
use crate::weights::Scope;

/// Batch, height and width: of channels a layer has its own number.
pub(crate) type Size = [i64; 3];

/// Shape of a square two-dimensional convolution with bias.
#[derive(Debug, Clone, Copy)]
pub struct Conv2dConfig {
    /// Channels in.
    pub inputs: i64,
    /// Channels out.
    pub outputs: i64,
    /// Side of the kernel.
    pub kernel: i64,
    /// Step between outputs.
    pub stride: i64,
    /// Zeros around the input.
    pub padding: i64,
}

impl Conv2dConfig {
    /// A 3x3 convolution that keeps the size.
    pub fn same_3x3(inputs: i64, outputs: i64) -> Self {
        Conv2dConfig { inputs, outputs, kernel: 3, stride: 1, padding: 1 }
    }

    /// A 1x1 convolution.
    pub fn pointwise(inputs: i64, outputs: i64) -> Self {
        Conv2dConfig { inputs, outputs, kernel: 1, stride: 1, padding: 0 }
    }

    /// Whether weights of this kind are packed: what keeps the size, or has a step of 2, has a gradient that oneDNN
    /// computes with packed weights too. Without AVX-512 BF16 oneDNN refuses bf16, and libtorch's own loops serve.
    fn packed(&self, kind: Kind) -> bool {
        let keeps_size = self.stride == 1 && self.kernel % 2 == 1 && self.padding == self.kernel / 2;
        (keeps_size || self.stride == 2) && kind == Kind::BFloat16 && runtime::has_bf16()
    }

    /// Whether kernels of our own read plain weights of this kind.
    fn has_kernels(&self, kind: Kind) -> bool {
        let Conv2dConfig { inputs, outputs, kernel, stride, padding } = *self;
        kind == Kind::Float && native::convolution_has_kernels([outputs, inputs, kernel], stride, padding)
    }

    fn geometry(&self) -> ConvolutionGeometry {
        ConvolutionGeometry { stride: self.stride, padding: self.padding, transposed: false }
    }

    /// Positions of the kernel along a side of the input.
    fn places(&self, side: i64) -> i64 {
        (side + 2 * self.padding - self.kernel) / self.stride + 1
    }
}

/// Frozen weights [outputs, inputs, kernel, kernel].
#[derive(Debug)]
enum ConvolutionWeights {
    /// As they come from their file, where kernels of our own read them so; else channels-last, as the inputs are.
    Plain(Tensor),
    /// bf16, in the order of what convolves.
    Packed { stored: Stored, packed: PackedWeights },
    /// Weights that change, or whose bias does.
    Trained { weight: LayerTensor, packed: PackedWeights, kind: Kind },
}

/// A convolution.
#[derive(Debug)]
pub struct Conv2d {
    weights: ConvolutionWeights,
    bias: LayerTensor,
    adapter: Place,
    config: Conv2dConfig,
}

impl Conv2d {
    /// Reads `weight` [outputs, inputs, kernel, kernel] and `bias` [outputs].
    pub fn new(scope: &Scope, config: Conv2dConfig, kind: Kind) -> Result<Self> {
        let shape = [config.outputs, config.inputs, config.kernel, config.kernel];
        if scope.is_trained("weight") || scope.is_trained("bias") {
            let weight = scope.layer_tensor("weight", &shape, kind)?;
            let bias = scope.layer_tensor("bias", &[config.outputs], kind)?;
            let weights = ConvolutionWeights::Trained { weight, packed: PackedWeights::default(), kind };
            return Ok(Conv2d { weights, bias, adapter: scope.site(&shape), config });
        }
        let bias = scope.tensor("bias", &[config.outputs], kind)?;
        if config.packed(kind) {
            let weight = scope.stored("weight", &shape)?;
            return Ok(Conv2d { adapter: scope.site(&shape), ..Conv2d::stored(weight, bias, config) });
        }
        let weight = if config.has_kernels(kind) {
            scope.tensor_in_place("weight", &shape, kind)?
        } else {
            scope.tensor("weight", &shape, kind)?
        };
        if scope.is_dry() {
            let (weights, adapter) = (ConvolutionWeights::Plain(weight), scope.site(&shape));
            let bias = LayerTensor::Frozen(bias);
            return Ok(Conv2d { weights, bias, adapter, config });
        }
        Ok(Conv2d { adapter: scope.site(&shape), ..Conv2d::plain(&weight, bias, config)? })
    }

    /// Weights [outputs, inputs, kernel, kernel] that are not packed.
    pub(crate) fn plain(weight: &Tensor, bias: Tensor, config: Conv2dConfig) -> Result<Self> {
        let weight = if config.has_kernels(weight.kind()) {
            weight.f_contiguous()?
        } else {
            native::channels_last(weight)?
        };
        let (weights, adapter) = (ConvolutionWeights::Plain(weight), Place::default());
        Ok(Conv2d { weights, bias: LayerTensor::Frozen(bias), adapter, config })
    }

    /// Weights that are read, and packed, when they are first used; in bf16.
    pub(crate) fn stored(weight: Stored, bias: Tensor, config: Conv2dConfig) -> Self {
        let weights = ConvolutionWeights::Packed { stored: weight, packed: PackedWeights::default() };
        Conv2d { weights, bias: LayerTensor::Frozen(bias), adapter: Place::default(), config }
    }

    /// Where its adapter is.
    pub(crate) fn adapter(&self) -> &Place {
        &self.adapter
    }

    /// With another place for its adapter.
    pub(crate) fn with_adapter(self, adapter: Place) -> Self {
        Conv2d { adapter, ..self }
    }

    /// `x`: [batch, inputs, height, width]; returns [batch, outputs, height', width'].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }

    /// `forward(x)` + `residual`, which has the result's shape; in bf16 rounded once.
    pub fn forward_added(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.run(x, Some(residual))
    }

    fn run(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let Conv2dConfig { stride, padding, .. } = self.config;
        match (adapters::added_to_convolution(&self.adapter, x, stride, padding)?, residual) {
            (None, residual) => self.run_frozen(x, residual),
            (Some(added), None) => self.run_frozen(x, Some(&added)),
            (Some(added), Some(residual)) => self.run_frozen(x, Some(&added.f_add(residual)?)),
        }
    }

    fn run_frozen(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        match &self.weights {
            ConvolutionWeights::Plain(weight) => {
                let (bias, Conv2dConfig { stride, padding, .. }) = (self.bias.plain(), self.config);
                native::convolution(x, PlainConvolution { weight, bias, residual, stride, padding })
            }
            ConvolutionWeights::Packed { stored, packed } => {
                let packed =
                    self.packed(|| stored.tensor(Kind::BFloat16), 0, packed, size_of(x)?, x.requires_grad())?;
                self.convolve_packed(x, &packed, self.bias.plain(), residual)
            }
            ConvolutionWeights::Trained { weight, packed, kind } => {
                let (bias, Conv2dConfig { kernel: side, stride, padding, .. }) =
                    (self.bias.value(*kind)?, self.config);
                let result = if self.config.packed(*kind) {
                    let (read, version) = (|| weight.value(*kind), weight.version());
                    let packed = self.packed(read, version, packed, size_of(x)?, x.requires_grad())?;
                    self.convolve_packed(x, &packed, &bias, residual)?
                } else {
                    let (weight, bias) = (&weight.value(*kind)?, &bias);
                    native::convolution(x, PlainConvolution { weight, bias, residual, stride, padding })?
                };
                let (weights, bias) = (vec![weight.end()], self.bias.end());
                let trained = native::Trained { weights, bias, side, stride, padding };
                native::with_weight_gradient(&result, x, &trained)
            }
        }
    }

    fn convolve_packed(
        &self,
        x: &Tensor,
        packed: &Packed,
        bias: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (forward, backward, geometry) =
            (&packed.forward, packed.backward.as_ref(), self.config.geometry());
        native::packed_convolution(x, ConvolutionArguments { forward, backward, bias, residual, geometry })
    }

    /// Packs the weights as [`Conv2d::forward`] does for inputs of `size`, with a `gradient` or without. Returns the result's
    /// size.
    pub(crate) fn lay_out(&self, size: Size, gradient: bool) -> Result<Size> {
        if let ConvolutionWeights::Packed { stored, packed } = &self.weights {
            self.packed(|| stored.tensor(Kind::BFloat16), 0, packed, size, gradient)?;
        }
        let [batch, height, width] = size;
        Ok([batch, self.config.places(height), self.config.places(width)])
    }

    /// For inputs of `size`, and for the gradients of what becomes of them.
    fn packed(
        &self,
        read: impl FnOnce() -> Result<Tensor>,
        version: u64,
        packed: &PackedWeights,
        [batch, height, width]: Size,
        gradient: bool,
    ) -> Result<Packed> {
        let Conv2dConfig { inputs, outputs, .. } = self.config;
        packed.get(version, gradient, read, |plain, way| {
            let size = match way {
                Way::Forward => [batch, inputs, height, width],
                Way::Backward => [batch, outputs, self.config.places(height), self.config.places(width)],
            };
            native::pack_convolution(plain, &size, self.config.geometry(), way == Way::Backward)
        })
    }
}

fn size_of(x: &Tensor) -> Result<Size> {
    let (batch, _, height, width) = x.size4()?;
    Ok([batch, height, width])
}

#[cfg(test)]
#[path = "convolution_tests.rs"]
mod tests;
