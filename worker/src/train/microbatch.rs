//! The inputs of a microbatch, from what was encoded once and what is drawn for its samples.

use std::{borrow::Cow, sync::Arc};

use super::{
    BatchOptions, Draws, Error, ImageOrder, TrainingSet, View, bucket_order::BucketOrder, posterior::latent,
};
use crate::{
    data::{Prompts, caption_words::CaptionDraw},
    engine::{Extras, Microbatch, SamplePlace},
};

/// Makes any microbatch of any step of a job.
#[derive(Clone, Debug)]
pub struct MicrobatchBuilder {
    pub(super) options: BatchOptions,
    pub(super) draws: Draws,
    order: Order,
    class: Option<Class>,
    /// See `TrainingSet::shows`.
    shows: Vec<usize>,
    pub(super) set: TrainingSet,
}

/// Which images are shown when.
#[derive(Clone, Debug)]
enum Order {
    /// Sample by sample, as `TrainingSet::shows` numbers them.
    Images(ImageOrder),
    /// Microbatch by microbatch.
    Buckets(BucketOrder),
}

/// The images of the class, which come behind all others.
#[derive(Clone, Debug)]
struct Class {
    first: usize,
    order: ImageOrder,
}

/// Which order of images it is among those of a pass.
const LEARNED: u32 = 0;
const CLASS: u32 = 1;

impl MicrobatchBuilder {
    /// # Errors
    /// No image, no prompt, a number below 1, or images whose moments differ in shape or have too few numbers.
    pub fn new(set: TrainingSet, options: BatchOptions) -> Result<Self, Error> {
        set.check(&options)?;
        let samples = u64::from(options.microbatches) * u64::from(options.batch);
        let draws = Draws::new(options.seed);
        let shows = set.shows();
        let order = if options.bucketed {
            let buckets = set.buckets(&shows);
            Order::Buckets(BucketOrder::new(draws, buckets, options.batch, options.microbatches))
        } else {
            Order::Images(ImageOrder::new(draws, LEARNED, shows.len(), samples))
        };
        let first = set.learned(&options);
        let of_class = set.images().count() - first;
        let class =
            (of_class > 0).then(|| Class { first, order: ImageOrder::new(draws, CLASS, of_class, samples) });
        Ok(Self { options, draws, order, class, shows, set })
    }

    /// Microbatch `microbatch` (from 0, below M) of step `step` (from 1), with the learned rows as they are before
    /// that step. Blocks where a posterior is not in memory.
    ///
    /// # Errors
    /// The tokenizer refuses a prompt, or a posterior cannot be read.
    pub fn build(&mut self, step: u64, microbatch: u32, rows: Arc<Vec<f32>>) -> Result<Microbatch, Error> {
        let BatchOptions { scaling_factor, snr_gamma, .. } = self.options;
        let views = self.views_of(step, microbatch);
        let shape = self.shape_of_first(&views);
        let length = shape.iter().product();
        let mut inputs = self.without_samples(views.len(), rows, shape, snr_gamma);
        let (seed, first_sample) = (self.options.seed, self.first_sample(microbatch));
        inputs.extras.place = Some(SamplePlace { seed, step, first_sample });
        inputs.extras.sample_weights = self.sample_weights();
        for (sample, view) in (first_sample..).zip(views) {
            let Some((concept, number)) = self.set.image(view.image) else { continue };
            let posterior = concept.images[number].view(view.flip).read()?;
            let draw = self.draws.latent(step, sample, length);
            inputs.latents.extend(latent(&posterior, &draw, scaling_factor));
            inputs.noise.extend(self.noise(step, sample, shape));
            if self.options.input_perturbation > 0.0 {
                let scale = self.options.input_perturbation as f32;
                let drawn = self.draws.perturbation(step, sample, length).into_iter();
                inputs.extras.perturbation.extend(drawn.map(|value| scale * value));
            }
            inputs.extras.loss_mask.extend(self.set.mask((concept, number), view.flip, shape)?);
            inputs.timesteps.push(self.draws.timestep(step, sample, self.options.timesteps()));
            inputs.input_ids.extend_from_slice(&self.prompt(step, sample, &concept.prompts, number)?);
        }
        Ok(inputs)
    }

    /// What a step shows, in all its microbatches.
    pub fn shown(&mut self, step: u64) -> Vec<View> {
        (0..self.options.microbatches).flat_map(|microbatch| self.views_of(step, microbatch)).collect()
    }

