//! The context that all ranks of a worker share.

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

/// Shared by every rank on this worker. Cheap to clone.
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
    /// The gate for jobs' paths.
    pub access: Access,
    /// Base models from elsewhere.
    pub models: ModelSources,
    /// Hashes of base models.
    pub fingerprints: Arc<Fingerprints>,
    /// The registry of rings, where neighbours' streams arrive.
    pub rings: Rings,
    /// Steps, losses, bytes.
    pub metrics: Arc<Metrics>,
    /// Takes spans of what ranks do.
    pub tracer: Tracer,
    /// Folder of ranks' files before their upload.
    pub work_folder: PathBuf,
    /// Interval of recovery points, for the loss of a whole ring; None: never.
    pub recovery_interval: Option<Duration>,
    /// This worker's configuration lets jobs write traces.
    pub allow_trace_dir: bool,
    /// The engine hangs: the worker is to end. libtorch cannot be stopped in the middle, nor be loaded twice.
    pub hung: CancellationToken,
    /// "libtorch 2.13.0, …", for the log.
    pub about: String,
}

impl Context {
    /// The folder of this job's rank, removed when it ends. A worker holds one rank of a job at a time.
    pub(crate) fn rank_folder(&self, job: JobId) -> PathBuf {
        self.work_folder.join(job.to_string())
    }
}
