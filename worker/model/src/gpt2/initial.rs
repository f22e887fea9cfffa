//! The first parameters of a GPT-2 that was never trained: nanoGPT's, model.py, `_init_weights`.
//!
//! Normals are drawn as everything random in a job is: number i of parameter p comes from the stream of words w\[0\],
//! w\[1\], … with w\[4k..4k+4\] = Philox4x32-10 of key = (seed's low word, seed's high word) and counter = (k, p, 0,
//! 17 << 24), in pairs by Box-Muller in 64-bit floating point, rounded to 32 before they are scaled. **The layout is
//! fixed**: every machine has the same bits.

use std::f64::consts::TAU;
use std::io;

use ringtune_random::philox4x32;
use tch::Tensor;

use super::config::Gpt2Config;
use super::layout::Layout;
use crate::error::{Error, Result};
use crate::native;

/// Deviation of matrices and tables.
const DEVIATION: f64 = 0.02;
/// The purpose of these draws among all of a job's.
const PURPOSE: u32 = 17 << 24;
/// 2^-32.
const UNIT: f64 = 1.0 / 4_294_967_296.0;
/// Normals that a thread draws at once: whole blocks of words.
const PART: usize = 1 << 16;

/// Fresh values of parameter `number`.
pub(crate) fn values(config: &Gpt2Config, layout: &Layout, number: usize, seed: u64) -> Result<Vec<f32>> {
    let parameter = &layout.parameters[number];
    let elements = parameter.elements();
    if !parameter.decayed {
        // Norms begin with factors of one, everything else without a bias.
        let value = if parameter.name.ends_with(".weight") { 1.0 } else { 0.0 };
        return filled(&parameter.name, elements, value);
    }
    // What writes to the residual stream, so that its deviation does not grow with the layers.
    let residual = layout
        .blocks
        .iter()
        .any(|block| [block.attn_proj, block.mlp_proj].iter().any(|pair| pair.weight == number));
    let deviation = if residual { DEVIATION / (2.0 * config.n_layer as f64).sqrt() } else { DEVIATION };
    let mut values = filled(&parameter.name, elements, 0.0)?;
    let threads = native::threads().max(1);
    let share = elements.div_ceil(threads).next_multiple_of(PART);
    let draw = |thread: usize, values: &mut [f32]| {
        for (part, values) in values.chunks_mut(PART).enumerate() {
            fill(seed, number as u32, thread * share + part * PART, deviation as f32, values);
        }
    };
    // Shares for which the system has no thread: they are drawn here.
    let mut left = Vec::new();
    std::thread::scope(|scope| {
        for (thread, values) in values.chunks_mut(share).enumerate() {
            let started = std::thread::Builder::new().spawn_scoped(scope, move || draw(thread, values));
            if started.is_err() {
                left.push(thread);
            }
        }
    });
    for thread in left {
        if let Some(values) = values.chunks_mut(share).nth(thread) {
            draw(thread, values);
        }
    }
    Ok(values)
}

/// So many times a value.
///
/// # Errors
/// The machine has no memory for them, which would end the process elsewhere.
fn filled(parameter: &str, elements: usize, value: f32) -> Result<Vec<f32>> {
    let mut values = Vec::new();
    values.try_reserve_exact(elements).map_err(|_| {
        let problem = format!("this machine has no memory for its {elements} numbers");
        Error::Io { file: parameter.into(), source: io::Error::new(io::ErrorKind::OutOfMemory, problem) }
    })?;
    values.resize(elements, value);
    Ok(values)
}

/// The normals of parameter `number` from `first` on, a multiple of 4, times `deviation`.
fn fill(seed: u64, number: u32, first: usize, deviation: f32, values: &mut [f32]) {
    let key = [seed as u32, (seed >> 32) as u32];
    for (block, values) in values.chunks_mut(4).enumerate() {
        let words = philox4x32(key, [(first / 4 + block) as u32, number, 0, PURPOSE]);
        for (values, pair) in values.chunks_mut(2).zip(words.chunks_exact(2)) {
            let radius = libm::sqrt(-2.0 * libm::log((f64::from(pair[0]) + 0.5) * UNIT));
            let angle = f64::from(pair[1]) * UNIT * TAU;
            let normals = [radius * libm::cos(angle), radius * libm::sin(angle)];
            for (value, normal) in values.iter_mut().zip(normals) {
                *value = normal as f32 * deviation;
            }
        }
    }
}

/// As a tensor of its shape.
pub(crate) fn tensor(config: &Gpt2Config, layout: &Layout, number: usize, seed: u64) -> Result<Tensor> {
    let shape: Vec<i64> = layout.parameters[number].shape.iter().map(|side| *side as i64).collect();
    Ok(Tensor::f_from_slice(&values(config, layout, number, seed)?)?.f_view(&shape[..])?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn memory_that_is_not_there_is_an_error_that_names_the_parameter() {
        assert_eq!(filled("wte.weight", 3, 0.5).unwrap(), [0.5; 3]);
        // More than any address space has.
        let refused = filled("wte.weight", usize::MAX / 8, 0.0).unwrap_err();
        assert!(matches!(&refused, Error::Io { .. }), "{refused}");
        assert!(
            refused.to_string().starts_with("wte.weight: this machine has no memory for its "),
            "{refused}"
        );
    }
}
