//! Training of adapters beside the frozen layers of a Stable Diffusion (LoRA, Hu et al. 2021).
//!
//! Their factors are parameters ([`Parameters`]): in fp32, with copies in bf16 beside a UNet in bf16. The backward pass is
//! libtorch's: its leaves are the copies that products take, and no gradient of a frozen weight is ever made. What comes
//! before the first adapter has no gradient at all: nothing of it is kept.
//!
//! Sources: diffusers, examples/text_to_image/train_text_to_image_lora.py; PEFT, tuners/lora/layer.py.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use ringtune_engine::{
    AdaptableLayer, Adapter, Buckets, Dropout, FixedAdapter, LEARNED_ROWS, OpenAdapters, Parameter,
    ParametersInfo, PassSummary, ROWS_RATE, SamplePlace, Shows,
};
use tch::{Device, Kind, Tensor};

use crate::adapters::{Adapter as Placed, Dropping, Lengths, Site, TrainedAdapters};
use crate::api::Microbatch;
use crate::dropout::Masks;
use crate::error::{Error, Result};
use crate::parameters::{Draw, Parameters, Showing, Trained};
use crate::profile::{self, Stretch};
use crate::stable_diffusion::{StableDiffusion, kind_of, to_vec};

/// The purpose of the first factors' draws among all of a job's.
const PURPOSE: u32 = 21;
/// Captions whose hidden states are kept: 60 MB of Stable Diffusion 1's.
const MOST_CAPTIONS: usize = 256;
/// Where the layers' names begin that are in fp32 whatever the precision.
const TEXT_ENCODER: &str = "text_encoder.";
/// Where they begin of the networks whose weights are read.
const TEXT_MODEL: &str = "text_encoder.text_model.";
const UNET: &str = "unet.";

impl StableDiffusion {
    /// The layers that an adapter can stand beside.
    pub fn adaptable_layers(&self) -> Vec<AdaptableLayer> {
        let layer = |site: &Site| AdaptableLayer {
            name: site.name.clone(),
            inputs: site.inputs as usize,
            outputs: site.outputs as usize,
            shape: site.shape,
        };
        self.sites.iter().map(layer).collect()
    }

    /// Takes all adapters away.
    pub fn remove_adapters(&mut self) {
        self.adapters = None;
        // A text encoder with adapters made others.
        self.captions.clear();
        self.sites.iter().for_each(|site| site.place.clear());
    }

    /// The parameters that are trained.
    ///
    /// # Errors
    /// Nothing is.
    pub fn trained(&mut self) -> Result<&mut Parameters> {
        if let Some(whole) = &mut self.whole {
            return Ok(&mut whole.parameters);
        }
        Ok(&mut self.adapters.as_mut().ok_or(Error::NothingTrained)?.parameters)
    }

