//! Convolutions with frozen weights.

use std::cell::RefCell;

use tch::{Kind, Tensor};

use crate::error::Result;
use crate::native::{self, ConvolutionArguments, ConvolutionGeometry};
use crate::runtime;
use crate::weights::Scope;

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

    /// Whether its weights can be packed: what keeps the size, or has a step of 2, has a gradient that oneDNN computes
    /// with packed weights too.
    fn packable(&self) -> bool {
        let keeps_size = self.stride == 1 && self.kernel % 2 == 1 && self.padding == self.kernel / 2;
        keeps_size || self.stride == 2
    }

    fn geometry(&self) -> ConvolutionGeometry {
        ConvolutionGeometry { stride: self.stride, padding: self.padding, transposed: false }
    }

    /// How many places the kernel has along a side of the input.
    fn places(&self, side: i64) -> i64 {
        (side + 2 * self.padding - self.kernel) / self.stride + 1
    }
}

/// Frozen weights [outputs, inputs, kernel, kernel], in the order that is fastest for what they are used for.
#[derive(Debug)]
enum ConvolutionWeights {
    /// Channels-last, as the inputs are.
    ChannelsLast(Tensor),
    /// In oneDNN's order, for the way forward and, once a gradient was taken, for its way back.
    Packed { forward: Tensor, backward: Option<Tensor> },
}

/// A convolution with frozen weights.
#[derive(Debug)]
pub struct Conv2d {
    weights: RefCell<ConvolutionWeights>,
    bias: Tensor,
    config: Conv2dConfig,
    packed: bool,
}

impl Conv2d {
    /// Reads `weight` [outputs, inputs, kernel, kernel] and `bias` [outputs].
    pub fn new(scope: &Scope, config: Conv2dConfig, kind: Kind) -> Result<Self> {
        let shape = [config.outputs, config.inputs, config.kernel, config.kernel];
        let mut weight = scope.tensor("weight", &shape, kind)?;
        if !scope.is_dry() {
            weight = native::channels_last(&weight)?;
        }
        let bias = scope.tensor("bias", &[config.outputs], kind)?;
        Ok(Conv2d::of(weight, bias, config))
    }

    /// Weights in channels-last order, of the kind that it computes in.
    pub(crate) fn of(weight: Tensor, bias: Tensor, config: Conv2dConfig) -> Self {
        // Without AVX-512 BF16 oneDNN refuses bf16, and libtorch's own loops serve.
        let packed =
            config.packable() && bias.defined() && bias.kind() == Kind::BFloat16 && runtime::has_bf16();
        Conv2d { weights: RefCell::new(ConvolutionWeights::ChannelsLast(weight)), bias, config, packed }
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
        if self.packed {
            self.pack(x)?;
        }
        match &*self.weights.borrow() {
            ConvolutionWeights::ChannelsLast(weight) => {
                let (stride, padding) = ([self.config.stride; 2], [self.config.padding; 2]);
                let y = x.f_conv2d(weight, Some(&self.bias), stride, padding, [1, 1], 1)?;
                if let Some(residual) = residual { Ok(y.f_add(residual)?) } else { Ok(y) }
            }
            ConvolutionWeights::Packed { forward, backward } => {
                let (geometry, bias) = (self.config.geometry(), &self.bias);
                let backward = backward.as_ref();
                let arguments = ConvolutionArguments { forward, backward, bias, residual, geometry };
                native::packed_convolution(x, arguments)
            }
        }
    }

    /// Packs what `x` needs and what is not packed yet; the plain weights are freed.
    ///
    /// No bit depends on it: oneDNN chooses how it computes by the sizes alone, and puts weights that were packed for
    /// other sizes in order first. That costs time, so the first gradient packs the way forward anew: how fast
    /// training is does not depend on what was drawn before.
    fn pack(&self, x: &Tensor) -> Result<()> {
        let wanted = x.requires_grad();
        let plain = match &*self.weights.borrow() {
            ConvolutionWeights::ChannelsLast(weight) => weight.shallow_clone(),
            ConvolutionWeights::Packed { forward, backward: None } if wanted => forward.shallow_clone(),
            ConvolutionWeights::Packed { .. } => return Ok(()),
        };
        let (batch, _, height, width) = x.size4()?;
        let (outputs, geometry) = (self.config.outputs, self.config.geometry());
        let output_size = [batch, outputs, self.config.places(height), self.config.places(width)];
        let forward = native::pack_convolution(&plain, &x.size(), geometry, false)?;
        let backward =
            wanted.then(|| native::pack_convolution(&plain, &output_size, geometry, true)).transpose()?;
        self.weights.replace(ConvolutionWeights::Packed { forward, backward });
        Ok(())
    }
}

#[cfg(test)]
#[path = "convolution_tests.rs"]
mod tests;
