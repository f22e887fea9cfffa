//! What kinds share that learn from pictures, whatever they learn.

mod captioned;
mod facts;
mod initializers;
mod masks;
mod network;
mod prepare;
mod rehearsal;
mod samples;
mod tracing;
mod words;

pub(super) use captioned::{Begun, Captioned, Ready, begin, network_facts};
pub(super) use facts::{deciding_data, embedding_facts, without_places};
pub(super) use initializers::fetch_initializers;
pub(super) use network::{NetworkModel, NetworkResults};
pub(super) use prepare::{
    Making, above_zero, adamw, captions, check_resolution, fetch, material, named, open_tokenizer,
    previews_of, schedule, wanted, wanted_class, wanted_concepts, wanted_source,
};
pub(super) use rehearsal::{
    PROMPTS_SHOWN, TIMED_MICROBATCHES, Timing, found, name_of, rehearse_network, rehearsed_words,
};
pub(super) use samples::{Material, Samples};
pub(super) use tracing::Tracing;
pub(super) use words::{ConceptWords, first_rows, read as read_words, taught};
