//! UNet2DConditionModel as SD 1.x and 2.x configure it (Rombach et al. 2022; diffusers' class of that name).

mod blocks;
mod segments;
mod time;
mod transformer;
mod whole;

use blocks::Ahead;
pub use blocks::{DownBlock, MidBlock, UpBlock};
pub use time::TimeEmbedding;
pub use transformer::{CrossAttention, FeedForward, SpatialTransformer, TransformerLayer};
pub(crate) use whole::WholeUnet;

use tch::{Kind, Tensor};

use crate::config::UNetConfig;
use crate::convolution::{Conv2d, Conv2dConfig};
use crate::error::Result;
use crate::layers::{GroupNorm, GroupNormConfig};
use crate::native;
use crate::time_projections::{TimeProjectionLoader, TimeProjections};
use crate::weights::Scope;

/// The whole network; matrix products and activations in one kind, but for the edges: the time embedding and the
/// first and last convolution, whose few channels cost nothing, are fp32.
#[derive(Debug)]
pub struct UNet {
    conv_in: Conv2d,
    time: TimeEmbedding,
    times: TimeProjections,
    down: Vec<DownBlock>,
    mid: MidBlock,
    up: Vec<UpBlock>,
    norm_out: GroupNorm,
    conv_out: Conv2d,
    center_input: bool,
    kind: Kind,
}

impl UNet {
    /// Reads `conv_in`, `time_embedding`, `down_blocks.N`, `mid_block`, `up_blocks.N`, `conv_norm_out`, `conv_out`.
    pub fn new(scope: &Scope, config: &UNetConfig, kind: Kind) -> Result<Self> {
        let first = config.blocks[0].channels;
        let border = |inputs, outputs, kernel| Conv2dConfig {
            kernel,
            padding: (kernel - 1) / 2,
            ..Conv2dConfig::same_3x3(inputs, outputs)
        };
        let count = config.blocks.len();
        let norm_out =
            GroupNormConfig { groups: config.norm_groups, channels: first, epsilon: config.norm_epsilon };
        let mut times = TimeProjectionLoader::new(config.time_width());
        let down = (0..count)
            .map(|index| {
                DownBlock::new(&scope.sub("down_blocks").sub(index), config, index, kind, &mut times)
            })
            .collect::<Result<_>>()?;
        let mid = MidBlock::new(&scope.sub("mid_block"), config, kind, &mut times)?;
        let up = (0..count)
            .map(|index| UpBlock::new(&scope.sub("up_blocks").sub(index), config, index, kind, &mut times))
            .collect::<Result<_>>()?;
        Ok(UNet {
            conv_in: Conv2d::new(
                &scope.sub("conv_in"),
                border(config.in_channels, first, config.conv_in_kernel),
                Kind::Float,
            )?,
            time: TimeEmbedding::new(&scope.sub("time_embedding"), config)?,
            times: times.finish()?,
            down,
            mid,
            up,
            norm_out: GroupNorm::new(&scope.sub("conv_norm_out"), norm_out)?,
            conv_out: Conv2d::new(
                &scope.sub("conv_out"),
                border(first, config.out_channels, config.conv_out_kernel),
                Kind::Float,
            )?,
            center_input: config.center_input_sample,
            kind,
        })
    }

    /// `sample`: [batch, in_channels, height, width], any sides; `timesteps`: [batch], any kind;
    /// `text`: [batch, tokens, cross_attention_width], its gradient adds up in its own kind.
    /// Returns [batch, out_channels, height, width] fp32.
    ///
    /// Where there are several times as many texts as samples, the samples go with each part of the texts in turn, and the
    /// result has the texts' batch. What comes before the first look at a text is then computed once, as guidance wants it.
    pub fn forward(&self, sample: &Tensor, timesteps: &Tensor, text: &Tensor) -> Result<Tensor> {
        // 1. Time.
        let times = self.embed(timesteps)?;
        // 2. In.
        let mut x = self.enter(sample)?;
        // 3. Down, keeping every intermediate for the way up.
        let mut skips = vec![x.shallow_clone()];
        for block in &self.down {
            x = block.forward(&x, &times, text, &mut skips)?;
        }
        // 4. Middle.
        x = self.mid.forward(&x, &times, text)?;
        // 5. Up. The last skip of the next block says how far to upsample, so that odd sides fit.
        for block in &self.up {
            x = block.forward(&x, &times, text, &mut skips)?;
        }
        // 6. Out.
        self.leave(&x)
    }

    /// What every residual block adds, made of SiLU of the time embedding: [batch, sum of channels] fp32.
    fn embed(&self, timesteps: &Tensor) -> Result<Tensor> {
        self.times.forward(&self.time.forward(timesteps)?.f_silu()?)
    }

    /// The first convolution, of a sample [batch, in_channels, height, width].
    fn enter(&self, sample: &Tensor) -> Result<Tensor> {
        let mut sample = sample.f_to_kind(Kind::Float)?;
        if self.center_input {
            sample = sample.f_mul_scalar(2.0)?.f_sub_scalar(1.0)?;
        }
        Ok(self.conv_in.forward(&native::channels_last(&sample)?)?.f_to_kind(self.kind)?)
    }

    /// The last norm and convolution: [batch, out_channels, height, width] fp32.
    fn leave(&self, x: &Tensor) -> Result<Tensor> {
        self.conv_out.forward(&self.norm_out.forward_silu(x)?.f_to_kind(Kind::Float)?)
    }

    /// Packs the weights that the first [`UNet::forward`] of a sample of this shape would pack, where the sample has no
    /// gradient and the text has one or has not, in the order in which it would.
    pub fn lay_out(&self, [batch, height, width]: [i64; 3], text: bool) -> Result<()> {
        let size = self.conv_in.lay_out([batch, height, width], false)?;
        let mut ahead = Ahead { size, gradient: false, text, skips: vec![size] };
        for block in &self.down {
            block.lay_out(&mut ahead)?;
        }
        self.mid.lay_out(&mut ahead)?;
        for block in &self.up {
            block.lay_out(&mut ahead)?;
        }
        self.conv_out.lay_out(ahead.size, ahead.gradient).map(drop)
    }
}

/// UNet weights have no legacy names.
pub fn rename(name: &str) -> Option<String> {
    Some(name.to_string())
}
