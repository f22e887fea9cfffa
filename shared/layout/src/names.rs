//! Names of the original layout, and what they are in diffusers' layout.
//!
//! Source: diffusers `loaders/single_file_utils.py` (convert_ldm_unet_checkpoint, convert_ldm_vae_checkpoint,
//! convert_open_clip_checkpoint).

use crate::prefixes::{CLIP, Generation, OPEN_CLIP, UNET, UNUSED_TEXT_BLOCK, VAE};
use crate::sizes::{InputBlock, Sizes};
use crate::{Part, TensorPlace};

/// A part of a model that is loaded by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// `text_encoder`.
    Text,
    /// `unet`.
    UNet,
    /// `vae`.
    Vae,
}

impl Sizes {
    /// Places of a file's tensor in a component: none (other components, running averages, the schedule),
    /// in one place, or, where query, key and value are one tensor, in three. A name of the component that is not
    /// known keeps its own, so that it is found to be too many.
    pub fn places(&self, component: Component, name: &str, shape: &[usize]) -> Vec<TensorPlace> {
        match component {
            Component::UNet => {
                let Some(rest) = name.strip_prefix(UNET) else { return Vec::new() };
                whole(unet_name(self, rest).unwrap_or_else(|| name.to_string()))
            }
            Component::Vae => {
                let Some(rest) = name.strip_prefix(VAE) else { return Vec::new() };
                if rest.starts_with("loss.") || rest.starts_with("model_ema.") {
                    return Vec::new();
                }
                let place = vae_name(self, rest).unwrap_or_else(|| name.to_string());
                // 1x1 convolutions there, matrices in diffusers.
                let is_attention = place.contains(".mid_block.attentions.");
                let part = if is_attention && shape.len() > 2 { Part::Matrix } else { Part::Whole };
                vec![TensorPlace { name: place, part }]
            }
            Component::Text => match self.generation {
                Generation::One => {
                    // Not needed by the text encoder.
                    let needed = |rest: &&str| !["text_projection.weight", "logit_scale"].contains(rest);
                    let rest = name.strip_prefix(CLIP).filter(needed);
                    rest.and_then(text_name).map_or_else(Vec::new, whole)
                }
                Generation::Two => {
                    name.strip_prefix(OPEN_CLIP).map_or_else(Vec::new, |rest| open_clip_places(name, rest))
                }
            },
        }
    }
}

/// The name of a tensor of the text encoder: older files have `text_model.` in front, and the `position_ids` buffer, which is
/// left out.
#[must_use]
pub fn text_name(name: &str) -> Option<String> {
    let name = name.strip_prefix("text_model.").unwrap_or(name);
    (name != "embeddings.position_ids").then(|| name.to_string())
}

fn whole(name: String) -> Vec<TensorPlace> {
    vec![TensorPlace::whole(name)]
}

