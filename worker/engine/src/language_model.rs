//! Causal language models: gradients of all their parameters, the optimizer, and the state of both.
//!
//! # What is large stays in the engine, and gradients go out while they are made
//! The engine holds the parameters (fp32), the optimizer's moments and the copies that it computes with. Gradients are
//! the caller's: during the backward pass the engine asks [`Buckets`] for the memory of one bucket after the other, fills
//! it, and hands it back, so that a bucket may travel over the network while the rest is computed. Then the caller lends
//! all buckets to [`TrainLanguageModel::apply`]. Nothing is copied on the way.
//!
//! # The token table's gradient has two parts
//! The table is the head too. The head's part is made first in the backward pass, and is that of the table in the plan's buckets. The
//! part of what was looked up is made last. It is nothing but a few rows of the table, those of the ids that are inputs ([`LookedUp`]),
//! and has one more bucket behind the plan's: [places, width], a row for each id that is an input of any microbatch of the step,
//! whoever computes it. So it is as long for all microbatches, which are added up number by number, and the table's own buckets
//! need not wait for it. [`TrainLanguageModel::apply`] puts both together.
//!
//! # Ranks may have the optimizer together
//! Where each rank has a part of the moments ([`Shares`]), a step is one of parts too. [`TrainLanguageModel::gradient_squares`] of each rank's own
//! part make the norm of all of the gradient, [`TrainLanguageModel::apply_share`] moves what the rank has, and leaves the parameters where
//! their gradients were; the caller brings the others, and [`TrainLanguageModel::take_parameters`] takes them in. Bit for bit what comes of it is what
//! [`TrainLanguageModel::apply`] makes.
//!
//! # The state is held while others read it
//! Passes read the parameters, and the optimizer alone changes them. So whoever has to read gigabytes of the state, to
//! write them to a disk, holds them ([`TrainLanguageModel::hold_language_state`]) and reads on a thread of its own while
//! the next passes are computed; [`TrainLanguageModel::apply`] has to wait until they are let go.

use std::{fmt, path::PathBuf};

use crate::{
    AlignedFloats, BucketPlan, BucketSizes, Engine, EngineError, LookedUp, Parameter, Precision, Shares,
};

/// Trains one causal language model, which stays open until another model is opened or loaded.
pub trait TrainLanguageModel: Engine {
    /// Opens a model, in the place of whatever was loaded: the parameters as they are stored or first drawn, moments of
    /// zero.
    ///
    /// # Errors
    /// Files that are no such model; a field of the request beyond its limits, by its name.
    fn open_language_model(&mut self, request: &OpenLanguageModel) -> Result<LanguageModelInfo, EngineError>;

    /// Loss of a microbatch, and its gradient with respect to every parameter, in the plan's buckets and the one of what was looked
    /// up behind them, whose number is that of the plan's buckets.
    ///
    /// Every bucket is taken once and given back once; they are given back in the plan's order. The gradient is that of
    /// the microbatch's mean loss; with [`TokenBatch::add`] it is added to what a bucket holds, in fp32. Rows of what was looked up
    /// that are no input of this microbatch have a gradient of zero.
    ///
    /// # Errors
    /// A field of the batch beyond its limits, by its name; whatever [`Buckets`] refuses; what the machine cannot do. The
    /// memory of buckets that were taken and not given back is then gone, and of the others some have this microbatch's
    /// gradient and some have not: the update starts anew, at its first microbatch.
    fn language_gradient(
        &mut self,
        batch: &TokenBatch,
        buckets: &mut dyn Buckets,
    ) -> Result<LanguageGradient, EngineError>;

    /// Loss of a microbatch alone, with nothing dropped; without [`TokenBatch::dropout`] its bits are those of
    /// [`TrainLanguageModel::language_gradient`]'s.
    fn language_loss(&mut self, batch: &TokenBatch) -> Result<f32, EngineError>;

    /// Moves the parameters by one step of AdamW, with what the buckets hold. `buckets`: all of the plan's, in order, and that of what
    /// was looked up, which is added to the table's: whatever they hold afterwards is of no use any more. `looked_up`: as of all
    /// microbatches whose gradients were added up. A gradient that is not finite moves nothing.
    ///
    /// # Errors
    /// Buckets of other lengths; ids that the model does not have; numbers of the step that make no sense, by their names;
    /// [`EngineError::Held`]. Then nothing has moved, and the buckets are as they were.
    fn apply(
        &mut self,
        step: &OptimizerStep,
        looked_up: &LookedUp,
        buckets: &mut [AlignedFloats],
    ) -> Result<Applied, EngineError>;

