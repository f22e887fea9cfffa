//! A posterior's place in the training set, which is there before the posterior is.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{
    engine::Moments,
    train::{self, Posterior, StoredPosterior},
};

/// The posterior of one picture, or of its mirror image, once it is known.
#[derive(Debug)]
pub(super) struct Slot {
    /// Of the picture, for people.
    name: String,
    /// Channels, rows and columns of its latents.
    shape: [usize; 3],
    posterior: Mutex<Option<Posterior>>,
}

impl Slot {
    /// Empty.
    pub(super) fn of(name: String, shape: [usize; 3]) -> Self {
        Self { name, shape, posterior: Mutex::default() }
    }

    /// Channels, rows and columns of the picture's latents.
    pub(super) fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// Its posterior.
    pub(super) fn get(&self) -> Option<Posterior> {
        self.posterior.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It is known from now on. The first one stays: there is no other of this picture.
    pub(super) fn fill(&self, posterior: Posterior) {
        self.posterior.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(posterior);
    }

    /// It is not known any more.
    pub(super) fn clear(&self) {
        self.posterior.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// As microbatches are made of it: the posterior itself, or this slot, in which it will be.
    pub(super) fn posterior(slot: &Arc<Self>) -> Posterior {
        let later = || Posterior::Stored(Arc::clone(slot) as Arc<dyn StoredPosterior>);
        slot.get().unwrap_or_else(later)
    }
}

impl StoredPosterior for Slot {
    fn shape(&self) -> [usize; 3] {
        self.shape
    }

    fn read(&self) -> Result<Arc<Moments>, String> {
        let Some(posterior) = self.get() else { return Err(format!("{}: it is not encoded yet", self.name)) };
        posterior.read().map_err(|error| match error {
            train::Error::Posterior { problem } => problem,
            other => other.to_string(),
        })
    }

    fn expect(&self) {
        if let Some(posterior) = self.get() {
            posterior.expect();
        }
    }
}
