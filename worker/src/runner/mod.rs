//! One rank's work, from assignment to its last word: prepare, wait for the others, train or draw, upload.

mod agreement;
mod artifacts;
mod cache;
mod checkpoints;
mod downloads;
mod draw;
mod ending;
mod error;
mod facts;
mod fault;
mod files;
mod fingerprint;
mod framing;
mod images;
mod initializers;
mod journal;
mod large_files;
mod latents;
mod model;
mod pace;
mod prepare;
mod preview;
mod rehearsal;
mod resume;
mod retry;
mod task;
mod train;
mod uploads;
mod words;

use std::{path::PathBuf, sync::Arc};

use ringtune_sources::ModelSources;
use tokio::sync::mpsc;

pub use artifacts::ArtifactClient;
pub use cache::ContentCache;
pub use error::RankError;
pub(crate) use facts::base_model_name;
pub use fingerprint::Fingerprints;
pub(crate) use fingerprint::is_weights;
pub use framing::Target;
pub use rehearsal::{Rehearsal, RehearsalOptions, RehearsedWord, Timing, rehearse};

use crate::{
    engine::EngineHandle,
    http::Metrics,
    latents::LatentCache,
    ring::Rings,
    session::{Assignment, RankControl, RankEvent, RankKey, RankLauncher},
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
    /// Checkpoints from elsewhere.
    pub models: ModelSources,
    /// Hashes of checkpoints.
    pub fingerprints: Arc<Fingerprints>,
    /// Where neighbours' streams arrive.
    pub rings: Rings,
    /// Steps, losses, bytes.
    pub metrics: Arc<Metrics>,
    /// Where ranks write before they upload.
    pub work_folder: PathBuf,
    /// This worker's configuration lets jobs write traces.
    pub allow_trace_dir: bool,
    /// "libtorch 2.13.0, …", for the log.
    pub about: String,
}

impl Context {
    /// Where a rank writes: removed when it ends.
    fn rank_folder(&self, rank: RankKey) -> PathBuf {
        self.work_folder.join(format!("{}-{}", rank.job, rank.epoch))
    }
}

impl RankLauncher for Context {
    fn launch(&self, assignment: Assignment, events: mpsc::Sender<(RankKey, RankEvent)>) -> RankControl {
        let (control, orders) = RankControl::new();
        tokio::spawn(task::run(assignment, self.clone(), orders, events));
        control
    }
}
