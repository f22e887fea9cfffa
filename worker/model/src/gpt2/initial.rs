//! The first parameters of a GPT-2 that was never trained: nanoGPT's, model.py, `_init_weights`.

use std::io;

use tch::Tensor;

use super::config::Gpt2Config;
use super::layout::Layout;
use crate::error::{Error, Result};
use crate::native;
use crate::parameters::Draw;

/// Deviation of matrices and tables.
const DEVIATION: f64 = 0.02;
/// The purpose of these draws among all of a job's.
const PURPOSE: u32 = 17;
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
            let draw = Draw { seed, purpose: PURPOSE, number: number as u32 };
            draw.normals(thread * share + part * PART, deviation as f32, values);
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
