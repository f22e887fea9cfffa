//! The inputs of a microbatch, from what was encoded once and what is drawn for its samples.

use std::sync::Arc;

use super::{Draws, Error, ImageOrder};
use crate::{
    data::Prompts,
    engine::{Microbatch, Moments},
};

/// The posterior of one image, unscaled, as the engine's VAE gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedImage {
    /// Of the image as it is.
    pub plain: Moments,
    /// Of its mirror image.
    pub flipped: Moments,
}

impl EncodedImage {
    /// A scaled sample of the posterior, [channels, height, width] flat: (mean + deviation x draw) x scaling factor,
    /// for a standard normal draw of the same shape.
    /// Source: diffusers, DiagonalGaussianDistribution.sample.
    pub fn latent(&self, flip: bool, draw: &[f32], scaling_factor: f64) -> Vec<f32> {
        let moments = if flip { &self.flipped } else { &self.plain };
        let scaling_factor = scaling_factor as f32;
        // In 64 bits by libm, which has the same bits everywhere.
        let deviation = |logvar: f32| libm::exp(0.5 * f64::from(logvar)) as f32;
        let parameters = moments.mean.iter().zip(&moments.logvar);
        parameters
            .zip(draw)
            .map(|((mean, logvar), draw)| (mean + deviation(*logvar) * draw) * scaling_factor)
            .collect()
    }
}

/// What a job learns from: the images of all concepts, one concept after the other, are shown in one order.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingSet {
    /// At least one.
    pub concepts: Vec<ConceptSet>,
}

/// What one concept is learned from: a sample that shows one of its images has one of its prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct ConceptSet {
    /// At least one, in the order of their names; those of all concepts have one shape.
    pub images: Vec<EncodedImage>,
    /// At least one.
    pub prompts: Prompts,
}

impl TrainingSet {
    pub(super) fn images(&self) -> impl Iterator<Item = &EncodedImage> {
        self.concepts.iter().flat_map(|concept| &concept.images)
    }

    /// Image `number` of all, with its concept's prompts.
    pub(super) fn image(&self, number: usize) -> Option<(&EncodedImage, &Prompts)> {
        let mut number = number;
        for concept in &self.concepts {
            match concept.images.get(number) {
                Some(image) => return Some((image, &concept.prompts)),
                None => number -= concept.images.len(),
            }
        }
        None
    }
}

/// The job's numbers that say which inputs a microbatch has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchOptions {
    /// train.seed.
    pub seed: u64,
    /// M: microbatches in a step, over all ranks; at least 1.
    pub microbatches: u32,
    /// b: samples in a microbatch; at least 1.
    pub batch: u32,
    /// The VAE's, from its config.json.
    pub scaling_factor: f64,
    /// The noise schedule's, at least 1.
    pub num_train_timesteps: usize,
    /// train.noise_offset; 0: none.
    pub noise_offset: f64,
    /// train.snr_gamma; none: all samples weigh the same.
    pub snr_gamma: Option<f64>,
}

/// Makes any microbatch of any step of a job.
#[derive(Clone, Debug)]
pub struct MicrobatchBuilder {
    pub(super) options: BatchOptions,
    pub(super) draws: Draws,
    order: ImageOrder,
    pub(super) set: TrainingSet,
    /// Channels, height, width of a latent.
    pub(super) shape: [usize; 3],
}

