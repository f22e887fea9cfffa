//! The time embedding.

use tch::{Device, Kind, Tensor};

use crate::config::UNetConfig;
use crate::error::Result;
use crate::layers::{Linear, LinearConfig};
use crate::weights::Scope;

/// Sinusoids of the timestep (Vaswani et al. 2017), then two linear layers with SiLU between; always fp32, for it
/// costs nothing beside the network, and its error would reach every position.
/// Source: diffusers get_timestep_embedding and TimestepEmbedding.
#[derive(Debug)]
pub struct TimeEmbedding {
    first: Linear,
    second: Linear,
    channels: i64,
    cosine_first: bool,
    freq_shift: f64,
}

impl TimeEmbedding {
    /// Reads `linear_1`, `linear_2`.
    pub fn new(scope: &Scope, config: &UNetConfig) -> Result<Self> {
        let (channels, width) = (config.blocks[0].channels, config.time_width());
        let first = LinearConfig { inputs: channels, outputs: width, bias: true };
        let second = LinearConfig { inputs: width, outputs: width, bias: true };
        Ok(TimeEmbedding {
            first: Linear::new(&scope.sub("linear_1"), first, Kind::Float)?,
            second: Linear::new(&scope.sub("linear_2"), second, Kind::Float)?,
            channels,
            cosine_first: config.flip_sin_to_cos,
            freq_shift: config.freq_shift,
        })
    }

    /// `timesteps`: [batch], any kind; returns [batch, channels] fp32.
    pub fn sinusoids(&self, timesteps: &Tensor) -> Result<Tensor> {
        let half = self.channels / 2;
        let exponents = Tensor::f_arange(half, (Kind::Float, Device::Cpu))?
            .f_mul_scalar(-(10000f64.ln()))?
            .f_div_scalar(half as f64 - self.freq_shift)?;
        let frequencies = exponents.f_exp()?.f_unsqueeze(0)?;
        let angles = timesteps.f_to_kind(Kind::Float)?.f_unsqueeze(1)?.f_mul(&frequencies)?;
        let (sines, cosines) = (angles.f_sin()?, angles.f_cos()?);
        let parts = if self.cosine_first { [cosines, sines] } else { [sines, cosines] };
        let embedding = Tensor::f_cat(&parts, -1)?;
        if self.channels % 2 == 1 { Ok(embedding.f_constant_pad_nd([0, 1])?) } else { Ok(embedding) }
    }

    /// `timesteps`: [batch], any kind; returns [batch, 4 * channels] fp32.
    pub fn forward(&self, timesteps: &Tensor) -> Result<Tensor> {
        self.second.forward(&self.first.forward(&self.sinusoids(timesteps)?)?.f_silu()?)
    }
}
