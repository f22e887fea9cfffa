//! Training of the UNet's own weights.
//!
//! Parameters are in fp32, with the optimizer's moments ([`Parameters`]); layers multiply by what is made of them once after each
//! update, by the kernels that frozen layers have too. The backward pass goes from segment to segment of the network: the gradients of one
//! are in the buckets, and may leave, before those of the next are begun.
//!
//! Source: diffusers, examples/text_to_image/train_text_to_image.py.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use ringtune_engine::{
    Buckets, FirstValues, ModelOptions, OpenUnet, Parameter, ParametersInfo, PassSummary, Shows,
};
use tch::{Kind, Tensor};

use crate::adapters::Site;
use crate::api::Microbatch;
use crate::config::UNetConfig;
use crate::error::{Error, Result};
use crate::model_files::ModelFiles;
use crate::parameters::{Draw, Parameters, Showing, Trained};
use crate::profile::{self, Stretch};
use crate::stable_diffusion::{StableDiffusion, kind_of, to_vec};
use crate::trained::TrainedTensor;
use crate::unet::{UNet, WholeUnet};

/// The purpose of the first values' draws among all of a job's.
const PURPOSE: u32 = 22;
/// The layers that are in fp32 whatever the precision.
const EXACT: [&str; 4] = ["conv_in.", "conv_out.", "time_embedding.", ".time_emb_proj."];

/// The tensors of a model's UNet, each with its shape, in the order of the forward pass, by configuration and headers alone.
///
/// # Errors
/// The files'.
pub fn unet_tensors(folder: &Path, options: &ModelOptions) -> Result<Vec<(String, Vec<usize>)>> {
    ModelFiles::read(folder, options)?.unet_tensors()
}

impl ModelFiles {
    fn unet_tensors(&self) -> Result<Vec<(String, Vec<usize>)>> {
        let weights = self.unet_weights()?.into_dry();
        UNet::new(&weights.root(), &self.unet, Kind::Float)?;
        let sides = |shape: Vec<i64>| shape.into_iter().map(|side| side as usize).collect();
        let mut all: Vec<_> = weights.asked().into_iter().map(|(name, shape)| (name, sides(shape))).collect();
        // A layer may ask for its bias first, where it reads its weights later.
        for number in 1..all.len() {
            let module = |number: usize, end| all[number].0.strip_suffix(end);
            let is_turned =
                module(number, ".weight").is_some_and(|own| module(number - 1, ".bias") == Some(own));
            if is_turned {
                all.swap(number - 1, number);
            }
        }
        Ok(all)
    }
}

impl StableDiffusion {
    /// See [`unet_tensors`].
    ///
    /// # Errors
    /// As there.
    pub fn unet_tensors(&self) -> Result<Vec<(String, Vec<usize>)>> {
        self.model_files.unet_tensors()
    }

    /// Opens weights of the UNet for training: [`ringtune_engine::TrainPictures`] says how.
    pub fn open_unet(&mut self, request: &OpenUnet) -> Result<ParametersInfo> {
        self.remove_adapters();
        // 1. Which tensors.
        let wanted: BTreeSet<&str> = request.trained.iter().map(String::as_str).collect();
        let all = self.unet_tensors()?;
        let is_wanted = |name: &str| wanted.contains(name);
        let chosen: Vec<_> = all.iter().filter(|(name, _)| is_wanted(name)).cloned().collect();
        if chosen.is_empty() || chosen.len() != wanted.len() {
            let given = format!("{} names, {} of them of the UNet", wanted.len(), chosen.len());
            return Err(Error::argument("trained", given, "one or more tensors that the UNet has"));
        }
        let segments = self.unet.segments_of(chosen.iter().map(|(name, _)| name.as_str()))?;
        // 2. Their parameters.
        let one = |(name, shape): &(String, Vec<usize>)| Parameter {
            decayed: true,
            ..Parameter::new(name.clone(), shape.clone())
        };
        let list: Vec<Parameter> = chosen.iter().map(one).collect();
        let trained = Trained {
            order: segments.order(),
            list: list.clone(),
            buckets: request.buckets,
            table: None,
            average: request.average,
            rounds: request.rounds,
            showing: Showing::Layers,
            folder: request.folder.clone(),
        };
        let weights = self.model_files.unet_weights()?;
        if weights.is_absent() && (request.first == FirstValues::Stored || chosen.len() < all.len()) {
            return Err(Error::argument(
                "trained",
                "a UNet without weights",
                "all of it, from values that are drawn",
            ));
        }
        let first = |number: usize| {
            let Parameter { name, shape, .. } = &list[number];
            match request.first {
                FirstValues::Stored => {
                    let shape: Vec<i64> = shape.iter().map(|side| *side as i64).collect();
                    weights.root().tensor(name, &shape, Kind::Float)
                }
                FirstValues::Drawn { seed } => drawn(&list, number, seed),
            }
        };
        let parameters = Parameters::new(trained, |_| false, first)?;
        // 3. The network, which looks at them where the optimizer moves them.
        let low = kind_of(self.precision);
        let kind = |parameter: &Parameter| {
            let is_exact = EXACT.iter().any(|exact| parameter.name.contains(exact));
            if is_exact || parameter.shape.len() < 2 { Kind::Float } else { low }
        };
        let tensors = list.iter().enumerate().map(|(number, one)| parameters.tensor(number, kind(one)));
        let tensors = tensors.collect::<Result<Vec<TrainedTensor>>>()?;
        let handles = tensors.iter().map(|tensor| tensor.handle().shallow_clone()).collect();
        let named: BTreeMap<_, _> = list.iter().map(|one| one.name.clone()).zip(tensors).collect();
        let weights = weights.with_trained(named);
        let config = UNetConfig { attention: request.attention, ..self.model_files.unet.clone() };
        self.unet = UNet::new(&weights.root(), &config, low)?;
        let name = |site: Site| Site { name: format!("unet.{}", site.name), ..site };
        self.sites.retain(|site| !site.name.starts_with("unet."));
        self.sites.extend(weights.into_sites().into_iter().map(name));
        let info = parameters.info().clone();
        self.whole = Some(WholeUnet { parameters, handles, segments, again: request.checkpointing });
        Ok(info)
    }

