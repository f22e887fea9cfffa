//! Models, and files to learn from, from where people have them: folders, model hubs (`hf://`), buckets (`s3://`).
//!
//! A remote model becomes a folder of this machine before anything reads it. Only the files that are needed are
//! fetched; an interrupted download goes on where it stopped, also after a restart; a file has its name only when all
//! of it is there and it is what the other side said it would be. Two workers of a machine fetch a model once:
//! whoever comes second waits and finds it.
//!
//! Results go to buckets ([`ModelSources::upload`]), whole or not at all.
//!
//! Names neither tch nor tonic.

#![deny(clippy::disallowed_types)]

mod digest;
mod environment;
mod error;
mod hub;
mod lock;
mod model_cache;
mod names;
mod progress;
mod s3;
mod select;
mod transfer;
mod tries;
mod upload;
mod web;

use std::{any::Any, path::PathBuf, sync::Arc};

use ringtune_shared::job::{HubModel, ModelLocation, S3Model};

pub use environment::Environment;
pub use error::Error;
pub use model_cache::{CacheOptions, default_cache_folder};
pub use progress::{DownloadProgress, ProgressSender, progress_channel};
pub use s3::Needed;
pub use select::language_model_files;
pub use tries::Patience;
pub use upload::Upload;

use hub::Hub;
use lock::FileLock;
use model_cache::ModelCache;
use s3::Bucket;
use select::Layout;

/// Fetches models. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ModelSources {
    environment: Arc<Environment>,
    cache: ModelCache,
    patience: Patience,
}

/// A model that is on this machine.
#[derive(Debug)]
pub struct LocalModel {
    /// A folder in diffusers' or transformers' layout, or one safetensors file in the original layout.
    pub folder: PathBuf,
    /// The folder of the cache that it was fetched into; none: it was here before. All that a cache's links lead to lies
    /// in its folder.
    pub cache: Option<PathBuf>,
    /// Its origin, without any path of this machine: "org/name" of a hub, and its commit.
    pub origin: Option<HubOrigin>,
    /// Remarks for users, such as that the hub was unreachable.
    pub remarks: Vec<String>,
    /// While it is held, the cache does not evict the folder.
    _held: Option<FileLock>,
    /// Guards of its folder.
    _kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl LocalModel {
    fn new(folder: PathBuf, cache: Option<PathBuf>, held: Option<FileLock>) -> Self {
        Self { folder, cache, origin: None, remarks: Vec::new(), _held: held, _kept: Vec::new() }
    }

    /// One that was here before.
    pub fn here(folder: PathBuf) -> Self {
        Self::new(folder, None, None)
    }

    /// Moves it to another folder, which lasts as long as `kept`.
    pub fn moved(mut self, folder: PathBuf, kept: impl Any + Send + Sync) -> Self {
        self.folder = folder;
        self._kept.push(Box::new(kept));
        self
    }
}

/// URL of `hf://` in `environment`, without a trailing slash.
///
/// # Errors
/// HF_ENDPOINT is no such URL.
pub fn hub_endpoint(environment: &Environment) -> Result<String, Error> {
    hub::endpoint_of(environment)
}

/// A commit of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubOrigin {
    /// "org/name".
    pub repository: String,
    /// 40 hexadecimal digits.
    pub commit: String,
}

impl ModelSources {
    /// Fetches with the variables of `environment` (HF_*, AWS_*), keeping what comes out of buckets in a cache.
    pub fn new(environment: Environment, cache: CacheOptions, patience: Patience) -> Self {
        Self { environment: Arc::new(environment), cache: ModelCache::new(cache), patience }
    }

    /// Brings a model to this machine; a folder is there already and is not looked at.
    ///
    /// `variant`: "fp16" of `diffusion_pytorch_model.fp16.safetensors`; empty: none. Dropping the future leaves what
    /// has arrived for the next time.
    ///
    /// # Errors
    /// See [`Error`]; each names the place, the file or the variable that it is about.
    pub async fn fetch(
        &self,
        location: &ModelLocation,
        variant: &str,
        progress: &ProgressSender,
    ) -> Result<LocalModel, Error> {
        self.fetch_as(location, &Layout::Diffusers { variant: variant.to_owned() }, progress).await
    }

