//! What is trained, as the loop sees it.

use std::{future::Future, path::Path};

use ringtune_shared::{ids::ContentHash, job::ReportTo};

use crate::{
    engine::RgbImage,
    output::texts::MadeText,
    rank::{Error, Rank},
    rank_state::{RankState, TakenState},
    ring::RankRing,
    session::{Assignment, StepSummary},
    train::Selection,
};

/// How far training goes, and what is kept on the way. Fixed when it is prepared.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    /// Steps that a checkpoint has done already.
    pub(crate) done: u64,
    /// The last step.
    pub(crate) total: u64,
    /// After every so many steps what is learned is saved; 0: only at the end.
    pub(crate) save_steps: u64,
    /// After every so many steps the whole state is kept; 0: never.
    pub(crate) checkpointing_steps: u64,
    /// Events for TensorBoard are written.
    pub(crate) tensorboard: bool,
    /// The steps were done before, and are only computed again, up to this one. No file is made.
    pub(crate) proof: Option<u64>,
}

impl Course {
    /// Of a job that saves nothing on the way but its checkpoints.
    pub(crate) fn new(job: &Assignment, done: u64, checkpointing_steps: u64, report_to: ReportTo) -> Self {
        let (total, tensorboard) = (job.spec.total_steps(), report_to == ReportTo::Tensorboard);
        Self { done, total, save_steps: 0, checkpointing_steps, tensorboard, proof: job.proof }
    }

    /// Whether what is learned is saved after `step`, which is not the last.
    pub(super) fn saves_after(&self, step: u64) -> bool {
        self.save_steps > 0 && step.is_multiple_of(self.save_steps) && step < self.total
    }

    /// "training: 9 steps", or from where.
    pub(super) fn plan(&self, done: u64) -> String {
        if let Some(last) = self.proof {
            return format!("computing steps {} to {last} again; no file is made", done + 1);
        }
        let total = self.total;
        match done {
            0 => format!("training: {total} steps"),
            _ => format!("resumed after step {done}; training: steps {} to {total}", done + 1),
        }
    }
}

/// What the bits of a training follow from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// The base model, by content.
    pub(crate) model_hash: ContentHash,
    /// All that it learns from, by content.
    pub(crate) data_hash: ContentHash,
    /// What that is, for people, and the key of the job file that names it.
    pub(crate) data: Named,
    /// What the job's files say of the numerics of all steps, those to come included.
    pub(crate) provenance: String,
}

/// A thing that a job file names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// "set of pictures (data.images)".
    pub(crate) what: &'static str,
    /// "data.images".
    pub(crate) key: &'static str,
}

/// A step, and the loss that was taken after it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepJudged {
    pub(crate) step: u64,
    pub(crate) validation_loss: Option<f32>,
    /// The hash of the state after it.
    pub(crate) state: Option<ContentHash>,
}

/// Of which state pictures are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// As it was after this step.
    Step(u64),
    /// The best one, of this step, which is not the last.
    Best(u64),
}

impl Shown {
    /// The step of that state.
    pub(super) fn step(self) -> u64 {
        let (Self::Step(step) | Self::Best(step)) = self;
        step
    }
}

/// What became of one round of pictures.
#[derive(Debug)]
pub(crate) struct Previews {
    /// In order of their numbers; on other ranks than 0 empty. None: it could not be drawn.
    pub(crate) pictures: Vec<Option<RgbImage>>,
    /// Why this rank could not draw some, unless it was told before.
    pub(crate) failures: Vec<String>,
    /// From the first to the last.
    pub(crate) seconds: f64,
}

/// What was made of a prompt that somebody ordered.
#[derive(Debug)]
pub(crate) enum Sampled {
    /// By all ranks together.
    Pictures(Previews),
    /// By rank 0.
    Text(MadeText),
}

/// What a call that was dropped half-way came to all the same.
#[derive(Debug)]
pub(crate) enum Recovered {
    /// A step.
    Step(StepSummary),
    /// Another rank's state, that after this step.
    State(u64),
}

/// What is trained. It outlives its rings, which it is lent for each thing that the ranks do together, always all of
/// them and in the same order. A call that is dropped half-way leaves the state of the step before; but see
/// [`Trainee::IN_PLACE`].
pub(crate) trait Trainee: StateTogether {
    /// A step changes what is too large to be kept twice, and so does another rank's state that is restored: once that has begun, it
    /// is taken to its end whatever happens to its ring. A step is settled before anything is found out after it. So what a validation says of a step belongs to the
    /// state of the next one; whoever enters a ring at a step that is validated takes that loss again.
    const IN_PLACE: bool;

    /// What files and pictures are made from. Cheap to clone: weights are shared, or stay with the engine.
    type Learned: Clone + Send + Sync + 'static;

    /// How far it goes.
    fn course(&self) -> &Course;

    /// What its bits follow from.
    fn origin(&self) -> &Origin;

    /// Does what is to be done together before the first step in a ring; what a former ring did is not done again.
    fn enter(&mut self, rank: &Rank, ring: &mut RankRing) -> impl Future<Output = Result<(), Error>> + Send;

    /// Takes step `step`, from 1.
    fn step(
        &mut self,
        step: u64,
        ring: &mut RankRing,
    ) -> impl Future<Output = Result<StepSummary, Error>> + Send;

    /// Whether the loss on held-out samples is to be taken after `step`.
    fn is_validated_after(&self, step: u64) -> bool;

