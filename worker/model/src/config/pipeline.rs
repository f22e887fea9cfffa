//! Corrections that diffusers' StableDiffusionPipeline makes to old configurations when it is loaded. Its scheduler classes do not, and
//! neither does what trains: textual_inversion.py reads the same file with DDPMScheduler, as it stands.
//!
//! Source: diffusers, pipelines/stable_diffusion/pipeline_stable_diffusion.py, `StableDiffusionPipeline.__init__`, and
//! configuration_utils.py, `ConfigMixin.extract_init_dict` (what a class took by default is not handed to another class).

use ringtune_engine::SamplerKind;

use crate::config::Keys;

/// Pipelines of older releases than this wrote a `sample_size` that was never right.
const WITH_SAMPLE_SIZE: (u64, u64) = (0, 9);
/// What stands for it, and the least that is believed of such a file.
const SAMPLE_SIZE: i64 = 64;

/// scheduler_config.json as a pipeline has it whose scheduler is then exchanged for `wanted`'s, unless it is `own`, the one that
/// the model comes with.
pub fn of_pipeline(keys: &Keys, own: Option<SamplerKind>, wanted: SamplerKind) -> Keys {
    let mut corrected = keys.clone();
    let is_own = own == Some(wanted);
    // Its classes' default is 0. A default is corrected as well, but does not come along to another class.
    if is_own || keys.get("steps_offset").is_some() {
        corrected = corrected.with("steps_offset", 1);
    }
    // The default of DDIM alone is true; other files may have the key too.
    let clips = keys.flag("clip_sample", is_own && wanted == SamplerKind::Ddim).unwrap_or(false);
    if clips { corrected.with("clip_sample", false) } else { corrected }
}

/// `sample_size` of unet/config.json, as a pipeline has it.
pub fn sample_size(keys: &Keys) -> Option<i64> {
    let given = keys.get("sample_size").and_then(|side| side.as_i64()).filter(|side| *side > 0)?;
    let version = keys.get("_diffusers_version").and_then(|version| version.as_str()).unwrap_or_default();
    let mut parts = version.split('.').map(str::parse);
    let is_old = match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < WITH_SAMPLE_SIZE,
        _ => false,
    };
    Some(if is_old { given.max(SAMPLE_SIZE) } else { given })
}
