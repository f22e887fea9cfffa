//! The samples that a job is judged on: drawn once, never trained on.

use std::sync::Arc;

use super::{Error, MicrobatchBuilder, View, posterior::latent};
use crate::{data::caption_words::CaptionDraw, engine::Microbatch};

impl MicrobatchBuilder {
    /// Microbatches that hold `samples` (at least 1) held-out samples: the number is rounded up to whole ones.
    pub fn held_out_microbatches(&self, samples: u32) -> u32 {
        samples.div_ceil(self.options.batch).max(1)
    }

    /// Microbatch `microbatch` (from 0) of `count` held-out ones, with the learned rows as they are now.
    ///
    /// The images are those of training, without the class's, one after the other, for a job has few; noise, latents, prompts, mirroring
    /// and timesteps are drawn by purposes of their own, and the timesteps spread evenly over the whole schedule. There
    /// is no noise offset, and all captions are whole. Samples weigh what they weigh in training: unweighted, the levels
    /// of noise that snr_gamma holds back would decide which embedding is the best, though it is not trained for them.
    ///
    /// # Errors
    /// The tokenizer refuses a prompt, or a posterior cannot be read. Blocks where one is not in memory.
    pub fn build_held_out(
        &self,
        count: u32,
        microbatch: u32,
        rows: Arc<Vec<f32>>,
    ) -> Result<Microbatch, Error> {
        let batch = self.options.batch;
        let views = self.held_out_views(microbatch);
        let shape = self.shape_of_first(&views);
        let length = shape.iter().product();
        let mut inputs = self.without_samples(views.len(), rows, shape, self.options.snr_gamma);
        for (sample, view) in (microbatch * batch..).zip(views) {
            let Some((concept, number)) = self.set.image(view.image) else { continue };
            let timesteps = self.options.timesteps();
            let shown = self.draws.held_out(sample, count * batch, concept.prompts.count(), timesteps);
            let draw = self.draws.held_out_latent(sample, length);
            let posterior = concept.images[number].view(view.flip).read()?;
            inputs.latents.extend(latent(&posterior, &draw, self.options.scaling_factor));
            inputs.noise.extend(self.draws.held_out_noise(sample, length));
            inputs.extras.loss_mask.extend(self.set.mask((concept, number), view.flip, shape)?);
            inputs.timesteps.push(shown.timestep);
            let choice = self.caption_choice(0, sample, &concept.prompts, number);
            let whole = CaptionDraw { choice, ..CaptionDraw::default() };
            let ids = concept.prompts.ids(shown.template, number, whole)?;
            inputs.input_ids.extend_from_slice(&ids);
        }
        Ok(inputs)
    }

    /// What so many held-out microbatches show.
    pub fn held_out_shown(&self, count: u32) -> Vec<View> {
        (0..count).flat_map(|microbatch| self.held_out_views(microbatch)).collect()
    }

    /// What a held-out microbatch shows, sample by sample.
    fn held_out_views(&self, microbatch: u32) -> Vec<View> {
        let images = self.held_out_images(microbatch);
        let flips = self.options.random_flip;
        let view = |(sample, image)| View { image, flip: flips && self.draws.held_out_flip(sample) };
        (microbatch * self.options.batch..).zip(images).map(view).collect()
    }

    /// The images (of all) that a held-out microbatch shows, one for each sample: those of one bucket where there are
    /// buckets. Each bucket is cut into full microbatches, its last one filled up from its first images, and the
    /// microbatches of all buckets come one after the other.
    fn held_out_images(&self, microbatch: u32) -> Vec<usize> {
        let (batch, images) = (self.options.batch as usize, self.set.learned(&self.options));
        let first = microbatch as usize * batch;
        if !self.options.bucketed {
            return (first..first + batch).map(|sample| sample % images).collect();
        }
        let buckets = self.set.buckets(&Vec::from_iter(0..images));
        let cut: Vec<(&[usize], usize)> = buckets
            .iter()
            .flat_map(|bucket| (0..bucket.len()).step_by(batch).map(move |start| (bucket.as_slice(), start)))
            .collect();
        let (bucket, start) = cut[microbatch as usize % cut.len()];
        bucket.iter().copied().cycle().skip(start).take(batch).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        BatchOptions, Draws,
        microbatch::tests::{OPTIONS, of_two_sizes, set},
    };
    use super::*;

