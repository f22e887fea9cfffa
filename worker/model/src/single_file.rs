//! A model in one safetensors file, in the layout of the original Stable Diffusion code ([`ringtune_layout`]).
//!
//! Nothing is rewritten: the shapes in the file's header say what the network's sizes are, every tensor keeps its place on the
//! mapping, and gets the name and shape that it has in diffusers' layout. The schedule is Stable Diffusion's, as diffusers'
//! `from_single_file` assumes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringtune_engine::PredictionType;
use ringtune_layout::{Component, Generation, Sizes};
use serde_json::{Map, Value, json};

use crate::config::Keys;
use crate::error::{Error, Result};
use crate::mapped_file::Header;
use crate::weights::Weights;

/// File names that end so are pickles.
const PICKLES: [&str; 4] = ["ckpt", "pt", "pth", "bin"];

/// A single file with its parsed header.
#[derive(Debug, Clone)]
pub(crate) struct SingleFile {
    path: PathBuf,
    sizes: Arc<Sizes>,
    prediction: PredictionType,
}

impl SingleFile {
    /// Reads the header. `prediction`: what the UNet predicts, where the caller knows it; else what the file's
    /// metadata says (`modelspec.prediction_type`), else as diffusers has it: the noise in 1.x, the velocity in 2.x.
    ///
    /// Errors: no safetensors file, or not a model of Stable Diffusion 1.x or 2.x.
    pub(crate) fn read(path: &Path, prediction: Option<PredictionType>) -> Result<Self> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if PICKLES.contains(&ending) {
            let reason = "is a pickle, which can run any code and is not read; convert it to .safetensors";
            return Err(Error::NotAModel { folder: path.to_path_buf(), reason: reason.to_string() });
        }
        let header = Header::read(path)?;
        let sizes = Sizes::of(&header.shapes)
            .map_err(|error| Error::NotAModel { folder: path.to_path_buf(), reason: error.to_string() })?;
        let prediction = match (prediction, header.metadata("modelspec.prediction_type"), sizes.generation) {
            (Some(prediction), _, _) => prediction,
            (None, Some("epsilon"), _) => PredictionType::Epsilon,
            (None, Some("v" | "v_prediction"), _) => PredictionType::VPrediction,
            (None, _, Generation::One) => PredictionType::Epsilon,
            (None, _, Generation::Two) => PredictionType::VPrediction,
        };
        Ok(SingleFile { path: path.to_path_buf(), sizes: Arc::new(sizes), prediction })
    }

    /// Keys of an equivalent text_encoder/config.json.
    pub(crate) fn text_keys(&self) -> Keys {
        self.keys(self.sizes.text_config())
    }

    /// Keys of an equivalent unet/config.json.
    pub(crate) fn unet_keys(&self) -> Keys {
        // 2.x at 768 px is what predicts the velocity; all others were made at 512.
        let side = match (self.sizes.generation, self.prediction) {
            (Generation::Two, PredictionType::VPrediction) => 768,
            _ => 512,
        };
        self.keys(self.sizes.unet_config(side))
    }

    /// Keys of an equivalent vae/config.json.
    pub(crate) fn vae_keys(&self) -> Keys {
        self.keys(self.sizes.vae_config())
    }

    /// Keys of scheduler/scheduler_config.json in the models' own repositories.
    pub(crate) fn scheduler_keys(&self) -> Keys {
        let class = match self.prediction {
            PredictionType::Epsilon => "PNDMScheduler",
            PredictionType::VPrediction => "DDIMScheduler",
        };
        self.keys(json!({
            "_class_name": class,
            "beta_start": 0.00085,
            "beta_end": 0.012,
            "beta_schedule": "scaled_linear",
            "clip_sample": false,
            "num_train_timesteps": 1000,
            "prediction_type": self.prediction.name(),
            "set_alpha_to_one": false,
            "skip_prk_steps": true,
            "steps_offset": 1,
            "timestep_spacing": "leading",
        }))
    }

    pub(crate) fn text_weights(&self) -> Result<Weights> {
        self.weights(Component::Text)
    }

    pub(crate) fn unet_weights(&self) -> Result<Weights> {
        self.weights(Component::UNet)
    }

    pub(crate) fn vae_weights(&self) -> Result<Weights> {
        self.weights(Component::Vae)
    }

    fn weights(&self, component: Component) -> Result<Weights> {
        Weights::open_placed(&self.path, |name, shape| self.sizes.places(component, name, shape))
    }

    fn keys(&self, config: Value) -> Keys {
        let map = match config {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        Keys::of(&self.path, map)
    }
}
