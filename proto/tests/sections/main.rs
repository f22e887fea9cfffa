//! Each section of a job there and back over the wire.

#![allow(missing_docs, clippy::unwrap_used)]

mod generate;
mod generate_text;
mod gpt2_finetune;
mod lora;
mod textual_inversion;
mod unet_finetune;
