//! What a microbatch of pictures teaches.

use ringtune_engine::Microbatch;

/// Where a microbatch wants what is learned to be.
pub(crate) fn wanted(microbatch: &Microbatch) -> f32 {
    let inputs: f32 = microbatch.latents.iter().zip(&microbatch.noise).map(|(x, e)| x * 0.7 + e * 0.3).sum();
    let times: f32 = microbatch.timesteps.iter().map(|&t| t as f32 / 1000.0).sum();
    let words: f32 = microbatch.input_ids.iter().map(|&id| (id % 13) as f32 / 13.0).sum();
    (inputs + times + words) / (microbatch.batch * 8) as f32
}

/// How far each number of the rows is from where the microbatch wants it.
pub(crate) fn pulls(microbatch: &Microbatch) -> Vec<f32> {
    let pull = wanted(microbatch);
    microbatch.rows.iter().enumerate().map(|(i, row)| row - pull * (1.0 + i as f32 / 16.0)).collect()
}

pub(crate) fn squares(numbers: &[f32]) -> f32 {
    numbers.iter().map(|number| number * number).sum()
}
