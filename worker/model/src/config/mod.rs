//! The model's config.json files, read strictly: a value this crate cannot honour is an error that names
//! it; an absent key takes the default of diffusers or transformers; an unknown key is ignored.

mod keys;
pub mod pipeline;
pub mod sampler;
pub mod scheduler;
pub mod text;
pub mod unet;
pub mod vae;

pub use keys::Keys;
pub use sampler::{DpmSolverConfig, SamplerConfig};
pub use scheduler::{BetaSchedule, SchedulerConfig, TimestepSpacing};
pub use text::{Activation, TextConfig};
pub use unet::{BlockConfig, UNetConfig};
pub use vae::VaeConfig;