impl MicrobatchBuilder {
    /// # Errors
    /// No image, no prompt, a number below 1, or images whose moments differ in shape or have too few numbers.
    pub fn new(set: TrainingSet, options: BatchOptions) -> Result<Self, Error> {
        let unusable = |problem: &str| Error::TrainingSet { problem: problem.to_string() };
        let first = set.images().next().ok_or_else(|| unusable("it has no image"))?;
        if set.concepts.iter().any(|concept| concept.images.is_empty()) {
            return Err(unusable("a concept has no image"));
        }
        if set.concepts.iter().any(|concept| concept.prompts.count() == 0) {
            return Err(unusable("it has no prompt"));
        }
        let samples = u64::from(options.microbatches) * u64::from(options.batch);
        if samples == 0 || samples > u64::from(u32::MAX) || options.num_train_timesteps == 0 {
            return Err(unusable(
                "microbatches, batch and num_train_timesteps must be at least 1, samples below 2^32",
            ));
        }
        let shape = shape_of(&first.plain);
        let fits = |moments: &Moments| {
            let length: usize = shape.iter().product();
            shape_of(moments) == shape && moments.mean.len() == length && moments.logvar.len() == length
        };
        if !set.images().all(|image| fits(&image.plain) && fits(&image.flipped)) {
            return Err(unusable("its images' moments differ in shape"));
        }
        let draws = Draws::new(options.seed);
        let order = ImageOrder::new(draws, set.images().count(), samples);
        Ok(Self { options, draws, order, set, shape })
    }

    /// Microbatch `microbatch` (from 0, below M) of step `step` (from 1), with the learned rows as they are before
    /// that step.
    pub fn build(&mut self, step: u64, microbatch: u32, rows: Arc<Vec<f32>>) -> Microbatch {
        let BatchOptions { batch, scaling_factor, num_train_timesteps, snr_gamma, .. } = self.options;
        let length = self.shape.iter().product();
        let mut inputs = self.without_samples(rows, snr_gamma);
        for sample in microbatch * batch..(microbatch + 1) * batch {
            let number = self.order.image_of(step, sample);
            let Some((image, prompts)) = self.set.image(number) else { continue };
            let flip = self.draws.flip(step, sample);
            let draw = self.draws.latent(step, sample, length);
            inputs.latents.extend(image.latent(flip, &draw, scaling_factor));
            inputs.noise.extend(self.noise(step, sample));
            inputs.timesteps.push(self.draws.timestep(step, sample, num_train_timesteps));
            let template = self.draws.template(step, sample, prompts.count());
            inputs.input_ids.extend_from_slice(prompts.ids(template));
        }
        inputs
    }

    /// A microbatch whose samples are still to be added.
    pub(super) fn without_samples(&self, rows: Arc<Vec<f32>>, snr_gamma: Option<f64>) -> Microbatch {
        let batch = self.options.batch as usize;
        let [latent_channels, latent_height, latent_width] = self.shape;
        let length = latent_channels * latent_height * latent_width;
        Microbatch {
            batch,
            latent_channels,
            latent_height,
            latent_width,
            latents: Vec::with_capacity(batch * length),
            noise: Vec::with_capacity(batch * length),
            timesteps: Vec::with_capacity(batch),
            input_ids: Vec::new(),
            rows,
            snr_gamma,
        }
    }

    /// The sample's noise, with one offset for each channel where the job asks for it.
    /// Source: diffusers, train_text_to_image.py; <https://www.crosslabs.org/blog/diffusion-with-offset-noise>.
    fn noise(&self, step: u64, sample: u32) -> Vec<f32> {
        let [channels, height, width] = self.shape;
        let mut noise = self.draws.noise(step, sample, channels * height * width);
        if self.options.noise_offset != 0.0 {
            let scale = self.options.noise_offset as f32;
            let offsets = self.draws.noise_offset(step, sample, channels);
            for (channel, offset) in noise.chunks_mut((height * width).max(1)).zip(offsets) {
                let offset = scale * offset;
                channel.iter_mut().for_each(|value| *value += offset);
            }
        }
        noise
    }
}