/// "12.1.norm.weight" -> 12 and "1.norm.weight".
fn numbered(text: &str) -> Option<(usize, &str)> {
    let (number, rest) = text.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

fn unet_name(sizes: &Sizes, name: &str) -> Option<String> {
    const SINGLE: [(&str, &str); 5] = [
        ("time_embed.0.", "time_embedding.linear_1."),
        ("time_embed.2.", "time_embedding.linear_2."),
        ("input_blocks.0.0.", "conv_in."),
        ("out.0.", "conv_norm_out."),
        ("out.2.", "conv_out."),
    ];
    if let Some((old, new)) = SINGLE.iter().find(|(old, _)| name.starts_with(old)) {
        return Some(format!("{new}{}", &name[old.len()..]));
    }
    if let Some(rest) = name.strip_prefix("input_blocks.") {
        let (index, rest) = numbered(rest)?;
        let (part, rest) = numbered(rest)?;
        return match (sizes.input_blocks.get(index.checked_sub(1)?)?, part) {
            (InputBlock::Downsampler { level }, 0) => {
                let rest = rest.strip_prefix("op.")?;
                Some(format!("down_blocks.{level}.downsamplers.0.conv.{rest}"))
            }
            (InputBlock::Layer { level, layer }, 0) => {
                Some(format!("down_blocks.{level}.resnets.{layer}.{}", resnet_name(rest)?))
            }
            (InputBlock::Layer { level, layer }, 1) => {
                Some(format!("down_blocks.{level}.attentions.{layer}.{rest}"))
            }
            _ => None,
        };
    }
    if let Some(rest) = name.strip_prefix("middle_block.") {
        let (part, rest) = numbered(rest)?;
        return match part {
            0 => Some(format!("mid_block.resnets.0.{}", resnet_name(rest)?)),
            1 => Some(format!("mid_block.attentions.0.{rest}")),
            2 => Some(format!("mid_block.resnets.1.{}", resnet_name(rest)?)),
            _ => None,
        };
    }
    let (index, rest) = numbered(name.strip_prefix("output_blocks.")?)?;
    let (part, rest) = numbered(rest)?;
    let (block, layer) = sizes.output_blocks.get(index)?;
    match (part, rest.strip_prefix("conv.")) {
        (1 | 2, Some(rest)) => Some(format!("up_blocks.{block}.upsamplers.0.conv.{rest}")),
        (0, _) => Some(format!("up_blocks.{block}.resnets.{layer}.{}", resnet_name(rest)?)),
        (1, None) => Some(format!("up_blocks.{block}.attentions.{layer}.{rest}")),
        _ => None,
    }
}

fn resnet_name(name: &str) -> Option<String> {
    const PARTS: [(&str, &str); 6] = [
        ("in_layers.0.", "norm1."),
        ("in_layers.2.", "conv1."),
        ("emb_layers.1.", "time_emb_proj."),
        ("out_layers.0.", "norm2."),
        ("out_layers.3.", "conv2."),
        ("skip_connection.", "conv_shortcut."),
    ];
    replaced(name, &PARTS)
}

fn replaced(name: &str, parts: &[(&str, &str)]) -> Option<String> {
    parts.iter().find_map(|(old, new)| Some(format!("{new}{}", name.strip_prefix(old)?)))
}

fn vae_name(sizes: &Sizes, name: &str) -> Option<String> {
    if name.starts_with("quant_conv.") || name.starts_with("post_quant_conv.") {
        return Some(name.to_string());
    }
    let (half, rest) = name.split_once('.')?;
    if half != "encoder" && half != "decoder" {
        return None;
    }
    const SINGLE: [(&str, &str); 5] = [
        ("conv_in.", "conv_in."),
        ("conv_out.", "conv_out."),
        ("norm_out.", "conv_norm_out."),
        ("mid.block_1.", "mid_block.resnets.0."),
        ("mid.block_2.", "mid_block.resnets.1."),
    ];
    if let Some(name) = replaced(rest, &SINGLE) {
        return Some(format!("{half}.{name}"));
    }
    const ATTENTION: [(&str, &str); 5] = [
        ("norm.", "group_norm."),
        ("q.", "to_q."),
        ("k.", "to_k."),
        ("v.", "to_v."),
        ("proj_out.", "to_out.0."),
    ];
    if let Some(rest) = rest.strip_prefix("mid.attn_1.") {
        return Some(format!("{half}.mid_block.attentions.0.{}", replaced(rest, &ATTENTION)?));
    }
    let (level, rest) = numbered(rest.strip_prefix(if half == "encoder" { "down." } else { "up." })?)?;
    let (blocks, sampler, level) = match half {
        "encoder" => ("down_blocks", "downsample", level),
        // The decoder counts from the highest resolution there, from the lowest in diffusers.
        _ => ("up_blocks", "upsample", sizes.vae_levels().checked_sub(level.checked_add(1)?)?),
    };
    if let Some(rest) = rest.strip_prefix(sampler).and_then(|rest| rest.strip_prefix(".conv.")) {
        return Some(format!("{half}.{blocks}.{level}.{sampler}rs.0.conv.{rest}"));
    }
    let (layer, rest) = numbered(rest.strip_prefix("block.")?)?;
    let rest = rest.replacen("nin_shortcut.", "conv_shortcut.", 1);
    Some(format!("{half}.{blocks}.{level}.resnets.{layer}.{rest}"))
}

/// `name`: in the file; `rest`: below the text encoder's prefix.
fn open_clip_places(name: &str, rest: &str) -> Vec<TensorPlace> {
    match rest {
        // Not needed by the text encoder.
        "text_projection" | "logit_scale" | "attn_mask" => return Vec::new(),
        "token_embedding.weight" => return whole("embeddings.token_embedding.weight".to_string()),
        "positional_embedding" => return whole("embeddings.position_embedding.weight".to_string()),
        _ => {}
    }
    if let Some(rest) = rest.strip_prefix("ln_final.") {
        return whole(format!("final_layer_norm.{rest}"));
    }
    let Some((block, rest)) = rest.strip_prefix("transformer.resblocks.").and_then(numbered) else {
        return whole(name.to_string());
    };
    if block == UNUSED_TEXT_BLOCK {
        return Vec::new();
    }
    let layer = format!("encoder.layers.{block}");
    if let Some(kind) = rest.strip_prefix("attn.in_proj_") {
        // The first third of the rows is the query's, then the key's, then the value's.
        let third = |(at, which): (u8, &str)| TensorPlace {
            name: format!("{layer}.self_attn.{which}_proj.{kind}"),
            part: Part::Third(at),
        };
        return [(0, "q"), (1, "k"), (2, "v")].map(third).into();
    }
    const PARTS: [(&str, &str); 5] = [
        ("attn.out_proj.", "self_attn.out_proj."),
        ("ln_1.", "layer_norm1."),
        ("ln_2.", "layer_norm2."),
        ("mlp.c_fc.", "mlp.fc1."),
        ("mlp.c_proj.", "mlp.fc2."),
    ];
    whole(replaced(rest, &PARTS).map_or_else(|| name.to_string(), |part| format!("{layer}.{part}")))
}
