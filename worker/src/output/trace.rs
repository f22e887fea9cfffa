//! `[debug] trace_dir`: every step's inputs, losses and gradients, to be computed again by another implementation.
//!
//! Step s counts from 1, microbatch m from 0 over the whole global batch, whoever computed it.

use std::path::PathBuf;

use serde_json::Value;

use super::{Error, TensorFile};
use crate::{
    access::{ConfinedPath, OpenFolder},
    engine::{Extras, Microbatch},
};

/// A folder that a job's ranks write their trace into.
#[derive(Clone, Debug)]
pub struct TraceFolder {
    folder: OpenFolder,
    /// For messages.
    shown: PathBuf,
    num_vectors: usize,
}

/// A microbatch's results, before any division or exchange.
#[derive(Clone, Copy, Debug)]
pub struct TracedResult<'a> {
    /// The loss.
    pub loss: f32,
    /// d loss / d rows, [num_vectors, width] flat.
    pub gradient: &'a [f32],
}

/// A step's effect on the learned rows. All [num_vectors, width] flat.
#[derive(Clone, Copy, Debug)]
pub struct TracedStep<'a> {
    /// The rows that the step's gradients were taken at.
    pub embeds_before: &'a [f32],
    /// The rows after the optimizer (the same, where the step was skipped).
    pub embeds_after: &'a [f32],
    /// The mean of the microbatches' gradients.
    pub gradient: &'a [f32],
    /// The learning rate.
    pub lr: f64,
}

impl TraceFolder {
    /// Makes the folder where it is missing. `num_vectors`: train.num_vectors, at least 1.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn create(folder: &ConfinedPath, num_vectors: usize) -> Result<Self, Error> {
        let shown = folder.shown().to_path_buf();
        let folder = folder.make_folder().map_err(|error| Error::writing(&shown, error))?;
        Ok(Self { folder, shown, num_vectors: num_vectors.max(1) })
    }

    /// Writes `step-000001-mb-0000.safetensors`, on the rank that computed it: `latents` and `noise` [b, c, h, w],
    /// `timesteps` [b], `input_ids` [b, length], `loss` [1], `grad` [num_vectors, width].
    ///
    /// # Errors
    /// A shape does not fit, or the file cannot be written.
    pub fn write_microbatch(
        &self,
        step: u64,
        microbatch: u32,
        inputs: &Microbatch,
        result: TracedResult<'_>,
    ) -> Result<(), Error> {
        let file = file_of(inputs)?.with_f32("loss", &[1], &[result.loss])?.with_f32(
            "grad",
            &self.shape(result.gradient),
            result.gradient,
        )?;
        self.write(&file, &format!("step-{step:06}-mb-{microbatch:04}.safetensors"))
    }

    /// As [`TraceFolder::write_microbatch`], of a job that trains parameters, without what comes of it: checkpoints have that. Where
    /// there are some, `perturbation` [b, c, h, w], `loss_mask` [b, h, w] and `sample_weights` [b] too; metadata `about`.
    ///
    /// # Errors
    /// As there.
    pub fn write_inputs(
        &self,
        step: u64,
        microbatch: u32,
        inputs: &Microbatch,
        about: &Value,
    ) -> Result<(), Error> {
        let Microbatch { batch, latent_height, latent_width, .. } = *inputs;
        let latent = [batch, inputs.latent_channels, latent_height, latent_width];
        let mut file = file_of(inputs)?.with_metadata("about", about.to_string());
        let Extras { perturbation, loss_mask, sample_weights, .. } = &inputs.extras;
        for (name, shape, values) in [
            ("perturbation", &latent[..], perturbation),
            ("loss_mask", &[batch, latent_height, latent_width], loss_mask),
            ("sample_weights", &[batch], sample_weights),
        ] {
            if !values.is_empty() {
                file = file.with_f32(name, shape, values)?;
            }
        }
        self.write(&file, &format!("step-{step:06}-mb-{microbatch:04}.safetensors"))
    }

    /// Writes `step-000001.safetensors`, on rank 0: `embeds_before`, `embeds_after`, `grad_reduced`
    /// [num_vectors, width], `lr` [1].
    ///
    /// # Errors
    /// A shape does not fit, or the file cannot be written.
    pub fn write_step(&self, step: u64, traced: TracedStep<'_>) -> Result<(), Error> {
        let file = TensorFile::new()
            .with_f32("embeds_before", &self.shape(traced.embeds_before), traced.embeds_before)?
            .with_f32("embeds_after", &self.shape(traced.embeds_after), traced.embeds_after)?
            .with_f32("grad_reduced", &self.shape(traced.gradient), traced.gradient)?
            .with_f32("lr", &[1], &[traced.lr as f32])?;
        self.write(&file, &format!("step-{step:06}.safetensors"))
    }

    /// A plain name, so that nothing of it is looked up elsewhere; a link under that name is replaced, not followed.
    fn write(&self, file: &TensorFile, name: &str) -> Result<(), Error> {
        file.write(&self.folder.path.join(name)).map_err(|error| error.about(self.shown.join(name)))
    }

    fn shape(&self, rows: &[f32]) -> [usize; 2] {
        [self.num_vectors, rows.len() / self.num_vectors]
    }
}

