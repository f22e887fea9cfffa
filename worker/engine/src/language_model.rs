//! Causal language models: gradients of all their parameters, which the engine holds ([`HoldParameters`]).

use std::path::PathBuf;

use crate::{
    BucketSizes, Buckets, EmbeddingRows, EngineError, HoldParameters, ParametersInfo, PassSummary, Precision,
};

/// Trains one causal language model, which stays open until another model is opened or loaded.
pub trait TrainLanguageModel: HoldParameters {
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
    ) -> Result<PassSummary, EngineError>;

    /// Loss of a microbatch alone, with nothing dropped; without [`TokenBatch::dropout`] its bits are those of
    /// [`TrainLanguageModel::language_gradient`]'s.
    fn language_loss(&mut self, batch: &TokenBatch) -> Result<f32, EngineError>;
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
    /// Its parameters; an embedding row is one of the token table.
    pub parameters: ParametersInfo,
    /// config.json, for whoever saves the model.
    pub config: String,
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
    pub looked_up: EmbeddingRows,
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
