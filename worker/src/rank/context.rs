//! What all ranks of a worker share.

use std::{path::PathBuf, sync::Arc, time::Duration};

use ringtune_shared::ids::JobId;
use ringtune_sources::ModelSources;
use ringtune_traces::Tracer;
use tokio_util::sync::CancellationToken;

use crate::{
    access::Access,
    base_model::Fingerprints,
    contents::{ArtifactClient, ContentCache},
    engine::EngineHandle,
    http::Metrics,
    latents::LatentCache,
    ring::Rings,
};

/// What every rank's work on this worker shares. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    /// libtorch's thread.
    pub engine: EngineHandle,
    /// The coordinator's files.
    pub artifacts: ArtifactClient,
    /// Files fetched before.
    pub cache: ContentCache,
    /// Pictures encoded before.
    pub latents: LatentCache,
    /// Bytes of them that a job keeps in memory.
    pub latent_memory_bytes: u64,
    /// What jobs may reach on this machine.
    pub access: Access,
    /// Base models from elsewhere.
    pub models: ModelSources,
    /// Hashes of base models.
    pub fingerprints: Arc<Fingerprints>,
    /// Where neighbours' streams arrive.
    pub rings: Rings,
    /// Steps, losses, bytes.
    pub metrics: Arc<Metrics>,
    /// Takes spans of what ranks do.
    pub tracer: Tracer,
    /// Where ranks write before they upload.
    pub work_folder: PathBuf,
    /// How often the state of a training is kept for the loss of its whole ring; none: never.
    pub recovery_interval: Option<Duration>,
    /// This worker's configuration lets jobs write traces.
    pub allow_trace_dir: bool,
    /// The engine hangs: the worker is to end. libtorch cannot be stopped in the middle, nor be loaded twice.
    pub hung: CancellationToken,
    /// "libtorch 2.13.0, …", for the log.
    pub about: String,
}

impl Context {
    /// Where a rank of this job writes: removed when it ends. One rank of a job is held at a time.
    pub(crate) fn rank_folder(&self, job: JobId) -> PathBuf {
        self.work_folder.join(job.to_string())
    }
}
