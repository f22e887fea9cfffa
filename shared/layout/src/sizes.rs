//! The sizes of a network by the shapes of its tensors.

use serde_json::{Value, json};

use crate::prefixes::{CLIP, Generation, OPEN_CLIP, UNET, VAE, used_text_blocks};
use crate::{NotThisLayout, Shapes};

type Result<T> = std::result::Result<T, NotThisLayout>;

/// Width of an attention head of CLIP, of open_clip, and of the UNet in 2.x.
const HEAD_WIDTH: usize = 64;
/// Attention heads of the UNet in 1.x, at every width.
const HEADS: usize = 8;
/// Groups of every group normalisation.
const NORM_GROUPS: usize = 32;
/// Scaling factor of latents in Stable Diffusion 1.x and 2.x.
const SCALING_FACTOR: f64 = 0.18215;

/// Sizes of the three networks, by the shapes of a file's tensors.
#[derive(Debug)]
pub struct Sizes {
    /// 1.x or 2.x.
    pub generation: Generation,
    /// `input_blocks.1` and on.
    pub(crate) input_blocks: Vec<InputBlock>,
    /// Block and layer of each of `output_blocks`.
    pub(crate) output_blocks: Vec<(usize, usize)>,
    levels: Vec<Level>,
    unet_channels: (usize, usize),
    context_width: usize,
    linear_projection: bool,
    text: TextSizes,
    vae: VaeSizes,
}

/// Kinds of the UNet's `input_blocks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputBlock {
    Layer { level: usize, layer: usize },
    Downsampler { level: usize },
}

/// A resolution of the UNet.
#[derive(Debug, Clone, Default)]
struct Level {
    channels: usize,
    layers: usize,
    transformer_layers: usize,
    up_attention: bool,
}

#[derive(Debug)]
struct TextSizes {
    vocabulary: usize,
    positions: usize,
    width: usize,
    inner_width: usize,
    layers: usize,
}

#[derive(Debug)]
struct VaeSizes {
    channels: Vec<usize>,
    layers: usize,
    latent_channels: usize,
    mid_attention: bool,
    quant_conv: bool,
    post_quant_conv: bool,
}

impl Sizes {
    /// # Errors
    /// What the file lacks.
    pub fn of(shapes: &Shapes) -> Result<Self> {
        let look = Look(shapes);
        // 1. Which kind of model, if any.
        if shapes.any("conditioner.") {
            return Err(refused("is a model of Stable Diffusion XL; allowed are 1.x and 2.x"));
        }
        if !shapes.any(UNET) {
            return Err(refused(&format!(
                "has no tensor '{UNET}…': not a model in the original layout of Stable Diffusion 1.x or 2.x"
            )));
        }
        if !shapes.any(VAE) {
            return Err(refused(&format!("holds no VAE: no tensor '{VAE}…'")));
        }
        let generation = match (shapes.any(CLIP), shapes.any(OPEN_CLIP)) {
            (true, false) => Generation::One,
            (false, true) => Generation::Two,
            (true, true) => return Err(refused("holds two text encoders")),
            (false, false) => {
                let reason = format!("holds no text encoder: neither '{CLIP}…' nor '{OPEN_CLIP}…'");
                return Err(refused(&reason));
            }
        };
        // 2. The UNet, from the highest resolution down, and up again.
        let (mut levels, input_blocks) = look.input_blocks()?;
        let mut output_blocks = Vec::new();
        for (block, level) in levels.iter_mut().rev().enumerate() {
            let first = output_blocks.len();
            level.up_attention = look.has(&format!("{UNET}output_blocks.{first}.1.proj_in.weight"));
            output_blocks.extend((0..=level.layers).map(|layer| (block, layer)));
        }
        let middle = format!("{UNET}middle_block.1");
        Ok(Sizes {
            generation,
            input_blocks,
            output_blocks,
            unet_channels: (
                look.side(&format!("{UNET}input_blocks.0.0.weight"), 1)?,
                look.side(&format!("{UNET}out.2.weight"), 0)?,
            ),
            context_width: look.side(&format!("{middle}.transformer_blocks.0.attn2.to_k.weight"), 1)?,
            linear_projection: look.shape(&format!("{middle}.proj_in.weight"))?.len() == 2,
            levels,
            text: look.text(generation)?,
            vae: look.vae()?,
        })
    }

    pub(crate) fn vae_levels(&self) -> usize {
        self.vae.channels.len()
    }

    /// text_encoder/config.json.
    #[must_use]
    pub fn text_config(&self) -> Value {
        let text = &self.text;
        json!({
            "vocab_size": text.vocabulary,
            "hidden_size": text.width,
            "intermediate_size": text.inner_width,
            "num_hidden_layers": text.layers,
            "num_attention_heads": (text.width / HEAD_WIDTH).max(1),
            "max_position_embeddings": text.positions,
            "hidden_act": match self.generation {
                Generation::One => "quick_gelu",
                Generation::Two => "gelu",
            },
            "layer_norm_eps": 1e-5,
        })
    }