    /// The squares of a gradient that was added up, for its norm: sums over [`LanguageModelInfo::part`] numbers each of what is the rank's own,
    /// bucket after bucket. Own parts begin at multiples of `part`. What was looked up is added to the table's before, in
    /// all that the rank holds.
    ///
    /// # Errors
    /// As [`TrainLanguageModel::apply`]'s, but that nothing moves here: it may be asked for while the state is held.
    fn gradient_squares(
        &mut self,
        looked_up: &LookedUp,
        buckets: &mut [AlignedFloats],
        shares: &Shares,
    ) -> Result<Vec<f64>, EngineError>;

    /// The part of [`TrainLanguageModel::apply`] that is this rank's. `squares`: of all of the gradient, added up per bucket and then over the buckets.
    /// `buckets`: as [`TrainLanguageModel::gradient_squares`] left them. Where it moves something, the buckets then have the new parameters
    /// in the place of what is held.
    ///
    /// # Errors
    /// As there.
    fn apply_share(
        &mut self,
        step: &OptimizerStep,
        squares: f64,
        buckets: &mut [AlignedFloats],
        shares: &Shares,
    ) -> Result<Applied, EngineError>;

    /// Takes the parameters that the rank does not hold from the plan's buckets.
    ///
    /// # Errors
    /// Buckets of other lengths; [`EngineError::Held`].
    fn take_parameters(&mut self, buckets: &[AlignedFloats], shares: &Shares) -> Result<(), EngineError>;

    /// Forgets the moments that are not held: they are zeros from then on, and their memory is the system's.
    ///
    /// # Errors
    /// Shares of another plan; [`EngineError::Held`].
    fn keep_moments(&mut self, shares: &Shares) -> Result<(), EngineError>;

    /// The tensors of the state, all fp32: parameters as `model.NAME`, the optimizer's moments as `adamw.mean.NAME` and
    /// `adamw.square.NAME`.
    fn language_state(&mut self) -> Result<Vec<StateTensor>, EngineError>;

    /// Copies the bytes (little-endian) of a state's tensor from byte `offset` on into all of `into`.
    ///
    /// # Errors
    /// No such tensor; a place that is not whole numbers of it.
    fn read_language_state(&mut self, tensor: &str, offset: u64, into: &mut [u8]) -> Result<(), EngineError>;

    /// The other way round: what is computed from then on goes by what was written. Errors: the same;
    /// [`EngineError::Held`].
    fn write_language_state(&mut self, tensor: &str, offset: u64, bytes: &[u8]) -> Result<(), EngineError>;

    /// The state as it is now, for other threads to read. Nothing is copied: as long as what this gives is there, nothing
    /// moves. Several may be there at once, also longer than the model is open.
    fn hold_language_state(&mut self) -> Result<Box<dyn HeldState>, EngineError>;
}

/// A language model's state that stays as it is until this is dropped.
pub trait HeldState: fmt::Debug + Send + Sync {
    /// See [`TrainLanguageModel::read_language_state`].
    ///
    /// # Errors
    /// The same.
    fn read(&self, tensor: &str, offset: u64, into: &mut [u8]) -> Result<(), EngineError>;
}

/// Which language model to open, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenLanguageModel {
    /// Where its parameters come from.
    pub source: LanguageModelSource,
    /// What products and attention are computed in. `Bf16` is torch's CPU autocast, but that GELU is rounded once.
    pub precision: Precision,
    /// Threads within one operation; at least 1.
    pub threads: usize,
    /// How its gradients are cut.
    pub buckets: BucketSizes,
}

/// Where a language model's parameters come from.
#[derive(Clone, Debug, PartialEq)]
pub enum LanguageModelSource {
    /// One that was saved.
    Folder(LanguageModelFolder),
    /// Drawn by [`NewLanguageModel::seed`].
    New(NewLanguageModel),
}

impl LanguageModelSource {
    /// All of a model that was saved.
    pub fn folder(path: impl Into<PathBuf>) -> Self {
        Self::Folder(LanguageModelFolder { path: path.into(), positions: None })
    }
}

/// A language model as transformers writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LanguageModelFolder {
    /// Has config.json and model.safetensors (or model.safetensors.index.json and what it names).
    pub path: PathBuf,
    /// How many of its positions are opened, 1 to all that it has; none: all. The others' rows are left where they are, and the
    /// model is one of so many positions. Source: nanoGPT, model.py, `crop_block_size`.
    pub positions: Option<usize>,
}

