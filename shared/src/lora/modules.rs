//! The layers of Stable Diffusion's UNet and text encoder that a LoRA can change, by the grammar of their blocks.
//!
//! Source: diffusers, `UNet2DConditionModel` with the configurations of Stable Diffusion 1.5 and 2; transformers, `CLIPTextModel`.

use std::collections::BTreeMap;

/// Channels of the UNet's blocks, on the way down.
const WIDTHS: [usize; 4] = [320, 640, 1280, 1280];
/// Channels of a latent.
const LATENT: usize = 4;
/// Numbers of the embedded timestep.
const TIME: usize = 1280;

/// The model that a LoRA is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// Stable Diffusion 1.x.
    Sd1,
    /// Stable Diffusion 2.x.
    Sd2,
}

impl Base {
    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Sd1 => "Stable Diffusion 1",
            Self::Sd2 => "Stable Diffusion 2",
        }
    }

    /// By the width of the text encoder: the second's is its own, all others are of the first.
    pub fn of_text_width(width: usize) -> Self {
        if width == Self::Sd2.text_encoder().0 { Self::Sd2 } else { Self::Sd1 }
    }

    /// Width and layers of its text encoder.
    fn text_encoder(self) -> (usize, usize) {
        match self {
            Self::Sd1 => (768, 12),
            Self::Sd2 => (1024, 23),
        }
    }
}

/// What a layer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerKind {
    /// A matrix.
    Linear,
    /// A convolution of single pixels.
    Conv1x1,
    /// A convolution of 3 × 3 pixels.
    Conv3x3,
}

impl LayerKind {
    /// Pixels of a convolution's side.
    pub(super) fn side(self) -> usize {
        if self == Self::Conv3x3 { 3 } else { 1 }
    }
}

/// A layer and its widths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// What it does.
    pub kind: LayerKind,
    /// Features or channels in.
    pub inputs: usize,
    /// Features or channels out.
    pub outputs: usize,
}

/// Where in the model a module is, for people.
pub fn part(module: &str) -> &'static str {
    let parts = [
        (".self_attn.", "text encoder, attention"),
        (".mlp.", "text encoder, MLP"),
        (".attn", "UNet, attention"),
        (".ff.", "UNet, feed-forward"),
        (".proj_", "UNet, projections"),
    ];
    parts
        .iter()
        .find(|(word, _)| module.contains(word))
        .map_or("UNet, convolutions and time", |(_, part)| *part)
}

/// All layers of a base by their names.
pub(super) fn layers(base: Base) -> BTreeMap<String, Layer> {
    let mut list = List { base, layers: BTreeMap::new() };
    list.unet();
    let (width, layers) = base.text_encoder();
    for layer in 0..layers {
        let at = format!("text_encoder.text_model.encoder.layers.{layer}");
        for name in ["q_proj", "k_proj", "v_proj", "out_proj"] {
            list.linear(format!("{at}.self_attn.{name}"), width, width);
        }
        list.linear(format!("{at}.mlp.fc1"), width, 4 * width);
        list.linear(format!("{at}.mlp.fc2"), 4 * width, width);
    }
    list.layers
}

struct List {
    base: Base,
    layers: BTreeMap<String, Layer>,
}

impl List {
    fn put(&mut self, name: String, kind: LayerKind, inputs: usize, outputs: usize) {
        self.layers.insert(name, Layer { kind, inputs, outputs });
    }

    fn linear(&mut self, name: String, inputs: usize, outputs: usize) {
        self.put(name, LayerKind::Linear, inputs, outputs);
    }

    fn conv(&mut self, name: String, inputs: usize, outputs: usize) {
        self.put(name, LayerKind::Conv3x3, inputs, outputs);
    }

    fn unet(&mut self) {
        let mut width = WIDTHS[0];
        self.conv("unet.conv_in".to_owned(), LATENT, width);
        self.linear("unet.time_embedding.linear_1".to_owned(), width, TIME);
        self.linear("unet.time_embedding.linear_2".to_owned(), TIME, TIME);
        // Widths of what the way down leaves for the way up, which takes the newest first.
        let mut skips = vec![width];
        for (block, out) in WIDTHS.into_iter().enumerate() {
            let at = format!("unet.down_blocks.{block}");
            let is_last = block + 1 == WIDTHS.len();
            for index in 0..2 {
                self.resnet(&format!("{at}.resnets.{index}"), width, out);
                if !is_last {
                    self.transformer(&format!("{at}.attentions.{index}"), out);
                }
                width = out;
                skips.push(width);
            }
            if !is_last {
                self.conv(format!("{at}.downsamplers.0.conv"), width, width);
                skips.push(width);
            }
        }
        self.resnet("unet.mid_block.resnets.0", width, width);
        self.transformer("unet.mid_block.attentions.0", width);
        self.resnet("unet.mid_block.resnets.1", width, width);
        for (block, out) in WIDTHS.into_iter().rev().enumerate() {
            let at = format!("unet.up_blocks.{block}");
            for index in 0..3 {
                self.resnet(&format!("{at}.resnets.{index}"), width + skips.pop().unwrap_or(0), out);
                if block > 0 {
                    self.transformer(&format!("{at}.attentions.{index}"), out);
                }
                width = out;
            }
            if block + 1 < WIDTHS.len() {
                self.conv(format!("{at}.upsamplers.0.conv"), width, width);
            }
        }
        self.conv("unet.conv_out".to_owned(), width, LATENT);
    }

    fn resnet(&mut self, at: &str, inputs: usize, outputs: usize) {
        self.conv(format!("{at}.conv1"), inputs, outputs);
        self.conv(format!("{at}.conv2"), outputs, outputs);
        self.linear(format!("{at}.time_emb_proj"), TIME, outputs);
        if inputs != outputs {
            self.put(format!("{at}.conv_shortcut"), LayerKind::Conv1x1, inputs, outputs);
        }
    }

    fn transformer(&mut self, at: &str, width: usize) {
        let projection = match self.base {
            Base::Sd1 => LayerKind::Conv1x1,
            Base::Sd2 => LayerKind::Linear,
        };
        self.put(format!("{at}.proj_in"), projection, width, width);
        self.put(format!("{at}.proj_out"), projection, width, width);
        let block = format!("{at}.transformer_blocks.0");
        for (attention, seen) in [("attn1", width), ("attn2", self.base.text_encoder().0)] {
            for (name, inputs) in [("to_q", width), ("to_k", seen), ("to_v", seen), ("to_out.0", width)] {
                self.linear(format!("{block}.{attention}.{name}"), inputs, width);
            }
        }
        self.linear(format!("{block}.ff.net.0.proj"), width, 8 * width);
        self.linear(format!("{block}.ff.net.2"), 4 * width, width);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of modules that kohya's scripts name in their log.
    #[test]
    fn there_are_as_many_layers_as_other_programs_count() {
        for (base, text_encoder) in [(Base::Sd1, 72), (Base::Sd2, 138)] {
            let layers = layers(base);
            let count = |words: &[&str]| {
                layers.keys().filter(|name| words.iter().any(|word| name.contains(word))).count()
            };
            assert_eq!(count(&["attentions"]), 192);
            assert_eq!(count(&["text_encoder"]), text_encoder);
            // 22 of them, with two convolutions and one of the time each; 14 change their width.
            assert_eq!((count(&["resnets"]), count(&["conv_shortcut"])), (22 * 3 + 14, 14));
        }
        let wide = &layers(Base::Sd1)["unet.up_blocks.3.resnets.0.conv1"];
        assert_eq!(*wide, Layer { kind: LayerKind::Conv3x3, inputs: 960, outputs: 320 });
    }
}
