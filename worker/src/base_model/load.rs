//! A base model that is brought here, loaded by the engine and hashed.

use std::{path::PathBuf, sync::Arc};

use ringtune_shared::{ids::ContentHash, job::JobSpec};
use ringtune_sources::{LocalModel, ModelSources};

use super::{
    Error, Fingerprints, base_model_name,
    fetch::{materialise, options_of},
};
use crate::{
    access::Access,
    engine::{
        EngineError, EngineHandle, LoadModel, ModelInfo, ModelOptions, Precision, TrainingSize, UnetTensor,
    },
    journal::Journal,
    session::{Progress, ProgressStage, RankEvent},
    while_wanted::{self, WhileWanted},
};

/// The model is in the engine; it is hashed, and whatever else the work needs of it is done.
const PARTS: u64 = 2;

/// Refuses a UNet whose training has no room.
pub(crate) type Fits<'a> = &'a (dyn Fn(&[UnetTensor]) -> Result<(), EngineError> + Send + Sync);

/// A model to load, and the means.
pub(crate) struct Loading<'a> {
    /// The job.
    pub(crate) spec: &'a JobSpec,
    /// Sizes of its training; None: pictures only.
    pub(crate) training: Option<TrainingSize>,
    /// The schedule is rescaled to a terminal signal-to-noise ratio of zero.
    pub(crate) rescale_zero_snr: bool,
    /// Whether this machine has room for the job, by the UNet's tensors, before anything is loaded; none: it takes little.
    pub(crate) fits: Option<Fits<'a>>,
    /// The network's precision.
    pub(crate) precision: Precision,
    /// Threads within one operation.
    pub(crate) threads: usize,
    /// Loads it.
    pub(crate) engine: &'a EngineHandle,
    /// Opens it.
    pub(crate) access: &'a Access,
    /// Fetches it.
    pub(crate) sources: &'a ModelSources,
    /// Hashes it.
    pub(crate) fingerprints: &'a Arc<Fingerprints>,
    /// Is told how far it is.
    pub(crate) journal: &'a Journal,
}

/// A base model in the engine. Its files are held as long as this is.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The files.
    pub(crate) local: Arc<LocalModel>,
    /// Its tokenizer's folder.
    pub(crate) tokenizer: PathBuf,
    /// Facts of the model.
    pub(crate) info: ModelInfo,
    /// Its hash, which is taken beside.
    hashing: WhileWanted<Result<ContentHash, Error>>,
}

impl Loading<'_> {
    /// Brings the base model of a job here, begins to hash it, and has the engine load it.
    ///
    /// # Errors
    /// What is wrong with `model.base`, or with this node.
    pub(crate) async fn run(self) -> Result<Loaded, Error> {
        let Self { spec, training, rescale_zero_snr, precision, threads, journal, .. } = self;
        let (local, tokenizer) = materialise(spec, self.access, self.sources, journal).await?;
        let folder = local.folder.clone();
        journal.event(loaded(0)).await;
        let options = ModelOptions { rescale_zero_snr, ..options_of(spec) };
        if let Some(fits) = self.fits {
            fits(&self.engine.unet_tensors(folder.clone(), options.clone()).await?)?;
        }
        let variant = options.variant.clone();
        let load = LoadModel { folder: folder.clone(), options, precision, threads, training };
        let (fingerprints, words) = (Arc::clone(self.fingerprints), tokenizer.clone());
        let hashing = while_wanted::spawn_blocking(move |still| {
            fingerprints.of_model(&folder, &variant, &words, still)
        });
        let info = self.engine.load(load).await?;
        journal.event(loaded(1)).await;
        Ok(Loaded { local: Arc::new(local), tokenizer, info, hashing })
    }
}

fn loaded(done: u64) -> RankEvent {
    RankEvent::Progress(Progress { stage: ProgressStage::Load, done, total: PARTS })
}

impl Loaded {
    /// Its hash is known: this worker has hashed it before.
    pub(crate) fn is_hashed(&self) -> bool {
        self.hashing.is_finished()
    }

    /// The hash of its files, once it is taken and what is done `beside` is done, and what came of that: then all is loaded.
    pub(crate) async fn finish<T, E: From<Error>>(
        &mut self,
        journal: &Journal,
        beside: impl Future<Output = Result<T, E>>,
    ) -> Result<(ContentHash, T), E> {
        let hashing = async { Ok((&mut self.hashing).await.map_err(Error::from)??) };
        let (hash, done) = tokio::try_join!(hashing, beside)?;
        journal.event(loaded(PARTS)).await;
        Ok((hash, done))
    }

    /// Its name: its repository, or the last part of its path.
    pub(crate) fn name(&self, spec: &JobSpec) -> String {
        match &self.local.origin {
            Some(origin) => origin.repository.clone(),
            None => base_model_name(&spec.common.model.base),
        }
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