    /// Puts adapters beside layers: [`ringtune_engine::TrainPictures`] says how.
    pub fn open_adapters(&mut self, request: &OpenAdapters) -> Result<ParametersInfo> {
        self.remove_adapters();
        // 1. Which layers.
        let chosen = self.chosen(&request.adapters)?;
        let is_text = |site: usize| self.sites[site].name.starts_with(TEXT_ENCODER);
        // 2. Their parameters: first factors drawn by the layer's number, whatever other layers have one; second ones zeros; lengths
        //    those of the layer's own rows.
        let mut list = Vec::new();
        let mut initial = Vec::new();
        let mut squares = Vec::new();
        for (site, adapter) in &chosen {
            let mut put = |name: String, shape: &[i64], values: Tensor| {
                let shape = shape.iter().map(|side| *side as usize).collect();
                let rate = adapter.rate;
                list.push(Parameter { decayed: true, rate, ..Parameter::new(name, shape) });
                initial.push((Some(*site), values));
            };
            let [down, up] = self.sites[*site].factors(adapter.rank as i64);
            let mut drawn = vec![0.0; down.iter().product::<i64>() as usize];
            let draw = Draw { seed: request.seed, purpose: PURPOSE, number: *site as u32 };
            draw.normals(0, 1.0 / adapter.rank as f32, &mut drawn);
            put(adapter.down(), &down, Tensor::f_from_slice(&drawn)?.f_view(&down[..])?);
            put(adapter.up(), &up, Tensor::f_zeros(&up[..], (Kind::Float, Device::Cpu))?);
            squares.push(if adapter.dora {
                let squares = self.squared_lengths(*site)?;
                put(adapter.magnitude(), &[up[0]], squares.f_sqrt()?);
                Some(squares)
            } else {
                None
            });
        }
        let learns_rows = !request.rows.is_empty();
        if learns_rows {
            let width = self.model_files.text.hidden_size as usize;
            let count = request.rows.len() / width;
            if count * width != request.rows.len() {
                let allowed = format!("a multiple of {width}");
                return Err(Error::argument("rows", format!("{} floats", request.rows.len()), allowed));
            }
            let shape = [count, width];
            let rows = Parameter::new(LEARNED_ROWS.to_owned(), shape.to_vec());
            list.push(Parameter { decayed: true, rate: ROWS_RATE, ..rows });
            initial.push((None, Tensor::f_from_slice(&request.rows)?.f_view(shape.map(|side| side as i64))?));
        }
        // Lengths and learned rows stay in fp32: what is learned of them is far less than bf16 tells apart.
        let copied = |number: usize| {
            let is_low = initial[number].0.is_some_and(|site| self.kind_beside(site) == Kind::BFloat16);
            list[number].shape.len() > 1 && is_low
        };
        // The backward pass comes to the last layers first.
        let order = (0..list.len()).rev().collect();
        let trained = Trained {
            list: list.clone(),
            order,
            buckets: request.buckets,
            table: None,
            average: request.average,
            rounds: false,
            showing: if request.shows_given { Showing::Anything } else { Showing::Averages },
            folder: None,
        };
        let parameters = Parameters::new(trained, copied, |number| Ok(initial[number].1.shallow_clone()))?;
        // 3. The layers take them from where the optimizer moves them.
        let leaf = |number| Ok(parameters.factor(number).f_detach()?.f_set_requires_grad(true)?);
        let leaves = (0..list.len() - usize::from(learns_rows)).map(leaf).collect::<Result<Vec<_>>>()?;
        let dropped = Arc::default();
        let mut own = leaves.iter();
        let missing = || Error::NothingTrained;
        for ((site, adapter), squares) in chosen.iter().zip(squares) {
            let mut next = || own.next().map(Tensor::shallow_clone).ok_or_else(missing);
            let (down, up) = (next()?, next()?);
            let lengths = match squares {
                Some(squares) => Some(Lengths { magnitude: next()?, squares }),
                None => None,
            };
            let scale = adapter.alpha / adapter.rank as f64;
            let dropping = Some(Dropping { layer: *site, now: Arc::clone(&dropped) });
            self.sites[*site].place.put(Placed { down, up, scale, lengths, dropping });
        }
        let train_text = learns_rows || chosen.iter().any(|(site, _)| is_text(*site));
        let info = parameters.info().clone();
        let rates = [request.dropout, request.rank_dropout];
        self.adapters = Some(TrainedAdapters { parameters, leaves, train_text, rates, dropped });
        Ok(info)
    }

    /// The squared lengths of the rows of a layer's weight, as it is multiplied with: [outputs] fp32.
    fn squared_lengths(&self, site: usize) -> Result<Tensor> {
        let of = &self.sites[site];
        let is_text = of.name.starts_with(TEXT_ENCODER);
        let (weights, network) = if is_text {
            (self.model_files.text_weights()?, TEXT_MODEL)
        } else {
            (self.model_files.unet_weights()?, UNET)
        };
        let name = of.name.strip_prefix(network).unwrap_or(&of.name);
        let weight = weights.root().sub(name).tensor("weight", &of.weight(), self.kind_beside(site))?;
        let weight = weight.f_to_kind(Kind::Float)?.f_reshape([of.outputs, -1])?;
        Ok(weight.f_square()?.f_sum_dim_intlist(&[1i64][..], false, None)?)
    }

    /// Puts adapters that do not change beside layers: [`ringtune_engine::AdaptLayers`] says how.
    pub fn put_adapters(&mut self, adapters: &[FixedAdapter]) -> Result<()> {
        self.remove_adapters();
        for FixedAdapter { layer, down, up, rank, magnitude } in adapters {
            let number = self.site(layer)?;
            let site = &self.sites[number];
            let shapes = site.factors(*rank as i64);
            let wanted: Vec<i64> = shapes.iter().map(|shape| shape.iter().product()).collect();
            if *rank == 0 || wanted != [down.len() as i64, up.len() as i64] {
                let given = format!("rank {rank}, {} and {} numbers of {layer}", down.len(), up.len());
                return Err(Error::argument("adapters", given, format!("{shapes:?}")));
            }
            if !magnitude.is_empty() && (magnitude.len() as i64 != site.outputs || site.shape.area() > 1) {
                let given = format!("{} lengths of {layer}", magnitude.len());
                let allowed = format!("{} of a linear layer or a 1x1 convolution", site.outputs);
                return Err(Error::argument("adapters", given, allowed));
            }
            let lengths = match &magnitude[..] {
                [] => None,
                given => Some(Lengths {
                    magnitude: Tensor::f_from_slice(given)?,
                    squares: self.squared_lengths(number)?,
                }),
            };
            let kind = self.kind_beside(number);
            let tensor = |values: &[f32], shape: &[i64]| -> Result<Tensor> {
                Ok(Tensor::f_from_slice(values)?.f_view(shape)?.f_to_kind(kind)?)
            };
            let (down, up) = (tensor(down, &shapes[0])?, tensor(up, &shapes[1])?);
            site.place.put(Placed { down, up, scale: 1.0, lengths, dropping: None });
        }
        Ok(())
    }

