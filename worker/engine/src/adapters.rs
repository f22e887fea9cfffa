//! Adapters (LoRA, Hu et al. 2021) beside the frozen layers of a model that draws pictures.

use crate::{Engine, EngineError};

/// Puts adapters that do not change beside the loaded model's layers.
pub trait AdaptLayers: Engine {
    /// The frozen layers of the loaded model that an adapter can stand beside, in the order of the forward pass: those of the
    /// text encoder, then those of the UNet.
    fn adaptable_layers(&mut self) -> Result<Vec<AdaptableLayer>, EngineError>;

    /// Puts these beside their layers, several beside one too, and takes all others away. They stay until a model is loaded or
    /// opened.
    ///
    /// # Errors
    /// One of a layer that the model does not have; factors that do not fit.
    fn put_adapters(&mut self, adapters: Vec<FixedAdapter>) -> Result<(), EngineError>;
}

/// A frozen layer that an adapter can stand beside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptableLayer {
    /// Its component and its name there, as diffusers has them: "unet.mid_block.attentions.0.….attn1.to_q",
    /// "text_encoder.text_model.encoder.layers.0.self_attn.q_proj".
    pub name: String,
    /// Features or channels in.
    pub inputs: usize,
    /// Features or channels out.
    pub outputs: usize,
    /// What files have it as.
    pub shape: LayerShape,
}

/// The shape of a layer's weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerShape {
    /// [outputs, inputs].
    Matrix,
    /// A convolution's, [outputs, inputs, side, side].
    Convolution {
        /// Pixels of a side of its kernel.
        side: usize,
    },
}

impl LayerShape {
    /// Weights of one input and one output.
    pub fn area(self) -> usize {
        match self {
            Self::Matrix => 1,
            Self::Convolution { side } => side * side,
        }
    }
}

/// What stands beside a layer: it adds up (down x).
#[derive(Clone, Debug, PartialEq)]
pub struct FixedAdapter {
    /// [`AdaptableLayer::name`].
    pub layer: String,
    /// [rank, inputs], of a convolution [rank, inputs, side, side]; fp32.
    pub down: Vec<f32>,
    /// [outputs, rank], fp32; every factor of the product is in it.
    pub up: Vec<f32>,
    /// Rows of `down`, columns of `up`; at least 1.
    pub rank: usize,
    /// Of DoRA ([`Adapter::dora`](crate::Adapter::dora)): what the lengths of the sum's rows are brought to, [outputs]; empty: they stay.
    /// Not of a 3x3 convolution.
    pub magnitude: Vec<f32>,
}