    /// Says that this microbatch is built soon: what is not in memory of its images is read ahead.
    pub fn expect(&mut self, step: u64, microbatch: u32) {
        for view in self.views_of(step, microbatch) {
            if let Some((concept, number)) = self.set.image(view.image) {
                concept.images[number].view(view.flip).expect();
            }
        }
    }

    /// Samples after which every image has been shown as often as its folder says.
    pub fn samples_of_pass(&self) -> u64 {
        match &self.order {
            Order::Buckets(order) => order.samples_of_pass(),
            Order::Images(_) => self.shows.len() as u64,
        }
    }

    /// Channels, height, width of the latents of `views`, which have one shape.
    pub(super) fn shape_of_first(&self, views: &[View]) -> [usize; 3] {
        let first = views.first().and_then(|view| self.set.image(view.image));
        first.map_or([0; 3], |(concept, number)| concept.images[number].shape())
    }

    /// The number of a microbatch's first sample among those of a step.
    fn first_sample(&self, microbatch: u32) -> u32 {
        microbatch * self.options.width()
    }

    /// What each sample counts in the mean over all of them: with a class, both halves' means are added.
    fn sample_weights(&self) -> Vec<f32> {
        let Some(weight) = self.options.prior_loss_weight else { return Vec::new() };
        let batch = self.options.batch as usize;
        [vec![2.0; batch], vec![(2.0 * weight) as f32; batch]].concat()
    }

    /// What a microbatch shows, sample by sample: behind those that are learned from as many of the class, where there is one.
    fn views_of(&mut self, step: u64, microbatch: u32) -> Vec<View> {
        let mut images = self.images_of(step, microbatch);
        if let Some(Class { first, order }) = &mut self.class {
            let samples = microbatch * self.options.batch..(microbatch + 1) * self.options.batch;
            images.extend(samples.map(|sample| *first + order.image_of(step, sample)));
        }
        let flips = self.options.random_flip;
        let view = |(sample, image)| View { image, flip: flips && self.draws.flip(step, sample) };
        (self.first_sample(microbatch)..).zip(images).map(view).collect()
    }

    /// The images (of all) that a microbatch shows, one for each sample.
    fn images_of(&mut self, step: u64, microbatch: u32) -> Vec<usize> {
        let batch = self.options.batch;
        match &mut self.order {
            Order::Buckets(order) => order.images_of(step, microbatch).to_vec(),
            Order::Images(order) => {
                let samples = microbatch * batch..(microbatch + 1) * batch;
                samples.map(|sample| self.shows[order.image_of(step, sample)]).collect()
            }
        }
    }

    /// The token ids of the sample's prompt; `image`: its image's number in the concept.
    fn prompt<'set>(
        &self,
        step: u64,
        sample: u32,
        prompts: &'set Prompts,
        image: usize,
    ) -> Result<Cow<'set, [i64]>, Error> {
        let template = self.draws.template(step, sample, prompts.count());
        let choice = self.caption_choice(step, sample, prompts, image);
        let dropout = self.options.caption_dropout;
        let dropped = dropout > 0.0 && self.draws.caption(step, sample) < dropout;
        let order = self.draws.tag_order(step, sample, prompts.shuffled_tags(image, choice));
        let draw = CaptionDraw { choice, dropped, order: &order };
        Ok(prompts.ids(template, image, draw)?)
    }

    /// Which of its image's captions the sample has.
    pub(super) fn caption_choice(&self, step: u64, sample: u32, prompts: &Prompts, image: usize) -> usize {
        self.draws.caption_choice(step, sample, prompts.captions(image).max(1))
    }

    /// A microbatch whose `batch` samples, of latents of `shape` (channels, height, width), are still to be added.
    pub(super) fn without_samples(
        &self,
        batch: usize,
        rows: Arc<Vec<f32>>,
        shape: [usize; 3],
        snr_gamma: Option<f64>,
    ) -> Microbatch {
        let [latent_channels, latent_height, latent_width] = shape;
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
            extras: Extras::default(),
        }
    }

    /// The sample's noise, with one offset for each channel where the job asks for it.
    /// Source: diffusers, train_text_to_image.py; <https://www.crosslabs.org/blog/diffusion-with-offset-noise>.
    fn noise(&self, step: u64, sample: u32, [channels, height, width]: [usize; 3]) -> Vec<f32> {
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

#[cfg(test)]
#[path = "microbatch_tests.rs"]
pub(super) mod tests;
