//! GPT-2 finetuning: all parameters of a GPT-2 are trained on tokens that `ringtune prepare-text` made.
//!
//! The options have the names and defaults of nanoGPT's `train.py` where it has them. Source:
//! github.com/karpathy/nanoGPT, train.py.

mod check;
mod choices;
mod facts;
pub mod limits;
#[cfg(test)]
mod tests;
mod tokens;

use serde::{Deserialize, Serialize};

pub use choices::{Gpt2Exchange, Gpt2Init};
pub use facts::OPTIONS_WITHOUT_EFFECT;

pub(super) use check::check;

use crate::job::{ClusterSpec, MixedPrecision, ReportTo, reader::section, steps::is_due};

/// The sections of a job file that jobs of this kind have and not all others.
pub(super) const SECTIONS: [&str; 1] = ["gpt2"];

/// `[gpt2]`: what is learned from, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpt2Spec {
    /// The folder that `ringtune prepare-text` made (train.bin, val.bin, meta.json), as every worker sees it, or
    /// s3://BUCKET/PREFIX; see [`Gpt2Spec::tokens_location`]. Required. nanoGPT: `dataset`.
    pub tokens: String,
    /// Where the parameters come from. Default pretrained.
    pub init_from: Gpt2Init,
    /// Layers of a model from scratch; 0: as in `model.base`'s config.json. Default 0.
    pub n_layer: u32,
    /// Attention heads of a model from scratch; 0: as in `model.base`'s config.json. Default 0.
    pub n_head: u32,
    /// Width of a model from scratch; 0: as in `model.base`'s config.json. Default 0.
    pub n_embd: u32,
    /// Whether layers and norms have biases; only a model from scratch may have none. Default true, as GPT-2 (nanoGPT:
    /// false).
    pub bias: bool,
    /// Tokens of a window that is trained on. Default 1024.
    pub block_size: u32,
    /// Windows in a microbatch. Default 12.
    pub batch_size: u32,
    /// Microbatches that a rank of a full ring adds up in a step. Default 1 (nanoGPT: 40).
    pub gradient_accumulation_steps: u32,
    /// Optimizer updates. Default 600000.
    pub max_iters: u64,
    /// The rate after the warm-up. Default 6e-4.
    pub learning_rate: f64,
    /// Whether the rate warms up and falls; otherwise it is always `learning_rate`, and `warmup_iters`, `lr_decay_iters`
    /// and `min_lr` are without effect. Default true.
    pub decay_lr: bool,
    /// Steps over which the rate rises. Default 2000.
    pub warmup_iters: u64,
    /// The step that the rate has fallen to `min_lr` at; 0: `max_iters`. Default 0. See [`Gpt2Spec::decay_end`].
    pub lr_decay_iters: u64,
    /// What the rate falls to. Default `learning_rate` / 10, nanoGPT's advice.
    pub min_lr: f64,
    /// Share of the decayed parameters, times the rate, that AdamW takes away in a step. Default 0.1.
    pub weight_decay: f64,
    /// How much of the gradients' running mean AdamW keeps. Default 0.9.
    pub beta1: f64,
    /// How much of the squared gradients' running mean AdamW keeps. Default 0.95.
    pub beta2: f64,
    /// A step's gradient that is longer than this is shortened to it; 0: never. Default 1.
    pub grad_clip: f64,
    /// The validation loss is taken every so many steps, and after the last; 0: never. Default 2000.
    pub eval_interval: u64,
    /// Microbatches that a validation loss is the mean of. Default 200.
    pub eval_iters: u32,
    /// The model with the lowest validation loss is the job's, not the last. Default true; false where `eval_interval` is
    /// 0.
    pub select_best: bool,
    /// Training stops after so many validations without a lower loss; 0: never. Default 0.
    pub early_stop_patience: u64,
    /// The share of numbers that training drops: of the embeddings, of attention's probabilities, and of what attention and
    /// the feed-forward layers add to the residual stream. From 0 up to, but not, 1. Default 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropout: f64,
    /// What all draws of the job are derived from. Default 1337.
    pub seed: u64,
    /// What the ranks are to compute in. Default bf16. nanoGPT: `dtype`.
    pub mixed_precision: MixedPrecision,
    /// The whole state is kept every so many steps, to go on from; 0: never. Default 500.
    pub checkpointing_steps: u64,
    /// So many of a job's checkpoints are kept, the newest; 0: all. Default 0.
    pub checkpoints_total_limit: u64,
    /// Where the job goes on (see [`crate::job::ResumeFrom`]); empty: it starts at step 1. Default empty.
    pub resume_from_checkpoint: String,
    /// Who gets a file of events besides metrics.csv. Default tensorboard.
    pub report_to: ReportTo,
    /// After every so many steps all ranks compare the hash of all parameters and moments. Default 100. It decides no bit.
    pub compare_interval: u64,
    /// In which order gradients are added up. Default exact; fast costs less, and its bits are those of one number of ranks.
    #[serde(default = "Gpt2Exchange::before", skip_serializing_if = "Gpt2Exchange::is_as_before")]
    pub exchange: Gpt2Exchange,
    /// Whether the ranks have AdamW's moments together, each those of two parts. Default false: each has all. It decides no bit.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shard_optimizer: bool,
}

section! {
    /// `[gpt2]`, unchecked; see [`Gpt2Spec`].
    Gpt2Draft {
        tokens: String as string,
        init_from: String as string,
        n_layer: i64 as integer,
        n_head: i64 as integer,
        n_embd: i64 as integer,
        bias: bool as boolean,
        block_size: i64 as integer,
        batch_size: i64 as integer,
        gradient_accumulation_steps: i64 as integer,
        max_iters: i64 as integer,
        learning_rate: f64 as number,
        decay_lr: bool as boolean,
        warmup_iters: i64 as integer,
        lr_decay_iters: i64 as integer,
        min_lr: f64 as number,
        weight_decay: f64 as number,
        beta1: f64 as number,
        beta2: f64 as number,
        grad_clip: f64 as number,
        dropout: f64 as number,
        eval_interval: i64 as integer,
        eval_iters: i64 as integer,
        select_best: bool as boolean,
        early_stop_patience: i64 as integer,
        seed: i64 as integer,
        mixed_precision: String as string,
        checkpointing_steps: i64 as integer,
        checkpoints_total_limit: i64 as integer,
        resume_from_checkpoint: String as text_or_integer,
        report_to: String as string,
        compare_interval: i64 as integer,
        exchange: String as string,
        shard_optimizer: bool as boolean,
    }
}

fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl Gpt2Spec {
    /// M: microbatches in a step over all ranks, whatever the ring's size; `world_size * gradient_accumulation_steps`.
    pub fn global_microbatches(&self, cluster: &ClusterSpec) -> u32 {
        cluster.world_size.saturating_mul(self.gradient_accumulation_steps)
    }

    /// The step that the rate has fallen to `min_lr` at. It may lie before the end of the warm-up, where
    /// `lr_decay_iters` is not given and `max_iters` is small: the rate then rises to the end.
    pub fn decay_end(&self) -> u64 {
        if self.lr_decay_iters == 0 { self.max_iters } else { self.lr_decay_iters }
    }

    /// Whether the validation loss is taken after `step` of `total_steps`.
    pub fn validation_is_due(&self, step: u64, total_steps: u64) -> bool {
        is_due(self.eval_interval, step, total_steps)
    }
}
