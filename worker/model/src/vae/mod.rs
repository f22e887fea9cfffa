//! AutoencoderKL (Rombach et al. 2022, section 3.1): pictures to latent posteriors, latents to pictures.

mod decoder;
mod encoder;
mod mid;

pub use decoder::{VaeDecoder, VaeUpBlock};
pub use encoder::{VaeDownBlock, VaeEncoder};
pub use mid::{VaeAttention, VaeMidBlock};

use crate::config::VaeConfig;
use crate::resnet::ResnetConfig;

/// Every normalisation of the VAE uses this, whatever config.json says of others.
pub(crate) const EPSILON: f64 = 1e-6;

pub(crate) fn resnet(config: &VaeConfig, inputs: i64, outputs: i64) -> ResnetConfig {
    ResnetConfig { inputs, outputs, groups: config.norm_groups, epsilon: EPSILON, output_scale: 1.0 }
}

/// Legacy names of the middle attention's projections.
pub fn rename(name: &str) -> Option<String> {
    const LEGACY: [(&str, &str); 4] =
        [("query", "to_q"), ("key", "to_k"), ("value", "to_v"), ("proj_attn", "to_out.0")];
    if let Some((head, tail)) = name.split_once(".attentions.0.") {
        for (old, new) in LEGACY {
            if let Some(rest) = tail.strip_prefix(old).filter(|rest| rest.starts_with('.')) {
                return Some(format!("{head}.attentions.0.{new}{rest}"));
            }
        }
    }
    Some(name.to_string())
}
