//! The transformer between the residual blocks: every position looks at all others and at the text.

use ringtune_engine::Attention;
use tch::{Kind, Tensor};

use crate::attention;
use crate::config::{BlockConfig, UNetConfig};
use crate::error::{Error, Result};
use crate::layers::{
    GroupNorm, GroupNormConfig, LayerNorm, Linear, LinearConfig, from_tokens, repeated, to_tokens,
};
use crate::native;
use crate::weights::Scope;

/// Epsilon of the layer norms, and of the group norm before the projection, whatever `norm_eps` says.
const LAYER_NORM_EPSILON: f64 = 1e-5;
const GROUP_NORM_EPSILON: f64 = 1e-6;

/// Multi-head attention; projections to queries, keys and values have no bias.
/// Source: diffusers Attention with AttnProcessor2_0.
#[derive(Debug)]
pub struct CrossAttention {
    projections: Projections,
    output: Linear,
    heads: i64,
    attention: Attention,
    kind: Kind,
}

/// What makes queries, keys and values: one product where all come from the same input, otherwise one of the positions
/// and one of the context.
#[derive(Debug)]
enum Projections {
    Own { all: Linear },
    Context { query: Linear, key_and_value: Linear },
}

impl CrossAttention {
    /// Reads `to_q`, `to_k`, `to_v`, `to_out.0`. `context_width`: width of what keys and values are made from; none: they
    /// are made from the positions themselves.
    pub fn new(
        scope: &Scope,
        channels: i64,
        heads: i64,
        context_width: Option<i64>,
        kind: Kind,
    ) -> Result<Self> {
        let stacked = |names: &[&str], inputs| {
            let scopes = names.iter().map(|name| scope.sub(name)).collect::<Vec<_>>();
            Linear::stacked(&scopes, LinearConfig { inputs, outputs: channels, bias: false }, kind)
        };
        let projections = match context_width {
            None => Projections::Own { all: stacked(&["to_q", "to_k", "to_v"], channels)? },
            Some(width) => Projections::Context {
                query: stacked(&["to_q"], channels)?,
                key_and_value: stacked(&["to_k", "to_v"], width)?,
            },
        };
        let output = LinearConfig { inputs: channels, outputs: channels, bias: true };
        Ok(CrossAttention {
            projections,
            output: Linear::new(&scope.sub("to_out.0"), output, kind)?,
            heads,
            attention: Attention::Fused,
            kind,
        })
    }

    /// Computed in this way.
    pub(crate) fn by(self, attention: Attention) -> Self {
        CrossAttention { attention, ..self }
    }

    /// `x`: [batch, positions, channels]; `context`: [batch, keys, context_width], in the layer's kind or fp32, unread
    /// where keys and values are made from `x`; returns x's shape. Where the context has several times x's batch, x looks
    /// at each part of it, and the result has the context's batch.
    pub fn forward(&self, x: &Tensor, context: &Tensor) -> Result<Tensor> {
        self.output.forward(&self.mix(x, context)?)
    }

    /// `forward(x, context)` + `residual` (x's shape), rounded once.
    pub fn forward_added(&self, x: &Tensor, context: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let mixed = self.mix(x, context)?;
        self.output.forward_added(&mixed, &repeated(residual, mixed.size()[0])?)
    }

    /// Packs the weights as a forward pass does for positions and a context with gradients or without. Returns whether the
    /// result has one.
    fn lay_out(&self, gradient: bool, context: bool) -> Result<bool> {
        let mixed = match &self.projections {
            Projections::Own { all } => all.lay_out(gradient)?,
            Projections::Context { query, key_and_value } => {
                query.lay_out(gradient)? | key_and_value.lay_out(context)?
            }
        };
        self.output.lay_out(mixed)
    }

    fn mix(&self, x: &Tensor, context: &Tensor) -> Result<Tensor> {
        let (batch, positions, channels) = x.size3()?;
        let (heads, width) = (self.heads, channels / self.heads);
        let mixed = match &self.projections {
            Projections::Own { all } => {
                let together = all.forward(x)?.f_view([batch, positions, 3, heads, width])?;
                if self.attention == Attention::Fused {
                    attention::self_attention(&together)?
                } else {
                    let parts = together.f_unbind(2)?;
                    attention::attend(self.attention, &parts[0], &parts[1], &parts[2])?
                }
            }
            Projections::Context { query, key_and_value } => {
                let (_, keys, _) = context.size3()?;
                let query = repeated(&query.forward(x)?, context.size()[0])?;
                let query = query.f_view([-1, positions, heads, width])?;
                // A cast of its own, so that gradients of an fp32 context add up in fp32.
                let both = key_and_value.forward(&context.f_to_kind(self.kind)?)?;
                let both = both.f_view([-1, keys, 2, heads, width])?.f_unbind(2)?;
                attention::attend(self.attention, &query, &both[0], &both[1])?
            }
        };
        Ok(mixed.f_reshape([-1, positions, channels])?)
    }
}

/// GEGLU (Shazeer 2020) and a projection back: 4 times the width inside.
#[derive(Debug)]
pub struct FeedForward {
    expand: Linear,
    contract: Linear,
}

impl FeedForward {
    /// Reads `net.0.proj` (value and gate together) and `net.2`.
    pub fn new(scope: &Scope, channels: i64, kind: Kind) -> Result<Self> {
        let inner = 4 * channels;
        let expand = LinearConfig { inputs: channels, outputs: 2 * inner, bias: true };
        let contract = LinearConfig { inputs: inner, outputs: channels, bias: true };
        let net = scope.sub("net");
        Ok(FeedForward {
            expand: Linear::new(&net.sub(0).sub("proj"), expand, kind)?,
            contract: Linear::new(&net.sub(2), contract, kind)?,
        })
    }

