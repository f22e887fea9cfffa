//! A language model in transformers' layout that is brought here and hashed. It is not loaded: what is read of it, and as
//! what, its kind of work says.

use std::{path::PathBuf, sync::Arc};

use ringtune_shared::{
    ids::ContentHash,
    job::{JobSpec, PathUse},
};
use ringtune_sources::{LocalModel, ModelSources, language_model_files};
use tokio_util::sync::CancellationToken;

use super::{
    Error, Fingerprints, base_model_name,
    fetch::{WantedFiles, bring},
};
use crate::{access::Access, journal::Journal, while_wanted};

const FIELD: &str = "model.base";

/// A language model to fetch, and the means.
pub(crate) struct BringLanguageModel<'a> {
    /// The job.
    pub(crate) spec: &'a JobSpec,
    /// Its weights too, beside its config.json and its tokenizer.
    pub(crate) with_weights: bool,
    /// Opens it.
    pub(crate) access: &'a Access,
    /// Fetches it.
    pub(crate) sources: &'a ModelSources,
    /// Hashes it.
    pub(crate) fingerprints: &'a Arc<Fingerprints>,
    /// Is told how far it is.
    pub(crate) journal: &'a Journal,
}

/// The files of a language model on this machine. They are held as long as this is.
#[derive(Clone, Debug)]
pub struct LanguageModelFiles {
    /// Their folder.
    pub folder: PathBuf,
    /// The names of those that are used: config.json first, then what there is of its tokenizer and of
    /// generation_config.json, then, where they were wanted, the weights.
    pub files: Vec<String>,
    /// The hash of the names and contents of just these.
    pub hash: ContentHash,
    /// The model's name: its repository, or the last part of its path.
    pub name: String,
    /// The folder of the files.
    pub local: Arc<LocalModel>,
}

impl BringLanguageModel<'_> {
    /// Brings the base model of a job here, opens it, and hashes what is used of it. From there on nothing but what is open
    /// is read, whatever becomes of the files' names.
    ///
    /// # Errors
    /// What is wrong with `model.base`, or with this node.
    pub(crate) async fn run(self) -> Result<LanguageModelFiles, Error> {
        let Self { spec, with_weights, access, sources, fingerprints, journal } = self;
        // 1. It is here.
        let location = spec.common.model.location()?;
        access.fetch(&location)?;
        let local = bring(sources, &location, WantedFiles::Words { weights: with_weights }, journal).await?;
        let name = match &local.origin {
            Some(origin) => origin.repository.clone(),
            None => base_model_name(&spec.common.model.base),
        };
        // 2. It is open, whole, and hashed.
        let (access, fingerprints) = (access.clone(), Arc::clone(fingerprints));
        let opening =
            move |still: &CancellationToken| open(&access, &fingerprints, local, with_weights, name, still);
        while_wanted::spawn_blocking(opening).await?
    }
}

/// Blocks: gigabytes are read.
fn open(
    access: &Access,
    fingerprints: &Fingerprints,
    local: LocalModel,
    with_weights: bool,
    name: String,
    still: &CancellationToken,
) -> Result<LanguageModelFiles, Error> {
    let place = match &local.cache {
        Some(cache) => access.fetched(&local.folder, cache).map_err(|error| Error::of_path(FIELD, error))?,
        None => access.place(PathUse::Model, FIELD, &local.folder.to_string_lossy())?,
    };
    // Users know it by its own path, wherever it is opened.
    let unsuitable = |problem: String| Error::Field {
        field: FIELD,
        problem: format!("{} {problem}", place.shown().display()),
    };
    let listed = place.names().map_err(|source| match source.kind() {
        std::io::ErrorKind::NotADirectory => unsuitable("is no folder in transformers' layout".to_owned()),
        _ => Error::Path { field: FIELD, path: place.shown().to_owned(), source },
    })?;
    let mut names: Vec<String> = listed.into_iter().filter_map(|name| name.into_string().ok()).collect();
    names.sort_unstable();
    let files = language_model_files(&names, with_weights).map_err(unsuitable)?;
    let model = access.language_model(&place).map_err(|error| Error::of_path(FIELD, error))?;
    let folder = model.path.clone();
    let hash = fingerprints.of_files_in(&folder, &files, still)?;
    let local = Arc::new(local.moved(folder.clone(), model));
    Ok(LanguageModelFiles { folder, files, hash, name, local })
}

#[cfg(test)]
#[path = "language_tests.rs"]
mod tests;
