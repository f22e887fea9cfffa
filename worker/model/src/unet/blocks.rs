//! The UNet's three kinds of blocks. With transformers they are diffusers' CrossAttn… blocks, without the plain.

use tch::{Kind, Tensor};

use crate::config::{BlockConfig, UNetConfig};
use crate::convolution::Size;
use crate::error::{Error, Result};
use crate::layers::repeated;
use crate::resnet::{Downsample, ResnetBlock, ResnetConfig, Upsample};
use crate::time_projections::TimeProjectionLoader;
use crate::unet::transformer::SpatialTransformer;
use crate::weights::Scope;

fn resnet(config: &UNetConfig, inputs: i64, outputs: i64) -> ResnetConfig {
    ResnetConfig {
        inputs,
        outputs,
        groups: config.norm_groups,
        epsilon: config.norm_epsilon,
        output_scale: 1.0,
    }
}

/// Configuration of a resolution's layers.
struct Layers<'a> {
    config: &'a UNetConfig,
    block: &'a BlockConfig,
    /// Whether a transformer follows each residual block.
    attention: bool,
    kind: Kind,
}

impl Layers<'_> {
    /// Residual blocks of these shapes, each followed by its transformer. Reads `resnets.N`, `attentions.N`.
    fn load(
        &self,
        scope: &Scope,
        shapes: &[ResnetConfig],
        times: &mut TimeProjectionLoader,
    ) -> Result<(Vec<ResnetBlock>, Vec<SpatialTransformer>)> {
        let (mut resnets, mut transformers) = (Vec::new(), Vec::new());
        for (layer, shape) in shapes.iter().enumerate() {
            let resnet = scope.sub("resnets").sub(layer);
            resnets.push(ResnetBlock::with_time(&resnet, *shape, self.kind, times)?);
            if self.attention {
                let scope = scope.sub("attentions").sub(layer);
                transformers.push(SpatialTransformer::new(&scope, self.config, self.block, self.kind)?);
            }
        }
        Ok((resnets, transformers))
    }
}

/// A resolution on the way down.
#[derive(Debug)]
pub struct DownBlock {
    resnets: Vec<ResnetBlock>,
    transformers: Vec<SpatialTransformer>,
    downsample: Option<Downsample>,
}

impl DownBlock {
    /// Reads `resnets.N`, `attentions.N`, `downsamplers.0` of down block `index`.
    pub fn new(
        scope: &Scope,
        config: &UNetConfig,
        index: usize,
        kind: Kind,
        times: &mut TimeProjectionLoader,
    ) -> Result<Self> {
        let block = &config.blocks[index];
        let before = config.blocks[index.saturating_sub(1)].channels;
        let inputs = |layer| if layer == 0 { before } else { block.channels };
        let shapes: Vec<_> =
            (0..block.layers).map(|layer| resnet(config, inputs(layer), block.channels)).collect();
        let layers = Layers { config, block, attention: block.down_attention, kind };
        let (resnets, transformers) = layers.load(scope, &shapes, times)?;
        let downsample = if index + 1 < config.blocks.len() {
            let scope = scope.sub("downsamplers").sub(0);
            Some(Downsample::new(&scope, block.channels, config.downsample_padding, kind)?)
        } else {
            None
        };
        Ok(DownBlock { resnets, transformers, downsample })
    }

    /// `x`: [batch, inputs, height, width]; `times`: what all residual blocks add; `text`: [batch, tokens, width].
    /// Pushes each intermediate result on `skips`; returns the last. From the first transformer on they have the text's batch.
    pub fn forward(
        &self,
        x: &Tensor,
        times: &Tensor,
        text: &Tensor,
        skips: &mut Vec<Tensor>,
    ) -> Result<Tensor> {
        let mut x = x.shallow_clone();
        for layer in 0..self.resnets.len() {
            x = self.layer(layer, &x, times, text)?;
            skips.push(x.shallow_clone());
        }
        if let Some(downsample) = &self.downsample {
            x = downsample.forward(&x)?;
            skips.push(x.shallow_clone());
        }
        Ok(x)
    }