    /// Brings a language model in transformers' layout to this machine, as [`ModelSources::fetch`] does: those of its files
    /// that [`language_model_files`] names.
    ///
    /// # Errors
    /// As there.
    pub async fn fetch_language_model(
        &self,
        location: &ModelLocation,
        with_weights: bool,
        progress: &ProgressSender,
    ) -> Result<LocalModel, Error> {
        self.fetch_as(location, &Layout::Language { weights: with_weights }, progress).await
    }

    async fn fetch_as(
        &self,
        location: &ModelLocation,
        layout: &Layout,
        progress: &ProgressSender,
    ) -> Result<LocalModel, Error> {
        match location {
            ModelLocation::Local(path) => Ok(LocalModel::here(path.clone())),
            ModelLocation::Hub(model) => {
                self.fetch_from_hub(model, &|names| layout.needed_files(names), progress).await
            }
            ModelLocation::S3(model) => {
                let bucket = Bucket::open(model, &self.environment, self.patience, 0)?;
                bucket.fetch(&|names| layout.needed_files(names), &self.cache, progress).await
            }
        }
    }

    /// Brings files out of a bucket to this machine: those below `place` that `needed` chooses of all names there. They keep
    /// their names, in a folder of the same cache that models are in. Dropping the future leaves what has arrived for the
    /// next time.
    ///
    /// # Errors
    /// See [`Error`]; `needed`'s own becomes [`Error::Unsuitable`].
    pub async fn fetch_files(
        &self,
        place: &S3Model,
        needed: Needed<'_>,
        progress: &ProgressSender,
    ) -> Result<LocalModel, Error> {
        let bucket = Bucket::open(place, &self.environment, self.patience, 0)?;
        bucket.fetch(needed, &self.cache, progress).await
    }

    /// Brings files of a hub's set of data, or of a model there, to this machine: those that `needed` chooses of all that it has.
    ///
    /// # Errors
    /// As of [`ModelSources::fetch_files`].
    pub async fn fetch_dataset(
        &self,
        place: &HubModel,
        needed: Needed<'_>,
        progress: &ProgressSender,
    ) -> Result<LocalModel, Error> {
        self.fetch_from_hub(place, needed, progress).await
    }

    /// Says whether files can be put to `place`, by putting an empty one there and removing it.
    ///
    /// # Errors
    /// See [`Error`]; each names the place or the variable that it is about.
    pub async fn check_writable(&self, place: &S3Model) -> Result<(), Error> {
        self.open_for_writing(place)?.check_writable().await
    }

    /// Puts files to `place` under their names, one after the other; the last of them says that all are there, so an earlier
    /// one of its name is removed first. Each has its name only when all of it is there.
    ///
    /// # Errors
    /// See [`Error`]; each names the file, the place or the variable that it is about. When `stop` comes to its end before,
    /// nothing more is waited for, and the parts of a large file that is on its way are taken back.
    pub async fn upload(
        &self,
        place: &S3Model,
        files: &[Upload],
        progress: &ProgressSender,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        self.open_for_writing(place)?.upload(files, progress, stop).await
    }

    /// Puts one file to `place`, or replaces the one of its name there.
    ///
    /// # Errors
    /// See [`Error`]; each names the file, the place or the variable that it is about.
    pub async fn put(&self, place: &S3Model, file: &Upload) -> Result<(), Error> {
        self.open_for_writing(place)?.put_one(file).await
    }

    /// Removes the file of that name from `place`. One that is not there is no error.
    ///
    /// # Errors
    /// See [`Error`]; each names the place or the variable that it is about.
    pub async fn remove(&self, place: &S3Model, name: &str) -> Result<(), Error> {
        self.open_for_writing(place)?.remove(name).await
    }

    fn open_for_writing(&self, place: &S3Model) -> Result<Bucket, Error> {
        Bucket::open(place, &self.environment, self.patience, self.patience.tries)
    }

    async fn fetch_from_hub(
        &self,
        model: &HubModel,
        needed: Needed<'_>,
        progress: &ProgressSender,
    ) -> Result<LocalModel, Error> {
        let (environment, patience) = (Arc::clone(&self.environment), self.patience);
        let hub = ringtune_shared::tasks::spawn_blocking(move || Hub::new(&environment, patience)).await??;
        let snapshot = hub.fetch(model, needed, progress).await?;
        let origin = HubOrigin { repository: model.repository.clone(), commit: snapshot.commit };
        let local = LocalModel::new(snapshot.folder, Some(hub.cache().to_owned()), None);
        Ok(LocalModel { origin: Some(origin), remarks: snapshot.remarks, ..local })
    }
}