    /// The kind of what a layer multiplies its input with. Text encoder and time embedding are in fp32 whatever the precision.
    fn kind_beside(&self, site: usize) -> Kind {
        let name = &self.sites[site].name;
        let is_exact = name.starts_with(TEXT_ENCODER) || name.contains(".time_emb");
        if is_exact { Kind::Float } else { kind_of(self.precision) }
    }

    /// The number of a layer.
    fn site(&self, layer: &str) -> Result<usize> {
        let site = self.sites.iter().position(|site| site.name == layer);
        site.ok_or_else(|| Error::argument("adapters", layer, "layers that the model has"))
    }

    /// The adapters in the order of their layers, each with the number of its layer.
    fn chosen<'a>(&self, adapters: &'a [Adapter]) -> Result<Vec<(usize, &'a Adapter)>> {
        let mut chosen = BTreeMap::new();
        for adapter in adapters {
            let site = self.site(&adapter.layer)?;
            if adapter.rank == 0 || !adapter.alpha.is_finite() || adapter.alpha == 0.0 {
                let given = format!("rank {} and alpha {} of {}", adapter.rank, adapter.alpha, adapter.layer);
                return Err(Error::argument("adapters", given, "a rank of 1 or more, an alpha other than 0"));
            }
            if adapter.dora && self.sites[site].shape.area() > 1 {
                let allowed = "DoRA of linear layers and 1x1 convolutions";
                return Err(Error::argument("adapters", &adapter.layer, allowed));
            }
            if chosen.insert(site, adapter).is_some() {
                let given = format!("{} twice", adapter.layer);
                return Err(Error::argument("adapters", given, "each layer once"));
            }
        }
        if chosen.is_empty() {
            return Err(Error::argument("adapters", "none", "one or more"));
        }
        Ok(chosen.into_iter().collect())
    }

    /// Loss of a microbatch and its gradient with respect to every parameter: [`ringtune_engine::TrainPictures`] says how.
    ///
    /// The same input, thread count and machine give the same bits.
    pub fn picture_gradient(
        &mut self,
        microbatch: &Microbatch,
        add: bool,
        buckets: &mut dyn Buckets,
    ) -> Result<PassSummary> {
        if self.whole.is_some() {
            return self.unet_gradient(microbatch, add, buckets);
        }
        self.check_microbatch(microbatch)?;
        let parameters = self.trained()?;
        parameters.show(Shows::Parameters)?;
        parameters.refresh()?;
        let _step = Stretch::begin(profile::STEP);
        // 1. The loss.
        let started = Instant::now();
        let rows = self.learned_rows()?;
        let microbatch = &Microbatch { rows: rows.as_deref().unwrap_or(microbatch.rows), ..*microbatch };
        self.set_dropout(Some(microbatch))?;
        let text = self.caption_states(microbatch, rows.is_some());
        let loss = text.and_then(|(text, words)| Ok((self.loss_of(microbatch, &text)?, words)));
        self.set_dropout(None)?;
        let (loss, words) = loss?;
        let value = to_vec(&loss.f_view([1])?)?[0];
        let forward_seconds = started.elapsed().as_secs_f64();
        // 2. Backward to the leaves alone.
        let started = Instant::now();
        let Some(TrainedAdapters { parameters, leaves, .. }) = &self.adapters else {
            return Err(Error::NothingTrained);
        };
        let ends: Vec<&Tensor> = leaves.iter().chain(&words).collect();
        let mut made = Tensor::f_run_backward(&[&loss], &ends, false, false)?;
        if let Some(words) = words.is_some().then(|| made.pop()).flatten() {
            let sums = self.sum_rows(microbatch, &to_vec(&words)?);
            made.push(
                Tensor::f_from_slice(&sums)?.f_view(parameters.master(leaves.len()).size().as_slice())?,
            );
        }
        // 3. Into the buckets, in the plan's order.
        let mut gradients = parameters.gradients(buckets, add);
        for (number, gradient) in made.iter().enumerate().rev() {
            gradients.put_whole(number, gradient)?;
        }
        gradients.put_nothing_looked_up()?;
        let finite = value.is_finite() && gradients.finite();
        let backward_seconds = started.elapsed().as_secs_f64();
        Ok(PassSummary { loss: value, finite, forward_seconds, backward_seconds })
    }

    /// From now on adapters drop what this microbatch's samples drop; with none, nothing.
    fn set_dropout(&self, microbatch: Option<&Microbatch>) -> Result<()> {
        let Some(TrainedAdapters { rates, dropped, .. }) = &self.adapters else {
            return Err(Error::NothingTrained);
        };
        let masks = |rate: f64| {
            let place = microbatch.and_then(|microbatch| Some((microbatch.batch, microbatch.extras.place?)));
            let Some((batch, SamplePlace { seed, step, first_sample })) = place else { return Ok(None) };
            Masks::new(Some(Dropout { rate, seed, step, first_sample }), batch)
        };
        let now = [masks(rates[0])?, masks(rates[1])?];
        *dropped.lock().unwrap_or_else(PoisonError::into_inner) = now;
        Ok(())
    }

    /// Loss of a microbatch alone, by the parameters or by their average; its bits are those of
    /// [`StableDiffusion::picture_gradient`]'s where nothing is dropped.
    pub fn picture_loss(&mut self, microbatch: &Microbatch) -> Result<f32> {
        if self.whole.is_some() {
            return self.unet_loss(microbatch);
        }
        self.check_microbatch(microbatch)?;
        self.trained()?.refresh()?;
        // Its graph is made and thrown away: where no gradient can be wanted, libtorch's convolutions choose other kernels.
        let rows = self.learned_rows()?;
        let microbatch = &Microbatch { rows: rows.as_deref().unwrap_or(microbatch.rows), ..*microbatch };
        let (text, _) = self.caption_states(microbatch, false)?;
        Ok(to_vec(&self.loss_of(microbatch, &text)?.f_view([1])?)?[0])
    }

    /// The rows that are learned beside adapters, as products take them; none: none are.
    pub(crate) fn learned_rows(&self) -> Result<Option<Vec<f32>>> {
        let Some(TrainedAdapters { parameters, leaves, .. }) = &self.adapters else { return Ok(None) };
        let has_rows = parameters.info().list.len() > leaves.len();
        has_rows.then(|| to_vec(parameters.factor(leaves.len()))).transpose()
    }

    /// The hidden states of a microbatch's captions, [batch, tokens, width] fp32; where rows are learned, the tokens' embeddings too,
    /// whose gradient theirs is the sum of.
    ///
    /// Where no adapter of the text encoder is trained, each is computed by itself, and kept: so its bits do not depend on
    /// what stands beside it, or on what is kept.
    fn caption_states(&mut self, microbatch: &Microbatch, learns: bool) -> Result<(Tensor, Option<Tensor>)> {
        if self.adapters.as_ref().ok_or(Error::NothingTrained)?.train_text {
            let embeddings = self.token_embeddings(microbatch)?.f_set_requires_grad(learns)?;
            return Ok((self.text.forward(&embeddings)?, learns.then_some(embeddings)));
        }
        Ok((self.frozen_states(microbatch)?, None))
    }

    /// The hidden states of a microbatch's captions by a text encoder that does not change.
    pub(crate) fn frozen_states(&mut self, microbatch: &Microbatch) -> Result<Tensor> {
        let _no_gradient = tch::no_grad_guard();
        let tokens = self.model_files.text.max_positions as usize;
        let mut kept = std::mem::take(&mut self.captions);
        let mut states = Vec::with_capacity(microbatch.batch);
        for ids in microbatch.input_ids.chunks_exact(tokens) {
            if let Some(known) = kept.get(ids) {
                states.push(known.shallow_clone());
                continue;
            }
            let alone = Microbatch { batch: 1, input_ids: ids, ..*microbatch };
            let state = self.text.forward(&self.token_embeddings(&alone)?)?;
            if kept.len() == MOST_CAPTIONS {
                kept.clear();
            }
            kept.insert(ids.to_vec(), state.shallow_clone());
            states.push(state);
        }
        self.captions = kept;
        Ok(Tensor::f_cat(&states, 0)?)
    }
}
