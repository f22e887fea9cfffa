//! The arithmetic of a training step outside the network: which inputs a microbatch has, how gradients become one,
//! and what the optimizer makes of it.
//!
//! Pure functions and small values: no clock, no file, no libtorch, the same bits on every processor.
//!
//! # What decides the bits
//!
//! - The global batch is fixed when the job is accepted: M = world_size x gradient_accumulation_steps microbatches. Rank r
//!   of n computes a contiguous block of them. The ring's size changes who computes a microbatch and nothing else.
//! - Everything random in sample i of step s is a pure function of (seed, purpose, s, i): Philox, with normals computed by
//!   the same Rust code everywhere. No generator has a state that could be lost.
//! - Without buckets a pass is a permutation of all pictures; with them a permutation of microbatches, each of one size
//!   (`bucket_order.rs`). Both depend on the seed, the pictures and the microbatch's size alone. bf16 weights are packed for
//!   one size before the first microbatch, so that no rank is slower for the sizes that it meets first; no bit depends on it.
//! - Only the learned rows have a gradient; no gradient or optimizer state of the whole token table ever exists.
//! - AdamW, gradient clipping and the schedules are in fp32, equal to PyTorch's and diffusers' to the last bits that matter.
//!   All ranks alike skip a step whose gradient is not finite.
//! - The validation loss is taken on samples drawn by purposes that training never uses, and added up in microbatch order,
//!   so that every rank finds the same best embedding and stops at the same step.
//! - A job runs on workers of one numerics class (libtorch version, processor, instruction set, revision of our kernels, and
//!   the hash of a small computation through each of them), and with one number of threads.
//!
//! Golden tensors of diffusers check every layer, and replays of traces whole runs.
//!
//! # A step
//!
//! ```
//! # use std::sync::Arc;
//! # use ringtune_shared::job::LrScheduler;
//! # use ringtune_worker::{data::{ClipTokenizer, Prompts, prompts::ConceptWords, templates}, engine::Moments};
//! use ringtune_worker::train::{
//!     AdamWOptions, BatchOptions, ConceptSet, LrOptions, LrSchedule, MicrobatchBuilder, MicrobatchResult,
//!     TrainState, TrainingImage, TrainingSet, reduce_rows,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/toy-sd/tokenizer");
//! # let mut tokenizer = ClipTokenizer::open(folder.as_ref(), 77)?;
//! # let placeholders = tokenizer.add_placeholders("<a>", 1)?;
//! # let words = ConceptWords { tokenizer: &Arc::new(tokenizer), placeholders: &placeholders, others: &[] };
//! # let prompts = Prompts::encode(&words, &templates::OBJECT)?;
//! # let moments = Moments { channels: 1, height: 1, width: 2, mean: vec![0.5; 2], logvar: vec![-1.0; 2] };
//! # let image = TrainingImage { plain: moments.clone().into(), flipped: moments.into() };
//! // Once per job: the images' moments from the engine, the prompts from the tokenizer.
//! let options = BatchOptions {
//!     seed: 7, microbatches: 4, batch: 2, scaling_factor: 0.18215, num_train_timesteps: 1000,
//!     min_timestep: 0, noise_offset: 0.0, random_flip: true, input_perturbation: 0.0, snr_gamma: None, caption_dropout: 0.0,
//!     prior_loss_weight: None, bucketed: false,
//! };
//! let set = TrainingSet { concepts: vec![ConceptSet { images: vec![image], repeats: vec![1], prompts, masks: Vec::new() }] };
//! let mut builder = MicrobatchBuilder::new(set, options)?;
//! let curve = LrOptions { curve: LrScheduler::Constant, base: 5e-3, warmup_steps: 0, total_steps: 3, cycles: 1 };
//! let schedule = LrSchedule::new(curve)?;
//! let mut state = TrainState::new(vec![0.0; 768], AdamWOptions::default());
//!
//! // Steps count from 1. A rank computes its own block of the microbatches 0..4; the ring gathers all rows.
//! for step in 1..=3 {
//!     let mut rows = Vec::new();
//!     for microbatch in 0..4 {
//!         let inputs = builder.build(step, microbatch, Arc::clone(state.rows()))?;
//!         assert_eq!(inputs.input_ids.len(), 2 * 77);
//!         // let result = engine.gradient(&inputs)?;
//!         let result = MicrobatchResult { loss: 0.1, gradient: vec![1e-3; 768], compute_seconds: 0.5 };
//!         rows.push(result.into_row());
//!     }
//!     let reduced = reduce_rows(&rows, 768).ok_or("the ring lost a row")?;
//!     state.apply(step, &reduced, schedule.at(step))?;
//! }
//! # Ok(())
//! # }
//! ```

pub mod adamw;
mod batch_options;
mod bucket_order;
pub mod clip;
pub mod draws;
mod error;
pub mod held_out;
mod image_order;
pub mod lr;
pub mod microbatch;
mod posterior;
pub mod reduce;
pub mod saved;
pub mod selection;
mod skipped;
pub mod state;
mod training_set;

pub use adamw::{AdamW, AdamWOptions};
pub use batch_options::BatchOptions;
pub use draws::{Draws, HeldOutDraw};
pub use error::Error;
pub use image_order::ImageOrder;
pub use lr::{LrOptions, LrSchedule};
pub use microbatch::MicrobatchBuilder;
pub use posterior::{Posterior, StoredPosterior, latent};
pub use reduce::{MicrobatchResult, ReducedStep, ordered_mean, reduce_rows, row_length};
pub use saved::SavedState;
pub use selection::{Best, Selection, mean_loss};
pub use skipped::SkippedInARow;
pub use state::{StepOutcome, TrainState};
pub use training_set::{ConceptSet, TrainingImage, TrainingSet, View};
