//! Training of a model that draws pictures: gradients of parameters that the engine holds ([`HoldParameters`]), on the
//! microbatches of textual inversion.

use std::path::{Path, PathBuf};

use crate::{
    AdaptLayers, BucketSizes, Buckets, EngineError, HoldParameters, Microbatch, ModelOptions, ParametersInfo,
    PassSummary,
};

/// The parameter of [`OpenAdapters::rows`]: [rows, text_width], behind the adapters' own.
pub const LEARNED_ROWS: &str = "text_encoder.text_model.embeddings.token_embedding.learned";
/// Which of a step's rates ([`Parameter::rate`](crate::Parameter::rate)) the learned rows move by.
pub const ROWS_RATE: usize = 2;

/// Trains a part of the loaded model. What is trained stays until another model is loaded or opened, or the same one anew.
pub trait TrainPictures: HoldParameters + AdaptLayers {
    /// Puts adapters beside layers, in the place of any that are there: each changes nothing yet, as its second factor is
    /// zeros. The parameters are two for each adapter, [`Adapter::down`] and [`Adapter::up`], with DoRA three, in the order of the
    /// layers.
    ///
    /// # Errors
    /// No adapter; one of a layer that the model does not have, or that is named twice; a rank of 0; an alpha that is not a
    /// number or 0.
    fn open_adapters(&mut self, request: &OpenAdapters) -> Result<ParametersInfo, EngineError>;

    /// The tensors of a model's UNet, in the order of the forward pass. Loads nothing.
    ///
    /// # Errors
    /// The model's files'.
    fn unet_tensors(&mut self, folder: &Path, options: &ModelOptions)
    -> Result<Vec<UnetTensor>, EngineError>;

    /// Opens tensors of the UNet for training, in the place of any adapters. They are the parameters, by their names, in the order of
    /// the forward pass.
    ///
    /// # Errors
    /// None; one that the UNet does not have; the disk's, of `folder`.
    fn open_unet(&mut self, request: &OpenUnet) -> Result<ParametersInfo, EngineError>;

    /// Loss of a microbatch, and its gradient with respect to every parameter, in the plan's buckets; behind them comes an empty
    /// one. With `add` it is added to what a bucket holds. Buckets are taken and given as by
    /// [`language_gradient`](crate::TrainLanguageModel::language_gradient).
    ///
    /// # Errors
    /// A field of the microbatch beyond its limits, by its name; whatever [`Buckets`] refuses; what the machine cannot do.
    fn picture_gradient(
        &mut self,
        microbatch: &Microbatch,
        add: bool,
        buckets: &mut dyn Buckets,
    ) -> Result<PassSummary, EngineError>;

    /// Loss of a microbatch alone; its bits are those of [`TrainPictures::picture_gradient`]'s.
    fn picture_loss(&mut self, microbatch: &Microbatch) -> Result<f32, EngineError>;
}

/// A tensor of a UNet, as diffusers names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnetTensor {
    /// Such as "mid_block.resnets.0.conv1.weight".
    pub name: String,
    /// Its sides.
    pub shape: Vec<usize>,
}

impl UnetTensor {
    /// Its numbers.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// What of a UNet is trained, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenUnet {
    /// Names of [`UnetTensor`]s, at least one.
    pub trained: Vec<String>,
    /// What they are first.
    pub first: FirstValues,
    /// How their gradients are cut.
    pub buckets: BucketSizes,
    /// An average of the parameters is kept: [`OptimizerStep::average_decay`](crate::OptimizerStep::average_decay).
    pub average: bool,
    /// The ranks take steps by themselves: [`HoldParameters::begin_round`].
    pub rounds: bool,
    /// Only what is between the network's segments is kept for the backward pass, which computes the rest again: the same bits.
    pub checkpointing: bool,
    /// How attention is computed.
    pub attention: Attention,
    /// Where moments and averages are mapped files; none: they are memory. The same bits.
    pub folder: Option<PathBuf>,
}

/// How softmax(query keyᵀ / sqrt(width)) value is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attention {
    /// In tiles, never all weights at once.
    #[default]
    Fused,
    /// With the weights of all heads as one tensor. Source: diffusers, AttnProcessor.
    Plain,
    /// The same, one head of one sample after the other. Source: diffusers, SlicedAttnProcessor.
    Sliced,
}

/// What parameters are before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstValues {
    /// As the model's files have them.
    Stored,
    /// Drawn as torch.nn draws them, by the job's seed.
    Drawn {
        /// Decides every bit.
        seed: u64,
    },
}

/// Adapters to train, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenAdapters {
    /// At least one.
    pub adapters: Vec<Adapter>,
    /// Decides every bit of the first factors, which are normals of deviation 1 / rank. Source: PEFT, `init_lora_weights =
    /// "gaussian"`.
    pub seed: u64,
    /// How their gradients are cut.
    pub buckets: BucketSizes,
    /// An average of the parameters is kept: [`OptimizerStep::average_decay`](crate::OptimizerStep::average_decay).
    pub average: bool,
    /// Other values can be shown in the parameters' place: [`Shows::Given`](crate::Shows::Given).
    pub shows_given: bool,
    /// Share of an adapted layer's input that its adapter does not see, from 0 up to, but not, 1. Source: PEFT, `lora_dropout`.
    pub dropout: f64,
    /// Share of an adapter's rows that a sample goes without, as `dropout`. Source: kohya's scripts, `rank_dropout`.
    pub rank_dropout: f64,
    /// What rows of words are that are learned beside, [rows, text_width]; empty: none. Their ids count up from the vocabulary's
    /// size; microbatches and pictures leave theirs empty, and have these.
    pub rows: Vec<f32>,
}

/// What stands beside a layer: it adds alpha / rank · up (down x).
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// [`AdaptableLayer::name`](crate::AdaptableLayer::name).
    pub layer: String,
    /// Rows of the first factor, columns of the second.
    pub rank: usize,
    /// What the product is multiplied by, times the rank.
    pub alpha: f64,
    /// Its sum with the layer's weight W is brought to lengths that are learned, one for each output (DoRA, Liu et al. 2024):
    /// length / |W + alpha / rank · up · down| times what they make of the input. Of a matrix alone.
    pub dora: bool,
    /// Which of a step's rates it moves by.
    pub rate: usize,
}

impl Adapter {
    /// The name of its first factor's parameter, [rank, inputs], of a convolution [rank, inputs, side, side].
    pub fn down(&self) -> String {
        format!("{}.lora_A.weight", self.layer)
    }

    /// The name of its second factor's parameter, [outputs, rank].
    pub fn up(&self) -> String {
        format!("{}.lora_B.weight", self.layer)
    }

    /// The name of the lengths' parameter, [outputs].
    pub fn magnitude(&self) -> String {
        format!("{}.lora_magnitude_vector", self.layer)
    }
}
