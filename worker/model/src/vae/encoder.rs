//! Pictures to posterior moments.

use tch::{Kind, Tensor};

use crate::config::VaeConfig;
use crate::convolution::{Conv2d, Conv2dConfig};
use crate::error::Result;
use crate::layers::{GroupNorm, GroupNormConfig};
use crate::native;
use crate::resnet::{Downsample, ResnetBlock};
use crate::vae::{EPSILON, VaeMidBlock, resnet};
use crate::weights::Scope;

/// One depth of the encoder: residual blocks, then (but for the last depth) half the sides.
/// Source: diffusers DownEncoderBlock2D.
#[derive(Debug)]
pub struct VaeDownBlock {
    resnets: Vec<ResnetBlock>,
    downsample: Option<Downsample>,
}

impl VaeDownBlock {
    /// Reads `resnets.N`, `downsamplers.0` of down block `index` (0 is the picture's resolution).
    pub fn new(scope: &Scope, config: &VaeConfig, index: usize, kind: Kind) -> Result<Self> {
        let channels = config.block_channels[index];
        let mut inputs = config.block_channels[index.saturating_sub(1)];
        let mut resnets = Vec::new();
        for layer in 0..config.layers_per_block {
            let shape = resnet(config, inputs, channels);
            resnets.push(ResnetBlock::new(&scope.sub("resnets").sub(layer), shape, kind)?);
            inputs = channels;
        }
        let downsample = if index + 1 < config.block_channels.len() {
            Some(Downsample::new(&scope.sub("downsamplers").sub(0), channels, 0, kind)?)
        } else {
            None
        };
        Ok(VaeDownBlock { resnets, downsample })
    }

    /// `x`: [batch, inputs, height, width]; returns [batch, channels, height', width'].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.shallow_clone();
        for resnet in &self.resnets {
            x = resnet.forward(&x, None)?;
        }
        match &self.downsample {
            Some(downsample) => downsample.forward(&x),
            None => Ok(x),
        }
    }
}

/// The encoder with the convolution behind it (`quant_conv`).
#[derive(Debug)]
pub struct VaeEncoder {
    conv_in: Conv2d,
    blocks: Vec<VaeDownBlock>,
    mid: VaeMidBlock,
    norm_out: GroupNorm,
    conv_out: Conv2d,
    quant_conv: Option<Conv2d>,
    kind: Kind,
}

impl VaeEncoder {
    /// Reads `encoder` and `quant_conv`; `scope` is the VAE's root.
    pub fn new(root: &Scope, config: &VaeConfig, kind: Kind) -> Result<Self> {
        let scope = root.sub("encoder");
        let (first, last) =
            (config.block_channels[0], config.block_channels[config.block_channels.len() - 1]);
        let moments = 2 * config.latent_channels;
        let blocks = (0..config.block_channels.len())
            .map(|index| VaeDownBlock::new(&scope.sub("down_blocks").sub(index), config, index, kind))
            .collect::<Result<_>>()?;
        let norm_out = GroupNormConfig { groups: config.norm_groups, channels: last, epsilon: EPSILON };
        let quant_conv = if config.quant_conv {
            Some(Conv2d::new(&root.sub("quant_conv"), Conv2dConfig::pointwise(moments, moments), kind)?)
        } else {
            None
        };
        let picture = Conv2dConfig::same_3x3(config.picture_channels, first);
        Ok(VaeEncoder {
            conv_in: Conv2d::new(&scope.sub("conv_in"), picture, kind)?,
            blocks,
            mid: VaeMidBlock::new(&scope.sub("mid_block"), config, last, kind)?,
            norm_out: GroupNorm::new(&scope.sub("conv_norm_out"), norm_out)?,
            conv_out: Conv2d::new(&scope.sub("conv_out"), Conv2dConfig::same_3x3(last, moments), kind)?,
            quant_conv,
            kind,
        })
    }

    /// Posterior moments of an image batch.
    ///
    /// `pixels`: [batch, 3, height, width], values in [-1, 1]; height and width multiples of the VAE's factor.
    /// Returns mean and log-variance (clamped to [-30, 20]), each [batch, latent channels, height / factor,
    /// width / factor], fp32, unscaled.
    /// Source: Rombach et al. 2022, section 3.1; diffusers AutoencoderKL.encode.
    pub fn forward(&self, pixels: &Tensor) -> Result<(Tensor, Tensor)> {
        // 1. Down.
        let mut x = self.conv_in.forward(&native::channels_last(&pixels.f_to_kind(self.kind)?)?)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        // 2. Middle and out: [batch, 2 * latent channels, height / factor, width / factor].
        let x = self.norm_out.forward_silu(&self.mid.forward(&x)?)?;
        let mut moments = self.conv_out.forward(&x)?;
        if let Some(quant_conv) = &self.quant_conv {
            moments = quant_conv.forward(&moments)?;
        }
        // 3. Mean and log-variance.
        let halves = moments.f_to_kind(Kind::Float)?.f_chunk(2, 1)?;
        Ok((halves[0].f_contiguous()?, halves[1].f_clamp(-30.0, 20.0)?.f_contiguous()?))
    }
}