    /// `x`: [batch, positions, channels]; returns the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.contract.forward(&native::geglu(&self.expand.forward(x)?)?)
    }

    /// `forward(x)` + `residual` (x's shape), rounded once.
    pub fn forward_added(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.contract.forward_added(&native::geglu(&self.expand.forward(x)?)?, residual)
    }
}

/// Self-attention, cross-attention, feed-forward, each behind a layer norm and added to its input.
/// Source: diffusers BasicTransformerBlock.
#[derive(Debug)]
pub struct TransformerLayer {
    norm1: LayerNorm,
    self_attention: CrossAttention,
    only_cross_attention: bool,
    norm2: LayerNorm,
    cross_attention: CrossAttention,
    norm3: LayerNorm,
    feed_forward: FeedForward,
}

impl TransformerLayer {
    /// Reads `norm1`, `attn1`, `norm2`, `attn2`, `norm3`, `ff`.
    pub fn new(scope: &Scope, config: &UNetConfig, block: &BlockConfig, kind: Kind) -> Result<Self> {
        let (channels, heads, text) = (block.channels, block.heads, config.cross_attention_width);
        let norm = |name| LayerNorm::new(&scope.sub(name), channels, LAYER_NORM_EPSILON);
        let own = block.only_cross_attention.then_some(text);
        let attention = |name, context| {
            let attention = CrossAttention::new(&scope.sub(name), channels, heads, context, kind)?;
            Ok::<_, Error>(attention.by(config.attention))
        };
        Ok(TransformerLayer {
            norm1: norm("norm1")?,
            self_attention: attention("attn1", own)?,
            only_cross_attention: block.only_cross_attention,
            norm2: norm("norm2")?,
            cross_attention: attention("attn2", Some(text))?,
            norm3: norm("norm3")?,
            feed_forward: FeedForward::new(&scope.sub("ff"), channels, kind)?,
        })
    }

    /// `x`: [batch, positions, channels]; `text`: [batch, tokens, width]; returns x's shape, with the text's batch where that is
    /// several times x's.
    pub fn forward(&self, x: &Tensor, text: &Tensor) -> Result<Tensor> {
        let [hidden, x] = self.norm1.forward_keeping(x)?;
        let context = if self.only_cross_attention { text } else { &hidden };
        let x = self.self_attention.forward_added(&hidden, context, &x)?;
        let [hidden, x] = self.norm2.forward_keeping(&x)?;
        let x = self.cross_attention.forward_added(&hidden, text, &x)?;
        let [hidden, x] = self.norm3.forward_keeping(&x)?;
        self.feed_forward.forward_added(&hidden, &x)
    }

    /// Packs the weights as [`TransformerLayer::forward`] does for positions and a text with gradients or without. Returns
    /// whether the result has one.
    fn lay_out(&self, gradient: bool, text: bool) -> Result<bool> {
        let gradient = gradient | self.self_attention.lay_out(gradient, text)?;
        let gradient = gradient | self.cross_attention.lay_out(gradient, text)?;
        Ok(gradient | self.feed_forward.contract.lay_out(self.feed_forward.expand.lay_out(gradient)?)?)
    }
}

/// Group norm, projection in, transformer layers, projection out, + input.
/// Source: diffusers Transformer2DModel on continuous input.
#[derive(Debug)]
pub struct SpatialTransformer {
    norm: GroupNorm,
    project_in: Linear,
    layers: Vec<TransformerLayer>,
    project_out: Linear,
}

impl SpatialTransformer {
    /// Reads `norm`, `proj_in` and `proj_out` (convolutions or linear layers), `transformer_blocks.N`.
    pub fn new(scope: &Scope, config: &UNetConfig, block: &BlockConfig, kind: Kind) -> Result<Self> {
        let channels = block.channels;
        let norm = GroupNormConfig { groups: config.norm_groups, channels, epsilon: GROUP_NORM_EPSILON };
        let linear = LinearConfig { inputs: channels, outputs: channels, bias: true };
        let projection = |name| {
            let scope = scope.sub(name);
            if config.linear_projection {
                Linear::new(&scope, linear, kind)
            } else {
                Linear::from_1x1_convolution(&scope, linear, kind)
            }
        };
        let layers = scope.sub("transformer_blocks");
        Ok(SpatialTransformer {
            norm: GroupNorm::new(&scope.sub("norm"), norm)?,
            project_in: projection("proj_in")?,
            layers: (0..block.transformer_layers)
                .map(|index| TransformerLayer::new(&layers.sub(index), config, block, kind))
                .collect::<Result<_>>()?,
            project_out: projection("proj_out")?,
        })
    }

    /// `x`: [batch, channels, height, width]; `text`: [batch, tokens, width]; returns x's shape, with the text's batch where that
    /// is several times x's.
    pub fn forward(&self, x: &Tensor, text: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = x.size4()?;
        let [normal, x] = self.norm.forward_keeping(x)?;
        let mut tokens = self.project_in.forward(&to_tokens(&normal)?)?;
        for layer in &self.layers {
            tokens = layer.forward(&tokens, text)?;
        }
        let x = repeated(&x, tokens.size()[0])?;
        let output = self.project_out.forward_added(&tokens, &to_tokens(&x)?)?;
        from_tokens(&output, height, width)
    }

    /// Packs the weights as [`SpatialTransformer::forward`] does for an input and a text with gradients or without. Returns
    /// whether the result has one.
    pub(crate) fn lay_out(&self, gradient: bool, text: bool) -> Result<bool> {
        let mut tokens = self.project_in.lay_out(gradient)?;
        for layer in &self.layers {
            tokens = layer.lay_out(tokens, text)?;
        }
        Ok(gradient | self.project_out.lay_out(tokens)?)
    }
}