/// What a microbatch is made of.
fn file_of(inputs: &Microbatch) -> Result<TensorFile, Error> {
    let batch = inputs.batch;
    let latent = [batch, inputs.latent_channels, inputs.latent_height, inputs.latent_width];
    TensorFile::new()
        .with_f32("latents", &latent, &inputs.latents)?
        .with_f32("noise", &latent, &inputs.noise)?
        .with_i64("timesteps", &[batch], &inputs.timesteps)?
        .with_i64("input_ids", &[batch, inputs.input_ids.len() / batch.max(1)], &inputs.input_ids)
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use safetensors::{Dtype, SafeTensors};

    use super::*;

    fn shapes(file: &Path) -> Vec<(String, Dtype, Vec<usize>)> {
        let bytes = std::fs::read(file).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        let mut shapes: Vec<_> =
            read.iter().map(|(name, view)| (name.to_string(), view.dtype(), view.shape().to_vec())).collect();
        shapes.sort_by(|a, b| a.0.cmp(&b.0));
        shapes
    }

    #[test]
    fn names_keys_and_shapes() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("a/b");
        let trace = TraceFolder::create(&ConfinedPath::at(&folder), 2).unwrap();
        let inputs = Microbatch {
            batch: 2,
            latent_channels: 4,
            latent_height: 3,
            latent_width: 5,
            latents: vec![0.5; 120],
            noise: vec![0.25; 120],
            timesteps: vec![0, 999],
            input_ids: vec![7; 2 * 77],
            rows: Arc::new(vec![0.0; 6]),
            snr_gamma: None,
            extras: crate::engine::Extras::default(),
        };
        trace.write_microbatch(12, 3, &inputs, TracedResult { loss: 0.5, gradient: &[1.0; 6] }).unwrap();
        let latent = vec![2, 4, 3, 5];
        let expected = [
            ("grad", Dtype::F32, vec![2, 3]),
            ("input_ids", Dtype::I64, vec![2, 77]),
            ("latents", Dtype::F32, latent.clone()),
            ("loss", Dtype::F32, vec![1]),
            ("noise", Dtype::F32, latent),
            ("timesteps", Dtype::I64, vec![2]),
        ];
        let expected = expected.map(|(name, kind, shape)| (name.to_string(), kind, shape));
        assert_eq!(shapes(&folder.join("step-000012-mb-0003.safetensors")), expected);

        let rows = [1.0f32; 6];
        let step = TracedStep { embeds_before: &rows, embeds_after: &rows, gradient: &rows, lr: 1e-3 };
        trace.write_step(1_000_000, step).unwrap();
        let expected = [
            ("embeds_after", vec![2, 3]),
            ("embeds_before", vec![2, 3]),
            ("grad_reduced", vec![2, 3]),
            ("lr", vec![1]),
        ];
        let expected = expected.map(|(name, shape)| (name.to_string(), Dtype::F32, shape));
        assert_eq!(shapes(&folder.join("step-1000000.safetensors")), expected);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let refused = TraceFolder::create(&ConfinedPath::at("/dev/null/trace"), 1);
        assert!(matches!(refused, Err(Error::Write { ref file, .. }) if file.ends_with("trace")));
    }
}
