//! The layers of a loaded model, as LoRAs' files have them.

use ringtune_shared::lora::{Base, Layer, LayerKind, ModelLayers};

use crate::engine::{AdaptableLayer, LayerShape};

/// Those of a model whose text encoder is so wide.
pub(crate) fn model_layers(text_width: usize, layers: &[AdaptableLayer]) -> ModelLayers {
    let known = layers.iter().filter_map(|layer| {
        let AdaptableLayer { name, inputs, outputs, shape } = layer;
        let layer = Layer { kind: kind_of(*shape)?, inputs: *inputs, outputs: *outputs };
        Some((name.clone(), layer))
    });
    ModelLayers::new(Base::of_text_width(text_width), "this model".to_owned(), known)
}

/// What files have a layer as; none of a convolution that no LoRA is for.
pub(crate) fn kind_of(shape: LayerShape) -> Option<LayerKind> {
    match shape {
        LayerShape::Matrix => Some(LayerKind::Linear),
        LayerShape::Convolution { side: 1 } => Some(LayerKind::Conv1x1),
        LayerShape::Convolution { side: 3 } => Some(LayerKind::Conv3x3),
        LayerShape::Convolution { .. } => None,
    }
}
