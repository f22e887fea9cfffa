//! What a job learns from: encoded images, and the prompts that go with them.

use std::collections::BTreeMap;

use super::{BatchOptions, Error};
use crate::{data::Prompts, engine::Moments};

/// Images that an epoch may show, repeats counted.
const MOST_SHOWN: u64 = 10_000_000;

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
#[derive(Clone, Debug)]
pub struct TrainingSet {
    /// At least one.
    pub concepts: Vec<ConceptSet>,
}

/// What one concept is learned from: a sample that shows one of its images has one of its prompts.
#[derive(Clone, Debug)]
pub struct ConceptSet {
    /// At least one, in the order of their names; those of all concepts have one shape.
    pub images: Vec<EncodedImage>,
    /// How often each of them is shown in an epoch.
    pub repeats: Vec<u32>,
    /// At least one.
    pub prompts: Prompts,
}

impl TrainingSet {
    pub(super) fn images(&self) -> impl Iterator<Item = &EncodedImage> {
        self.concepts.iter().flat_map(|concept| &concept.images)
    }

    /// Image `number` of all: its concept, and its number there.
    pub(super) fn image(&self, number: usize) -> Option<(&ConceptSet, usize)> {
        let mut number = number;
        for concept in &self.concepts {
            if number < concept.images.len() {
                return Some((concept, number));
            }
            number -= concept.images.len();
        }
        None
    }

    /// What an epoch shows: the number of each image, as often as it is repeated.
    pub(super) fn shows(&self) -> Vec<usize> {
        let repeats = self.concepts.iter().flat_map(|concept| &concept.repeats);
        repeats
            .enumerate()
            .flat_map(|(number, repeats)| std::iter::repeat_n(number, *repeats as usize))
            .collect()
    }

    /// The images of `shows` by the shape of their latents, smaller heights first.
    pub(super) fn buckets(&self, shows: &[usize]) -> Vec<Vec<usize>> {
        let shapes: Vec<[usize; 3]> = self.images().map(|image| shape_of(&image.plain)).collect();
        let mut buckets: BTreeMap<[usize; 3], Vec<usize>> = BTreeMap::new();
        shows.iter().for_each(|number| buckets.entry(shapes[*number]).or_default().push(*number));
        buckets.into_values().collect()
    }

    /// # Errors
    /// No image, no prompt, a number below 1, or images whose moments differ in shape or have too few numbers.
    pub(super) fn check(&self, options: &BatchOptions) -> Result<(), Error> {
        let unusable = |problem: &str| Error::TrainingSet { problem: problem.to_string() };
        let first = self.images().next().ok_or_else(|| unusable("it has no image"))?;
        if self.concepts.iter().any(|concept| concept.images.is_empty()) {
            return Err(unusable("a concept has no image"));
        }
        if self.concepts.iter().any(|concept| concept.prompts.count() == 0) {
            return Err(unusable("it has no prompt"));
        }
        let samples = u64::from(options.microbatches) * u64::from(options.batch);
        if samples == 0 || samples > u64::from(u32::MAX) || options.num_train_timesteps == 0 {
            return Err(unusable(
                "microbatches, batch and num_train_timesteps must be at least 1, samples below 2^32",
            ));
        }
        let first_shape = shape_of(&first.plain);
        let fits = |image: &EncodedImage| {
            let shape = if options.bucketed { shape_of(&image.plain) } else { first_shape };
            let length: usize = shape.iter().product();
            [&image.plain, &image.flipped].into_iter().all(|moments| {
                shape_of(moments) == shape && moments.mean.len() == length && moments.logvar.len() == length
            })
        };
        if !self.images().all(fits) {
            return Err(unusable("its images' moments differ in shape"));
        }
        if self.concepts.iter().any(|concept| concept.repeats.len() != concept.images.len()) {
            return Err(unusable("not every image says how often it is repeated"));
        }
        let repeats = self.concepts.iter().flat_map(|concept| &concept.repeats);
        let shown: u64 = repeats.map(|repeats| u64::from(*repeats)).sum();
        if shown == 0 || shown > MOST_SHOWN {
            let problem =
                format!("an epoch shows {shown} images, repeats counted; allowed: 1 to {MOST_SHOWN}");
            return Err(unusable(&problem));
        }
        Ok(())
    }
}

pub(super) fn shape_of(moments: &Moments) -> [usize; 3] {
    [moments.channels, moments.height, moments.width]
}
