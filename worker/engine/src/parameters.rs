//! Parameters that are trained: held by the engine with their optimizer, whatever model they are of.
//!
//! # What is large stays in the engine, and gradients go out while they are made
//! The engine holds the parameters (fp32), the optimizer's moments and the copies that it computes with. Gradients are
//! the caller's: during the backward pass the engine asks [`Buckets`] for the memory of one bucket after the other, fills
//! it, and hands it back, so that a bucket may travel over the network while the rest is computed. Then the caller lends
//! all buckets to [`HoldParameters::apply`]. Nothing is copied on the way.
//!
//! # A token table's gradient has two parts
//! The table of a language model is its head too. The head's part is made first in the backward pass, and is that of the table in the
//! plan's buckets. The part of what was looked up is made last. It is nothing but a few rows of the table, those of the ids that are
//! inputs ([`EmbeddingRows`]), and has one more bucket behind the plan's: [places, width], a row for each id that is an input of any
//! microbatch of the step, whoever computes it. So it is as long for all microbatches, which are added up number by number, and the
//! table's own buckets need not wait for it. [`HoldParameters::apply`] puts both together. Of a model that trains no table this bucket
//! is empty.
//!
//! # Ranks may have the optimizer together
//! Where each rank has a part of the moments ([`Shares`]), a step is one of parts too. [`HoldParameters::squared_norm_parts`] of each
//! rank's own part make the norm of all of the gradient, [`HoldParameters::apply_share`] moves what the rank has, and leaves the
//! parameters where their gradients were; the caller brings the others, and [`HoldParameters::take_parameters`] takes them in. Bit for
//! bit what comes of it is what [`HoldParameters::apply`] makes.
//!
//! # Ranks may take steps by themselves
//! Of parameters that were opened for it a step of all ranks may be a round: from [`HoldParameters::begin_round`] to
//! [`HoldParameters::end_round`] a rank takes steps of its own, with moments of its own, which then are forgotten. How far its
//! parameters came is its gradient, and [`HoldParameters::apply_round`] moves everybody's by the mean of these, with a momentum that
//! the state has in the place of moments. Source: Douillard et al. 2023, DiLoCo.
//!
//! # The state is held while others read it
//! Passes read the parameters, and the optimizer alone changes them. So whoever has to read gigabytes of the state, to
//! write them to a disk, holds them ([`HoldParameters::hold_state`]) and reads on a thread of its own while
//! the next passes are computed; [`HoldParameters::apply`] has to wait until they are let go.

use std::fmt;

use crate::{
    AlignedFloats, Applied, BucketPlan, EmbeddingRows, Engine, EngineError, OptimizerStep, OuterStep,
    Parameter, Shares,
};

/// What losses and pictures go by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shows {
    /// The parameters.
    #[default]
    Parameters,
    /// Their average.
    Average,
    /// Other values of them, which [`HoldParameters::give_shown`] brings: of models that were opened for it.
    Given,
}

