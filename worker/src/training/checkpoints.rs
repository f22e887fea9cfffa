//! The checkpoints that rank 0 keeps while it trains.

use std::{collections::VecDeque, path::PathBuf};

use ringtune_shared::{
    checkpoint::{About, deciding_options, file_name},
    job::JobSpec,
};

use super::{
    resume::numerics,
    trainee::{Course, Origin},
};
use crate::{
    contents::UploadQueue,
    output,
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
        let limit = usize::try_from(course.checkpoints_total_limit).unwrap_or(usize::MAX);
        let (every, kept) = (course.checkpointing_steps, VecDeque::new());
        Self { folder: rank.folder.clone(), about, spec: spec.clone(), every, limit, kept }
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
        step > self.kept.back().copied().unwrap_or(self.about.step)
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

    /// Writes the state after `step`, sends it on its way, and lets those go that are too many. They go after the new
    /// one is there. `pending`: the step's report is not stored yet, and goes first.
    pub(super) async fn save(
        &mut self,
        step: u64,
        state: RankState,
        pending: bool,
        uploads: &mut UploadQueue,
    ) -> Result<(), Error> {
        // Also where the rank 0 before this one was a step ahead: a newer one is not to give way to an older one.
        if self.kept.back().is_some_and(|newest| *newest >= step) {
            return Ok(());
        }
        let about = self.about(step);
        let file = self.folder.join(file_name(step));
        let written = file.clone();
        ringtune_shared::tasks::spawn_blocking(move || {
            output::checkpoint::write(&written, &about, state.numbers(), &state)
        })
        .await??;
        uploads.push_after(file, pending.then_some(step)).await;
        self.kept.push_back(step);
        while self.limit > 0 && self.kept.len() > self.limit {
            let Some(oldest) = self.kept.pop_front() else { break };
            uploads.delete(self.folder.join(file_name(oldest))).await;
        }
        Ok(())
    }
}
