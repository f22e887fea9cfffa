//! What a kind of work gives to a rank's life.

use std::{future::Future, path::PathBuf};

use ringtune_shared::ids::ContentHash;
use tokio::sync::watch;

use super::{Context, Error, LentRing};
use crate::{
    base_model::{self, Loaded, Loading},
    contents::Uploads,
    engine::TrainingSize,
    journal::Journal,
    session::{Assignment, RankOrders},
};

/// What the coordinator told a rank so far.
pub(crate) type Orders = watch::Receiver<RankOrders>;

/// What a rank of any kind has.
#[derive(Debug)]
pub(crate) struct Rank {
    /// What it is to do.
    pub(crate) assignment: Assignment,
    /// What it shares with others on this worker.
    pub(crate) context: Context,
    /// Where it says how it goes.
    pub(crate) journal: Journal,
    /// Where it writes; there already.
    pub(crate) folder: PathBuf,
}

impl Rank {
    /// Files are on their way from now on.
    pub(crate) fn start_uploads(&self, orders: &Orders) -> Uploads {
        let ring = &self.assignment.ring;
        Uploads::start(ring.job, self.context.artifacts.at(ring.epoch), orders.clone())
    }

    /// Brings the job's base model here and loads it, for training of this size or for pictures only.
    ///
    /// # Errors
    /// What is wrong with `model.base`, or with this node.
    pub(crate) async fn load_model(
        &self,
        training: Option<TrainingSize>,
        rescale_zero_snr: bool,
    ) -> Result<Loaded, base_model::Error> {
        let loading = Loading {
            spec: &self.assignment.spec,
            training,
            rescale_zero_snr,
            precision: self.assignment.precision,
            threads: self.assignment.threads,
            engine: &self.context.engine,
            sources: &self.context.models,
            fingerprints: &self.context.fingerprints,
            journal: &self.journal,
        };
        loading.run().await
    }
}

/// What is to be done, before anything of it is prepared.
pub(crate) trait Task: Send + 'static {
    /// What it is once it is prepared.
    type Work: Work;

    /// All that a rank does alone before it is ready. Dropped in the middle when the rank is to end.
    ///
    /// # Errors
    /// What is wrong with the job or this node, by the job's field or the file.
    fn prepare(self, rank: &Rank) -> impl Future<Output = Result<Self::Work, Error>> + Send;
}

/// Work of one kind that is prepared. It outlives the ring that it is lent.
pub(crate) trait Work: Send + 'static {
    /// What all ranks must have in common besides what the coordinator hands them: names for people, and hashes.
    fn common(&self) -> Vec<(&'static str, ContentHash)>;

    /// Opens what is written while the work is done.
    fn begin(&mut self, rank: &Rank, orders: &Orders) -> impl Future<Output = Result<(), Error>> + Send;

    /// Does the work, until it is done or the rank is to end ([`Error::Stopped`]).
    fn run(
        &mut self,
        rank: &Rank,
        ring: &mut LentRing,
        orders: &mut Orders,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// What is said in the log when it is done.
    fn done(&self) -> &'static str;

    /// Writes what is left to write, and waits until all files are at the coordinator. Dropped in the middle when
    /// they are not to be kept any longer.
    ///
    /// `can_go_on`: it ended before it was done, and not by the job's own fault.
    fn finish(&mut self, rank: &Rank, can_go_on: bool) -> impl Future<Output = Result<(), Error>> + Send;
}
