//! Which stored tensors of a model are the weights of layers that a LoRA can change.

use std::ops::Range;

use super::{Base, Layer, LayerKind, ModelLayers};

/// A part of a model that LoRAs are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// `unet`.
    Unet,
    /// `text_encoder`.
    TextEncoder,
}

/// Rows of a stored tensor that are a layer's weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// As [`super::LoraFile::modules`] has it.
    pub module: String,
    /// Its kind and widths.
    pub layer: Layer,
    /// In the tensor's first dimension.
    pub rows: Range<usize>,
}

impl Place {
    /// Of a tensor with a name and `shape` of diffusers' layout, if it is the weight of such a layer: a matrix, or a convolution
    /// of 1 or 3 pixels' side. It begins at `first_row` of the tensor that is stored. transformers writes the text encoder with
    /// its inner name, `text_model`, and without it.
    pub fn of(component: Component, name: &str, shape: &[usize], first_row: usize) -> Option<Self> {
        let name = name.strip_suffix(".weight")?;
        let module = match component {
            Component::Unet => format!("unet.{name}"),
            Component::TextEncoder => {
                let name = name.strip_prefix("text_model.").unwrap_or(name);
                // Its tables are matrices too.
                name.starts_with("encoder.layers.").then(|| format!("text_encoder.text_model.{name}"))?
            }
        };
        let (outputs, inputs, kind) = match *shape {
            [outputs, inputs] => (outputs, inputs, LayerKind::Linear),
            [outputs, inputs, 1, 1] => (outputs, inputs, LayerKind::Conv1x1),
            [outputs, inputs, 3, 3] => (outputs, inputs, LayerKind::Conv3x3),
            _ => return None,
        };
        let layer = Layer { kind, inputs, outputs };
        (outputs > 0 && inputs > 0).then_some(Self { module, layer, rows: first_row..first_row + outputs })
    }
}

impl ModelLayers {
    /// Those of the model with these weights, which messages call `title`.
    pub fn of_places<'a>(title: String, places: impl IntoIterator<Item = &'a Place>) -> Self {
        let known: Vec<(String, Layer)> =
            places.into_iter().map(|place| (place.module.clone(), place.layer)).collect();
        let sees_prompts = known.iter().find(|(module, _)| module.ends_with(".attn2.to_k"));
        let base = sees_prompts.map_or(Base::Sd1, |(_, layer)| Base::of_text_width(layer.inputs));
        Self::new(base, title, known)
    }
}
