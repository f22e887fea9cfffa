//! unet/config.json (diffusers UNet2DConditionModel).

use ringtune_engine::Attention;
use serde_json::json;

use crate::config::{Keys, pipeline};
use crate::error::Result;

/// A resolution of the UNet.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockConfig {
    /// Channels.
    pub channels: i64,
    /// Residual blocks on the way down (one more on the way up).
    pub layers: i64,
    /// Attention heads.
    pub heads: i64,
    /// Transformer layers after each residual block that has any.
    pub transformer_layers: i64,
    /// Whether the first attention of each transformer layer looks at the text too.
    pub only_cross_attention: bool,
    /// Whether the down block has transformers (CrossAttnDownBlock2D).
    pub down_attention: bool,
    /// Whether the up block of this resolution has transformers (CrossAttnUpBlock2D).
    pub up_attention: bool,
}

/// A UNet2DConditionModel of the kind SD 1.x and 2.x use.
#[derive(Debug, Clone, PartialEq)]
pub struct UNetConfig {
    /// Channels in (latent channels).
    pub in_channels: i64,
    /// Channels out.
    pub out_channels: i64,
    /// From the highest resolution down.
    pub blocks: Vec<BlockConfig>,
    /// Groups of every group normalisation.
    pub norm_groups: i64,
    /// Epsilon of the residual blocks' and the last normalisation (transformers use 1e-6 and 1e-5).
    pub norm_epsilon: f64,
    /// Width of the text encoder's output.
    pub cross_attention_width: i64,
    /// Transformer projections are linear layers (SD 2.x) instead of 1x1 convolutions.
    pub linear_projection: bool,
    /// Zeros around the input of a downsampling convolution: 1, or 0 for zeros only right and below.
    pub downsample_padding: i64,
    /// Divisor of the middle residual blocks' sums.
    pub mid_block_scale: f64,
    /// Time embedding: cosines first.
    pub flip_sin_to_cos: bool,
    /// Time embedding: shift of the frequencies.
    pub freq_shift: f64,
    /// Whether samples are mapped from [0, 1] to [-1, 1] first.
    pub center_input_sample: bool,
    /// Side of the first convolution's kernel (odd).
    pub conv_in_kernel: i64,
    /// Side of the last convolution's kernel (odd).
    pub conv_out_kernel: i64,
    /// Latent side the model was made for, as a pipeline has it.
    pub sample_size: Option<i64>,
    /// How attention is computed: no key of the file.
    pub attention: Attention,
}

const DOWN: [&str; 2] = ["CrossAttnDownBlock2D", "DownBlock2D"];
const UP: [&str; 2] = ["CrossAttnUpBlock2D", "UpBlock2D"];

impl UNetConfig {
    /// Reads the keys; absent ones take diffusers' defaults.
    pub fn from_keys(keys: &Keys) -> Result<Self> {
        refuse_unsupported(keys)?;
        let config = UNetConfig {
            in_channels: keys.count("in_channels", Some(4))?,
            out_channels: keys.count("out_channels", Some(4))?,
            blocks: blocks_from_keys(keys)?,
            norm_groups: keys.count("norm_num_groups", Some(32))?,
            norm_epsilon: keys.positive("norm_eps", 1e-5)?,
            cross_attention_width: cross_attention_width(keys)?,
            linear_projection: keys.flag("use_linear_projection", false)?,
            downsample_padding: keys.count_or_zero("downsample_padding", 1)?,
            mid_block_scale: keys.positive("mid_block_scale_factor", 1.0)?,
            flip_sin_to_cos: keys.flag("flip_sin_to_cos", true)?,
            freq_shift: keys.number("freq_shift", 0.0)?,
            center_input_sample: keys.flag("center_input_sample", false)?,
            conv_in_kernel: keys.count("conv_in_kernel", Some(3))?,
            conv_out_kernel: keys.count("conv_out_kernel", Some(3))?,
            sample_size: pipeline::sample_size(keys),
            attention: Attention::default(),
        };
        // upcast_attention changes where a GPU rounds; here scores and sums are fp32 in any case.
        keys.flag("upcast_attention", false)?;
        config.check(keys)?;
        Ok(config)
    }

    /// Width of the time embedding.
    pub fn time_width(&self) -> i64 {
        4 * self.blocks[0].channels
    }

