//! The residual block of the UNet and the VAE, and their changes of resolution.

use tch::{Kind, Tensor};

use crate::convolution::{Conv2d, Conv2dConfig, Size};
use crate::error::{Error, Result};
use crate::growing::GrowingConv2d;
use crate::layers::{GroupNorm, GroupNormConfig, repeated};
use crate::time_projections::{TimeProjectionLoader, TimeSlice};
use crate::weights::Scope;

/// Shape of a residual block.
#[derive(Debug, Clone, Copy)]
pub struct ResnetConfig {
    /// Channels in.
    pub inputs: i64,
    /// Channels out; where they differ from `inputs` the skip path has a 1x1 convolution.
    pub outputs: i64,
    /// Groups of both normalisations.
    pub groups: i64,
    /// Epsilon of both normalisations.
    pub epsilon: f64,
    /// Divisor of the sum (`output_scale_factor`).
    pub output_scale: f64,
}

/// norm, SiLU, convolution, + time, norm, SiLU, convolution, + input.
/// Source: diffusers ResnetBlock2D with `time_embedding_norm="default"`.
#[derive(Debug)]
pub struct ResnetBlock {
    norm1: GroupNorm,
    conv1: Conv2d,
    time: Option<TimeSlice>,
    norm2: GroupNorm,
    conv2: Conv2d,
    shortcut: Option<Conv2d>,
    output_scale: f64,
}

impl ResnetBlock {
    /// A block without a time embedding: reads `norm1`, `conv1`, `norm2`, `conv2`, `conv_shortcut`.
    pub fn new(scope: &Scope, config: ResnetConfig, kind: Kind) -> Result<Self> {
        let ResnetConfig { inputs, outputs, groups, epsilon, .. } = config;
        let norm =
            |name, channels| GroupNorm::new(&scope.sub(name), GroupNormConfig { groups, channels, epsilon });
        let shortcut = if inputs == outputs {
            None
        } else {
            Some(Conv2d::new(&scope.sub("conv_shortcut"), Conv2dConfig::pointwise(inputs, outputs), kind)?)
        };
        Ok(ResnetBlock {
            norm1: norm("norm1", inputs)?,
            conv1: Conv2d::new(&scope.sub("conv1"), Conv2dConfig::same_3x3(inputs, outputs), kind)?,
            time: None,
            norm2: norm("norm2", outputs)?,
            conv2: Conv2d::new(&scope.sub("conv2"), Conv2dConfig::same_3x3(outputs, outputs), kind)?,
            shortcut,
            output_scale: config.output_scale,
        })
    }

    /// A block with a time embedding: reads `time_emb_proj` too.
    pub fn with_time(
        scope: &Scope,
        config: ResnetConfig,
        kind: Kind,
        times: &mut TimeProjectionLoader,
    ) -> Result<Self> {
        let time = times.add(&scope.sub("time_emb_proj"), config.outputs)?;
        Ok(ResnetBlock { time: Some(time), ..ResnetBlock::new(scope, config, kind)? })
    }

    /// `x`: [batch, inputs, height, width]; `times`: what
    /// [`TimeProjections::forward`](crate::time_projections::TimeProjections::forward) returns, if the block has a time
    /// embedding, of as many samples or of a part of them that comes again and again.
    pub fn forward(&self, x: &Tensor, times: Option<&Tensor>) -> Result<Tensor> {
        let [normal, x] = self.norm1.forward_silu_keeping(x)?;
        let hidden = self.conv1.forward(&normal)?;
        drop(normal);
        self.end(&hidden, &x, times)
    }

    /// [`ResnetBlock::forward`] of the channels of `x` and then those of `skip`, [batch, .., height, width] both.
    pub fn forward_of_two(&self, x: &Tensor, skip: &Tensor, times: Option<&Tensor>) -> Result<Tensor> {
        let [normal, x, skip] = self.norm1.forward_silu_of_two(x, skip)?;
        let hidden = self.conv1.forward(&normal)?;
        drop(normal);
        // Put together for the shortcut alone, and then forgotten: as the sum of two products it would be rounded twice.
        self.end(&hidden, &Tensor::f_cat(&[&x, &skip], 1)?, times)
    }

