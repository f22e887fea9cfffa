//! GPT-2, trained: the fp32 parameters with their optimizer, and gradients of all of them in the caller's buckets.
//!
//! Both passes are written out layer by layer, so that memory and the order of gradients are ours. In bf16 it computes as
//! transformers' GPT2LMHeadModel does under torch's CPU autocast: products and attention take and give bf16, the
//! residual stream, norms and the loss are fp32; but GELU is rounded once instead of after each of its operations.

mod backward;
mod config;
mod dropout;
mod forward;
mod gradients;
mod head;
mod held;
mod initial;
mod layout;
mod native;
mod optimizer;
mod parameters;
pub(crate) mod probe;
mod text;
mod weights;

use std::path::Path;
use std::time::Instant;

use ringtune_engine::{
    AlignedFloats, Applied, BucketPlan, Buckets, LanguageGradient, LanguageModelFolder, LanguageModelInfo,
    LanguageModelSource, LookedUp, OpenLanguageModel, OptimizerStep, Precision, Shares, StateTensor,
    TokenBatch,
};
use tch::Tensor;

pub use config::Gpt2Config;
use dropout::Masks;
use gradients::Gradients;
pub use held::HeldTensors;
use layout::Layout;
use parameters::Parameters;
pub use text::Gpt2Text;

use crate::config::Keys;
use crate::error::{Error, Result};
use crate::runtime;

/// Texts in a microbatch at most.
const MOST_TEXTS: usize = 4096;

/// A GPT-2 with its optimizer's state.
#[derive(Debug)]
pub struct Gpt2 {
    parameters: Parameters,
    plan: BucketPlan,
}

impl Gpt2 {
    /// Opens what `request` says; its threads are the runtime's affair.
    ///
    /// # Errors
    /// Files that are no GPT-2, or that are not as their config.json says; a field beyond its limits; bf16 on a processor
    /// without.
    pub fn open(request: &OpenLanguageModel) -> Result<Self> {
        runtime::check_precision(request.precision)?;
        let parameters = match &request.source {
            LanguageModelSource::Folder(folder) => read(folder, request.precision)?,
            LanguageModelSource::New(new) => {
                let config = Gpt2Config::of_new(new)?;
                let layout = Layout::new(&config);
                let (about, list) = (config.clone(), layout.clone());
                let initial = |number| initial::tensor(&about, &list, number, new.seed);
                Parameters::new(config, layout, request.precision, initial)?
            }
        };
        let layout = &parameters.layout;
        let plan = BucketPlan::new(&layout.parameters, &layout.backward_order(), request.buckets);
        Ok(Gpt2 { parameters, plan })
    }

    /// What a job has to know.
    pub fn info(&self) -> LanguageModelInfo {
        let config = &self.parameters.config;
        LanguageModelInfo {
            vocab_size: config.vocab_size as usize,
            n_positions: config.n_positions as usize,
            parameters: self.parameters.layout.parameters.clone(),
            plan: self.plan.clone(),
            width: config.n_embd as usize,
            part: native::part(),
            config: config.text().to_owned(),
        }
    }

    /// Loss of one microbatch, and its gradients in `buckets`: [`ringtune_engine::TrainLanguageModel`] says how.
    ///
    /// The same input, thread count and machine give the same bits.
    pub fn gradient(&mut self, batch: &TokenBatch, buckets: &mut dyn Buckets) -> Result<LanguageGradient> {
        self.check(batch)?;
        self.check_looked_up(&batch.looked_up)?;
        let places = places(batch)?;
        self.parameters.refresh()?;
        let _no_gradient = tch::no_grad_guard();
        let masks = Masks::new(batch.dropout, batch.batch)?;
        let started = Instant::now();
        let [ids, targets] = tensors(batch)?;
        let activations = forward::forward(&self.parameters, &ids, masks.as_ref(), true)?;
        let forward_seconds = started.elapsed().as_secs_f64();
        let started = Instant::now();
        let parameters = &self.parameters;
        let mut gradients = Gradients::new(&self.plan, &parameters.layout.parameters, buckets, batch.add);
        let hidden = &activations.last.y;
        let (loss, slope) = head::loss_and_gradient(parameters, hidden, &targets, &mut gradients)?;
        let passed = (activations, masks.as_ref());
        backward::backward(parameters, (batch, &places), passed, &slope, &mut gradients)?;
        let finite = loss.is_finite() && gradients.finite();
        let backward_seconds = started.elapsed().as_secs_f64();
        Ok(LanguageGradient { loss, finite, forward_seconds, backward_seconds })
    }

