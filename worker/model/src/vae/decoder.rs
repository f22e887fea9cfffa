//! Latents to pictures.

use tch::{Kind, Tensor};

use crate::config::VaeConfig;
use crate::error::Result;
use crate::layers::{Conv2d, Conv2dConfig, GroupNorm, GroupNormConfig};
use crate::native;
use crate::resnet::{ResnetBlock, Upsample};
use crate::vae::{EPSILON, VaeMidBlock, resnet};
use crate::weights::Scope;

#[derive(Debug)]
struct UpBlock {
    resnets: Vec<ResnetBlock>,
    upsample: Option<Upsample>,
}

/// The decoder with the convolution before it (`post_quant_conv`).
#[derive(Debug)]
pub struct VaeDecoder {
    post_quant_conv: Option<Conv2d>,
    conv_in: Conv2d,
    mid: VaeMidBlock,
    blocks: Vec<UpBlock>,
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
        let mut blocks = Vec::new();
        let mut inputs = last;
        for (index, &channels) in config.block_channels.iter().rev().enumerate() {
            let block = scope.sub("up_blocks").sub(index);
            let mut resnets = Vec::new();
            for layer in 0..=config.layers_per_block {
                let shape = resnet(config, inputs, channels);
                resnets.push(ResnetBlock::new(&block.sub("resnets").sub(layer), shape, kind)?);
                inputs = channels;
            }
            let upsample = if index + 1 < config.block_channels.len() {
                Some(Upsample::new(&block.sub("upsamplers").sub(0), channels, kind)?)
            } else {
                None
            };
            blocks.push(UpBlock { resnets, upsample });
        }
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
            norm_out: GroupNorm::new(&scope.sub("conv_norm_out"), norm_out, kind)?,
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
            for resnet in &block.resnets {
                x = resnet.forward(&x, None)?;
            }
            if let Some(upsample) = &block.upsample {
                let (_, _, height, width) = x.size4()?;
                x = upsample.forward(&x, (2 * height, 2 * width))?;
            }
        }
        let x = self.conv_out.forward(&self.norm_out.forward_silu(&x)?)?;
        Ok(x.f_to_kind(Kind::Float)?.f_contiguous()?)
    }
}