/// Holds the parameters of the model that is open for training, and their optimizer. Without one each method's error is
/// [`EngineError::NothingLoaded`].
pub trait HoldParameters: Engine {
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
        looked_up: &EmbeddingRows,
        buckets: &mut [AlignedFloats],
    ) -> Result<Applied, EngineError>;

    /// The parts of the squared norm of a gradient that was added up: sums of the squares of [`ParametersInfo::part`] numbers each of
    /// the rank's own share, bucket after bucket. Own parts begin at multiples of `part`. What was looked up is added to the table's
    /// before, in all that the rank holds.
    ///
    /// # Errors
    /// As [`HoldParameters::apply`]'s, but that nothing moves here: it may be asked for while the state is held.
    fn squared_norm_parts(
        &mut self,
        looked_up: &EmbeddingRows,
        buckets: &mut [AlignedFloats],
        shares: &Shares,
    ) -> Result<Vec<f64>, EngineError>;

    /// The part of [`HoldParameters::apply`] that is this rank's. `squared_norm`: of all of the gradient, its parts added up per bucket
    /// and then over the buckets. `buckets`: as [`HoldParameters::squared_norm_parts`] left them. Where it moves something, the buckets
    /// then have the new parameters in the place of what is held.
    ///
    /// # Errors
    /// As there.
    fn apply_share(
        &mut self,
        step: &OptimizerStep,
        squared_norm: f64,
        buckets: &mut [AlignedFloats],
        shares: &Shares,
    ) -> Result<Applied, EngineError>;

    /// Takes the parameters that the rank does not hold from the plan's buckets, and moves their averages, as
    /// [`OptimizerStep::average_decay`] says: of averages each rank has all.
    ///
    /// # Errors
    /// Buckets of other lengths; [`EngineError::Held`].
    fn take_parameters(
        &mut self,
        buckets: &[AlignedFloats],
        shares: &Shares,
        average_decay: Option<f64>,
    ) -> Result<(), EngineError>;

    /// Forgets the moments that are not held: they are zeros from then on, and their memory is the system's.
    ///
    /// # Errors
    /// Shares of another plan; [`EngineError::Held`].
    fn keep_moments(&mut self, shares: &Shares) -> Result<(), EngineError>;

    /// Begins a round, and gives up one that is on its way: the parameters are kept as they are, and the moments are zeros.
    ///
    /// # Errors
    /// Parameters that were not opened for rounds; [`EngineError::Held`].
    fn begin_round(&mut self) -> Result<(), EngineError>;

    /// Ends a round: the parameters are again what they were when it began. `buckets`: all of the plan's, and an empty one behind them;
    /// they then have what each parameter was, minus what it had become. With no bucket at all the round is given up; then nothing
    /// happens where there is none.
    ///
    /// # Errors
    /// Buckets of other lengths, or for a round that did not begin; [`EngineError::Held`].
    fn end_round(&mut self, buckets: &mut [AlignedFloats]) -> Result<(), EngineError>;

    /// Moves the parameters by what the ranks' rounds came to, added up in `buckets`, as [`HoldParameters::end_round`] has them. What is
    /// not finite moves nothing.
    ///
    /// # Errors
    /// As [`HoldParameters::apply`]'s; a round that has not ended.
    fn apply_round(
        &mut self,
        step: &OuterStep,
        buckets: &mut [AlignedFloats],
    ) -> Result<Applied, EngineError>;

    /// What losses and pictures go by from then on, until the next gradient or step, which are always the parameters'.
    ///
    /// # Errors
    /// No average is kept; nothing can be given.
    fn show(&mut self, shows: Shows) -> Result<(), EngineError>;

    /// Writes the bytes (little-endian, fp32) of a part of what is shown in a parameter's place, from byte `offset` of the parameter
    /// on. The state stays as it is.
    ///
    /// # Errors
    /// [`Shows::Given`] is not what is shown; no such parameter; a place that is not whole numbers of it.
    fn give_shown(&mut self, parameter: &str, offset: u64, bytes: &[u8]) -> Result<(), EngineError>;

    /// The tensors of the state, all fp32: parameters as `model.NAME`, the optimizer's moments as `adamw.mean.NAME` and
    /// `adamw.square.NAME`, of parameters that were opened for rounds their momentum as `outer.momentum.NAME` instead, an average that is
    /// kept as `average.NAME`.
    fn state_tensors(&mut self) -> Result<Vec<StateTensor>, EngineError>;

    /// Copies the bytes (little-endian) of a state's tensor from byte `offset` on into all of `into`.
    ///
    /// # Errors
    /// No such tensor; a place that is not whole numbers of it.
    fn read_state(&mut self, tensor: &str, offset: u64, into: &mut [u8]) -> Result<(), EngineError>;

    /// Writes the bytes of a part of a state's tensor: what is computed from then on goes by them.
    ///
    /// # Errors
    /// As [`HoldParameters::read_state`]'s; [`EngineError::Held`].
    fn write_state(&mut self, tensor: &str, offset: u64, bytes: &[u8]) -> Result<(), EngineError>;

    /// The state as it is now, for other threads to read. Nothing is copied: as long as what this gives is there, nothing
    /// moves. Several may be there at once, also longer than the model is open.
    fn hold_state(&mut self) -> Result<Box<dyn HeldState>, EngineError>;
}

/// Parameters and moments that stay as they are until this is dropped.
pub trait HeldState: fmt::Debug + Send + Sync {
    /// See [`HoldParameters::read_state`].
    ///
    /// # Errors
    /// The same.
    fn read(&self, tensor: &str, offset: u64, into: &mut [u8]) -> Result<(), EngineError>;
}

/// What parameters are held, and how their gradients travel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParametersInfo {
    /// All of them, in the order of the model's file.
    pub list: Vec<Parameter>,
    /// How their gradients are cut.
    pub plan: BucketPlan,
    /// Numbers of an embedding row, and so of what is looked up.
    pub width: usize,
    /// Numbers of a bucket whose squares are added up by themselves, and then one after the other.
    pub part: usize,
}

impl ParametersInfo {
    /// Numbers of the bucket of what is looked up, which is behind the plan's.
    pub fn looked_up_length(&self, looked_up: &EmbeddingRows) -> usize {
        looked_up.count() * self.width
    }
}

/// Where gradients go. The memory of a bucket is its owner's, and changes hands.
pub trait Buckets {
    /// The memory of a bucket, of its length in the plan or of [`ParametersInfo::looked_up_length`]. Where gradients are added, with
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

/// What a forward and backward pass yields, besides the buckets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassSummary {
    /// The microbatch's mean loss; of a language model the cross-entropy over all tokens, in nats.
    pub loss: f32,
    /// Whether the loss and everything in the buckets are finite.
    pub finite: bool,
    /// Seconds until the last layer's output.
    pub forward_seconds: f64,
    /// Seconds from there: the loss (of a language model with its head) and the way back.
    pub backward_seconds: f64,
}

/// A tensor of the state, fp32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateTensor {
    /// Its name in the state.
    pub name: String,
    /// Its sides; the last dimension runs fastest.
    pub shape: Vec<usize>,
}