    /// Packs the weights as [`ResnetBlock::forward`] does for inputs of `size`, with a `gradient` or without. Returns the
    /// result's size.
    pub(crate) fn lay_out(&self, size: Size, gradient: bool) -> Result<Size> {
        let hidden = self.conv1.lay_out(size, gradient)?;
        if let Some(shortcut) = &self.shortcut {
            shortcut.lay_out(size, gradient)?;
        }
        self.conv2.lay_out(hidden, gradient)
    }

    /// Everything after the first convolution of the input `x`.
    fn end(&self, hidden: &Tensor, x: &Tensor, times: Option<&Tensor>) -> Result<Tensor> {
        let hidden = match (self.time, times) {
            (Some(slice), Some(times)) => {
                let time = repeated(&slice.of(times)?, hidden.size4()?.0)?;
                if time.requires_grad() {
                    // An adapter of the projection is trained.
                    let time = time.f_to_kind(hidden.kind())?.f_unsqueeze(-1)?.f_unsqueeze(-1)?;
                    self.norm2.forward_silu(&hidden.f_add(&time)?)?
                } else {
                    self.norm2.forward_added_silu(hidden, &time)?
                }
            }
            (None, None) => self.norm2.forward_silu(hidden)?,
            (Some(_), None) => return Err(Error::argument("times", "none", "those of the block")),
            (None, Some(_)) => return Err(Error::argument("times", "some", "none for this block")),
        };
        let sum = match &self.shortcut {
            Some(shortcut) => self.conv2.forward_added(&hidden, &shortcut.forward(x)?)?,
            None => self.conv2.forward_added(&hidden, x)?,
        };
        if self.output_scale == 1.0 { Ok(sum) } else { Ok(sum.f_div_scalar(self.output_scale)?) }
    }
}

/// Halves both sides with a 3x3 convolution of stride 2.
#[derive(Debug)]
pub struct Downsample {
    conv: Conv2d,
    /// Whether the zeros go only right and below (diffusers' `padding=0`, always so in the VAE).
    uneven: bool,
}

impl Downsample {
    /// Reads `conv`. `padding`: 1 (even) or 0 (zeros only right and below).
    pub fn new(scope: &Scope, channels: i64, padding: i64, kind: Kind) -> Result<Self> {
        let config = Conv2dConfig { stride: 2, padding, ..Conv2dConfig::same_3x3(channels, channels) };
        Ok(Downsample { conv: Conv2d::new(&scope.sub("conv"), config, kind)?, uneven: padding == 0 })
    }

    /// `x`: [batch, channels, height, width]; returns about half the sides.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if self.uneven {
            return self.conv.forward(&x.f_constant_pad_nd([0, 1, 0, 1])?);
        }
        self.conv.forward(x)
    }

    /// Packs the weights as [`Downsample::forward`] does. Returns the result's size.
    pub(crate) fn lay_out(&self, [batch, height, width]: Size, gradient: bool) -> Result<Size> {
        let added = i64::from(self.uneven);
        self.conv.lay_out([batch, height + added, width + added], gradient)
    }
}

/// Grows to a given size (nearest neighbour), then a 3x3 convolution.
#[derive(Debug)]
pub struct Upsample {
    conv: GrowingConv2d,
}

impl Upsample {
    /// Reads `conv`.
    pub fn new(scope: &Scope, channels: i64, kind: Kind) -> Result<Self> {
        Ok(Upsample { conv: GrowingConv2d::new(&scope.sub("conv"), channels, kind)? })
    }

    /// `x`: [batch, channels, height, width]; `size`: (height', width').
    pub fn forward(&self, x: &Tensor, size: (i64, i64)) -> Result<Tensor> {
        self.conv.forward(x, size)
    }

    /// Packs the weights as [`Upsample::forward`] does. Returns the result's size.
    pub(crate) fn lay_out(&self, from: Size, size: (i64, i64), gradient: bool) -> Result<Size> {
        self.conv.lay_out(from, size, gradient)
    }
}
