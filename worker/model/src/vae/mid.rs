//! The VAE's middle: two residual blocks around one attention layer with a single head.

use tch::{Kind, Tensor};

use crate::attention;
use crate::config::VaeConfig;
use crate::error::Result;
use crate::layers::{GroupNorm, GroupNormConfig, Linear, LinearConfig, from_tokens, to_tokens};
use crate::resnet::ResnetBlock;
use crate::vae::{EPSILON, resnet};
use crate::weights::Scope;

/// norm, self-attention over all positions with one head, + input.
/// Source: diffusers Attention as UNetMidBlock2D builds it.
#[derive(Debug)]
pub struct VaeAttention {
    norm: GroupNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
}

impl VaeAttention {
    /// Reads `group_norm`, `to_q`, `to_k`, `to_v`, `to_out.0`.
    pub fn new(scope: &Scope, config: &VaeConfig, channels: i64, kind: Kind) -> Result<Self> {
        let norm = GroupNormConfig { groups: config.norm_groups, channels, epsilon: EPSILON };
        let linear = LinearConfig { inputs: channels, outputs: channels, bias: true };
        let projection = |name| Linear::new(&scope.sub(name), linear, kind);
        Ok(VaeAttention {
            norm: GroupNorm::new(&scope.sub("group_norm"), norm)?,
            query: projection("to_q")?,
            key: projection("to_k")?,
            value: projection("to_v")?,
            output: projection("to_out.0")?,
        })
    }

    /// `x`: [batch, channels, height, width]; returns the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = x.size4()?;
        let tokens = to_tokens(&self.norm.forward(x)?)?;
        let one_head =
            |projection: &Linear| -> Result<Tensor> { Ok(projection.forward(&tokens)?.f_unsqueeze(2)?) };
        let mixed = attention::scaled_dot_product(
            &one_head(&self.query)?,
            &one_head(&self.key)?,
            &one_head(&self.value)?,
        )?;
        let output = self.output.forward(&mixed.f_squeeze_dim(2)?)?;
        Ok(x.f_add(&from_tokens(&output, height, width)?)?)
    }
}

/// Residual block, attention (unless config.json says none), residual block.
#[derive(Debug)]
pub struct VaeMidBlock {
    first: ResnetBlock,
    attention: Option<VaeAttention>,
    second: ResnetBlock,
}

impl VaeMidBlock {
    /// Reads `resnets.0`, `attentions.0`, `resnets.1`.
    pub fn new(scope: &Scope, config: &VaeConfig, channels: i64, kind: Kind) -> Result<Self> {
        let resnets = scope.sub("resnets");
        let shape = resnet(config, channels, channels);
        let attention = if config.mid_attention {
            Some(VaeAttention::new(&scope.sub("attentions").sub(0), config, channels, kind)?)
        } else {
            None
        };
        Ok(VaeMidBlock {
            first: ResnetBlock::new(&resnets.sub(0), shape, kind)?,
            attention,
            second: ResnetBlock::new(&resnets.sub(1), shape, kind)?,
        })
    }

    /// `x`: [batch, channels, height, width]; returns the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut hidden = self.first.forward(x, None)?;
        if let Some(attention) = &self.attention {
            hidden = attention.forward(&hidden)?;
        }
        self.second.forward(&hidden, None)
    }
}
