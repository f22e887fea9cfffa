//! GPT-2, trained: forward and backward pass over fp32 parameters (`crate::parameters`, which has their optimizer too), and gradients of
//! all of them in the caller's buckets.
//!
//! Both passes are written out layer by layer, so that memory and the order of gradients are ours. In bf16 it computes as
//! transformers' GPT2LMHeadModel does under torch's CPU autocast: products and attention take and give bf16, the
//! residual stream, norms and the loss are fp32; but GELU is rounded once instead of after each of its operations.
//!
//! `forward.rs` keeps activations, which `backward.rs` releases layer by layer. `crate::parameters` puts each gradient into
//! its bucket as soon as it is computed, and returns a bucket as soon as it is full, in the order of the backward pass.
//! The token table is the head too. The head's part of its gradient is the first to end, and is in the plan's buckets;
//! the part of the lookup is the last, and has one more bucket behind them, with only those rows that any microbatch of
//! the step looks up (`EmbeddingRows`). The optimizer adds it to the table's before it takes the norm. The optimizer also
//! rounds the copies that products use, in the sweep that moves the parameters. The head never has more logits than
//! those of 2,048 rows: GPT-2 124M with 4 x 1,024 tokens takes 4 GB in all.
//!
//! What libtorch lacks, or does in several sweeps, is in `csrc/language*`: plain kernels, compiled once per instruction
//! set (`language_kernels.cpp`). Products with the model's own weights, which change in every step, are oneDNN's layer
//! in bf16 without AMX, and libtorch's otherwise (`language_products.cpp`). Attention is that of the UNet with a causal
//! mask (`csrc/causal_attention.cpp`), libtorch's in fp32. Dropout has masks by place (`dropout.rs` names them,
//! `csrc/dropout.h` says which numbers a name keeps), which both passes compute when they need them; dropped attention
//! in fp32 is `csrc/dropped_attention.cpp`.
//!
//! Golden tensors are transformers' (`tests/reference/goldens/gpt2.py`, `dropout.py`): each layer, all gradients, and
//! optimizer steps by nanoGPT's recipe. `tests/bench/gpt2.sh` times the step beside PyTorch's, with and without its
//! compiler, `tests/bench/overlap.sh` the gradients of several ranks, with and without overlap.
//!
//! Invariant: sums over rows consist of stretches of fixed lengths, each computed by one thread, and added in order.

mod backward;
mod config;
mod forward;
mod head;
mod initial;
mod layout;
mod native;
pub(crate) mod probe;
mod text;
mod weights;

use std::path::Path;
use std::time::Instant;

use ringtune_engine::{
    Buckets, LanguageModelFolder, LanguageModelInfo, LanguageModelSource, OpenLanguageModel, PassSummary,
    Precision, TokenBatch,
};
use tch::Tensor;

use crate::dropout::Masks;
pub use config::Gpt2Config;
use layout::Layout;
pub use text::Gpt2Text;

use crate::config::Keys;
use crate::error::{Error, Result};
use crate::parameters::{Parameters, Showing, Trained};
use crate::runtime;

/// Texts in a microbatch at most.
const MOST_TEXTS: usize = 4096;

/// A GPT-2 with its optimizer's state.
#[derive(Debug)]
pub struct Gpt2 {
    config: Gpt2Config,
    layout: Layout,
    precision: Precision,
    /// What is trained, in the layout's order.
    pub parameters: Parameters,
}

impl Gpt2 {
    /// Opens what `request` says; its threads are the runtime's affair.
    ///
    /// # Errors
    /// Files that are no GPT-2, or that are not as their config.json says; a field beyond its limits; bf16 on a processor
    /// without.
    pub fn open(request: &OpenLanguageModel) -> Result<Self> {
        runtime::check_precision(request.precision)?;
        match &request.source {
            LanguageModelSource::Folder(folder) => {
                let Configs { saved, opened } = read_configs(folder)?;
                let files = weights::open(&folder.path)?;
                let tensors = weights::read(&files, &Layout::new(&saved))?;
                Self::new(opened, request, |_, layout, number| opened_rows(layout, number, &tensors[number]))
            }
            LanguageModelSource::New(new) => {
                let initial = |config: &Gpt2Config, layout: &Layout, number| {
                    initial::tensor(config, layout, number, new.seed)
                };
                Self::new(Gpt2Config::of_new(new)?, request, initial)
            }
        }
    }

