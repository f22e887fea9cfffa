//! CLIP's text encoder (Radford et al. 2021; transformers CLIPTextModel), always in fp32; beside a UNet in bf16 its linear
//! layers may multiply by bf16 halves ([`Products::Halves`]).
//!
//! The gradient of every learned row comes through here, all samples' through the same weights, so that errors do
//! not average out: in bf16, as `torch.autocast` would have it, this small network would cause as much of the
//! gradient's error as the whole UNet, for a twentieth of the step's time.

use tch::{Kind, Tensor};

use crate::config::{Activation, TextConfig};
use crate::error::Result;
use crate::layers::{LayerNorm, Linear, LinearConfig, Products};
use crate::profile::{self, Stretch};
use crate::weights::Scope;

/// Multi-head causal self-attention with biased projections.
#[derive(Debug)]
pub struct ClipAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    heads: i64,
}

impl ClipAttention {
    /// Reads `q_proj`, `k_proj`, `v_proj`, `out_proj`.
    pub fn new(scope: &Scope, config: &TextConfig, products: Products) -> Result<Self> {
        let linear = LinearConfig { inputs: config.hidden_size, outputs: config.hidden_size, bias: true };
        let projection = |name| Linear::in_fp32(&scope.sub(name), linear, products);
        Ok(ClipAttention {
            query: projection("q_proj")?,
            key: projection("k_proj")?,
            value: projection("v_proj")?,
            output: projection("out_proj")?,
            heads: config.heads,
        })
    }

    /// `x`: [batch, tokens, width]; returns the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, tokens, width) = x.size3()?;
        let split = |projection: &Linear| -> Result<Tensor> {
            let shape = [batch, tokens, self.heads, width / self.heads];
            Ok(projection.forward(x)?.f_view(shape)?.f_transpose(1, 2)?)
        };
        let (query, key, value) = (split(&self.query)?, split(&self.key)?, split(&self.value)?);
        let no_mask: Option<Tensor> = None;
        let mixed =
            Tensor::f_scaled_dot_product_attention(&query, &key, &value, no_mask, 0.0, true, None, false)?;
        let mixed = mixed.f_transpose(1, 2)?.f_reshape([batch, tokens, width])?;
        self.output.forward(&mixed)
    }
}

/// Two biased layers with the model's activation between.
#[derive(Debug)]
pub struct ClipMlp {
    expand: Linear,
    contract: Linear,
    activation: Activation,
}

impl ClipMlp {
    /// Reads `fc1`, `fc2`.
    pub fn new(scope: &Scope, config: &TextConfig, products: Products) -> Result<Self> {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let expand = LinearConfig { inputs: width, outputs: inner, bias: true };
        let contract = LinearConfig { inputs: inner, outputs: width, bias: true };
        Ok(ClipMlp {
            expand: Linear::in_fp32(&scope.sub("fc1"), expand, products)?,
            contract: Linear::in_fp32(&scope.sub("fc2"), contract, products)?,
            activation: config.activation,
        })
    }

    /// `x`: [batch, tokens, width]; returns the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let hidden = self.expand.forward(x)?;
        let hidden = match self.activation {
            Activation::QuickGelu => hidden.f_mul(&hidden.f_mul_scalar(1.702)?.f_sigmoid()?)?,
            Activation::Gelu => hidden.f_gelu("none")?,
        };
        self.contract.forward(&hidden)
    }
}

/// norm, attention, +, norm, feed-forward, +.
#[derive(Debug)]
pub struct ClipLayer {
    norm1: LayerNorm,
    attention: ClipAttention,
    norm2: LayerNorm,
    mlp: ClipMlp,
}

impl ClipLayer {
    /// Reads `layer_norm1`, `self_attn`, `layer_norm2`, `mlp`.
    pub fn new(scope: &Scope, config: &TextConfig, products: Products) -> Result<Self> {
        let (width, epsilon) = (config.hidden_size, config.layer_norm_epsilon);
        let norm = |name| LayerNorm::new(&scope.sub(name), width, epsilon);
        Ok(ClipLayer {
            norm1: norm("layer_norm1")?,
            attention: ClipAttention::new(&scope.sub("self_attn"), config, products)?,
            norm2: norm("layer_norm2")?,
            mlp: ClipMlp::new(&scope.sub("mlp"), config, products)?,
        })
    }

    /// `x`: [batch, tokens, width]; returns the same.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.f_add(&self.attention.forward(&self.norm1.forward(x)?)?)?;
        Ok(x.f_add(&self.mlp.forward(&self.norm2.forward(&x)?)?)?)
    }
}

/// The whole encoder.
#[derive(Debug)]
pub struct TextEncoder {
    token_table: Tensor,
    position_table: Tensor,
    layers: Vec<ClipLayer>,
    final_norm: LayerNorm,
    config: TextConfig,
}

impl TextEncoder {
    /// Reads `embeddings`, `encoder.layers.N`, `final_layer_norm` (names without `text_model.`).
    pub fn new(scope: &Scope, config: &TextConfig, products: Products) -> Result<Self> {
        let embeddings = scope.sub("embeddings");
        let table = [config.vocab_size, config.hidden_size];
        let positions = [config.max_positions, config.hidden_size];
        let layers = scope.sub("encoder").sub("layers");
        Ok(TextEncoder {
            // Kept as stored: only rows of it are ever read.
            token_table: embeddings.sub("token_embedding").stored_tensor("weight", &table)?,
            position_table: embeddings.sub("position_embedding").tensor("weight", &positions, Kind::Float)?,
            layers: (0..config.layers)
                .map(|index| ClipLayer::new(&layers.sub(index), config, products))
                .collect::<Result<_>>()?,
            final_norm: LayerNorm::new(
                &scope.sub("final_layer_norm"),
                config.hidden_size,
                config.layer_norm_epsilon,
            )?,
            config: config.clone(),
        })
    }

    /// The configuration it was built from.
    pub fn config(&self) -> &TextConfig {
        &self.config
    }

    /// Rows of the frozen token table. `ids`: [..] int64, each in 0 .. vocab_size; returns [.., width] fp32.
    pub fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        let rows = self.token_table.f_index_select(0, &ids.f_reshape([-1])?)?.f_to_kind(Kind::Float)?;
        let mut shape = ids.size();
        shape.push(self.config.hidden_size);
        Ok(rows.f_view(&shape[..])?)
    }

    /// `embeddings`: [batch, tokens, width] fp32 token embeddings (positions are added here);
    /// returns the last hidden state after the final norm, same shape, fp32.
    pub fn forward(&self, embeddings: &Tensor) -> Result<Tensor> {
        let _stretch = Stretch::begin(profile::TEXT_ENCODER);
        let (_, tokens, _) = embeddings.size3()?;
        let mut x = embeddings.f_add(&self.position_table.f_narrow(0, 0, tokens)?)?;
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        self.final_norm.forward(&x)
    }
}
