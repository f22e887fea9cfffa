//! What a job learns from: encoded images, and the prompts that go with them.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use super::{BatchOptions, Error};
use crate::{data::Prompts, engine::Moments};

/// Images that a pass may show, repeats counted.
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

/// An image of a training set: its posterior, or where that is read whenever it is shown. Cheap to clone.
#[derive(Clone, Debug)]
pub enum TrainingImage {
    /// In memory.
    Here(Arc<EncodedImage>),
    /// Anywhere else.
    Stored(Arc<dyn StoredImage>),
}

/// A posterior that is not in memory. It is the same whenever it is read.
pub trait StoredImage: Debug + Send + Sync {
    /// Channels, rows and columns of its latents.
    fn shape(&self) -> [usize; 3];

    /// Reads it. Blocks.
    ///
    /// # Errors
    /// Why it cannot be read any more, and which it is: for the user.
    fn read(&self) -> Result<EncodedImage, String>;

    /// It will be read soon.
    fn expect(&self);
}

impl From<EncodedImage> for TrainingImage {
    fn from(image: EncodedImage) -> Self {
        Self::Here(Arc::new(image))
    }
}

impl TrainingImage {
    /// Channels, rows and columns of its latents.
    pub fn shape(&self) -> [usize; 3] {
        match self {
            Self::Here(image) => shape_of(&image.plain),
            Self::Stored(stored) => stored.shape(),
        }
    }

    /// Its posterior. Blocks where it is not in memory.
    ///
    /// # Errors
    /// It cannot be read any more.
    pub fn read(&self) -> Result<Arc<EncodedImage>, Error> {
        match self {
            Self::Here(image) => Ok(Arc::clone(image)),
            Self::Stored(stored) => {
                stored.read().map(Arc::new).map_err(|problem| Error::Posterior { problem })
            }
        }
    }

    /// It will be read soon.
    pub(crate) fn expect(&self) {
        if let Self::Stored(stored) = self {
            stored.expect();
        }
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
    pub images: Vec<TrainingImage>,
    /// How often each of them is shown in a pass.
    pub repeats: Vec<u32>,
    /// At least one.
    pub prompts: Prompts,
}

impl TrainingSet {
    pub(super) fn images(&self) -> impl Iterator<Item = &TrainingImage> {
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

    /// What a pass shows: the number of each image, as often as it is repeated.
    pub(super) fn shows(&self) -> Vec<usize> {
        let repeats = self.concepts.iter().flat_map(|concept| &concept.repeats);
        repeats
            .enumerate()
            .flat_map(|(number, repeats)| std::iter::repeat_n(number, *repeats as usize))
            .collect()
    }

    /// The images of `shows` by the shape of their latents, smaller heights first.
    pub(super) fn buckets(&self, shows: &[usize]) -> Vec<Vec<usize>> {
        let shapes: Vec<[usize; 3]> = self.images().map(TrainingImage::shape).collect();
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
        let first_shape = first.shape();
        let fits = |image: &TrainingImage| {
            let shape = if options.bucketed { image.shape() } else { first_shape };
            let length: usize = shape.iter().product();
            let TrainingImage::Here(image) = image else { return image.shape() == shape };
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
            let problem = format!("a pass shows {shown} images, repeats counted; allowed: 1 to {MOST_SHOWN}");
            return Err(unusable(&problem));
        }
        Ok(())
    }
}

fn shape_of(moments: &Moments) -> [usize; 3] {
    [moments.channels, moments.height, moments.width]
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::{
        super::{
            MicrobatchBuilder,
            microbatch::tests::{OPTIONS, in_memory, set},
        },
        *,
    };

    /// Counts how often it was announced and read.
    #[derive(Debug)]
    struct Elsewhere {
        image: EncodedImage,
        used: Mutex<[u32; 2]>,
    }

    impl StoredImage for Elsewhere {
        fn shape(&self) -> [usize; 3] {
            [self.image.plain.channels, self.image.plain.height, self.image.plain.width]
        }

        fn read(&self) -> Result<EncodedImage, String> {
            self.used.lock().unwrap()[1] += 1;
            if self.image.plain.mean[0] == 2.0 {
                Err("it is gone".to_owned())
            } else {
                Ok(self.image.clone())
            }
        }

        fn expect(&self) {
            self.used.lock().unwrap()[0] += 1;
        }
    }

    #[test]
    fn images_that_are_not_in_memory_give_the_same_microbatches() {
        let here = set(4);
        let mut elsewhere = here.clone();
        let mut stored = Vec::new();
        for image in &mut elsewhere.concepts[0].images[2..] {
            let image_elsewhere = Elsewhere { image: in_memory(image).clone(), used: Default::default() };
            stored.push(Arc::new(image_elsewhere));
            *image = TrainingImage::Stored(stored[stored.len() - 1].clone());
        }
        let mut builders = [here, elsewhere].map(|set| MicrobatchBuilder::new(set, OPTIONS).unwrap());
        for (step, microbatch) in (1..5).flat_map(|step| (0..3).map(move |microbatch| (step, microbatch))) {
            let built = builders.each_mut().map(|builder| {
                builder.expect(step, microbatch);
                builder.build(step, microbatch, Arc::default()).unwrap()
            });
            assert_eq!(built[0], built[1]);
        }
        // 24 samples show each of four images six times, and each was announced.
        assert!(stored.iter().all(|image| *image.used.lock().unwrap() == [6, 6]), "{stored:?}");
        assert_eq!(
            builders[0].build_held_out(2, 1, Arc::default()).unwrap(),
            builders[1].build_held_out(2, 1, Arc::default()).unwrap()
        );
    }

    #[test]
    fn an_image_that_is_gone_is_no_fault_of_the_job() {
        let mut lost = set(4);
        let image = in_memory(&mut lost.concepts[0].images[1]).clone();
        let image = Elsewhere { image, used: Default::default() };
        lost.concepts[0].images[1] = TrainingImage::Stored(Arc::new(image));
        let mut builder = MicrobatchBuilder::new(lost, OPTIONS).unwrap();
        let built: Vec<_> = (0..3).map(|microbatch| builder.build(1, microbatch, Arc::default())).collect();
        let gone = Error::Posterior { problem: "it is gone".to_owned() };
        assert!(built.iter().any(|built| built.as_ref() == Err(&gone)), "{built:?}");
    }
}
