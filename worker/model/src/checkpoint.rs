//! A Stable Diffusion folder in diffusers' layout: which files it has and whether they fit together.

use std::path::{Path, PathBuf};

use tch::Kind;

use crate::api::ModelInfo;
use crate::clip::{self, TextEncoder};
use crate::config::{Keys, SamplerConfig, SchedulerConfig, TextConfig, UNetConfig, VaeConfig};
use crate::error::{Error, Result};
use crate::samplers::SamplerKind;
use crate::unet::{self, UNet};
use crate::vae::{self, VaeDecoder, VaeEncoder};
use crate::weights::Weights;

const TEXT_STEM: &str = "model";
const DIFFUSERS_STEM: &str = "diffusion_pytorch_model";

/// The configuration files of one checkpoint, read and checked against each other.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    folder: PathBuf,
    /// "fp16" of `model.fp16.safetensors`; empty: none.
    variant: String,
    /// text_encoder/config.json.
    pub text: TextConfig,
    /// unet/config.json.
    pub unet: UNetConfig,
    /// vae/config.json.
    pub vae: VaeConfig,
    /// What scheduler/scheduler_config.json says for training.
    pub scheduler: SchedulerConfig,
    /// All that it says.
    scheduler_keys: Keys,
}

impl Checkpoint {
    /// Reads the configuration files; touches no weights.
    pub fn read(folder: &Path) -> Result<Self> {
        Self::read_variant(folder, "")
    }

    /// As [`Checkpoint::read`], for weights of a variant ("fp16" of `model.fp16.safetensors`; empty: none).
    pub fn read_variant(folder: &Path, variant: &str) -> Result<Self> {
        check_model_index(folder)?;
        let keys = |component: &str, file: &str| Keys::read(&folder.join(component).join(file));
        let unet_keys = keys("unet", "config.json")?;
        let scheduler_keys = keys("scheduler", "scheduler_config.json")?;
        let checkpoint = Checkpoint {
            folder: folder.to_path_buf(),
            variant: variant.to_string(),
            text: TextConfig::from_keys(&keys("text_encoder", "config.json")?)?,
            unet: UNetConfig::from_keys(&unet_keys)?,
            vae: VaeConfig::from_keys(&keys("vae", "config.json")?)?,
            scheduler: SchedulerConfig::from_keys(&scheduler_keys)?,
            scheduler_keys,
        };
        let latent = checkpoint.vae.latent_channels;
        if checkpoint.unet.cross_attention_width != checkpoint.text.hidden_size {
            let allowed = format!("the text encoder's hidden_size = {}", checkpoint.text.hidden_size);
            return Err(unet_keys.invalid("cross_attention_dim", allowed));
        }
        for (key, channels) in
            [("in_channels", checkpoint.unet.in_channels), ("out_channels", checkpoint.unet.out_channels)]
        {
            if channels != latent {
                return Err(unet_keys.invalid(key, format!("the VAE's latent_channels = {latent}")));
            }
        }
        Ok(checkpoint)
    }

    /// Checks names, shapes and types of every tensor by the files' headers, without reading weights.
    pub fn check_weights(&self) -> Result<()> {
        let text = self.text_weights()?.into_dry();
        TextEncoder::new(&text.root(), &self.text)?;
        text.finish()?;
        let unet = self.unet_weights()?.into_dry();
        UNet::new(&unet.root(), &self.unet, Kind::Float)?;
        unet.finish()?;
        let vae = self.vae_weights()?.into_dry();
        VaeEncoder::new(&vae.root(), &self.vae, Kind::Float)?;
        VaeDecoder::new(&vae.root(), &self.vae, Kind::Float)?;
        vae.finish()
    }

    /// The text encoder's tensors.
    pub fn text_weights(&self) -> Result<Weights> {
        Weights::open(&self.folder.join("text_encoder"), TEXT_STEM, &self.variant, clip::rename)
    }

    /// The UNet's tensors.
    pub fn unet_weights(&self) -> Result<Weights> {
        Weights::open(&self.folder.join("unet"), DIFFUSERS_STEM, &self.variant, unet::rename)
    }

    /// The VAE's tensors.
    pub fn vae_weights(&self) -> Result<Weights> {
        Weights::open(&self.folder.join("vae"), DIFFUSERS_STEM, &self.variant, vae::rename)
    }

    /// What scheduler/scheduler_config.json says for a sampler.
    ///
    /// Errors: a key whose value that sampler does not do. Training does not need it, so it is not read before.
    pub fn sampler(&self, kind: SamplerKind) -> Result<SamplerConfig> {
        SamplerConfig::from_keys(&self.scheduler_keys, kind)
    }

    /// The sampler of the checkpoint's own scheduler class, DDIM where there is none; then also that class's name.
    fn own_sampler(&self) -> (SamplerKind, Option<String>) {
        let text = |key| self.scheduler_keys.get(key).and_then(|value| value.as_str());
        let class = text("_class_name").unwrap_or("without a name");
        let karras = self.scheduler_keys.flag("use_karras_sigmas", false).unwrap_or(false);
        match SamplerKind::of_class(class, karras) {
            Some(kind) => (kind, None),
            None => (SamplerKind::Ddim, Some(class.to_string())),
        }
    }

    /// What a job has to know.
    pub fn info(&self) -> ModelInfo {
        let factor = self.vae.factor();
        let (sampler, unknown_scheduler) = self.own_sampler();
        ModelInfo {
            vocab_size: self.text.vocab_size as usize,
            text_width: self.text.hidden_size as usize,
            max_text_length: self.text.max_positions as usize,
            latent_channels: self.vae.latent_channels as usize,
            vae_factor: factor,
            scaling_factor: self.vae.scaling_factor,
            num_train_timesteps: self.scheduler.num_train_timesteps,
            prediction_type: self.scheduler.prediction,
            sampler,
            unknown_scheduler,
            native_resolution: self.unet.sample_size.map(|side| side as usize * factor),
        }
    }
}

/// model_index.json says which pipeline the folder is; only Stable Diffusion 1.x and 2.x are.
fn check_model_index(folder: &Path) -> Result<()> {
    let file = folder.join("model_index.json");
    if !file.is_file() {
        let reason = if folder.is_dir() {
            "has no model_index.json: not a checkpoint in diffusers' folder layout"
        } else {
            "is not a folder"
        };
        return Err(Error::NotACheckpoint { folder: folder.to_path_buf(), reason: reason.to_string() });
    }
    let keys = Keys::read(&file)?;
    let components =
        [("text_encoder", "CLIPTextModel"), ("unet", "UNet2DConditionModel"), ("vae", "AutoencoderKL")];
    for (component, class) in components {
        let found = keys.get(component).and_then(|pair| pair.get(1)).and_then(|name| name.as_str());
        if found != Some(class) {
            return Err(
                keys.invalid(component, format!("[library, \"{class}\"]: Stable Diffusion 1.x or 2.x"))
            );
        }
        if !folder.join(component).is_dir() {
            let reason = format!("has no folder '{component}', which model_index.json names");
            return Err(Error::NotACheckpoint { folder: folder.to_path_buf(), reason });
        }
    }
    for unsupported in ["text_encoder_2", "transformer", "prior"] {
        keys.only(unsupported, &[serde_json::json!([null, null])])?;
    }
    Ok(())
}
