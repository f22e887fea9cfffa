//! The traits by which a kind of work plugs into a rank's life.

use std::{future::Future, path::PathBuf};

use ringtune_shared::{ids::ContentHash, ring::Standing};
use tokio::sync::watch;

use super::{Context, Error, LentRing};
use crate::{
    base_model::{self, BringLanguageModel, Fits, LanguageModelFiles, Loaded, Loading},
    contents::{OutputBucket, Uploads},
    engine::TrainingSize,
    journal::Journal,
    rank_state::{RankState, TakenState},
    ring::RankRing,
    session::{Assignment, RankEvent, RankKey, RankOrders, StepSummary},
};

/// The coordinator's orders so far.
pub(crate) type Orders = watch::Receiver<RankOrders>;

/// A rank of any kind.
#[derive(Debug)]
pub(crate) struct Rank {
    /// Its assignment, with its current ring and place.
    pub(crate) assignment: Assignment,
    /// The job, and the epoch of the assignment as it came.
    pub(crate) life: RankKey,
    /// Shared with other ranks on this worker.
    pub(crate) context: Context,
    /// Its journal.
    pub(crate) journal: Journal,
    /// Its folder, which exists.
    pub(crate) folder: PathBuf,
}

impl Rank {
    /// Files are on their way from now on.
    pub(crate) fn start_uploads(&self, orders: &Orders) -> Uploads {
        let client = self.context.artifacts.from(self.life.epoch, orders.clone());
        Uploads::start(self.life.job, client, self.output_bucket(), orders.clone())
    }

    /// Where the job's files go besides the coordinator. Steps that are only computed again leave none.
    pub(crate) fn output_bucket(&self) -> Option<OutputBucket> {
        let place = self.assignment.spec.common.output.place()?;
        let leaves_files = self.assignment.proof.is_none();
        leaves_files.then(|| OutputBucket { sources: self.context.models.clone(), place })
    }

    /// It is in the ring with which its life and the job's steps began, and not in one that goes on from another's.
    pub(crate) fn is_in_first_ring(&self) -> bool {
        self.assignment.ring.epoch == self.life.epoch && self.assignment.resume_from.is_empty()
    }

    /// Says that it goes on in its ring after this step.
    pub(crate) async fn say_entered(&self, step: u64) {
        let epoch = self.assignment.ring.epoch;
        self.journal.event(RankEvent::Entered { epoch, step }).await;
    }

    /// Brings the job's base model here and loads it, for training of this size or for pictures only, where it fits.
    ///
    /// # Errors
    /// What is wrong with `model.base`, or with this node.
    pub(crate) async fn load_model(
        &self,
        training: Option<TrainingSize>,
        rescale_zero_snr: bool,
        fits: Option<Fits<'_>>,
    ) -> Result<Loaded, base_model::Error> {
        let loading = Loading {
            spec: &self.assignment.spec,
            training,
            rescale_zero_snr,
            fits,
            precision: self.assignment.precision,
            threads: self.assignment.threads,
            engine: &self.context.engine,
            access: &self.context.access,
            sources: &self.context.models,
            fingerprints: &self.context.fingerprints,
            journal: &self.journal,
        };
        loading.run().await
    }

    /// Brings the job's base model here, a language model in transformers' layout; what is to be read of it whoever calls
    /// knows. With its weights, or without: its shape and its tokenizer alone.
    ///
    /// # Errors
    /// What is wrong with `model.base`, or with this node.
    pub(crate) async fn bring_language_model(
        &self,
        with_weights: bool,
    ) -> Result<LanguageModelFiles, base_model::Error> {
        let bringing = BringLanguageModel {
            spec: &self.assignment.spec,
            with_weights,
            access: &self.context.access,
            sources: &self.context.models,
            fingerprints: &self.context.fingerprints,
            journal: &self.journal,
        };
        bringing.run().await
    }
}

