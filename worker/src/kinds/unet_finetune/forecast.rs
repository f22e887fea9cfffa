//! What `bench unet` asks of jobs of this kind: the memory that one with such steps needs.

use ringtune_shared::job::{JobSpec, SpecError, Work, parse_job_toml};

use super::memory::{Machine, needed};
use crate::{
    engine::{Attention, Precision, UnetTensor},
    fault::Refusal,
};

/// A job of one rank.
#[derive(Clone, Debug)]
pub(crate) struct UnetForecast(JobSpec);

/// What of it counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnetOptions {
    pub(crate) resolution: u32,
    pub(crate) ema: bool,
    pub(crate) gradient_checkpointing: bool,
    pub(crate) attention: Attention,
    /// Moments and average are mapped files.
    pub(crate) in_files: bool,
}

impl UnetForecast {
    /// # Errors
    /// Options that no job may have.
    pub(crate) fn new(options: UnetOptions) -> Result<Self, SpecError> {
        let UnetOptions { resolution, ema, gradient_checkpointing, attention, in_files } = options;
        let attention = match attention {
            Attention::Fused => "fused",
            Attention::Plain => "plain",
            Attention::Sliced => "sliced",
        };
        let offload = if in_files { "disk" } else { "none" };
        let job = format!(
            "kind = \"unet_finetune\"\n[model]\nbase = \"/\"\n[data]\nsynthetic_samples = 1\n[train]\nmax_train_steps = 1\n\
             resolution = {resolution}\nuse_ema = {ema}\ngradient_checkpointing = {gradient_checkpointing}\n\
             attention = \"{attention}\"\noffload = \"{offload}\"\n"
        );
        parse_job_toml(&job).map(Self)
    }

    /// Bytes that it needs with microbatches of so many samples.
    ///
    /// # Errors
    /// The UNet has no parameters.
    pub(crate) fn bytes(
        &mut self,
        tensors: &[UnetTensor],
        precision: Precision,
        microbatch: u32,
    ) -> Result<u64, Refusal> {
        let Work::UnetFinetune(work) = &mut self.0.work else { return Ok(0) };
        work.train.train_batch_size = microbatch;
        let machine = Machine { cluster: &self.0.common.cluster, ranks: 1, precision, memory: 0 };
        needed(work, tensors, machine)
    }
}
