//! Every block, the three whole networks, the noise schedules, the samplers and the training step, against
//! golden tensors that diffusers and transformers made of the same weights and inputs.
//!
//! fp32: relative error (L2 norm of the difference over L2 norm of the reference) at most 1e-4.
//! bf16: distance from the reference's fp32 at most twice that of the reference's own bf16.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panicking"
)]

#[path = "../support/mod.rs"]
mod support;

#[path = "../support/precisions.rs"]
mod precisions;

#[path = "../support/saved.rs"]
mod saved;

mod attention;
mod blocks;
mod gpt2;
mod gpt2_dropout;
mod gpt2_shares;
mod gpt2_text;
mod lora;
mod pipeline;
mod samplers;
mod schedule;
mod text;
mod training_step;
mod unet;
mod vae;
mod whole_unet;
