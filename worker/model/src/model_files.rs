//! A Stable Diffusion model, a folder in diffusers' layout or one file in the original one: what it has and
//! whether that fits together.

use std::path::{Path, PathBuf};

use ringtune_engine::{ModelInfo, ModelOptions, PredictionType, SamplerKind};
use tch::Kind;

use crate::clip::TextEncoder;
use crate::config::{Keys, SamplerConfig, SchedulerConfig, TextConfig, UNetConfig, VaeConfig, pipeline};
use crate::error::{Error, Result};
use crate::layers::Products;
use crate::single_file::SingleFile;
use crate::unet::{self, UNet};
use crate::vae::{self, VaeDecoder, VaeEncoder};
use crate::weights::{Rename, Weights};

const TEXT_STEM: &str = "model";
const DIFFUSERS_STEM: &str = "diffusion_pytorch_model";

/// The configuration files of one model, read and checked against each other.
#[derive(Debug, Clone)]
pub struct ModelFiles {
    source: Source,
    /// "fp16" of `model.fp16.safetensors`; empty: none.
    variant: String,
    /// text_encoder/config.json.
    pub text: TextConfig,
    /// unet/config.json.
    pub unet: UNetConfig,
    /// vae/config.json.
    pub vae: VaeConfig,
    /// Schedule for training, of scheduler/scheduler_config.json.
    pub scheduler: SchedulerConfig,
    /// All its keys.
    scheduler_keys: Keys,
    /// The class that model_index.json names for it: the pipeline's, whatever the file itself says.
    scheduler_class: Option<String>,
    /// See [`ModelOptions::draws_unet`].
    draws_unet: bool,
    /// Numbers of all tensors, once they were checked.
    parameters: u64,
}

/// Source of the tensors.
#[derive(Debug, Clone)]
enum Source {
    /// Folders of the components.
    Folder(PathBuf),
    SingleFile(SingleFile),
}

/// Keys of the configuration files, or of a single file's sizes.
struct AllKeys {
    text: Keys,
    unet: Keys,
    vae: Keys,
    scheduler: Keys,
    scheduler_class: Option<String>,
}

impl Source {
    fn read(path: &Path, options: &ModelOptions) -> Result<(Self, AllKeys)> {
        if path.is_file() {
            if !options.variant.is_empty() {
                let allowed = "none: variants are files of a folder, and this model is one file";
                return Err(Error::argument("variant", &options.variant, allowed));
            }
            let file = SingleFile::read(path, options.prediction_type)?;
            let (text, unet, vae) = (file.text_keys(), file.unet_keys(), file.vae_keys());
            let keys = AllKeys { text, unet, vae, scheduler: file.scheduler_keys(), scheduler_class: None };
            return Ok((Source::SingleFile(file), keys));
        }
        let index = check_model_index(path)?;
        let keys = |component: &str, file: &str| Keys::read(&path.join(component).join(file));
        let scheduler = keys("scheduler", "scheduler_config.json")?;
        let keys = AllKeys {
            text: keys("text_encoder", "config.json")?,
            unet: keys("unet", "config.json")?,
            vae: keys("vae", "config.json")?,
            scheduler: match options.prediction_type {
                Some(prediction) => scheduler.with("prediction_type", prediction.name()),
                None => scheduler,
            },
            scheduler_class: class_in(&index, "scheduler").map(str::to_string),
        };
        Ok((Source::Folder(path.to_path_buf()), keys))
    }
}

impl ModelFiles {
    /// Reads the configuration; touches no weights. `path`: a folder in diffusers' layout, or one safetensors file in
    /// the original layout.
    pub fn read(path: &Path, options: &ModelOptions) -> Result<Self> {
        let (source, keys) = Source::read(path, options)?;
        let (unet_keys, scheduler_keys, scheduler_class) = (keys.unet, keys.scheduler, keys.scheduler_class);
        let mut model_files = ModelFiles {
            source,
            variant: options.variant.clone(),
            text: TextConfig::from_keys(&keys.text)?,
            unet: UNetConfig::from_keys(&unet_keys)?,
            vae: VaeConfig::from_keys(&keys.vae)?,
            scheduler: SchedulerConfig::from_keys(&scheduler_keys)?,
            scheduler_keys,
            scheduler_class,
            draws_unet: options.draws_unet,
            parameters: 0,
        };
        if options.rescale_zero_snr {
            model_files.rescale_zero_snr()?;
        }
        let latent = model_files.vae.latent_channels;
        if model_files.unet.cross_attention_width != model_files.text.hidden_size {
            let allowed = format!("the text encoder's hidden_size = {}", model_files.text.hidden_size);
            return Err(unet_keys.invalid("cross_attention_dim", allowed));
        }
        for (key, channels) in
            [("in_channels", model_files.unet.in_channels), ("out_channels", model_files.unet.out_channels)]
        {
            if channels != latent {
                return Err(unet_keys.invalid(key, format!("the VAE's latent_channels = {latent}")));
            }
        }
        Ok(model_files)
    }

    /// Only a velocity can be learned where nothing but noise is seen: the noise itself would be the input.
    fn rescale_zero_snr(&mut self) -> Result<()> {
        if self.scheduler.prediction != PredictionType::VPrediction {
            let allowed = "false: this model predicts the noise, and of pure noise that says nothing about the \
                           picture; only one that predicts the velocity (v_prediction) can be trained so";
            return Err(Error::argument("rescale_betas_zero_snr", true, allowed));
        }
        self.scheduler.rescale_zero_snr = true;
        Ok(())
    }

