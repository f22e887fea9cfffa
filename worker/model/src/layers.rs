//! The layers all three networks are built from, with frozen weights.

use std::cell::RefCell;

use tch::{Kind, Tensor};

use crate::error::Result;
use crate::native;
use crate::weights::Scope;

/// Shape of a fully connected layer.
#[derive(Debug, Clone, Copy)]
pub struct LinearConfig {
    /// Features in.
    pub inputs: i64,
    /// Features out.
    pub outputs: i64,
    /// Whether there is a bias vector.
    pub bias: bool,
}

/// y = x Wᵀ + b over the last dimension.
#[derive(Debug)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// Reads `weight` [outputs, inputs] and `bias` [outputs].
    pub fn new(scope: &Scope, config: LinearConfig, kind: Kind) -> Result<Self> {
        let weight = scope.tensor("weight", &[config.outputs, config.inputs], kind)?;
        let bias = if config.bias { Some(scope.tensor("bias", &[config.outputs], kind)?) } else { None };
        Ok(Linear { weight, bias })
    }

    /// Reads a 1x1 convolution's `weight` [outputs, inputs, 1, 1] and `bias`, which is the same thing on
    /// channels-last data.
    pub fn from_1x1_convolution(scope: &Scope, config: LinearConfig, kind: Kind) -> Result<Self> {
        let mut weight = scope.tensor("weight", &[config.outputs, config.inputs, 1, 1], kind)?;
        if !scope.is_dry() {
            weight = weight.f_view([config.outputs, config.inputs])?;
        }
        let bias = if config.bias { Some(scope.tensor("bias", &[config.outputs], kind)?) } else { None };
        Ok(Linear { weight, bias })
    }

    /// `x`: [.., inputs]; returns [.., outputs].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_linear(&self.weight, self.bias.as_ref())?)
    }

    /// `forward(x)` + `residual` ([.., outputs]), rounded once.
    pub fn forward_added(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        native::linear_add(x, &self.weight, self.bias.as_ref(), residual)
    }
}

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
}

/// Frozen weights [outputs, inputs, kernel, kernel], in the order that is fastest for what they are used for.
#[derive(Debug)]
enum ConvolutionWeights {
    /// Channels-last, as the inputs are.
    ChannelsLast(Tensor),
    /// In oneDNN's order, for the way forward and for the gradient's way back.
    Packed { forward: Tensor, backward: Tensor },
}

/// A convolution with frozen weights.
#[derive(Debug)]
pub struct Conv2d {
    weights: RefCell<ConvolutionWeights>,
    bias: Tensor,
    stride: i64,
    padding: i64,
    /// Whether the weights can be packed: only a convolution that keeps the size is its own gradient's shape.
    packable: bool,
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
        let keeps_size = config.stride == 1 && config.kernel % 2 == 1 && config.padding == config.kernel / 2;
        Ok(Conv2d {
            weights: RefCell::new(ConvolutionWeights::ChannelsLast(weight)),
            bias,
            stride: config.stride,
            padding: config.padding,
            packable: keeps_size && kind == Kind::BFloat16,
        })
    }

    /// `x`: [batch, inputs, height, width]; returns [batch, outputs, height', width'].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if self.packable && x.requires_grad() {
            self.pack(&x.size())?;
        }
        match &*self.weights.borrow() {
            ConvolutionWeights::ChannelsLast(weight) => {
                let (stride, padding) = ([self.stride; 2], [self.padding; 2]);
                Ok(x.f_conv2d(weight, Some(&self.bias), stride, padding, [1, 1], 1)?)
            }
            ConvolutionWeights::Packed { forward, backward } => {
                native::packed_convolution(x, forward, backward, &self.bias)
            }
        }
    }

    /// `forward(x)` + `residual`, which has the result's shape; in training rounded once.
    pub fn forward_added(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        if self.packable && x.requires_grad() {
            self.pack(&x.size())?;
        }
        if let ConvolutionWeights::Packed { forward, backward } = &*self.weights.borrow() {
            return native::packed_convolution_add(x, forward, backward, &self.bias, residual);
        }
        Ok(self.forward(x)?.f_add(residual)?)
    }

    /// Packs the weights at the first training step. What is packed for one size is right for every size and
    /// takes the place of the plain weights. A gradient always goes through packed weights, so that its bits
    /// do not depend on what a loaded model did before.
    fn pack(&self, input_size: &[i64]) -> Result<()> {
        let packed = match (&*self.weights.borrow(), input_size) {
            (ConvolutionWeights::ChannelsLast(weight), [batch, _, height, width]) => {
                let output_size = [*batch, weight.size4()?.0, *height, *width];
                ConvolutionWeights::Packed {
                    forward: native::pack_convolution(weight, input_size, false)?,
                    backward: native::pack_convolution(weight, &output_size, true)?,
                }
            }
            _ => return Ok(()),
        };
        self.weights.replace(packed);
        Ok(())
    }
}

