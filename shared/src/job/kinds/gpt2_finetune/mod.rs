//! GPT-2 finetuning: all parameters of a GPT-2 are trained on tokens that `ringtune prepare-text` made.
//!
//! The options have the names and defaults of nanoGPT's `train.py` where it has them. Source:
//! github.com/karpathy/nanoGPT, train.py.

mod check;
mod choices;
mod facts;
mod foreign_keys;
pub mod limits;
#[cfg(test)]
mod tests;
mod tokens;

pub use choices::Gpt2Init;
pub use facts::OPTIONS_WITHOUT_EFFECT;

use check::tenth;

use crate::job::{ClusterSpec, MixedPrecision, ReportTo, SumOrder, section::section, steps::is_due};

one_section!(gpt2: Gpt2Spec, foreign_keys::FOREIGN_KEYS);

section! {
    /// `[gpt2]`: what is learned from, and how.
    Gpt2Spec from draft: Gpt2Draft, gpt2_keys {
        /// The folder that `ringtune prepare-text` made (train.bin, val.bin, meta.json), as every worker sees it, or
        /// s3://BUCKET/PREFIX; see [`Gpt2Spec::tokens_location`]. Required. nanoGPT: `dataset`.
        tokens: String = string.tokens(),
        /// Where the parameters come from. Default pretrained.
        init_from: Gpt2Init = string.init_from(),
        /// Layers of a model from scratch; 0: as in `model.base`'s config.json. Default 0.
        n_layer: u32 = integer.count(0, 0..=limits::LAYERS),
        /// Attention heads of a model from scratch; 0: as in `model.base`'s config.json. Default 0.
        n_head: u32 = integer.count(0, 0..=limits::WIDTH),
        /// Width of a model from scratch; 0: as in `model.base`'s config.json. Default 0.
        n_embd: u32 = integer.count(0, 0..=limits::WIDTH),
        /// Whether layers and norms have biases; only a model from scratch may have none. Default true, as GPT-2 (nanoGPT:
        /// false).
        bias: bool = boolean.flag(true),
        /// Tokens of a window that is trained on. Default 1024.
        block_size: u32 = integer.count(1024, 1..=limits::BLOCK_SIZE),
        /// Windows in a microbatch. Default 12.
        batch_size: u32 = integer.count(12, 1..=limits::BATCH_SIZE),
        /// Microbatches that a rank of a full ring adds up in a step. Default 1 (nanoGPT: 40).
        gradient_accumulation_steps: u32 = integer.count(1, 1..=limits::GRADIENT_ACCUMULATION_STEPS),
        /// Optimizer updates. Default 600000.
        max_iters: u64 = integer.count(600_000, 1..=limits::STEPS),
        /// The rate after the warm-up. Default 6e-4.
        learning_rate: f64 = number.above_zero(6e-4, limits::LEARNING_RATE),
        /// Whether the rate warms up and falls; otherwise it is always `learning_rate`, and `warmup_iters`, `lr_decay_iters`
        /// and `min_lr` are without effect. Default true.
        decay_lr: bool = boolean.flag(true),
        /// Steps over which the rate rises. Default 2000.
        warmup_iters: u64 = integer.count(2000, 0..=limits::STEPS),
        /// The step that the rate has fallen to `min_lr` at; 0: `max_iters`. Default 0. See [`Gpt2Spec::decay_end`].
        lr_decay_iters: u64 = integer.count(0, 0..=limits::STEPS),
        /// What the rate falls to. Default `learning_rate` / 10, nanoGPT's advice.
        min_lr: f64 = number.number(tenth(learning_rate), limits::LEARNING_RATE),
        /// Share of the decayed parameters, times the rate, that AdamW takes away in a step. Default 0.1.
        weight_decay: f64 = number.number(0.1, limits::WEIGHT_DECAY),
        /// How much of the gradients' running mean AdamW keeps. Default 0.9.
        beta1: f64 = number.share(0.9),
        /// How much of the squared gradients' running mean AdamW keeps. Default 0.95.
        beta2: f64 = number.share(0.95),
        /// A step's gradient that is longer than this is shortened to it; 0: never. Default 1.
        grad_clip: f64 = number.number(1.0, limits::GRAD_NORM),
        /// The validation loss is taken every so many steps, and after the last; 0: never. Default 2000.
        eval_interval: u64 = integer.count(2000, 0..=limits::STEPS),
        /// Microbatches that a validation loss is the mean of. Default 200.
        eval_iters: u32 = integer.count(200, 1..=limits::EVAL_ITERS),
        /// The model with the lowest validation loss is the job's, not the last. Default true; false where `eval_interval` is
        /// 0.
        select_best: bool = boolean.flag(eval_interval > 0),
        /// Training stops after so many validations without a lower loss; 0: never. Default 0.
        early_stop_patience: u64 = integer.count(0, 0..=limits::STEPS),
        /// The share of numbers that training drops: of the embeddings, of attention's probabilities, and of what attention and
        /// the feed-forward layers add to the residual stream. From 0 up to, but not, 1. Default 0.
        #[serde(default, skip_serializing_if = "is_zero")]
        dropout: f64 = number.share(0.0),
        /// What all draws of the job are derived from. Default 1337.
        seed: u64 = integer.count(1337, 0..=i64::MAX),
        /// What the ranks are to compute in. Default bf16. nanoGPT: `dtype`.
        mixed_precision: MixedPrecision = string.choice(MixedPrecision::Bf16),
        /// The whole state is kept every so many steps, to go on from; 0: never. Default 500.
        checkpointing_steps: u64 = integer.count(500, 0..=limits::STEPS),
        /// So many of a job's checkpoints are kept, the newest; 0: all. Default 0.
        checkpoints_total_limit: u64 = integer.count(0, 0..=limits::STEPS),
        /// Where the job goes on (see [`crate::job::ResumeFrom`]); empty: it starts at step 1. Default empty.
        resume_from_checkpoint: String = text_or_integer.resume_from(),
        /// Who gets a file of events besides metrics.csv. Default tensorboard.
        report_to: ReportTo = string.choice(ReportTo::Tensorboard),
        /// After every so many steps all ranks compare the hash of all parameters and moments. Default 100. It decides no bit.
        compare_interval: u64 = integer.count(100, 1..=limits::STEPS),
        /// In which order gradients are added up. Default exact; fast costs less, and its bits are those of one number of ranks.
        #[serde(default = "SumOrder::before", skip_serializing_if = "SumOrder::is_as_before")]
        exchange: SumOrder = string.choice(SumOrder::Exact),
        /// Whether the ranks have AdamW's moments together, each those of two parts. Default false: each has all. It decides no bit.
        #[serde(default, skip_serializing_if = "is_false")]
        shard_optimizer: bool = boolean.flag(false),
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
