//! The largest values that are accepted; see [`crate::job::limits`].

pub use crate::job::limits::*;

/// Layers: the largest GPT-2 has 48. More is no model that one machine trains.
pub const LAYERS: i64 = 1024;
/// Width of a model, and so its heads too: the largest GPT-2 has 1600.
pub const WIDTH: i64 = 1 << 16;
/// Tokens of a window: 16 times GPT-2's 1024. The time that attention takes grows with the square.
pub const BLOCK_SIZE: i64 = 16_384;
/// Windows in a microbatch.
pub const BATCH_SIZE: i64 = 1024;
/// Tokens in a microbatch: what a forward pass keeps grows with them, a few hundred kilobytes for each in the smallest
/// GPT-2.
pub const MICROBATCH_TOKENS: u64 = 1 << 20;
/// Microbatches that a rank adds up in a step of a full ring.
pub const GRADIENT_ACCUMULATION_STEPS: i64 = 1024;
/// Microbatches in a step over all ranks.
pub const GLOBAL_MICROBATCHES: u32 = 65_536;
/// Microbatches of a validation.
pub const EVAL_ITERS: i64 = 65_536;
/// Weight decay: AdamW computes in fp32, and more than this takes all away at any useful rate.
pub const WEIGHT_DECAY: f64 = 1000.0;
/// Length of a step's gradient.
pub const GRAD_NORM: f64 = 1e6;