    /// Gets ready for that together, and gives how many held-out microbatches there are.
    fn hold_out(&mut self, ring: &mut RankRing) -> impl Future<Output = Result<u32, Error>> + Send;

    /// The loss of held-out microbatch `microbatch` of so many: the same bits on each rank.
    fn held_out_loss(
        &mut self,
        microbatch: u32,
        count: u32,
    ) -> impl Future<Output = Result<f32, Error>> + Send;

    /// Takes in the mean of those losses, with what is learned as it is after `step`; whether it is the lowest so far. Of one step it
    /// may come again, after a ring was lost.
    fn take_in(&mut self, step: u64, loss: f32) -> bool;

    /// Whether pictures are to be drawn after `step`, if the job wants any at all.
    fn is_shown_after(&self, step: u64) -> bool;

    /// Draws pictures of the last step's state, or of the best one. None where the job wants none.
    fn draw(
        &mut self,
        shown: Shown,
        learned: &Self::Learned,
        ring: &mut RankRing,
    ) -> impl Future<Output = Result<Option<Previews>, Error>> + Send;

    /// Shows with a prompt what the last step's state has learned. None: another rank has it.
    ///
    /// # Errors
    /// The ring's; a prompt of which nothing can be made.
    fn sample(
        &mut self,
        prompt: &str,
        ring: &mut RankRing,
    ) -> impl Future<Output = Result<Option<Sampled>, Error>> + Send;

    /// Goes on by the orders that the job has now: with other learning rates, or to another last step.
    ///
    /// # Errors
    /// The job cannot be so.
    fn amend(&mut self, job: &Assignment) -> Result<(), Error>;

    /// All of the last step is found out: it will be kept.
    fn settle(&mut self);

    /// Forgets a step that was taken and not settled; in place, takes to its end what has begun to change something, and gives it.
    ///
    /// # Errors
    /// It could not be.
    fn recover(&mut self) -> impl Future<Output = Result<Option<Recovered>, Error>> + Send;

    /// Goes on from a state that [`Self::state`] gave to another rank of the job, that after `step`.
    ///
    /// # Errors
    /// It is the state of something else.
    fn restore(&mut self, state: TakenState, step: u64) -> impl Future<Output = Result<(), Error>> + Send;

    /// What the validations so far say.
    fn selection(&self) -> &Selection;

    /// What is learned after the last finished step.
    fn learned(&self) -> Self::Learned;

    /// The step of the best state, where the job's result is that one.
    fn best_step(learned: &Self::Learned) -> Option<u64>;

    /// All that the steps after the last settled one depend on.
    fn state(&self) -> RankState;

    /// Bytes that the encoding of a state of this job has at most.
    fn most_state_bytes(&self) -> u64;

    /// Bytes that a step brings to the ring, about.
    fn step_bytes(&self) -> u64 {
        0
    }

    /// Whether the state after `step` is hashed, for reports and comparisons.
    fn is_hashed_after(&self, step: u64) -> bool;

    /// Writes what is learned into `folder`. Gives the files' names.
    fn write_step(
        &self,
        folder: &Path,
        judged: StepJudged,
        learned: &Self::Learned,
    ) -> impl Future<Output = Result<Vec<String>, Error>> + Send;

    /// Writes the job's results into `folder`, and adds the names of the files that are good to `names`. `last`: the last
    /// step.
    fn write_results(
        &self,
        folder: &Path,
        last: StepJudged,
        learned: Self::Learned,
        names: &mut Vec<String>,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

/// What the ranks want besides the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wish {
    /// Nothing.
    #[default]
    Nothing,
    /// Rank 0 wants to keep the state.
    State,
    /// The job is to end, and its state to be kept.
    End,
}

/// Where the whole of a state is wanted that the ranks have together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collect {
    /// On this rank, and perhaps on others.
    Here,
    /// On others alone.
    Elsewhere,
    /// On all ranks: their ring ends, and who is in the next one is not known.
    Everywhere,
}

/// A trainee whose ranks may have parts of its state together. Of one whose ranks each have all of it nothing here says or does anything.
pub(crate) trait StateTogether: Send + Sync + 'static {
    /// Whether the ranks have parts of the state together: then no rank's own is all of it.
    fn is_shared(&self) -> bool {
        false
    }

    /// Where they do: brings what falls to this rank of the ring that it enters, after `step`, its last one. Gives a step that it could
    /// take to its end only now.
    ///
    /// # Errors
    /// The ring's; parts that are lost.
    fn assemble(
        &mut self,
        _step: u64,
        _ring: &mut RankRing,
    ) -> impl Future<Output = Result<Option<StepSummary>, Error>> + Send {
        async { Ok(None) }
    }

    /// Where they do: brings all parts of the last step's state together, see [`StateTogether::whole_state`].
    ///
    /// # Errors
    /// The ring's, or the disk's.
    fn collect(
        &mut self,
        _wanted: Collect,
        _ring: &mut RankRing,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        async { Ok(()) }
    }

    /// Where they do: all that the steps after `step` depend on, the last settled one. None: it was not brought together here.
    fn whole_state(&self, _step: u64) -> Option<RankState> {
        None
    }

    /// What this rank tells the others with its next step, where they do.
    fn wish(&mut self, _wish: Wish) {}

    /// What any rank told with the last step.
    fn wished(&self) -> Wish {
        Wish::Nothing
    }
}