    /// Loss of one microbatch alone, with nothing dropped; its bits are those of [`Gpt2::gradient`]'s without dropout.
    pub fn loss(&mut self, batch: &TokenBatch) -> Result<f32> {
        self.check(batch)?;
        self.parameters.refresh()?;
        let _no_gradient = tch::no_grad_guard();
        let [ids, targets] = tensors(batch)?;
        let activations = forward::forward(&self.parameters, &ids, None, false)?;
        head::loss(&self.parameters, &activations.last.y, &targets)
    }

    /// One step of the optimizer with what the buckets hold, the last of which has the rows of `looked_up`.
    ///
    /// # Errors
    /// Buckets that are not the plan's and that one, ids beyond the vocabulary, numbers that make no sense: then nothing has moved.
    pub fn apply(
        &mut self,
        step: &OptimizerStep,
        looked_up: &LookedUp,
        buckets: &mut [AlignedFloats],
    ) -> Result<Applied> {
        self.check_looked_up(looked_up)?;
        // What was written to is rounded before a step rounds what it moves.
        self.parameters.refresh()?;
        optimizer::apply(&mut self.parameters, &self.plan, step, looked_up, buckets)
    }

    /// The sums of squares of what is this rank's own of a gradient, for [`Gpt2::apply_share`]; [`ringtune_engine::TrainLanguageModel`]
    /// says how.
    ///
    /// # Errors
    /// Buckets or shares that are not the plan's, ids beyond the vocabulary.
    pub fn gradient_squares(
        &self,
        looked_up: &LookedUp,
        buckets: &mut [AlignedFloats],
        shares: &Shares,
    ) -> Result<Vec<f64>> {
        self.check_looked_up(looked_up)?;
        optimizer::gradient_squares(&self.parameters, &self.plan, looked_up, buckets, shares)
    }

    /// One step of the optimizer with what this rank holds of it.
    ///
    /// # Errors
    /// As [`Gpt2::apply`]'s: then nothing has moved.
    pub fn apply_share(
        &mut self,
        step: &OptimizerStep,
        squares: f64,
        buckets: &mut [AlignedFloats],
        shares: &Shares,
    ) -> Result<Applied> {
        self.parameters.refresh()?;
        optimizer::apply_share(&mut self.parameters, &self.plan, (step, squares), buckets, shares)
    }

    /// Takes the parameters that this rank does not hold.
    ///
    /// # Errors
    /// Buckets or shares that are not the plan's; a state that is held.
    pub fn take_parameters(&mut self, buckets: &[AlignedFloats], shares: &Shares) -> Result<()> {
        self.parameters.refresh()?;
        optimizer::take_parameters(&mut self.parameters, &self.plan, buckets, shares)
    }

    /// Forgets the moments that this rank does not hold.
    ///
    /// # Errors
    /// Shares that are not the plan's; a state that is held.
    pub fn keep_moments(&mut self, shares: &Shares) -> Result<()> {
        optimizer::keep_moments(&mut self.parameters, &self.plan, shares)
    }

    /// The state's tensors, all fp32.
    pub fn state(&self) -> Vec<StateTensor> {
        self.parameters.tensors()
    }

    /// Copies the bytes of a state's tensor from `offset` on into `into`.
    ///
    /// # Errors
    /// No such tensor or place.
    pub fn read_state(&self, tensor: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        self.parameters.read(tensor, offset, into)
    }

    /// All of it, for other threads to read: until what this gives is dropped, [`Gpt2::apply`] and [`Gpt2::write_state`] are
    /// refused.
    ///
    /// # Errors
    /// libtorch's.
    pub fn hold_state(&self) -> Result<HeldTensors> {
        self.parameters.hold()
    }

    /// The other way round; what is computed from then on goes by it.
    ///
    /// # Errors
    /// The same.
    pub fn write_state(&mut self, tensor: &str, offset: u64, bytes: &[u8]) -> Result<()> {
        self.parameters.write(tensor, offset, bytes)
    }

