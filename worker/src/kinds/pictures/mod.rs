//! What kinds share that learn from pictures, whatever they learn.

mod masks;
mod prepare;
mod rehearsal;
mod samples;
mod tracing;

pub(super) use prepare::{
    Making, above_zero, adamw, captions, check_resolution, deciding_data, fetch, material, named,
    open_tokenizer, previews_of, schedule, wanted, wanted_class, wanted_source,
};
pub(super) use rehearsal::{PROMPTS_SHOWN, TIMED_MICROBATCHES, Timing, found};
pub(super) use samples::{Material, Samples};
pub(super) use tracing::Tracing;
