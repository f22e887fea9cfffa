//! The layers all three networks are built from, with frozen weights.

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

/// A convolution whose weights are stored channels-last, as its inputs are.
#[derive(Debug)]
pub struct Conv2d {
    weight: Tensor,
    bias: Tensor,
    stride: i64,
    padding: i64,
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
        Ok(Conv2d { weight, bias, stride: config.stride, padding: config.padding })
    }

    /// `x`: [batch, inputs, height, width]; returns [batch, outputs, height', width'].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (stride, padding) = ([self.stride; 2], [self.padding; 2]);
        Ok(x.f_conv2d(&self.weight, Some(&self.bias), stride, padding, [1, 1], 1)?)
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

/// Group normalisation (Wu & He 2018) with scale and shift per channel; statistics in fp32.
#[derive(Debug)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    groups: i64,
    epsilon: f64,
}

impl GroupNorm {
    /// Reads `weight` and `bias`, each [channels].
    pub fn new(scope: &Scope, config: GroupNormConfig, kind: Kind) -> Result<Self> {
        let weight = scope.tensor("weight", &[config.channels], kind)?;
        let bias = scope.tensor("bias", &[config.channels], kind)?;
        Ok(GroupNorm { weight, bias, groups: config.groups, epsilon: config.epsilon })
    }

    /// `x`: [batch, channels, ..]; returns the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_group_norm(self.groups, Some(&self.weight), Some(&self.bias), self.epsilon, false)?)
    }

    /// Normalises, then applies x · sigmoid(x).
    pub fn forward_silu(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.forward(x)?.f_silu()?)
    }
}

/// Layer normalisation over the last dimension; statistics in fp32.
#[derive(Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    width: i64,
    epsilon: f64,
}

impl LayerNorm {
    /// Reads `weight` and `bias`, each [width].
    pub fn new(scope: &Scope, width: i64, epsilon: f64, kind: Kind) -> Result<Self> {
        let weight = scope.tensor("weight", &[width], kind)?;
        let bias = scope.tensor("bias", &[width], kind)?;
        Ok(LayerNorm { weight, bias, width, epsilon })
    }

    /// `x`: [.., width]; returns the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_layer_norm([self.width], Some(&self.weight), Some(&self.bias), self.epsilon, false)?)
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