/// Work before its preparation.
pub(crate) trait Task: Send + 'static {
    /// The prepared work.
    type Work: Work;

    /// Prepares everything that a rank does alone before it is ready. Dropped half-way when the rank has to end.
    ///
    /// # Errors
    /// The problem of the job or this node, with the job's field or the file.
    fn prepare(self, rank: &Rank) -> impl Future<Output = Result<Self::Work, Error>> + Send;
}

/// How a rank leaves an intact ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Done.
    Done,
    /// A newer ring of the job is wanted; all ranks know it since the same step.
    ToChange,
    /// One of them is asked to end with what it has, so the order is on its way to all; they know it since the same step.
    ToEnd,
}

/// Work of one kind that is prepared. It outlives the rings that it is lent.
pub(crate) trait Work: Send + 'static {
    /// Inputs on which all ranks must agree, besides the coordinator's: names for people, and hashes.
    fn common(&self) -> Vec<(&'static str, ContentHash)>;

    /// Bytes that a step brings to the ring, about: what is much may be worth more than one connection.
    fn step_bytes(&self) -> u64 {
        0
    }

    /// The last step that is settled. A step that was dropped half-way is forgotten, or taken to its end where it changes
    /// what cannot be changed back.
    ///
    /// # Errors
    /// Taking it to its end failed.
    fn last_step(&mut self) -> impl Future<Output = Result<u64, Error>> + Send;

    /// That step, and the hash of the state after it.
    ///
    /// # Errors
    /// The state cannot be read.
    fn standing(&mut self) -> impl Future<Output = Result<Standing, Error>> + Send;

    /// If the ranks shard the state: brings this rank's shard in the ring that it enters, together with all
    /// others.
    ///
    /// # Errors
    /// The ring's; parts that are lost.
    fn assemble(
        &mut self,
        _rank: &Rank,
        _ring: &mut RankRing,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        async { Ok(()) }
    }

    /// The state that the standing is about, for a rank that is behind.
    fn state(&self) -> RankState;

    /// Bytes that the encoding of a state of this work may have.
    fn most_state_bytes(&self) -> u64 {
        self.state().most_bytes()
    }

    /// Goes on from another rank's state, that after `step`. `reports`: of the steps on the way to it that this rank did not do.
    fn restore(
        &mut self,
        state: TakenState,
        step: u64,
        reports: Vec<StepSummary>,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// The steps done that may not be stored yet, in their order.
    fn unstored(&self) -> Vec<StepSummary>;

    /// Tells the reports that came with a state that was restored, and keeps them for whoever asks for them later. Dropped half-way,
    /// it goes on when it is called again.
    fn tell_reports(&mut self, rank: &Rank) -> impl Future<Output = Result<(), Error>> + Send;

    /// Takes over what changed in the job's own orders, with which the next step is taken.
    ///
    /// # Errors
    /// It cannot be.
    fn amend(&mut self, _rank: &Rank) -> Result<(), Error> {
        Ok(())
    }

    /// Opens what is written while the work is done, unless it is open.
    fn begin(&mut self, rank: &Rank, orders: &Orders) -> impl Future<Output = Result<(), Error>> + Send;

    /// Does the work in this ring until it is done, or until all ranks are to go on in another ring. It may be given up at
    /// any time: [`Error::Stopped`] when the rank is to end, and an [`Error::Ring`] when the ring broke or was replaced.
    fn run(
        &mut self,
        rank: &Rank,
        ring: &mut LentRing,
        orders: &mut Orders,
    ) -> impl Future<Output = Result<Left, Error>> + Send;

    /// The log line at its end.
    fn done(&self) -> &'static str;

    /// Writes what is left to write, and waits until all files are at the coordinator. Dropped in the middle when
    /// they are not to be kept any longer.
    ///
    /// `can_go_on`: it ended before it was done, and not by the job's own fault.
    fn finish(&mut self, rank: &Rank, can_go_on: bool) -> impl Future<Output = Result<(), Error>> + Send;

    /// Keeps what the job can go on from, of a rank that is asked to end while it has no ring: nobody knows whether
    /// rank 0 still can.
    fn keep_state(&mut self, rank: &Rank, orders: &Orders) -> impl Future<Output = Result<(), Error>> + Send;
}
