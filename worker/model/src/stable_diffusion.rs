//! A loaded model: everything a job asks of libtorch, in plain data.

use std::collections::BTreeMap;
use std::path::Path;

use ringtune_engine::{ModelInfo, ModelOptions, Moments, Pixels, Precision};
use tch::{Kind, Tensor};

use crate::adapters::{Site, TrainedAdapters};
use crate::clip::TextEncoder;
use crate::error::{Error, Result};
use crate::layers::Products;
use crate::model_files::ModelFiles;
use crate::native;
use crate::runtime;
use crate::schedule::NoiseSchedule;
use crate::unet::{UNet, WholeUnet};
use crate::vae::{VaeDecoder, VaeEncoder};
use crate::weights::Weights;

/// A Stable Diffusion 1.x or 2.x model. Text encoder and UNet stay loaded; the VAE's halves are loaded
/// when first used and freed with [`StableDiffusion::drop_vae`].
///
/// Not for several threads at once: keep it on the thread that computes.
#[derive(Debug)]
pub struct StableDiffusion {
    pub(crate) model_files: ModelFiles,
    pub(crate) precision: Precision,
    pub(crate) text: TextEncoder,
    pub(crate) unet: UNet,
    pub(crate) schedule: NoiseSchedule,
    /// Of the text encoder, then of the UNet; named as [`ringtune_engine::AdaptableLayer`]s are.
    pub(crate) sites: Vec<Site>,
    /// What is trained beside them, if anything is.
    pub(crate) adapters: Option<TrainedAdapters>,
    /// What of the UNet itself is trained, if anything is.
    pub(crate) whole: Option<WholeUnet>,
    /// Hidden states by token ids, [1, tokens, width], where the text encoder does not change.
    pub(crate) captions: BTreeMap<Vec<i64>, Tensor>,
    encoder: Option<VaeEncoder>,
    decoder: Option<VaeDecoder>,
}

/// Checks a model as [`StableDiffusion::open`] would, by configuration and headers alone (no weights are read),
/// and says what a job has to know.
pub fn check_folder(path: &Path) -> Result<ModelInfo> {
    check_folder_with(path, &ModelOptions::default())
}

/// As [`check_folder`], with the caller's options.
pub fn check_folder_with(path: &Path, options: &ModelOptions) -> Result<ModelInfo> {
    let mut model_files = ModelFiles::read(path, options)?;
    model_files.check_weights()?;
    Ok(model_files.info())
}

impl StableDiffusion {
    /// Opens a folder in diffusers' layout, or one safetensors file in the original layout.
    ///
    /// Errors name the file and key or tensor: see [`Error`].
    pub fn open(path: &Path, precision: Precision) -> Result<Self> {
        Self::open_with(path, precision, &ModelOptions::default())
    }

    /// As [`StableDiffusion::open`], with the caller's options.
    pub fn open_with(path: &Path, precision: Precision, options: &ModelOptions) -> Result<Self> {
        runtime::check_precision(precision)?;
        let mut model_files = ModelFiles::read(path, options)?;
        model_files.check_weights()?;
        let products = match precision {
            Precision::Fp32 => Products::Exact,
            Precision::Bf16 => Products::Halves,
        };
        let (text_weights, unet_weights) = (model_files.text_weights()?, model_files.unet_weights()?);
        let text = TextEncoder::new(&text_weights.root(), &model_files.text, products)?;
        let unet = UNet::new(&unet_weights.root(), &model_files.unet, kind_of(precision))?;
        let schedule = NoiseSchedule::new(&model_files.scheduler);
        let named = |(network, weights): (&str, Weights)| {
            let name = move |site: Site| Site { name: format!("{network}.{}", site.name), ..site };
            weights.into_sites().into_iter().map(name).collect::<Vec<_>>()
        };
        let networks = [("text_encoder.text_model", text_weights), ("unet", unet_weights)];
        let sites = networks.into_iter().flat_map(named).collect();
        native::release_memory()?;
        let (adapters, encoder, decoder) = (None, None, None);
        Ok(StableDiffusion {
            model_files,
            precision,
            text,
            unet,
            schedule,
            sites,
            adapters,
            whole: None,
            captions: BTreeMap::new(),
            encoder,
            decoder,
        })
    }

    /// Facts of the model for jobs.
    pub fn info(&self) -> ModelInfo {
        self.model_files.info()
    }

    /// The precision it was opened with.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Row `id` of the frozen token table, [text_width], fp32: where a learned row starts from.
    pub fn token_row(&self, id: i64) -> Result<Vec<f32>> {
        self.check_token("token id", id, self.model_files.text.vocab_size)?;
        let row = to_vec(&self.text.embed(&Tensor::f_from_slice(&[id])?)?)?;
        self.model_files.check_finite(&row, || format!("row {id} of the text encoder's token table"))?;
        Ok(row)
    }

