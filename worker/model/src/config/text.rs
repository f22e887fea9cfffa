//! text_encoder/config.json (transformers CLIPTextConfig).

use serde_json::json;

use crate::config::Keys;
use crate::error::Result;

/// The feed-forward activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(1.702 x): SD 1.x.
    QuickGelu,
    /// The exact GELU: SD 2.x.
    Gelu,
}

/// A CLIP text encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct TextConfig {
    /// Rows of the token table.
    pub vocab_size: i64,
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Width inside the feed-forward layers.
    pub intermediate_size: i64,
    /// Layers.
    pub layers: i64,
    /// Attention heads; `hidden_size` is a multiple.
    pub heads: i64,
    /// Rows of the position table: the longest prompt.
    pub max_positions: i64,
    /// Activation between the feed-forward layers.
    pub activation: Activation,
    /// Epsilon of every layer norm.
    pub layer_norm_epsilon: f64,
    /// Whether a pipeline hides padding from the other tokens, which is not done here. Training never does.
    pub use_attention_mask: bool,
}

impl TextConfig {
    /// Reads the keys; absent ones take transformers' defaults.
    pub fn from_keys(keys: &Keys) -> Result<Self> {
        // transformers' own defaults of CLIPTextConfig.
        let config = TextConfig {
            vocab_size: keys.count("vocab_size", Some(49408))?,
            hidden_size: keys.count("hidden_size", Some(512))?,
            intermediate_size: keys.count("intermediate_size", Some(2048))?,
            layers: keys.count("num_hidden_layers", Some(12))?,
            heads: keys.count("num_attention_heads", Some(8))?,
            max_positions: keys.count("max_position_embeddings", Some(77))?,
            activation: match keys.word("hidden_act", "quick_gelu", &["quick_gelu", "gelu"])? {
                "gelu" => Activation::Gelu,
                _ => Activation::QuickGelu,
            },
            layer_norm_epsilon: keys.positive("layer_norm_eps", 1e-5)?,
            use_attention_mask: keys.flag("use_attention_mask", false)?,
        };
        keys.only("attention_dropout", &[json!(0)])?;
        keys.only("model_type", &[json!("clip_text_model")])?;
        if config.hidden_size % config.heads != 0 {
            return Err(keys.invalid(
                "num_attention_heads",
                format!("a divisor of hidden_size = {}", config.hidden_size),
            ));
        }
        Ok(config)
    }
}