    /// unet/config.json of a model for pictures of `side` pixels.
    #[must_use]
    pub fn unet_config(&self, side: usize) -> Value {
        let each = |value: &dyn Fn(&Level) -> Value| Value::Array(self.levels.iter().map(value).collect());
        let kind = |attention, with, without| if attention { with } else { without };
        let up: Vec<&str> = self
            .levels
            .iter()
            .rev()
            .map(|level| kind(level.up_attention, "CrossAttnUpBlock2D", "UpBlock2D"))
            .collect();
        json!({
            "in_channels": self.unet_channels.0,
            "out_channels": self.unet_channels.1,
            "block_out_channels": each(&|level| level.channels.into()),
            "layers_per_block": each(&|level| level.layers.into()),
            "down_block_types": each(&|level| {
                kind(level.transformer_layers > 0, "CrossAttnDownBlock2D", "DownBlock2D").into()
            }),
            "up_block_types": up,
            "attention_head_dim": each(&|level| match self.generation {
                Generation::One => HEADS.into(),
                Generation::Two => (level.channels / HEAD_WIDTH).max(1).into(),
            }),
            "transformer_layers_per_block": each(&|level| level.transformer_layers.max(1).into()),
            "cross_attention_dim": self.context_width,
            "use_linear_projection": self.linear_projection,
            "norm_num_groups": NORM_GROUPS,
            "sample_size": side >> (self.vae_levels().clamp(1, 16) - 1),
        })
    }

    /// vae/config.json.
    #[must_use]
    pub fn vae_config(&self) -> Value {
        let vae = &self.vae;
        let levels = vae.channels.len();
        json!({
            "block_out_channels": vae.channels,
            "down_block_types": vec!["DownEncoderBlock2D"; levels],
            "up_block_types": vec!["UpDecoderBlock2D"; levels],
            "layers_per_block": vae.layers,
            "latent_channels": vae.latent_channels,
            "norm_num_groups": NORM_GROUPS,
            "scaling_factor": SCALING_FACTOR,
            "mid_block_add_attention": vae.mid_attention,
            "use_quant_conv": vae.quant_conv,
            "use_post_quant_conv": vae.post_quant_conv,
        })
    }
}

fn refused(reason: &str) -> NotThisLayout {
    NotThisLayout(reason.to_string())
}

/// Looks a file's tensors up; an error names what is not there.
struct Look<'a>(&'a Shapes);

impl Look<'_> {
    fn has(&self, name: &str) -> bool {
        self.0.of(name).is_some()
    }

    fn shape(&self, name: &str) -> Result<&[usize]> {
        self.0.of(name).ok_or_else(|| refused(&format!("has no tensor '{name}'")))
    }

    fn side(&self, name: &str, dimension: usize) -> Result<usize> {
        let shape = self.shape(name)?;
        let side = shape.get(dimension).copied().filter(|side| *side > 0);
        side.ok_or_else(|| refused(&format!("has a tensor '{name}' of the impossible shape {shape:?}")))
    }

    /// Number of indices i with tensors of `prefix`i.
    fn count(&self, prefix: &str) -> usize {
        (0..).take_while(|index| self.0.any(&format!("{prefix}{index}."))).count()
    }

    fn input_blocks(&self) -> Result<(Vec<Level>, Vec<InputBlock>)> {
        let (mut levels, mut blocks, mut level) = (Vec::new(), Vec::new(), Level::default());
        for index in 1.. {
            let block = format!("{UNET}input_blocks.{index}");
            let convolution = format!("{block}.0.out_layers.3.weight");
            if self.has(&format!("{block}.0.op.weight")) {
                blocks.push(InputBlock::Downsampler { level: levels.len() });
                levels.push(std::mem::take(&mut level));
            } else if self.has(&convolution) {
                blocks.push(InputBlock::Layer { level: levels.len(), layer: level.layers });
                level.channels = self.side(&convolution, 0)?;
                level.layers += 1;
                level.transformer_layers =
                    level.transformer_layers.max(self.count(&format!("{block}.1.transformer_blocks.")));
            } else {
                break;
            }
        }
        levels.push(level);
        Ok((levels, blocks))
    }

    fn text(&self, generation: Generation) -> Result<TextSizes> {
        let (tokens, positions, blocks, inner) = match generation {
            Generation::One => {
                // Some files leave this part of the name out.
                let inner = format!("{CLIP}text_model.");
                let model = if self.0.any(&inner) { inner } else { CLIP.to_string() };
                (
                    format!("{model}embeddings.token_embedding.weight"),
                    format!("{model}embeddings.position_embedding.weight"),
                    format!("{model}encoder.layers."),
                    "mlp.fc1.weight",
                )
            }
            Generation::Two => (
                format!("{OPEN_CLIP}token_embedding.weight"),
                format!("{OPEN_CLIP}positional_embedding"),
                format!("{OPEN_CLIP}transformer.resblocks."),
                "mlp.c_fc.weight",
            ),
        };
        let found = self.count(&blocks);
        Ok(TextSizes {
            vocabulary: self.side(&tokens, 0)?,
            positions: self.side(&positions, 0)?,
            width: self.side(&tokens, 1)?,
            inner_width: self.side(&format!("{blocks}0.{inner}"), 0)?,
            layers: match generation {
                Generation::One => found,
                Generation::Two => used_text_blocks(found),
            },
        })
    }

    fn vae(&self) -> Result<VaeSizes> {
        let down = format!("{VAE}encoder.down.");
        let levels = self.count(&down);
        let channels = (0..levels)
            .map(|level| self.side(&format!("{down}{level}.block.0.conv1.weight"), 0))
            .collect::<Result<_>>()?;
        Ok(VaeSizes {
            channels,
            layers: self.count(&format!("{down}0.block.")),
            latent_channels: self.side(&format!("{VAE}decoder.conv_in.weight"), 1)?,
            mid_attention: self.0.any(&format!("{VAE}encoder.mid.attn_1.")),
            quant_conv: self.has(&format!("{VAE}quant_conv.weight")),
            post_quant_conv: self.has(&format!("{VAE}post_quant_conv.weight")),
        })
    }
}