    fn check(&self, batch: &TokenBatch) -> Result<()> {
        let (vocabulary, positions) = (self.parameters.config.vocab_size, self.parameters.config.n_positions);
        for (field, given, most) in
            [("batch", batch.batch, MOST_TEXTS), ("block", batch.block, positions as usize)]
        {
            if !(1..=most).contains(&given) {
                return Err(Error::argument(field, given, format!("1 to {most}")));
            }
        }
        let tokens = batch.batch * batch.block;
        for (field, ids) in [("inputs", &batch.inputs), ("targets", &batch.targets)] {
            if ids.len() != tokens {
                return Err(Error::argument(
                    field,
                    format!("{} ids", ids.len()),
                    format!("batch x block = {tokens}"),
                ));
            }
            if let Some(place) = ids.iter().position(|id| !(0..vocabulary).contains(id)) {
                let given = format!("{} at place {place}", ids[place]);
                return Err(Error::argument(field, given, format!("ids from 0 to {}", vocabulary - 1)));
            }
        }
        Ok(())
    }

    /// That the table has a row for each of these ids.
    fn check_looked_up(&self, looked_up: &LookedUp) -> Result<()> {
        let vocabulary = self.parameters.config.vocab_size;
        match looked_up.ids().iter().find(|id| !(0..vocabulary).contains(*id)) {
            None => Ok(()),
            Some(id) => Err(Error::argument("looked_up", id, format!("ids from 0 to {}", vocabulary - 1))),
        }
    }
}

/// Inputs [batch, block] and targets [batch * block].
fn tensors(batch: &TokenBatch) -> Result<[Tensor; 2]> {
    let inputs = Tensor::f_from_slice(&batch.inputs)?.f_view([batch.batch as i64, batch.block as i64])?;
    Ok([inputs, Tensor::f_from_slice(&batch.targets)?])
}

/// The places of the inputs among what the step looks up, [batch * block].
fn places(batch: &TokenBatch) -> Result<Tensor> {
    let mut places = Vec::with_capacity(batch.inputs.len());
    for id in &batch.inputs {
        let place = batch.looked_up.place_of(*id);
        let missing =
            || Error::argument("looked_up", format!("without input {id}"), "a list with all inputs");
        places.push(place.ok_or_else(missing)? as i64);
    }
    Ok(Tensor::f_from_slice(&places)?)
}

/// A model that transformers saved.
fn read(folder: &LanguageModelFolder, precision: Precision) -> Result<Parameters> {
    let Configs { saved, opened } = read_configs(folder)?;
    let files = weights::open(&folder.path)?;
    let tensors = weights::read(&files, &Layout::new(&saved))?;
    let (layout, list) = (Layout::new(&opened), Layout::new(&opened));
    Parameters::new(opened, layout, precision, |number| opened_rows(&list, number, &tensors[number]))
}

/// What a folder's config.json says of the model in its files, and what it is for the part of it that is opened.
struct Configs {
    saved: Gpt2Config,
    opened: Gpt2Config,
}

fn read_configs(folder: &LanguageModelFolder) -> Result<Configs> {
    let keys = read_keys(&folder.path)?;
    let saved = Gpt2Config::from_keys(&keys)?;
    let opened = match folder.positions {
        None => saved.clone(),
        Some(positions) => saved.cropped(keys, positions)?,
    };
    Ok(Configs { saved, opened })
}

/// Those of a parameter's rows that are opened, the first ones: of all but the position table every one.
fn opened_rows(layout: &Layout, number: usize, parameter: &Tensor) -> Result<Tensor> {
    let rows = layout.parameters[number].shape.first().copied().unwrap_or_default();
    Ok(parameter.f_narrow(0, 0, rows as i64)?)
}

/// A folder's config.json.
fn read_keys(folder: &Path) -> Result<Keys> {
    let file = folder.join("config.json");
    if !file.is_file() {
        let reason = "has no config.json: not a model as transformers saves it".to_owned();
        return Err(Error::NotAModel { folder: folder.to_path_buf(), reason });
    }
    Keys::read(&file)
}

/// Checks config.json, and by the files' headers names, shapes and types of every tensor. Loads nothing.
///
/// # Errors
/// What [`Gpt2::open`] would find, but for values.
pub fn check_gpt2_folder(folder: &Path) -> Result<Gpt2Config> {
    let config = Gpt2Config::from_keys(&Keys::read(&folder.join("config.json"))?)?;
    let files = weights::open(folder)?.into_dry();
    weights::read(&files, &Layout::new(&config))?;
    Ok(config)
}

#[cfg(test)]
mod attention_tests;
#[cfg(test)]
mod layer_tests;
#[cfg(test)]
mod product_tests;