    /// Whether weights of the UNet are other ones than its files'.
    pub fn has_own_unet(&self) -> bool {
        self.whole.is_some()
    }

    /// Loss of a microbatch and its gradient with respect to every parameter of the UNet: [`ringtune_engine::TrainPictures`] says how.
    ///
    /// The same input, thread count and machine give the same bits.
    pub(crate) fn unet_gradient(
        &mut self,
        microbatch: &Microbatch,
        add: bool,
        buckets: &mut dyn Buckets,
    ) -> Result<PassSummary> {
        self.check_microbatch(microbatch)?;
        self.trained()?.show(Shows::Parameters)?;
        let _step = Stretch::begin(profile::STEP);
        // 1. The loss.
        let started = Instant::now();
        let text = self.frozen_states(microbatch)?;
        let noised = self.noised(microbatch)?;
        let Some(WholeUnet { parameters, handles, segments, again }) = &self.whole else {
            return Err(Error::NothingTrained);
        };
        let pass = self.unet.pass(&noised.noisy, &noised.timesteps, &text, *again)?;
        let loss = self.loss_between(microbatch, &noised, &pass.predicted)?;
        let value = to_vec(&loss.f_view([1])?)?[0];
        let forward_seconds = started.elapsed().as_secs_f64();
        // 2. Backward, into the buckets.
        let started = Instant::now();
        let mut made = Tensor::f_run_backward(&[&loss], &[&pass.predicted], false, false)?;
        let gradient = made.pop().ok_or(Error::NothingTrained)?;
        let mut gradients = parameters.gradients(buckets, add);
        pass.backward(gradient, segments, handles, |number, made| gradients.put_whole(number, made))?;
        gradients.put_nothing_looked_up()?;
        let finite = value.is_finite() && gradients.finite();
        let backward_seconds = started.elapsed().as_secs_f64();
        Ok(PassSummary { loss: value, finite, forward_seconds, backward_seconds })
    }

    /// Loss of a microbatch alone, by what is shown; its bits are those of the gradient's.
    pub(crate) fn unet_loss(&mut self, microbatch: &Microbatch) -> Result<f32> {
        self.check_microbatch(microbatch)?;
        let text = self.frozen_states(microbatch)?;
        let noised = self.noised(microbatch)?;
        // As in a gradient's pass: where no gradient can be wanted, libtorch's convolutions choose other kernels.
        let pass = self.unet.pass(&noised.noisy, &noised.timesteps, &text, true)?;
        Ok(to_vec(&self.loss_between(microbatch, &noised, &pass.predicted)?.f_view([1])?)?[0])
    }
}

/// First values as torch.nn draws them: U(-b, b) with b = 1 / sqrt(inputs of one output), a norm's weight ones and its bias zeros.
/// Source: torch/nn/modules/linear.py and conv.py, reset_parameters.
fn drawn(list: &[Parameter], number: usize, seed: u64) -> Result<Tensor> {
    let Parameter { name, shape, .. } = &list[number];
    let sides: Vec<i64> = shape.iter().map(|side| *side as i64).collect();
    let module = name.rsplit_once('.').map_or(name.as_str(), |(module, _)| module);
    let weight = list.iter().find(|one| one.name.strip_suffix(".weight") == Some(module));
    let inputs: usize = weight.map_or(0, |weight| weight.shape.iter().skip(1).product());
    let is_norm = weight.is_none_or(|weight| weight.shape.len() < 2);
    let mut values =
        vec![if is_norm && name.ends_with(".weight") { 1.0 } else { 0.0 }; shape.iter().product()];
    if !is_norm {
        let draw = Draw { seed, purpose: PURPOSE, number: number as u32 };
        draw.uniforms((1.0 / (inputs.max(1) as f64).sqrt()) as f32, &mut values);
    }
    Ok(Tensor::f_from_slice(&values)?.f_view(sides.as_slice())?)
}