    /// Encodes one picture. The VAE's encoder is loaded by the first call.
    pub fn encode_image(&mut self, pixels: &Pixels) -> Result<Moments> {
        let factor = self.model_files.vae.factor();
        check_sides(pixels.height, pixels.width, factor)?;
        let expected = 3 * pixels.height * pixels.width;
        if pixels.data.len() != expected {
            return Err(Error::argument("pixels.data", format!("{} floats", pixels.data.len()), expected));
        }
        let encoder = match self.encoder.take() {
            Some(encoder) => encoder,
            None => {
                self.leave_memory()?;
                let weights = self.model_files.vae_weights()?;
                VaeEncoder::new(&weights.root(), &self.model_files.vae, kind_of(self.precision))?
            }
        };
        let encoder = self.encoder.insert(encoder);
        let shape = [1, 3, pixels.height as i64, pixels.width as i64];
        let (mean, logvar) = encoder.forward(&Tensor::f_from_slice(&pixels.data)?.f_view(shape)?)?;
        let (_, channels, height, width) = mean.size4()?;
        let (mean, logvar) = (to_vec(&mean)?, to_vec(&logvar)?);
        for moments in [&mean, &logvar] {
            self.model_files.check_finite(moments, || "what the VAE makes of a picture".to_string())?;
        }
        Ok(Moments {
            channels: channels as usize,
            height: height as usize,
            width: width as usize,
            mean,
            logvar,
        })
    }

    /// The VAE's decoder, loaded by the first call.
    pub(crate) fn decode(&mut self, latents: &Tensor) -> Result<Tensor> {
        let decoder = match self.decoder.take() {
            Some(decoder) => decoder,
            None => {
                let weights = self.model_files.vae_weights()?;
                VaeDecoder::new(&weights.root(), &self.model_files.vae, kind_of(self.precision))?
            }
        };
        self.decoder.insert(decoder).forward(latents)
    }

    /// What is kept of a step is of other sizes than what a picture takes, and the other way round. In bf16, where weights are packed
    /// beside it, all goes back to the system.
    fn leave_memory(&self) -> Result<()> {
        if self.precision == Precision::Fp32 { native::trim_memory() } else { native::release_memory() }
    }

    /// Frees the VAE's weights, and of what it worked in what the next step has no use for; the next use loads them again.
    pub fn drop_vae(&mut self) {
        self.encoder = None;
        self.decoder = None;
        // Memory that cannot be returned is reused: nothing to report.
        let _kept = self.leave_memory();
    }

    /// Token embeddings of `ids` ([batch, tokens], row by row), fp32, learned rows in place of the ids from
    /// vocab_size on.
    pub(crate) fn embeddings(&self, ids: &[i64], rows: &[f32]) -> Result<Vec<f32>> {
        let width = self.model_files.text.hidden_size as usize;
        let vocabulary = self.model_files.text.vocab_size;
        if !rows.len().is_multiple_of(width) {
            return Err(Error::argument(
                "rows",
                format!("{} floats", rows.len()),
                format!("a multiple of {width}"),
            ));
        }
        let limit = vocabulary + (rows.len() / width) as i64;
        for &id in ids {
            self.check_token("input_ids", id, limit)?;
        }
        let frozen: Vec<i64> = ids.iter().map(|&id| if id < vocabulary { id } else { 0 }).collect();
        let mut embeddings = to_vec(&self.text.embed(&Tensor::f_from_slice(&frozen)?)?)?;
        for (place, &id) in embeddings.chunks_exact_mut(width).zip(ids) {
            if id >= vocabulary {
                let start = (id - vocabulary) as usize * width;
                place.copy_from_slice(&rows[start..start + width]);
            }
        }
        Ok(embeddings)
    }

    fn check_token(&self, field: &'static str, id: i64, limit: i64) -> Result<()> {
        if (0..limit).contains(&id) {
            Ok(())
        } else {
            Err(Error::argument(field, id, format!("0 to {}", limit - 1)))
        }
    }
}

/// The kind of the UNet's and the VAE's weights and activations.
pub(crate) fn kind_of(precision: Precision) -> Kind {
    match precision {
        Precision::Fp32 => Kind::Float,
        Precision::Bf16 => Kind::BFloat16,
    }
}

/// All values of a tensor as fp32, in row-major order.
pub(crate) fn to_vec(tensor: &Tensor) -> Result<Vec<f32>> {
    let flat = tensor.f_to_kind(Kind::Float)?.f_contiguous()?.f_view([-1])?;
    let count = flat.size1()? as usize;
    let mut values = vec![0f32; count];
    flat.f_copy_data(&mut values, count)?;
    Ok(values)
}

/// Both sides must be positive multiples of the VAE's factor.
pub(crate) fn check_sides(height: usize, width: usize, factor: usize) -> Result<()> {
    for (field, side) in [("height", height), ("width", width)] {
        if side == 0 || !side.is_multiple_of(factor) || side > 16384 {
            return Err(Error::argument(
                field,
                side,
                format!("a multiple of {factor} from {factor} to 16384"),
            ));
        }
    }
    Ok(())
}
