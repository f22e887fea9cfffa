//! The precisions in which this machine computes language models: a processor without bf16 instructions refuses bf16.

#![allow(clippy::print_stderr, reason = "whoever runs the tests is to know what was left out")]

use ringtune_model::{Precision, Runtime};

/// fp32, and bf16 where the processor has it.
pub(crate) fn precisions() -> Vec<Precision> {
    let mut all = vec![Precision::Fp32];
    all.extend((!skips_bf16()).then_some(Precision::Bf16));
    all
}

/// Whether a test of bf16 has to be left out, which it says.
pub(crate) fn skips_bf16() -> bool {
    let skips = !Runtime::info().has_bf16;
    if skips {
        eprintln!("SKIPPED in bf16: this processor has no instructions for it");
    }
    skips
}
