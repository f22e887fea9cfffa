//! vae/config.json (diffusers AutoencoderKL).

use serde_json::json;

use crate::config::Keys;
use crate::error::Result;

/// An AutoencoderKL.
#[derive(Debug, Clone, PartialEq)]
pub struct VaeConfig {
    /// Channels of a picture.
    pub picture_channels: i64,
    /// Channels of a latent.
    pub latent_channels: i64,
    /// Channels at each depth, from the picture's resolution down; each depth but the last halves the sides.
    pub block_channels: Vec<i64>,
    /// Residual blocks at each depth of the encoder (the decoder has one more).
    pub layers_per_block: i64,
    /// Groups of every normalisation.
    pub norm_groups: i64,
    /// Whether the middle has an attention layer.
    pub mid_attention: bool,
    /// Whether a 1x1 convolution follows the encoder.
    pub quant_conv: bool,
    /// Whether a 1x1 convolution precedes the decoder.
    pub post_quant_conv: bool,
    /// A latent is a posterior sample times this.
    pub scaling_factor: f64,
}

impl VaeConfig {
    /// Reads the keys; absent ones take diffusers' defaults.
    pub fn from_keys(keys: &Keys) -> Result<Self> {
        let block_channels = keys.counts("block_out_channels", &[64])?;
        for (key, kind) in
            [("down_block_types", "DownEncoderBlock2D"), ("up_block_types", "UpDecoderBlock2D")]
        {
            let blocks = keys.words(key, &[kind], &[kind])?;
            if blocks.len() != block_channels.len() {
                return Err(keys.invalid(
                    key,
                    format!("{} times {kind}, as block_out_channels has", block_channels.len()),
                ));
            }
        }
        keys.word("act_fn", "silu", &["silu", "swish"])?;
        keys.only("shift_factor", &[json!(0)])?;
        keys.only("latents_mean", &[])?;
        keys.only("latents_std", &[])?;
        keys.only("in_channels", &[json!(3)])?;
        keys.only("out_channels", &[json!(3)])?;
        let config = VaeConfig {
            picture_channels: 3,
            latent_channels: keys.count("latent_channels", Some(4))?,
            layers_per_block: keys.count("layers_per_block", Some(1))?,
            norm_groups: keys.count("norm_num_groups", Some(32))?,
            mid_attention: keys.flag("mid_block_add_attention", true)?,
            quant_conv: keys.flag("use_quant_conv", true)?,
            post_quant_conv: keys.flag("use_post_quant_conv", true)?,
            scaling_factor: keys.positive("scaling_factor", 0.18215)?,
            block_channels,
        };
        if config.block_channels.iter().any(|channels| channels % config.norm_groups != 0) {
            return Err(keys.invalid(
                "norm_num_groups",
                format!("a divisor of every one of block_out_channels = {:?}", config.block_channels),
            ));
        }
        if config.block_channels.len() > 16 {
            return Err(keys.invalid("block_out_channels", "a list of at most 16"));
        }
        Ok(config)
    }

    /// Pixels per latent position along one side.
    pub fn factor(&self) -> usize {
        1 << (self.block_channels.len() - 1)
    }

    /// About how many bytes the encoder works in, in fp32, for a picture of `height` x `width`: 0.9 GB for 512 x 512 and
    /// Stable Diffusion's channels, by measurement, which are seven tensors of its first block.
    pub fn encoder_bytes(&self, height: usize, width: usize) -> usize {
        let channels = self.block_channels.first().map_or(0, |channels| *channels as usize);
        [height, width, channels].into_iter().fold(7 * size_of::<f32>(), usize::saturating_mul)
    }
}
