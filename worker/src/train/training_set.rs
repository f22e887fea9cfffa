//! What a job learns from: encoded images, and the prompts that go with them.

use std::collections::BTreeMap;

use super::{BatchOptions, Error, Posterior};
use crate::data::{Mask, Prompts};

/// Images that a pass may show, repeats counted.
const MOST_SHOWN: u64 = 10_000_000;

/// An image of a training set: its posterior, and that of its mirror image. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TrainingImage {
    /// Of the image as it is.
    pub plain: Posterior,
    /// Of its mirror image.
    pub flipped: Posterior,
}

impl TrainingImage {
    /// Channels, rows and columns of its latents.
    pub fn shape(&self) -> [usize; 3] {
        self.plain.shape()
    }

    /// The posterior of the image as it is, or of its mirror image.
    pub fn view(&self, flip: bool) -> &Posterior {
        if flip { &self.flipped } else { &self.plain }
    }
}

/// What a sample shows of the training set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The image's number among those of all concepts.
    pub image: usize,
    /// It is mirrored.
    pub flip: bool,
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
    /// The mask of each image; empty: all of each counts alike.
    pub masks: Vec<Mask>,
}

impl TrainingSet {
    pub(super) fn images(&self) -> impl Iterator<Item = &TrainingImage> {
        self.concepts.iter().flat_map(|concept| &concept.images)
    }

    /// Images that are learned from: all but those of the class, which come last.
    pub(super) fn learned(&self, options: &BatchOptions) -> usize {
        let class = usize::from(options.prior_loss_weight.is_some());
        let count = self.concepts.len().saturating_sub(class);
        self.concepts.iter().take(count).map(|concept| concept.images.len()).sum()
    }

    /// How much each position of an image's latents, of height and width, counts in the loss; nothing where no image has a mask.
    ///
    /// # Errors
    /// The mask cannot be read any more.
    pub(super) fn mask(
        &self,
        (concept, number): (&ConceptSet, usize),
        flip: bool,
        [_, height, width]: [usize; 3],
    ) -> Result<Vec<f32>, Error> {
        match concept.masks.get(number) {
            Some(mask) => {
                mask.read(flip).map_err(|error| Error::Posterior { problem: format!("its mask: {error}") })
            }
            None if self.concepts.iter().any(|concept| !concept.masks.is_empty()) => {
                Ok(vec![1.0; height * width])
            }
            None => Ok(Vec::new()),
        }
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
        let samples = u64::from(options.microbatches) * u64::from(options.width());
        if samples == 0 || samples > u64::from(u32::MAX) || options.timesteps().is_empty() {
            return Err(unusable("microbatches, batch and timesteps must be at least 1, samples below 2^32"));
        }
        let first_shape = first.shape();
        let fits = |image: &TrainingImage| {
            let shape = if options.bucketed { image.shape() } else { first_shape };
            image.plain.fits(shape) && image.flipped.fits(shape)
        };
        if !self.images().all(fits) {
            return Err(unusable("its images' moments differ in shape"));
        }
        if self.concepts.iter().any(|concept| concept.repeats.len() != concept.images.len()) {
            return Err(unusable("not every image says how often it is repeated"));
        }
        if self.concepts.iter().any(|concept| ![0, concept.images.len()].contains(&concept.masks.len())) {
            return Err(unusable("not every image has a mask"));
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::{
        super::{
            MicrobatchBuilder, StoredPosterior,
            microbatch::tests::{OPTIONS, in_memory, set},
        },
        *,
    };
    use crate::engine::Moments;

    /// Counts how often it was announced and read.
    #[derive(Debug)]
    struct Elsewhere {
        moments: Moments,
        used: Mutex<[u32; 2]>,
    }

    impl Elsewhere {
        fn of(posterior: &mut Posterior) -> Arc<Self> {
            Arc::new(Self { moments: in_memory(posterior).clone(), used: Default::default() })
        }
    }

    impl StoredPosterior for Elsewhere {
        fn shape(&self) -> [usize; 3] {
            [self.moments.channels, self.moments.height, self.moments.width]
        }

        fn read(&self) -> Result<Arc<Moments>, String> {
            self.used.lock().unwrap()[1] += 1;
            if self.moments.mean[0].abs() == 2.0 {
                Err("it is gone".to_owned())
            } else {
                Ok(Arc::new(self.moments.clone()))
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
            for view in [&mut image.plain, &mut image.flipped] {
                stored.push(Elsewhere::of(view));
                *view = Posterior::Stored(stored[stored.len() - 1].clone());
            }
        }
        let mut builders = [here, elsewhere].map(|set| MicrobatchBuilder::new(set, OPTIONS).unwrap());
        for (step, microbatch) in (1..5).flat_map(|step| (0..3).map(move |microbatch| (step, microbatch))) {
            let built = builders.each_mut().map(|builder| {
                builder.expect(step, microbatch);
                builder.build(step, microbatch, Arc::default()).unwrap()
            });
            assert_eq!(built[0], built[1]);
        }
        // 24 samples show each of four images six times, as it is or mirrored, and each was announced.
        let used: Vec<[u32; 2]> = stored.iter().map(|view| *view.used.lock().unwrap()).collect();
        assert!(used.iter().all(|[announced, read]| announced == read), "{used:?}");
        assert!(used.chunks(2).all(|views| views[0][1] + views[1][1] == 6), "{used:?}");
        assert_eq!(
            builders[0].build_held_out(2, 1, Arc::default()).unwrap(),
            builders[1].build_held_out(2, 1, Arc::default()).unwrap()
        );
    }

    #[test]
    fn an_image_that_is_gone_is_no_fault_of_the_job() {
        let mut lost = set(4);
        let image = &mut lost.concepts[0].images[1];
        for view in [&mut image.plain, &mut image.flipped] {
            *view = Posterior::Stored(Elsewhere::of(view));
        }
        let mut builder = MicrobatchBuilder::new(lost, OPTIONS).unwrap();
        let built: Vec<_> = (0..3).map(|microbatch| builder.build(1, microbatch, Arc::default())).collect();
        let gone = Error::Posterior { problem: "it is gone".to_owned() };
        assert!(built.iter().any(|built| built.as_ref() == Err(&gone)), "{built:?}");
    }
}