    fn all(options: BatchOptions, samples: u32) -> Vec<Microbatch> {
        let builder = MicrobatchBuilder::new(set(4), options).unwrap();
        let count = builder.held_out_microbatches(samples);
        (0..count)
            .map(|microbatch| builder.build_held_out(count, microbatch, Arc::default()).unwrap())
            .collect()
    }

    #[test]
    fn timesteps_cover_the_schedule_and_images_take_turns() {
        let options = BatchOptions { num_train_timesteps: 1000, ..OPTIONS };
        let microbatches = all(options, 19);
        assert_eq!(microbatches.len(), 10);
        let timesteps: Vec<i64> = microbatches.iter().flat_map(|one| one.timesteps.clone()).collect();
        // One in each twentieth of the schedule.
        assert_eq!(timesteps.iter().map(|timestep| timestep / 50).collect::<Vec<_>>(), Vec::from_iter(0..20));
        assert!(timesteps.iter().any(|timestep| timestep % 50 > 0));
        for (sample, latent) in microbatches.iter().flat_map(|one| one.latents.chunks(6)).enumerate() {
            let image = (sample % 4) as f32 + 1.0;
            assert!((latent[0].abs() - image * 0.5).abs() < 1e-6, "{sample}: {latent:?}");
        }
    }

    #[test]
    fn samples_weigh_what_they_weigh_in_training() {
        let (plain, weighted) = (all(OPTIONS, 6), all(BatchOptions { snr_gamma: Some(5.0), ..OPTIONS }, 6));
        for (plain, weighted) in plain.into_iter().zip(weighted) {
            assert_eq!((plain.snr_gamma, weighted.snr_gamma), (None, Some(5.0)));
            assert_eq!(Microbatch { snr_gamma: None, ..weighted }, plain);
        }
    }

    #[test]
    fn they_are_the_same_whatever_the_training_does_and_never_its_own() {
        let other = BatchOptions { microbatches: 7, noise_offset: 0.1, ..OPTIONS };
        assert_eq!(all(OPTIONS, 6), all(other, 6));
        assert_ne!(all(OPTIONS, 6), all(BatchOptions { seed: 4, ..OPTIONS }, 6));
        let whole: Vec<f32> = all(OPTIONS, 6).into_iter().flat_map(|one| one.noise).collect();
        let cut = BatchOptions { batch: 3, ..OPTIONS };
        assert_eq!(whole, all(cut, 6).into_iter().flat_map(|one| one.noise).collect::<Vec<_>>());
        let draws = Draws::new(3);
        assert_eq!(whole[..6], draws.held_out_noise(0, 6));
        assert!((0..9).all(|step| draws.noise(step, 0, 6) != whole[..6]));
        assert!(draws.held_out_latent(0, 6) != whole[..6]);
    }

    #[test]
    fn with_buckets_a_microbatch_holds_one_and_all_take_turns() {
        let options = BatchOptions { bucketed: true, ..OPTIONS };
        let builder = MicrobatchBuilder::new(of_two_sizes(), options).unwrap();
        let shown: Vec<Vec<usize>> = (0..4).map(|microbatch| builder.held_out_images(microbatch)).collect();
        assert_eq!(shown, [[0, 1], [2, 0], [3, 4], [0, 1]]);
        for (microbatch, size) in [(0, (1, 3)), (1, (1, 3)), (2, (2, 1)), (3, (1, 3))] {
            let inputs = builder.build_held_out(4, microbatch, Arc::default()).unwrap();
            assert_eq!((inputs.latent_height, inputs.latent_width), size);
            assert_eq!(
                (inputs.latents.len(), inputs.noise.len()),
                (4 * size.0 * size.1, 4 * size.0 * size.1)
            );
            let first = (inputs.latents[0].abs() * 2.0).round() as usize - 1;
            assert_eq!(first, shown[microbatch as usize][0]);
        }
    }
}
