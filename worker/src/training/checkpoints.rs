//! The checkpoints that rank 0 keeps while it trains. They are written while the next steps are computed, one at a time.

use std::{collections::VecDeque, path::PathBuf};

use ringtune_shared::{
    checkpoint::{About, deciding_options, file_name},
    job::JobSpec,
};

use ringtune_traces::Open;

use super::{
    resume::numerics,
    trainee::{Course, Origin},
    writing::{StateFile, Writing},
};
use crate::{
    contents::UploadQueue,
    rank::{Error, Rank},
    rank_state::RankState,
};

/// Which steps of a job are kept, and those that are.
#[derive(Debug)]
pub(super) struct Checkpoints {
    folder: PathBuf,
    /// Of every checkpoint, but for its step and the options that have decided something by then.
    about: About,
    spec: JobSpec,
    /// train.checkpointing_steps; 0: none.
    every: u64,
    /// train.checkpoints_total_limit; 0: all.
    limit: usize,
    /// Steps, the oldest first.
    kept: VecDeque<u64>,
    /// The one that is being written.
    begun: Option<Begun>,
}

/// A checkpoint that is not sent on its way yet.
#[derive(Debug)]
struct Begun {
    step: u64,
    /// The step's report is not stored yet, and goes first.
    pending: bool,
    /// None: it is on the disk.
    writing: Option<Writing>,
}

impl Checkpoints {
    pub(super) fn new(rank: &Rank, course: &Course, origin: &Origin) -> Self {
        let spec = &rank.assignment.spec;
        let about = About {
            step: course.done,
            version: rank.assignment.version.clone(),
            model_hash: origin.model_hash.to_string(),
            data_hash: origin.data_hash.to_string(),
            options: deciding_options(spec, course.done),
            numerics: numerics(&rank.assignment),
            provenance: origin.provenance.clone(),
        };
        let limit = usize::try_from(spec.checkpoints_total_limit()).unwrap_or(usize::MAX);
        let (every, kept, begun) = (course.checkpointing_steps, VecDeque::new(), None);
        Self { folder: rank.folder.clone(), about, spec: spec.clone(), every, limit, kept, begun }
    }

    /// The job is another by its orders.
    pub(super) fn amend(&mut self, spec: &JobSpec) {
        self.spec = spec.clone();
    }

    /// Whether the state after `step` is to be kept.
    pub(super) fn due(&self, step: u64) -> bool {
        self.every > 0 && step.is_multiple_of(self.every)
    }

    /// Whether a job that stops after `step` has something that is kept nowhere yet, and wants it kept.
    pub(super) fn lacks(&self, step: u64) -> bool {
        self.every > 0 && self.is_behind(step)
    }

    /// Whether what was done up to `step` is kept nowhere yet.
    pub(super) fn is_behind(&self, step: u64) -> bool {
        step > self.newest().unwrap_or(self.about.step)
    }

    /// What a checkpoint of the state after `step` says of it.
    pub(super) fn about(&self, step: u64) -> About {
        About { step, options: deciding_options(&self.spec, step), ..self.about.clone() }
    }

    /// Another rank kept those of these steps.
    pub(super) fn take_over(&mut self, mut steps: Vec<u64>) {
        steps.sort_unstable();
        self.kept = steps.into();
    }

    /// The newest one, also if it is still being written.
    fn newest(&self) -> Option<u64> {
        self.begun.as_ref().map(|begun| begun.step).or(self.kept.back().copied())
    }

    /// Begins to write the state after `step`, when the one before is there. `pending`: the step's report is not stored yet,
    /// and goes first. `span`: lasts as long as that takes.
    ///
    /// # Errors
    /// Of the one before, see [`Checkpoints::written`]; whoever has the state does not give it.
    pub(super) async fn begin(
        &mut self,
        step: u64,
        state: RankState,
        pending: bool,
        span: Option<Open>,
        uploads: &mut UploadQueue,
    ) -> Result<(), Error> {
        self.written(uploads).await?;
        // Also where the rank 0 before this one was a step ahead: a newer one is not to give way to an older one.
        if self.newest().is_some_and(|newest| newest >= step) {
            return Ok(());
        }
        let file = StateFile { path: self.folder.join(file_name(step)), about: self.about(step), span };
        let writing = Some(Writing::begin(file, state).await?);
        self.begun = Some(Begun { step, pending, writing });
        Ok(())
    }

    /// Waits for the one that is being written, sends it on its way, and lets those go that are too many. They go after the
    /// new one is there. May be dropped at any time, and asked again.
    ///
    /// # Errors
    /// It could not be written, or does not read back: then it is not there.
    pub(super) async fn written(&mut self, uploads: &mut UploadQueue) -> Result<(), Error> {
        if let Some(Begun { step, pending, writing }) = &mut self.begun {
            let (step, pending) = (*step, *pending);
            if let Some(file) = writing {
                let outcome = file.outcome().await;
                *writing = None;
                if let Err(error) = outcome {
                    self.begun = None;
                    return Err(error);
                }
            }
            uploads.push_after(self.folder.join(file_name(step)), pending.then_some(step)).await;
            self.begun = None;
            self.kept.push_back(step);
        }
        while self.limit > 0 && self.kept.len() > self.limit {
            let Some(oldest) = self.kept.front() else { break };
            uploads.delete(self.folder.join(file_name(*oldest))).await;
            self.kept.pop_front();
        }
        Ok(())
    }
}
