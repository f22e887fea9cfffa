//! A picture's place in the training set, which is there before its posteriors are.

use std::sync::{Arc, OnceLock};

use crate::train::{self, EncodedImage, StoredImage, TrainingImage};

/// The posteriors of one picture, once they are known.
#[derive(Debug)]
pub(super) struct Slot {
    /// Of the picture, for people.
    name: String,
    /// Channels, rows and columns of its latents.
    shape: [usize; 3],
    image: OnceLock<TrainingImage>,
}

impl Slot {
    /// Empty.
    pub(super) fn of(name: String, shape: [usize; 3]) -> Self {
        Self { name, shape, image: OnceLock::new() }
    }

    /// Channels, rows and columns of the picture's latents.
    pub(super) fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// The posteriors, if they are known.
    pub(super) fn image(&self) -> Option<&TrainingImage> {
        self.image.get()
    }

    /// They are known from now on. The first ones stay: there are no others of this picture.
    pub(super) fn fill(&self, image: TrainingImage) {
        let _ = self.image.set(image);
    }

    /// As microbatches are made of it: the posteriors themselves, or this slot, in which they will be.
    pub(super) fn training_image(slot: &Arc<Self>) -> TrainingImage {
        slot.image()
            .cloned()
            .unwrap_or_else(|| TrainingImage::Stored(Arc::clone(slot) as Arc<dyn StoredImage>))
    }
}

impl StoredImage for Slot {
    fn shape(&self) -> [usize; 3] {
        self.shape
    }

    fn read(&self) -> Result<EncodedImage, String> {
        let Some(image) = self.image() else { return Err(format!("{}: it is not encoded yet", self.name)) };
        let read = image.read().map(Arc::unwrap_or_clone);
        read.map_err(|error| match error {
            train::Error::Posterior { problem } => problem,
            other => other.to_string(),
        })
    }

    fn expect(&self) {
        if let Some(image) = self.image() {
            image.expect();
        }
    }
}