    fn check(&self, keys: &Keys) -> Result<()> {
        for key in ["conv_in_kernel", "conv_out_kernel"] {
            if keys.count(key, Some(3))? % 2 == 0 {
                return Err(keys.invalid(key, "an odd number"));
            }
        }
        if self.downsample_padding > 1 {
            return Err(keys.invalid("downsample_padding", "0 or 1"));
        }
        if self.blocks.iter().any(|block| block.channels % self.norm_groups != 0) {
            return Err(keys.invalid("norm_num_groups", "a divisor of every one of block_out_channels"));
        }
        if self.blocks.iter().any(|block| block.channels % block.heads != 0) {
            return Err(keys.invalid(
                "attention_head_dim",
                "a number of heads (that is what diffusers' key means) that divides the block's channels",
            ));
        }
        if 2.0 * self.freq_shift >= self.blocks[0].channels as f64 {
            return Err(keys.invalid("freq_shift", "less than half of block_out_channels[0]"));
        }
        Ok(())
    }
}

fn blocks_from_keys(keys: &Keys) -> Result<Vec<BlockConfig>> {
    let channels = keys.counts("block_out_channels", &[320, 640, 1280, 1280])?;
    let count = channels.len();
    let down = keys.words("down_block_types", &[DOWN[0], DOWN[0], DOWN[0], DOWN[1]], &DOWN)?;
    let up = keys.words("up_block_types", &[UP[1], UP[0], UP[0], UP[0]], &UP)?;
    for (key, kinds) in [("down_block_types", &down), ("up_block_types", &up)] {
        if kinds.len() != count {
            return Err(keys.invalid(key, format!("a list of {count}, as long as block_out_channels")));
        }
    }
    let layers = keys.count_per_block("layers_per_block", 2, count)?;
    let heads = keys.count_per_block("attention_head_dim", 8, count)?;
    let transformer_layers = keys.count_per_block("transformer_layers_per_block", 1, count)?;
    let only_cross = keys.flag_per_block("only_cross_attention", false, count)?;
    Ok((0..count)
        .map(|index| BlockConfig {
            channels: channels[index],
            layers: layers[index],
            heads: heads[index],
            transformer_layers: transformer_layers[index],
            only_cross_attention: only_cross[index],
            down_attention: down[index] == DOWN[0],
            // Up blocks are listed from the lowest resolution.
            up_attention: up[count - 1 - index] == UP[0],
        })
        .collect())
}

fn cross_attention_width(keys: &Keys) -> Result<i64> {
    let count = keys.counts("block_out_channels", &[320, 640, 1280, 1280])?.len();
    let widths = keys.count_per_block("cross_attention_dim", 1280, count)?;
    if widths.iter().any(|width| *width != widths[0]) {
        return Err(keys.invalid("cross_attention_dim", "one width for all blocks"));
    }
    Ok(widths[0])
}

/// Every key of diffusers' UNet2DConditionModel that SD 1.x and 2.x leave at one value.
fn refuse_unsupported(keys: &Keys) -> Result<()> {
    let no = json!(false);
    keys.only("_class_name", &[json!("UNet2DConditionModel")])?;
    keys.only("act_fn", &[json!("silu"), json!("swish")])?;
    keys.only("mid_block_type", &[json!("UNetMidBlock2DCrossAttn")])?;
    if keys.is_null("mid_block_type") {
        return Err(keys.invalid("mid_block_type", "\"UNetMidBlock2DCrossAttn\""));
    }
    if keys.is_null("norm_num_groups") {
        return Err(keys.invalid("norm_num_groups", "a whole number"));
    }
    keys.only("time_embedding_type", &[json!("positional")])?;
    keys.only("resnet_time_scale_shift", &[json!("default")])?;
    keys.only("attention_type", &[json!("default")])?;
    for key in ["dual_cross_attention", "resnet_skip_time_act", "class_embeddings_concat"] {
        keys.only(key, std::slice::from_ref(&no))?;
    }
    for (key, value) in [("dropout", json!(0)), ("resnet_out_scale_factor", json!(1))] {
        keys.only(key, &[value])?;
    }
    for key in [
        "num_attention_heads",
        "class_embed_type",
        "num_class_embeds",
        "projection_class_embeddings_input_dim",
        "addition_embed_type",
        "addition_time_embed_dim",
        "encoder_hid_dim",
        "encoder_hid_dim_type",
        "time_embedding_dim",
        "time_embedding_act_fn",
        "timestep_post_act",
        "time_cond_proj_dim",
        "cross_attention_norm",
        "reverse_transformer_layers_per_block",
    ] {
        keys.only(key, &[])?;
    }
    keys.only("mid_block_only_cross_attention", &[no])
}