    /// With the values that `initial` gives for each parameter.
    fn new(
        config: Gpt2Config,
        request: &OpenLanguageModel,
        initial: impl Fn(&Gpt2Config, &Layout, usize) -> Result<Tensor>,
    ) -> Result<Self> {
        let (layout, precision) = (Layout::new(&config), request.precision);
        let trained = Trained {
            list: layout.parameters.clone(),
            order: layout.backward_order(),
            buckets: request.buckets,
            table: Some(layout.wte),
            average: false,
            rounds: false,
            showing: Showing::Averages,
            folder: None,
        };
        let copied = |number| precision == Precision::Bf16 && layout.in_products(number);
        let parameters = Parameters::new(trained, copied, |number| initial(&config, &layout, number))?;
        Ok(Gpt2 { config, layout, precision, parameters })
    }

    /// What a job has to know.
    pub fn info(&self) -> LanguageModelInfo {
        LanguageModelInfo {
            vocab_size: self.config.vocab_size as usize,
            n_positions: self.config.n_positions as usize,
            parameters: self.parameters.info().clone(),
            config: self.config.text().to_owned(),
        }
    }

    /// Whether activations are bf16.
    fn is_low(&self) -> bool {
        self.precision == Precision::Bf16
    }

    /// Loss of one microbatch, and its gradients in `buckets`: [`ringtune_engine::TrainLanguageModel`] says how.
    ///
    /// The same input, thread count and machine give the same bits.
    pub fn gradient(&mut self, batch: &TokenBatch, buckets: &mut dyn Buckets) -> Result<PassSummary> {
        self.check(batch)?;
        self.parameters.check_looked_up(&batch.looked_up)?;
        let places = places(batch)?;
        self.parameters.refresh()?;
        let _no_gradient = tch::no_grad_guard();
        let masks = Masks::new(batch.dropout, batch.batch)?;
        let started = Instant::now();
        let [ids, targets] = tensors(batch)?;
        let activations = forward::forward(self, &ids, masks.as_ref(), true)?;
        let forward_seconds = started.elapsed().as_secs_f64();
        let started = Instant::now();
        let mut gradients = self.parameters.gradients(buckets, batch.add);
        let hidden = &activations.last.y;
        let (loss, slope) = head::loss_and_gradient(self, hidden, &targets, &mut gradients)?;
        let passed = (activations, masks.as_ref());
        backward::backward(self, (batch, &places), passed, &slope, &mut gradients)?;
        let finite = loss.is_finite() && gradients.finite();
        let backward_seconds = started.elapsed().as_secs_f64();
        Ok(PassSummary { loss, finite, forward_seconds, backward_seconds })
    }

    /// Loss of one microbatch alone, with nothing dropped; its bits are those of [`Gpt2::gradient`]'s without dropout.
    pub fn loss(&mut self, batch: &TokenBatch) -> Result<f32> {
        self.check(batch)?;
        self.parameters.refresh()?;
        let _no_gradient = tch::no_grad_guard();
        let [ids, targets] = tensors(batch)?;
        let activations = forward::forward(self, &ids, None, false)?;
        head::loss(self, &activations.last.y, &targets)
    }

    fn check(&self, batch: &TokenBatch) -> Result<()> {
        let (vocabulary, positions) = (self.config.vocab_size, self.config.n_positions);
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

#[cfg(test)]
mod attention_tests;
#[cfg(test)]
mod layer_tests;
#[cfg(test)]
mod product_tests;
