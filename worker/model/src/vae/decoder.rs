//! Latents to pictures.

use tch::{Kind, Tensor};

use crate::config::VaeConfig;
use crate::convolution::{Conv2d, Conv2dConfig};
use crate::error::Result;
use crate::layers::{GroupNorm, GroupNormConfig};
use crate::native;
use crate::resnet::{ResnetBlock, Upsample};
use crate::vae::{EPSILON, VaeMidBlock, resnet};
use crate::weights::Scope;

/// One depth of the decoder: residual blocks, then (but for the last) twice the sides.
/// Source: diffusers UpDecoderBlock2D.
#[derive(Debug)]
pub struct VaeUpBlock {
    resnets: Vec<ResnetBlock>,
    upsample: Option<Upsample>,
}

impl VaeUpBlock {
    /// Reads `resnets.N`, `upsamplers.0` of up block `index` (0 is the latents' resolution).
    pub fn new(scope: &Scope, config: &VaeConfig, index: usize, kind: Kind) -> Result<Self> {
        let depth = config.block_channels.len() - 1 - index;
        let channels = config.block_channels[depth];
        let mut inputs = config.block_channels[(depth + 1).min(config.block_channels.len() - 1)];
        let mut resnets = Vec::new();
        for layer in 0..=config.layers_per_block {
            let shape = resnet(config, inputs, channels);
            resnets.push(ResnetBlock::new(&scope.sub("resnets").sub(layer), shape, kind)?);
            inputs = channels;
        }
        let upsample = if depth > 0 {
            Some(Upsample::new(&scope.sub("upsamplers").sub(0), channels, kind)?)
        } else {
            None
        };
        Ok(VaeUpBlock { resnets, upsample })
    }

    /// `x`: [batch, inputs, height, width]; returns [batch, channels, height', width'].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.shallow_clone();
        for resnet in &self.resnets {
            x = resnet.forward(&x, None)?;
        }
        match &self.upsample {
            Some(upsample) => {
                let (_, _, height, width) = x.size4()?;
                upsample.forward(&x, (2 * height, 2 * width))
            }
            None => Ok(x),
        }
    }
}

/// The decoder with the convolution before it (`post_quant_conv`).
#[derive(Debug)]
pub struct VaeDecoder {
    post_quant_conv: Option<Conv2d>,
    conv_in: Conv2d,
    mid: VaeMidBlock,
    blocks: Vec<VaeUpBlock>,
    norm_out: GroupNorm,
    conv_out: Conv2d,
    kind: Kind,
}

impl VaeDecoder {
    /// Reads `decoder` and `post_quant_conv`; `scope` is the VAE's root.
    pub fn new(root: &Scope, config: &VaeConfig, kind: Kind) -> Result<Self> {
        let scope = root.sub("decoder");
        let (first, last) =
            (config.block_channels[0], config.block_channels[config.block_channels.len() - 1]);
        let latent = config.latent_channels;
        let blocks = (0..config.block_channels.len())
            .map(|index| VaeUpBlock::new(&scope.sub("up_blocks").sub(index), config, index, kind))
            .collect::<Result<_>>()?;
        let norm_out = GroupNormConfig { groups: config.norm_groups, channels: first, epsilon: EPSILON };
        let post_quant_conv = if config.post_quant_conv {
            Some(Conv2d::new(&root.sub("post_quant_conv"), Conv2dConfig::pointwise(latent, latent), kind)?)
        } else {
            None
        };
        let picture = Conv2dConfig::same_3x3(first, config.picture_channels);
        Ok(VaeDecoder {
            post_quant_conv,
            conv_in: Conv2d::new(&scope.sub("conv_in"), Conv2dConfig::same_3x3(latent, last), kind)?,
            mid: VaeMidBlock::new(&scope.sub("mid_block"), config, last, kind)?,
            blocks,
            norm_out: GroupNorm::new(&scope.sub("conv_norm_out"), norm_out)?,
            conv_out: Conv2d::new(&scope.sub("conv_out"), picture, kind)?,
            kind,
        })
    }

    /// `latents`: [batch, latent channels, height, width], unscaled (divided by the scaling factor);
    /// returns pictures [batch, 3, height * factor, width * factor], fp32, values about [-1, 1].
    /// Source: diffusers AutoencoderKL.decode.
    pub fn forward(&self, latents: &Tensor) -> Result<Tensor> {
        let mut x = native::channels_last(&latents.f_to_kind(self.kind)?)?;
        if let Some(post_quant_conv) = &self.post_quant_conv {
            x = post_quant_conv.forward(&x)?;
        }
        x = self.mid.forward(&self.conv_in.forward(&x)?)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        let x = self.conv_out.forward(&self.norm_out.forward_silu(&x)?)?;
        Ok(x.f_to_kind(Kind::Float)?.f_contiguous()?)
    }
}