    /// Checks names, shapes and types of every tensor by the files' headers, without reading weights, and counts them.
    pub fn check_weights(&mut self) -> Result<()> {
        let text = self.text_weights()?.into_dry();
        TextEncoder::new(&text.root(), &self.text, Products::Exact)?;
        text.finish()?;
        let unet = self.unet_weights()?.into_dry();
        UNet::new(&unet.root(), &self.unet, Kind::Float)?;
        unet.finish()?;
        let vae = self.vae_weights()?.into_dry();
        VaeEncoder::new(&vae.root(), &self.vae, Kind::Float)?;
        VaeDecoder::new(&vae.root(), &self.vae, Kind::Float)?;
        vae.finish()?;
        let numbers = |weights: &Weights| {
            weights.asked().iter().map(|(_, shape)| shape.iter().product::<i64>() as u64).sum::<u64>()
        };
        self.parameters = [text, unet, vae].iter().map(numbers).sum();
        Ok(())
    }

    /// The text encoder's tensors.
    pub fn text_weights(&self) -> Result<Weights> {
        match &self.source {
            Source::Folder(folder) => {
                self.weights(folder, "text_encoder", TEXT_STEM, ringtune_layout::text_name)
            }
            Source::SingleFile(file) => file.text_weights(),
        }
    }

    /// The UNet's tensors.
    pub fn unet_weights(&self) -> Result<Weights> {
        match &self.source {
            Source::Folder(folder) => match self.weights(folder, "unet", DIFFUSERS_STEM, unet::rename) {
                Err(Error::NotAModel { .. } | Error::PickleOnly { .. }) if self.draws_unet => {
                    Ok(Weights::absent(&folder.join("unet")))
                }
                weights => weights,
            },
            Source::SingleFile(file) => file.unet_weights(),
        }
    }

    /// The VAE's tensors.
    pub fn vae_weights(&self) -> Result<Weights> {
        match &self.source {
            Source::Folder(folder) => self.weights(folder, "vae", DIFFUSERS_STEM, vae::rename),
            Source::SingleFile(file) => file.vae_weights(),
        }
    }

    fn weights(&self, folder: &Path, component: &str, stem: &str, rename: Rename) -> Result<Weights> {
        Weights::open(&folder.join(component), stem, &self.variant, rename)
    }

    /// Configuration of a sampler, of scheduler/scheduler_config.json, as in diffusers' pipeline ([`pipeline::of_pipeline`]).
    ///
    /// Errors: a key whose value that sampler does not do. Training does not need it, so it is not read before.
    pub fn sampler(&self, kind: SamplerKind) -> Result<SamplerConfig> {
        let (own, unknown) = self.own_sampler();
        let own = unknown.is_none().then_some(own);
        SamplerConfig::from_keys(&pipeline::of_pipeline(&self.scheduler_keys, own, kind), kind)
    }

    /// The sampler of the model's own scheduler class, or DDIM with that class's name.
    fn own_sampler(&self) -> (SamplerKind, Option<String>) {
        let of_file = self.scheduler_keys.get("_class_name").and_then(|value| value.as_str());
        let class = self.scheduler_class.as_deref().or(of_file).unwrap_or("without a name");
        let karras = self.scheduler_keys.flag("use_karras_sigmas", false).unwrap_or(false);
        match SamplerKind::of_class(class, karras) {
            Some(kind) => (kind, None),
            None => (SamplerKind::Ddim, Some(class.to_string())),
        }
    }

    /// Facts of the model for jobs.
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
            parameters: self.parameters,
            native_resolution: self.unet.sample_size.map(|side| side as usize * factor),
        }
    }
}

/// model_index.json says which pipeline the folder is; only Stable Diffusion 1.x and 2.x are.
fn check_model_index(folder: &Path) -> Result<Keys> {
    let file = folder.join("model_index.json");
    if !file.is_file() {
        let reason = if folder.is_dir() {
            "has no model_index.json: not a model in diffusers' folder layout"
        } else {
            "is neither a folder nor a file"
        };
        return Err(Error::NotAModel { folder: folder.to_path_buf(), reason: reason.to_string() });
    }
    let keys = Keys::read(&file)?;
    let components =
        [("text_encoder", "CLIPTextModel"), ("unet", "UNet2DConditionModel"), ("vae", "AutoencoderKL")];
    for (component, class) in components {
        if class_in(&keys, component) != Some(class) {
            return Err(
                keys.invalid(component, format!("[library, \"{class}\"]: Stable Diffusion 1.x or 2.x"))
            );
        }
        if !folder.join(component).is_dir() {
            let reason = format!("has no folder '{component}', which model_index.json names");
            return Err(Error::NotAModel { folder: folder.to_path_buf(), reason });
        }
    }
    for unsupported in ["text_encoder_2", "transformer", "prior"] {
        keys.only(unsupported, &[serde_json::json!([null, null])])?;
    }
    Ok(keys)
}

/// The class of a component in model_index.json, which is a pair of a library and a class.
fn class_in<'a>(index: &'a Keys, component: &str) -> Option<&'a str> {
    index.get(component)?.get(1)?.as_str()
}