fn shape_of(moments: &Moments) -> [usize; 3] {
    [moments.channels, moments.height, moments.width]
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::data::{ClipTokenizer, templates};

    pub(crate) const OPTIONS: BatchOptions = BatchOptions {
        seed: 3,
        microbatches: 3,
        batch: 2,
        scaling_factor: 0.5,
        num_train_timesteps: 10,
        noise_offset: 0.0,
        snr_gamma: None,
    };

    fn moments(mean: f32, logvar: f32) -> Moments {
        Moments { channels: 2, height: 1, width: 3, mean: vec![mean; 6], logvar: vec![logvar; 6] }
    }

    /// Images whose mean says which image it is, with next to no deviation; mirrored ones are negative.
    pub(crate) fn set(images: usize) -> TrainingSet {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/toy-sd/tokenizer");
        let mut tokenizer = ClipTokenizer::open(folder.as_ref(), 77).unwrap();
        let placeholders = tokenizer.add_placeholders("<a>", 1).unwrap();
        let image = |number: usize| EncodedImage {
            plain: moments(number as f32 + 1.0, -60.0),
            flipped: moments(-(number as f32) - 1.0, -60.0),
        };
        let prompts = Prompts::encode(&tokenizer, &placeholders, &[], &templates::OBJECT).unwrap();
        TrainingSet { concepts: vec![ConceptSet { images: (0..images).map(image).collect(), prompts }] }
    }

    #[test]
    fn inputs_are_what_the_draws_say() {
        let mut builder = MicrobatchBuilder::new(set(4), OPTIONS).unwrap();
        let draws = Draws::new(3);
        let mut order = ImageOrder::new(draws, 4, 6);
        let rows = Arc::new(vec![1.0f32; 5]);
        let inputs = builder.build(2, 1, Arc::clone(&rows));
        assert_eq!((inputs.batch, inputs.latent_channels), (2, 2));
        assert_eq!((inputs.latent_height, inputs.latent_width), (1, 3));
        assert_eq!(inputs.rows, rows);
        for (place, sample) in [2u32, 3].into_iter().enumerate() {
            let sign = if draws.flip(2, sample) { -1.0 } else { 1.0 };
            let expected = sign * (order.image_of(2, sample) as f32 + 1.0) * 0.5;
            assert!(inputs.latents[place * 6..][..6].iter().all(|latent| (latent - expected).abs() < 1e-6));
            assert_eq!(inputs.noise[place * 6..][..6], draws.noise(2, sample, 6));
            assert_eq!(inputs.timesteps[place], draws.timestep(2, sample, 10));
            let template = draws.template(2, sample, 27);
            assert_eq!(inputs.input_ids[place * 77..][..77], *set(1).concepts[0].prompts.ids(template));
        }
    }

    #[test]
    fn each_sample_shows_one_image_of_one_concept_with_that_concepts_prompts() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/toy-sd/tokenizer");
        let mut tokenizer = ClipTokenizer::open(folder.as_ref(), 77).unwrap();
        let words = ["<a>", "<b>"].map(|word| tokenizer.add_placeholders(word, 1).unwrap());
        // Another number of prompts for each: a draw is for those that there are.
        let prompts = [
            Prompts::encode(&tokenizer, &words[0], &words[1..], &templates::OBJECT).unwrap(),
            Prompts::encode(&tokenizer, &words[1], &words[..1], &["a {}", "the {}"]).unwrap(),
        ];
        let all = set(4).concepts.remove(0).images;
        let split = |at: usize| {
            let parts = [all[..at].to_vec(), all[at..].to_vec()].into_iter().zip(prompts.clone());
            TrainingSet { concepts: parts.map(|(images, prompts)| ConceptSet { images, prompts }).collect() }
        };
        let draws = Draws::new(3);
        let mut order = ImageOrder::new(draws, 4, 6);
        let mut builder = MicrobatchBuilder::new(split(3), OPTIONS).unwrap();
        let mut shown = [0; 2];
        for (step, microbatch) in (1..5).flat_map(|step| (0..3).map(move |microbatch| (step, microbatch))) {
            let inputs = builder.build(step, microbatch, Arc::default());
            for (place, sample) in [microbatch * 2, microbatch * 2 + 1].into_iter().enumerate() {
                let number = order.image_of(step, sample);
                let concept = usize::from(number >= 3);
                shown[concept] += 1;
                // The image's number stands in its latents (see `set`).
                assert_eq!((inputs.latents[place * 6].abs() * 2.0).round(), number as f32 + 1.0);
                let template = draws.template(step, sample, prompts[concept].count());
                assert_eq!(inputs.input_ids[place * 77..][..77], *prompts[concept].ids(template));
            }
        }
        assert_eq!(shown, [18, 6]);
        let empty =
            TrainingSet { concepts: vec![ConceptSet { images: Vec::new(), ..set(1).concepts.remove(0) }] };
        assert!(MicrobatchBuilder::new(empty, OPTIONS).is_err());
        assert!(MicrobatchBuilder::new(split(4), OPTIONS).is_err());
    }

    #[test]
    fn a_sample_of_the_posterior_has_its_deviation() {
        let image = EncodedImage { plain: moments(1.0, 2.0), flipped: moments(1.0, 2.0) };
        let mut one = set(1);
        one.concepts[0].images = vec![image];
        let mut builder = MicrobatchBuilder::new(one, OPTIONS).unwrap();
        let inputs = builder.build(1, 0, Arc::default());
        let draw = Draws::new(3).latent(1, 0, 6);
        for (latent, draw) in inputs.latents.iter().zip(&draw) {
            assert_eq!(*latent, (1.0 + 1f64.exp() as f32 * draw) * 0.5);
        }
    }

    #[test]
    fn an_offset_moves_each_channel_of_the_noise_and_nothing_else() {
        let plain = MicrobatchBuilder::new(set(4), OPTIONS).unwrap().build(2, 1, Arc::default());
        let options = BatchOptions { noise_offset: 0.1, snr_gamma: Some(5.0), ..OPTIONS };
        let moved = MicrobatchBuilder::new(set(4), options).unwrap().build(2, 1, Arc::default());
        let draws = Draws::new(3);
        for (place, sample) in [2u32, 3].into_iter().enumerate() {
            let noise = draws.noise(2, sample, 6);
            let offsets = draws.noise_offset(2, sample, 2);
            assert_ne!(offsets[0], offsets[1]);
            let expected: Vec<f32> = (0..6).map(|i| noise[i] + 0.1f32 * offsets[i / 3]).collect();
            assert_eq!(moved.noise[place * 6..][..6], expected);
        }
        assert_eq!((plain.snr_gamma, moved.snr_gamma), (None, Some(5.0)));
        assert_eq!(crate::engine::Microbatch { noise: plain.noise.clone(), snr_gamma: None, ..moved }, plain);
    }

    #[test]
    fn microbatches_of_a_step_are_the_same_however_they_are_cut() {
        let mut pairs = MicrobatchBuilder::new(set(4), OPTIONS).unwrap();
        let whole_options = BatchOptions { microbatches: 1, batch: 6, ..OPTIONS };
        let whole = MicrobatchBuilder::new(set(4), whole_options).unwrap().build(5, 0, Arc::default());
        let parts: Vec<_> = [2, 0, 1].map(|m| pairs.build(5, m, Arc::default())).into();
        let joined: Vec<f32> = [1, 2, 0].iter().flat_map(|p: &usize| parts[*p].latents.clone()).collect();
        assert_eq!(whole.latents, joined);
    }

    #[test]
    fn unusable_sets_are_refused() {
        let refused =
            |set, options| matches!(MicrobatchBuilder::new(set, options), Err(Error::TrainingSet { .. }));
        assert!(refused(set(0), OPTIONS));
        assert!(refused(set(1), BatchOptions { batch: 0, ..OPTIONS }));
        assert!(refused(set(1), BatchOptions { num_train_timesteps: 0, ..OPTIONS }));
        let mut uneven = set(2);
        uneven.concepts[0].images[1].flipped.mean.pop();
        assert!(refused(uneven, OPTIONS));
    }
}