/// A GPT-2 that was never trained. Its parameters are nanoGPT's: normals of deviation 0.02, those that write to the
/// residual stream of 0.02 / sqrt(2 `n_layer`), zeros for biases and ones for the factors of norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewLanguageModel {
    /// Tokens that there are.
    pub vocab_size: usize,
    /// The longest text, in tokens.
    pub n_positions: usize,
    /// Layers.
    pub n_layer: usize,
    /// Attention heads, a divisor of `n_embd`.
    pub n_head: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Whether layers and norms have biases. transformers knows no GPT-2 without: zeros are saved for it.
    pub bias: bool,
    /// Decides every bit of the parameters.
    pub seed: u64,
}

/// What an open language model is.
#[derive(Clone, Debug, PartialEq)]
pub struct LanguageModelInfo {
    /// Tokens that there are: ids are 0 .. this.
    pub vocab_size: usize,
    /// The longest text, in tokens.
    pub n_positions: usize,
    /// All parameters, in the order of the model's file.
    pub parameters: Vec<Parameter>,
    /// How their gradients are cut.
    pub plan: BucketPlan,
    /// Numbers of a row of the token table, and so of what is looked up.
    pub width: usize,
    /// Numbers of a bucket whose squares are added up by themselves, and then one after the other.
    pub part: usize,
    /// config.json, for whoever saves the model.
    pub config: String,
}

impl LanguageModelInfo {
    /// Numbers of the bucket of what is looked up, which is behind the plan's.
    pub fn looked_up_length(&self, looked_up: &LookedUp) -> usize {
        looked_up.count() * self.width
    }
}

/// The inputs of one forward and backward pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenBatch {
    /// Texts, at least 1.
    pub batch: usize,
    /// Tokens of each, 1 to `n_positions`.
    pub block: usize,
    /// [batch, block]: ids.
    pub inputs: Vec<i64>,
    /// [batch, block]: the id that follows each.
    pub targets: Vec<i64>,
    /// Of the whole step: all inputs are among its ids. The loss alone needs none.
    pub looked_up: LookedUp,
    /// Whether the gradient is added to what the buckets hold, or replaces it.
    pub add: bool,
    /// What is dropped while the gradient is made; none: nothing.
    pub dropout: Option<Dropout>,
}

/// Dropout of one microbatch: each number is dropped by chance, and what is kept is divided by 1 - `rate`. What is dropped
/// follows from these numbers and a number's place alone.
///
/// Source: Srivastava et al. 2014; where it is in a GPT-2: nanoGPT's model.py.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The share that is dropped, from 0 up to, but not, 1.
    pub rate: f64,
    /// The job's.
    pub seed: u64,
    /// The optimizer update, below 2^56.
    pub step: u64,
    /// The number of the microbatch's first text among all of the step's.
    pub first_sample: u32,
}

/// Where gradients go. The memory of a bucket is its owner's, and changes hands.
pub trait Buckets {
    /// The memory of a bucket, of its length in the plan or of [`LanguageModelInfo::looked_up_length`]. Where gradients are added, with
    /// what was given back last. Buckets may be taken in any order, and several are held at once: of a table that is larger than
    /// a bucket all are taken before the first one is given back.
    ///
    /// # Errors
    /// Whoever owns it does not want the gradient any more: the pass ends.
    fn take(&mut self, bucket: usize) -> Result<AlignedFloats, EngineError>;

    /// It holds all that this pass puts in. Returns quickly: the pass waits.
    ///
    /// # Errors
    /// As before.
    fn give(&mut self, bucket: usize, memory: AlignedFloats) -> Result<(), EngineError>;
}

/// What one microbatch yields, besides the buckets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LanguageGradient {
    /// Mean cross-entropy over all tokens, in nats.
    pub loss: f32,
    /// Whether the loss and everything in the buckets are finite.
    pub finite: bool,
    /// Seconds until the last layer's output.
    pub forward_seconds: f64,
    /// Seconds from there: the head, whose loss and gradient are made at once, and the way back.
    pub backward_seconds: f64,
}

/// One step of AdamW over gradients that were added up.
///
/// Source: Loshchilov & Hutter 2019; torch/optim/adam.py, `_single_tensor_adam`; torch/nn/utils/clip_grad.py.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimizerStep {
    /// The step's number, from 1; steps that were skipped do not count.
    pub number: u64,
    /// At least 0. Steps are computed in fp32: this, `epsilon`, `weight_decay` and `max_grad_norm` are at most
    /// [`f32::MAX`].
    pub learning_rate: f64,
    /// How much of the gradients' running mean a step keeps, from 0 up to, but not, 1.
    pub beta1: f64,
    /// How much of the squared gradients' running mean a step keeps, as `beta1`.
    pub beta2: f64,
    /// Added to the denominator; at least [`f32::MIN_POSITIVE`].
    pub epsilon: f64,
    /// Share of the decayed parameters, times the learning rate, that a step takes away; at least 0.
    pub weight_decay: f64,
    /// The gradient's norm is held to this, above 0; none: it is not.
    pub max_grad_norm: Option<f64>,
    /// How many microbatches were added up: gradients are divided by it, before anything else. At least 1.
    pub divide_by: u32,
}