/// Shape of a group normalisation.
#[derive(Debug, Clone, Copy)]
pub struct GroupNormConfig {
    /// Groups that share a mean and a variance.
    pub groups: i64,
    /// Channels; a multiple of `groups`.
    pub channels: i64,
    /// Added to the variance.
    pub epsilon: f64,
}

/// Group normalisation (Wu & He 2018) with scale and shift per channel. Statistics, scale and shift are fp32
/// whatever the input is: scales are near 1, where bf16 has steps of 1/128, and each error touches a whole channel.
#[derive(Debug)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    groups: i64,
    epsilon: f64,
}

impl GroupNorm {
    /// Reads `weight` and `bias`, each [channels].
    pub fn new(scope: &Scope, config: GroupNormConfig) -> Result<Self> {
        let weight = scope.tensor("weight", &[config.channels], Kind::Float)?;
        let bias = scope.tensor("bias", &[config.channels], Kind::Float)?;
        Ok(GroupNorm { weight, bias, groups: config.groups, epsilon: config.epsilon })
    }

    /// `x`: [batch, channels, height, width]; returns the same shape, channels-last.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        native::group_norm(x, None, self.arguments(false))
    }

    /// Normalises, then applies x · sigmoid(x).
    pub fn forward_silu(&self, x: &Tensor) -> Result<Tensor> {
        native::group_norm(x, None, self.arguments(true))
    }

    /// Adds `added` ([batch, channels], which gets no gradient) to every position, normalises, then applies
    /// x · sigmoid(x).
    pub fn forward_added_silu(&self, x: &Tensor, added: &Tensor) -> Result<Tensor> {
        native::group_norm(x, Some(added), self.arguments(true))
    }

    /// [`GroupNorm::forward`], and `x` to go on with: both its gradients are then added up in one sweep.
    pub fn forward_keeping(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        native::group_norm_keeping(x, None, self.arguments(false))
    }

    /// [`GroupNorm::forward_silu`], and `x` to go on with.
    pub fn forward_silu_keeping(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        native::group_norm_keeping(x, None, self.arguments(true))
    }

    /// [`GroupNorm::forward_silu`] of the channels of `x` and then those of `skip`, which are never put together
    /// otherwise; and both to go on with.
    pub fn forward_silu_of_two(&self, x: &Tensor, skip: &Tensor) -> Result<[Tensor; 3]> {
        native::group_norm_of_two(x, skip, self.arguments(true))
    }

    fn arguments(&self, silu: bool) -> native::GroupNormArguments<'_> {
        let GroupNorm { weight, bias, groups, epsilon } = self;
        native::GroupNormArguments { weight, bias, groups: *groups, epsilon: *epsilon, silu }
    }
}

/// Layer normalisation over the last dimension; statistics, scale and shift in fp32, as in [`GroupNorm`].
#[derive(Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    epsilon: f64,
}

impl LayerNorm {
    /// Reads `weight` and `bias`, each [width].
    pub fn new(scope: &Scope, width: i64, epsilon: f64) -> Result<Self> {
        let weight = scope.tensor("weight", &[width], Kind::Float)?;
        let bias = scope.tensor("bias", &[width], Kind::Float)?;
        Ok(LayerNorm { weight, bias, epsilon })
    }

    /// `x`: [.., width]; returns the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [result, _] = self.forward_keeping(x)?;
        Ok(result)
    }

    /// [`LayerNorm::forward`], and `x` to go on with: both its gradients are then added up in one sweep.
    pub fn forward_keeping(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        native::layer_norm(x, &self.weight, &self.bias, self.epsilon)
    }
}

/// [batch, channels, height, width] as [batch, height · width, channels]: a view of channels-last data.
pub fn to_tokens(x: &Tensor) -> Result<Tensor> {
    let (batch, channels, height, width) = x.size4()?;
    Ok(x.f_permute([0, 2, 3, 1])?.f_reshape([batch, height * width, channels])?)
}

/// The inverse of [`to_tokens`]; the result is channels-last.
pub fn from_tokens(x: &Tensor, height: i64, width: i64) -> Result<Tensor> {
    let (batch, _, channels) = x.size3()?;
    Ok(x.f_reshape([batch, height, width, channels])?.f_permute([0, 3, 1, 2])?)
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
