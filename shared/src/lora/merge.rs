//! A layer's weight with LoRAs in it: `W + weight · alpha / rank · up · down`, row by row.
//!
//! With DoRA (Liu et al. 2024), each row of the sum is then brought to its learned length:
//! `m · (W + ΔW) / ‖W + ΔW‖`. Where several LoRAs change a layer they are added in their order, and the length is divided by
//! that of the model's own row with this LoRA alone, as its training saw it.
//! Source: PEFT, `tuners/lora/layer.py` (`merge`) and `tuners/lora/variants.py`.
//!
//! In fp32 (norms in fp64), with +, ×, ÷ and √ alone and always in this order: the same bits on every machine.

use super::{LoraFile, Pair};
use crate::floats::FloatKind;

/// What LoRAs add to a layer.
#[derive(Debug)]
pub struct MergedLayer(Vec<Added>);

/// What one of them adds.
#[derive(Debug)]
struct Added {
    rank: usize,
    scale: f32,
    /// [outputs, rank].
    up: Vec<f32>,
    /// [rank, width of a row].
    down: Vec<f32>,
    /// DoRA's, [outputs].
    lengths: Option<Vec<f32>>,
}

impl MergedLayer {
    /// Of a module, by these LoRAs with their weights; none if none of them changes it. They have to be read for the model.
    pub fn of(module: &str, loras: &[(LoraFile<'_>, f64)]) -> Option<Self> {
        let pairs = loras.iter().filter_map(|(lora, weight)| Some((lora.modules.get(module)?, *weight)));
        let added: Vec<Added> = pairs.map(|(pair, weight)| Added::new(pair, weight)).collect();
        (!added.is_empty()).then_some(Self(added))
    }

    /// A row of the weight, as it is stored, with everything in it, rounded once. `row`: which one, below the layer's outputs.
    ///
    /// # Errors
    /// A number that its type has no place for.
    pub fn merged(&self, row: usize, kind: FloatKind, stored: &[u8]) -> Result<Vec<u8>, f32> {
        let own = kind.widened(stored);
        let mut numbers = own.clone();
        for added in &self.0 {
            added.add_to(&mut numbers, row, &own);
        }
        let bytes = kind.narrowed(&numbers);
        let rounded = kind.widened(&bytes);
        let lost = numbers.iter().zip(&rounded).find(|(_, rounded)| !rounded.is_finite());
        lost.map_or(Ok(bytes), |(number, _)| Err(*number))
    }
}

impl Added {
    fn new(pair: &Pair<'_>, weight: f64) -> Self {
        Self {
            rank: pair.rank,
            scale: (weight * pair.alpha / pair.rank as f64) as f32,
            up: pair.up.kind.widened(&pair.up.bytes),
            down: pair.down.kind.widened(&pair.down.bytes),
            lengths: pair.dora_scale.as_ref().map(|scale| scale.kind.widened(&scale.bytes)),
        }
    }

    /// `own`: the model's own row.
    fn add_to(&self, numbers: &mut [f32], row: usize, own: &[f32]) {
        // 1. The row of the product.
        let mut product = vec![0.0; numbers.len()];
        let factors = &self.up[row * self.rank..][..self.rank];
        for (factor, down) in factors.iter().zip(self.down.chunks_exact(numbers.len())) {
            product.iter_mut().zip(down).for_each(|(sum, number)| *sum += factor * number);
        }
        product.iter_mut().for_each(|number| *number *= self.scale);
        numbers.iter_mut().zip(&product).for_each(|(number, added)| *number += added);
        // 2. Its length. Of a row of zeros there is none to change.
        let Some(lengths) = &self.lengths else { return };
        let square = |(own, added): (&f32, &f32)| f64::from(own + added) * f64::from(own + added);
        let length = own.iter().zip(&product).map(square).sum::<f64>().sqrt();
        if length > 0.0 {
            let factor = f64::from(lengths[row]) / length;
            numbers.iter_mut().for_each(|number| *number = (f64::from(*number) * factor) as f32);
        }
    }
}