    /// A residual block, and its transformer where it has one.
    pub(super) fn layer(&self, layer: usize, x: &Tensor, times: &Tensor, text: &Tensor) -> Result<Tensor> {
        let x = self.resnets[layer].forward(x, Some(times))?;
        self.transformers
            .get(layer)
            .map_or(Ok(x.shallow_clone()), |transformer| transformer.forward(&x, text))
    }

    /// Number of layers.
    pub(super) fn layers(&self) -> usize {
        self.resnets.len()
    }

    /// What halves the sides, but for the lowest resolution.
    pub(super) fn downsample(&self) -> Option<&Downsample> {
        self.downsample.as_ref()
    }

    /// Packs the weights as [`DownBlock::forward`] does.
    pub(super) fn lay_out(&self, ahead: &mut Ahead) -> Result<()> {
        for (layer, resnet) in self.resnets.iter().enumerate() {
            ahead.layer(resnet, self.transformers.get(layer))?;
            ahead.skips.push(ahead.size);
        }
        if let Some(downsample) = &self.downsample {
            ahead.size = downsample.lay_out(ahead.size, ahead.gradient)?;
            ahead.skips.push(ahead.size);
        }
        Ok(())
    }
}

/// Sizes that a pass over the blocks meets next, for packing weights ahead of it.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Of the next input.
    pub(super) size: Size,
    /// Whether it has a gradient.
    pub(super) gradient: bool,
    /// Whether the text has one.
    pub(super) text: bool,
    /// Sizes of the intermediates that the way up takes, last one on top.
    pub(super) skips: Vec<Size>,
}

impl Ahead {
    /// A residual block, and its transformer where it has one.
    fn layer(&mut self, resnet: &ResnetBlock, transformer: Option<&SpatialTransformer>) -> Result<()> {
        self.size = resnet.lay_out(self.size, self.gradient)?;
        if let Some(transformer) = transformer {
            self.gradient = transformer.lay_out(self.gradient, self.text)?;
        }
        Ok(())
    }
}

/// The lowest resolution: residual block, transformer, residual block.
#[derive(Debug)]
pub struct MidBlock {
    first: ResnetBlock,
    transformer: SpatialTransformer,
    second: ResnetBlock,
}

impl MidBlock {
    /// Reads `resnets.0`, `attentions.0`, `resnets.1`.
    pub fn new(
        scope: &Scope,
        config: &UNetConfig,
        kind: Kind,
        times: &mut TimeProjectionLoader,
    ) -> Result<Self> {
        // This block looks at itself first even where the blocks around it look only at the text.
        let mut block = config.blocks[config.blocks.len() - 1].clone();
        block.only_cross_attention = false;
        let mut shape = resnet(config, block.channels, block.channels);
        shape.output_scale = config.mid_block_scale;
        Ok(MidBlock {
            first: ResnetBlock::with_time(&scope.sub("resnets").sub(0), shape, kind, times)?,
            transformer: SpatialTransformer::new(&scope.sub("attentions").sub(0), config, &block, kind)?,
            second: ResnetBlock::with_time(&scope.sub("resnets").sub(1), shape, kind, times)?,
        })
    }

    /// `x`: [batch, channels, height, width]; returns the same shape.
    pub fn forward(&self, x: &Tensor, times: &Tensor, text: &Tensor) -> Result<Tensor> {
        let x = self.first.forward(x, Some(times))?;
        self.second.forward(&self.transformer.forward(&x, text)?, Some(times))
    }

    /// Packs the weights as [`MidBlock::forward`] does.
    pub(super) fn lay_out(&self, ahead: &mut Ahead) -> Result<()> {
        ahead.layer(&self.first, Some(&self.transformer))?;
        ahead.layer(&self.second, None)
    }
}

/// A resolution on the way up.
#[derive(Debug)]
pub struct UpBlock {
    resnets: Vec<ResnetBlock>,
    transformers: Vec<SpatialTransformer>,
    upsample: Option<Upsample>,
}