impl OptimizerStep {
    /// That all numbers are within their limits.
    ///
    /// # Errors
    /// The first field that is not, what was given, and what is allowed.
    pub fn check(&self) -> Result<(), WrongStep> {
        let wrong = |field, given: f64, allowed| Err(WrongStep { field, given: given.to_string(), allowed });
        if self.number == 0 {
            return wrong("number", 0.0, "1 or more");
        }
        // What would be infinite in fp32, or zero where that is divided by, is none of a step's numbers.
        let (least, most) = (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX));
        for (field, given) in [("learning_rate", self.learning_rate), ("weight_decay", self.weight_decay)] {
            if !(0.0..=most).contains(&given) {
                return wrong(field, given, "from 0 to 3.4028234e38, the largest number of fp32");
            }
        }
        for (field, given) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&given) {
                return wrong(field, given, "from 0 up to, but not, 1");
            }
        }
        if !(least..=most).contains(&self.epsilon) {
            return wrong("epsilon", self.epsilon, "from 1.1754944e-38 to 3.4028234e38, the limits of fp32");
        }
        let max_grad_norm = self.max_grad_norm.unwrap_or(1.0);
        if !(max_grad_norm > 0.0 && max_grad_norm <= most) {
            let allowed = "above 0, up to 3.4028234e38, the largest number of fp32";
            return wrong("max_grad_norm", max_grad_norm, allowed);
        }
        if self.divide_by == 0 {
            return wrong("divide_by", 0.0, "1 or more");
        }
        Ok(())
    }
}

/// A number of an optimizer step that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {given}, allowed is {allowed}")]
pub struct WrongStep {
    /// The field of [`OptimizerStep`].
    pub field: &'static str,
    /// What was given.
    pub given: String,
    /// What is allowed.
    pub allowed: &'static str,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Applied {
    /// The norm of the whole gradient, after the division and before it was held to `max_grad_norm`.
    pub grad_norm: f64,
    /// Nothing has moved, as that is not finite.
    pub skipped: bool,
}

/// A tensor of a language model's state, fp32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateTensor {
    /// Its name in the state.
    pub name: String,
    /// Its sides; the last dimension runs fastest.
    pub shape: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_says_which_of_its_numbers_makes_no_sense() {
        let good = OptimizerStep {
            number: 1,
            learning_rate: 0.0,
            beta1: 0.0,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.1,
            max_grad_norm: None,
            divide_by: 1,
        };
        assert_eq!(good.check(), Ok(()));
        let (least, most) = (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX));
        let smallest = OptimizerStep { epsilon: least, ..good };
        let largest = OptimizerStep {
            learning_rate: most,
            weight_decay: most,
            epsilon: most,
            max_grad_norm: Some(most),
            ..good
        };
        assert_eq!((smallest.check(), largest.check()), (Ok(()), Ok(())));
        let wrong = [
            ("number", OptimizerStep { number: 0, ..good }),
            ("learning_rate", OptimizerStep { learning_rate: f64::NAN, ..good }),
            ("learning_rate", OptimizerStep { learning_rate: -1e-9, ..good }),
            ("learning_rate", OptimizerStep { learning_rate: 1e39, ..good }),
            ("beta1", OptimizerStep { beta1: 1.0, ..good }),
            ("beta2", OptimizerStep { beta2: f64::NAN, ..good }),
            ("epsilon", OptimizerStep { epsilon: 0.0, ..good }),
            ("epsilon", OptimizerStep { epsilon: 1e-46, ..good }),
            ("epsilon", OptimizerStep { epsilon: 1e39, ..good }),
            ("epsilon", OptimizerStep { epsilon: f64::NAN, ..good }),
            ("weight_decay", OptimizerStep { weight_decay: f64::INFINITY, ..good }),
            ("weight_decay", OptimizerStep { weight_decay: 1e39, ..good }),
            ("max_grad_norm", OptimizerStep { max_grad_norm: Some(0.0), ..good }),
            ("max_grad_norm", OptimizerStep { max_grad_norm: Some(1e39), ..good }),
            ("max_grad_norm", OptimizerStep { max_grad_norm: Some(f64::NAN), ..good }),
            ("divide_by", OptimizerStep { divide_by: 0, ..good }),
        ];
        for (field, step) in wrong {
            let error = step.check().map_or_else(|error| error, |()| panic!("{field} was taken"));
            assert_eq!(error.field, field);
            assert!(error.to_string().starts_with(&format!("{field} is ")), "{error}");
        }
    }
}