impl UpBlock {
    /// Reads `resnets.N`, `attentions.N`, `upsamplers.0` of up block `index` (0 is the lowest resolution).
    pub fn new(
        scope: &Scope,
        config: &UNetConfig,
        index: usize,
        kind: Kind,
        times: &mut TimeProjectionLoader,
    ) -> Result<Self> {
        let depth = config.blocks.len() - 1 - index;
        let block = &config.blocks[depth];
        // The first layer takes what comes from below, the last one's skip comes from the resolution above.
        let below = config.blocks[(depth + 1).min(config.blocks.len() - 1)].channels;
        let above = config.blocks[depth.saturating_sub(1)].channels;
        let shapes: Vec<_> = (0..=block.layers)
            .map(|layer| {
                let hidden = if layer == 0 { below } else { block.channels };
                let skip = if layer == block.layers { above } else { block.channels };
                resnet(config, hidden + skip, block.channels)
            })
            .collect();
        let layers = Layers { config, block, attention: block.up_attention, kind };
        let (resnets, transformers) = layers.load(scope, &shapes, times)?;
        let upsample = if depth > 0 {
            Some(Upsample::new(&scope.sub("upsamplers").sub(0), block.channels, kind)?)
        } else {
            None
        };
        Ok(UpBlock { resnets, transformers, upsample })
    }

    /// `x`: [batch, channels below, height, width]. Pops one skip a layer, last first, and repeats it for the x's batch; upsamples
    /// to the size of the skip that is then on top.
    pub fn forward(
        &self,
        x: &Tensor,
        times: &Tensor,
        text: &Tensor,
        skips: &mut Vec<Tensor>,
    ) -> Result<Tensor> {
        let mut x = x.shallow_clone();
        for layer in 0..self.resnets.len() {
            let skip = skips.pop().ok_or_else(|| too_few_skips(layer))?;
            x = self.layer(layer, &x, &skip, times, text)?;
        }
        if let Some(upsample) = &self.upsample {
            let (_, _, height, width) =
                skips.last().ok_or_else(|| too_few_skips(self.resnets.len()))?.size4()?;
            x = upsample.forward(&x, (height, width))?;
        }
        Ok(x)
    }

    /// A residual block of `x` and `skip`, which is repeated for the x's batch, and its transformer where it has one.
    pub(super) fn layer(
        &self,
        layer: usize,
        x: &Tensor,
        skip: &Tensor,
        times: &Tensor,
        text: &Tensor,
    ) -> Result<Tensor> {
        let skip = repeated(skip, x.size4()?.0)?;
        let x = self.resnets[layer].forward_of_two(x, &skip, Some(times))?;
        self.transformers
            .get(layer)
            .map_or(Ok(x.shallow_clone()), |transformer| transformer.forward(&x, text))
    }

    /// Number of layers.
    pub(super) fn layers(&self) -> usize {
        self.resnets.len()
    }

    /// What doubles the sides, but for the highest resolution.
    pub(super) fn upsample(&self) -> Option<&Upsample> {
        self.upsample.as_ref()
    }

    /// Packs the weights as [`UpBlock::forward`] does.
    pub(super) fn lay_out(&self, ahead: &mut Ahead) -> Result<()> {
        for (layer, resnet) in self.resnets.iter().enumerate() {
            ahead.skips.pop().ok_or_else(|| too_few_skips(layer))?;
            ahead.layer(resnet, self.transformers.get(layer))?;
        }
        if let Some(upsample) = &self.upsample {
            let [_, height, width] = *ahead.skips.last().ok_or_else(|| too_few_skips(self.resnets.len()))?;
            ahead.size = upsample.lay_out(ahead.size, (height, width), ahead.gradient)?;
        }
        Ok(())
    }
}

fn too_few_skips(layer: usize) -> Error {
    Error::argument("skips", format!("used up at layer {layer}"), "one for each layer of every up block")
}
