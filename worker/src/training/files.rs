//! What rank 0 leaves of any training: the metrics, the pictures, the checkpoints, the job as it was run, the log, and
//! what the trainee writes. A file that does not read back as it was written fails the job and is not uploaded.

use std::{
    collections::VecDeque,
    future,
    path::{Path, PathBuf},
    time::Duration,
};

use ringtune_shared::{
    checkpoint::step_of_name,
    ids::ContentHash,
    job::{JobSpec, OrdersSpec},
};
use ringtune_traces::Open;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::{
    checkpoints::Checkpoints,
    history::{self, History, KeptPicture},
    recovery::Recovery,
    trainee::{Sampled, Shown, StepJudged, Trainee},
};
use crate::{
    contents::Uploads,
    engine::RgbImage,
    fault::Refusal,
    journal::LOG_FILE,
    output::{self, EventFile, MetricsCsv, metrics_csv, picture, tensorboard::EventPicture, texts},
    rank::{Error, JOB_FILE, Rank, write_job_file},
    rank_state::RankState,
    session::{Assignment, StepSummary},
};

/// Steps that the last word about speed is of, as in Composer's SpeedMonitor.
const SPEED_STEPS: usize = 100;

/// How long a new rank 0 waits for the coordinator to say which checkpoints are kept.
const LIST_LIMIT: Duration = Duration::from_secs(10);

/// Rank 0's files of one job.
#[derive(Debug)]
pub(super) struct TrainingFiles {
    folder: PathBuf,
    csv: Option<MetricsCsv>,
    events: Option<EventFile>,
    /// Of a job whose first steps were another rank's, or of another ring: in the place of the two.
    history: Option<History>,
    uploads: Option<Uploads>,
    checkpoints: Checkpoints,
    recovery: Recovery,
    last: StepJudged,
    /// What the last steps took, in seconds.
    took: VecDeque<f64>,
}

impl TrainingFiles {
    /// Begins the files in the rank's folder, after the step that it stands at.
    pub(super) async fn create<T: Trainee>(
        rank: &Rank,
        trainee: &T,
        step: u64,
        state: Option<ContentHash>,
        uploads: Uploads,
    ) -> Result<Self, Error> {
        let course = trainee.course();
        let (place, spec, tensorboard) =
            (rank.folder.clone(), rank.assignment.spec.clone(), course.tensorboard);
        let (csv, events, history) = if rank.is_in_first_ring() {
            let begin = move || begin(&place, &spec, tensorboard.then_some(step + 1));
            let (csv, events) = ringtune_shared::tasks::spawn_blocking(begin).await??;
            (Some(csv), events, None)
        } else {
            ringtune_shared::tasks::spawn_blocking(move || write_job_file(&place, &spec)).await??;
            (None, None, Some(History::new(tensorboard)))
        };
        Ok(Self {
            folder: rank.folder.clone(),
            csv,
            events,
            history,
            recovery: Recovery::new(rank, uploads.client(), uploads.orders()),
            uploads: Some(uploads),
            checkpoints: Checkpoints::new(rank, course, trainee.origin()),
            last: StepJudged { step, validation_loss: trainee.selection().loss_after(step), state },
            took: VecDeque::new(),
        })
    }

    /// Finds out which checkpoints the rank 0 before this one has kept. A coordinator that is away holds nothing up:
    /// then those stay that are too many.
    pub(super) async fn take_over(&mut self, rank: &Rank) {
        let listing = timeout(LIST_LIMIT, rank.context.artifacts.list(rank.life.job)).await;
        match listing {
            Ok(Ok(kept)) => {
                self.checkpoints.take_over(kept.keys().filter_map(|name| step_of_name(name)).collect());
            }
            Ok(Err(error)) => {
                rank.journal.warn(format!("which checkpoints are kept is not known: {error}")).await;
            }
            Err(_) => {
                let limit = LIST_LIMIT.as_secs();
                let text = format!("which checkpoints are kept is not known: no answer within {limit} s");
                rank.journal.warn(text).await;
            }
        }
    }

    /// Keeps the state after `step`, unless it is kept already, whether or not the job wants checkpoints. `pending`: the
    /// step's report is not stored yet.
    pub(super) async fn keep_state(
        &mut self,
        step: u64,
        state: RankState,
        pending: bool,
    ) -> Result<(), Error> {
        if self.checkpoints.is_behind(step) {
            self.save_checkpoint(step, state, pending, None).await?;
        }
        self.written().await
    }

    /// Waits for the checkpoint that is being written, if there is one.
    async fn written(&mut self) -> Result<(), Error> {
        match &mut self.uploads {
            Some(uploads) => self.checkpoints.written(&mut uploads.queue).await,
            None => Ok(()),
        }
    }

    /// Waits until what was sent on its way is at the coordinator.
    pub(super) async fn uploaded(&mut self) -> Result<(), Error> {
        match self.uploads.take() {
            Some(uploads) => Ok(uploads.finish().await?),
            None => Ok(()),
        }
    }

    /// Adds a step to metrics.csv and to TensorBoard's events: one short line and record, handed to the system at
    /// once.
    pub(super) fn record(&mut self, step: &StepSummary) -> Result<(), Error> {
        self.last = StepJudged { step: step.step, validation_loss: step.validation_loss, state: step.state };
        self.took.push_back(step.step_seconds);
        if self.took.len() > SPEED_STEPS {
            self.took.pop_front();
        }
        let metrics = history::metrics_of(step);
        if let Some(csv) = &mut self.csv {
            csv.append(&metrics)?;
        }
        if let Some(events) = &mut self.events {
            events.append_step(&metrics)?;
        }
        Ok(())
    }

    /// Writes what is learned after the last recorded step and sends it on its way.
    pub(super) async fn save_step<T: Trainee>(
        &mut self,
        trainee: &T,
        learned: &T::Learned,
    ) -> Result<(), Error> {
        for name in trainee.write_step(&self.folder, self.last, learned).await? {
            if let Some(uploads) = &mut self.uploads {
                uploads.queue.push(self.folder.join(name)).await;
            }
        }
        Ok(())
    }

    /// Whether the state after `step` is to be kept with [`Self::save_checkpoint`].
    pub(super) fn checkpoint_is_due(&self, step: u64) -> bool {
        self.checkpoints.due(step)
    }

    /// Begins to keep the state as it is after `step`. `pending`: the step's report is not stored yet. `span`: ends when the
    /// file is there.
    pub(super) async fn save_checkpoint(
        &mut self,
        step: u64,
        state: RankState,
        pending: bool,
        span: Option<Open>,
    ) -> Result<(), Error> {
        match &mut self.uploads {
            Some(uploads) => self.checkpoints.begin(step, state, pending, span, &mut uploads.queue).await,
            None => Ok(()),
        }
    }

    /// Whether it is time to keep the state for the loss of the whole ring.
    pub(super) fn recovery_is_due(&self) -> bool {
        self.recovery.is_due()
    }

    /// The job is another by its orders.
    pub(super) fn amend(&mut self, spec: &JobSpec) {
        self.checkpoints.amend(spec);
    }

    /// Begins to keep the state after `step` for the loss of the whole ring, where it is time and no checkpoint has it.
    pub(super) async fn keep_recovery_point(&mut self, step: u64, state: &RankState, pending: bool) {
        if self.recovery.is_due() && self.checkpoints.is_behind(step) {
            self.recovery.begin(self.checkpoints.about(step), state.clone(), pending).await;
        }
    }

    /// Writes what was ordered after a step and sends it on its way.
    pub(super) async fn save_sample(
        &mut self,
        (order, step): (u64, u64),
        sampled: Sampled,
    ) -> Result<(), Error> {
        let folder = self.folder.clone();
        let write = move || -> Result<Vec<PathBuf>, output::Error> {
            match sampled {
                Sampled::Text(text) => {
                    let file = folder.join(texts::file_name_of_order(order, step));
                    texts::write_text(&file, &text)?;
                    Ok(vec![file])
                }
                Sampled::Pictures(drawn) => {
                    let mut files = Vec::new();
                    for (number, picture) in drawn.pictures.iter().enumerate() {
                        let Some(picture) = picture else { continue };
                        let file = folder.join(picture::file_name_of_order(order, step, number));
                        picture::write(&file, picture)?;
                        files.push(file);
                    }
                    Ok(files)
                }
            }
        };
        let written = ringtune_shared::tasks::spawn_blocking(write).await??;
        if let Some(uploads) = &mut self.uploads {
            for file in written {
                uploads.queue.push(file).await;
            }
        }
        Ok(())
    }

    /// Writes pictures and sends them on their way. One that is missing was told already.
    pub(super) async fn save_previews(
        &mut self,
        of: Shown,
        pictures: Vec<Option<RgbImage>>,
    ) -> Result<(), Error> {
        let mut shown = Vec::new();
        for (number, picture) in pictures.into_iter().enumerate() {
            let Some(picture) = picture else { continue };
            let (name, label) = match of {
                Shown::Step(step) => (picture::file_name_at(step, number), number.to_string()),
                Shown::Best(_) => (picture::file_name_of_best(number), format!("best/{number}")),
            };
            let file = self.folder.join(name);
            let (height, width, path) = (picture.height, picture.width, file.clone());
            let png =
                ringtune_shared::tasks::spawn_blocking(move || picture::write(&path, &picture)).await??;
            match &mut self.history {
                Some(history) => {
                    history.show(KeptPicture { step: of.step(), label, height, width, file: file.clone() })
                }
                None => shown.push(EventPicture { label, height, width, png }),
            }
            if let Some(uploads) = &mut self.uploads {
                uploads.queue.push(file).await;
            }
        }
        let Some(mut events) = self.events.take() else { return Ok(()) };
        let step = of.step();
        let append = move || events.append_pictures(step, shown).map(|()| events);
        self.events = Some(ringtune_shared::tasks::spawn_blocking(append).await??);
        Ok(())
    }

    /// Writes what is left to write, and waits until everything that reads back is at the coordinator. `state`: of a job
    /// that ended before its last step and can go on. `unstored`: the steps that the coordinator may not have, in their
    /// order.
    pub(super) async fn finish<T: Trainee>(
        &mut self,
        rank: &Rank,
        trainee: &T,
        learned: Option<T::Learned>,
        state: Option<RankState>,
        unstored: &[StepSummary],
    ) -> Result<(), Error> {
        if let Some(said) = speed(&self.took, rank.assignment.spec.pictures_per_step()) {
            rank.journal.info(said).await;
        }
        let (step, mut recovery) = (self.last.step, None);
        let pending = unstored.iter().any(|one| one.step == step);
        let mut kept = self.written().await;
        match state {
            Some(state) if self.checkpoints.lacks(step) => {
                let last = match self.save_checkpoint(step, state, pending, None).await {
                    Ok(()) => self.written().await,
                    Err(error) => Err(error),
                };
                kept = kept.and(last);
            }
            state => recovery = state.filter(|_| self.checkpoints.is_behind(step)),
        }
        if rank.assignment.spec.common.orders != OrdersSpec::default() {
            // As it became.
            let (folder, spec) = (self.folder.clone(), rank.assignment.spec.clone());
            ringtune_shared::tasks::spawn_blocking(move || write_job_file(&folder, &spec)).await??;
        }
        let mut names = vec![JOB_FILE.to_owned()];
        let mut written = self.close(&mut names).await;
        if let (Ok(()), Some(history)) = (&written, self.history.take()) {
            written = history.write(rank, unstored, &mut names).await;
        }
        if let (Ok(()), Some(learned)) = (&written, learned) {
            written = trainee.write_results(&self.folder, self.last, learned, &mut names).await;
        }
        if let Some(uploads) = self.uploads.take() {
            let mut uploads = uploads.for_the_last_files();
            for name in names {
                uploads.queue.push(self.folder.join(name)).await;
            }
            // Last, so that it says how the uploads went.
            uploads.queue.push(self.folder.join(LOG_FILE)).await;
            uploads.finish().await?;
        }
        // A job that wants no checkpoints may yet be queued again.
        if let Some(state) = recovery {
            self.recovery.keep_now(self.checkpoints.about(step), state, pending).await;
        }
        written.and(kept)
    }

    /// Why a checkpoint could not be written, or nothing more gets to the coordinator. Never ends while all goes well. What is
    /// written meanwhile is sent on its way.
    pub(super) async fn failure(&mut self) -> Error {
        let Some(Uploads { queue, task, .. }) = &mut self.uploads else { return future::pending().await };
        let written = async {
            match self.checkpoints.written(queue).await {
                Err(error) => error,
                Ok(()) => future::pending().await,
            }
        };
        tokio::select! {
            error = task.failure() => error.into(),
            error = written => error,
        }
    }

    /// Ends the files that grew with every step, and adds their names.
    async fn close(&mut self, names: &mut Vec<String>) -> Result<(), Error> {
        if let Some(csv) = self.csv.take() {
            ringtune_shared::tasks::spawn_blocking(move || csv.finish()).await??;
            names.push(metrics_csv::FILE_NAME.to_owned());
        }
        if let Some(events) = self.events.take() {
            names.push(ringtune_shared::tasks::spawn_blocking(move || events.finish()).await??);
        }
        Ok(())
    }
}

/// Why rank 0's files are not written, or no longer get to the coordinator. Never ends while they are and do.
pub(super) async fn failure_of(files: &mut Option<TrainingFiles>) -> Error {
    match files {
        Some(files) => files.failure().await,
        None => future::pending().await,
    }
}

/// Writes the job file and begins those that grow with every step. `events_from`: the first step, where events are wanted.
/// Blocks.
fn begin(
    folder: &Path,
    spec: &JobSpec,
    events_from: Option<u64>,
) -> Result<(MetricsCsv, Option<EventFile>), Error> {
    write_job_file(folder, spec)?;
    let csv = MetricsCsv::create(&folder.join(metrics_csv::FILE_NAME))?;
    let events = events_from.map(|first| EventFile::create(folder, first)).transpose()?;
    Ok((csv, events))
}

/// How fast the last steps were, each of so many samples. None: there were none, or they have no samples to count.
fn speed(took: &VecDeque<f64>, samples: Option<u64>) -> Option<String> {
    let (steps, seconds) = (took.len(), took.iter().sum::<f64>());
    let samples = samples.filter(|_| seconds > 0.0)? as f64 * steps as f64;
    Some(format!("{:.3} images/s over the last {steps} steps", samples / seconds))
}

/// The job as far as it decides the learned bits, with what it is computed in. `sections`: those that do not, as where something lies;
/// `options`: those of section `of` that do not.
///
/// # Errors
/// None but the writer's.
pub(crate) fn deciding_job(
    assignment: &Assignment,
    sections: &[&str],
    of: &str,
    options: &[&str],
) -> Result<Map<String, Value>, Error> {
    let refused = |problem: String| Refusal::of(JOB_FILE, problem);
    let job = serde_json::to_value(&assignment.spec).map_err(|error| refused(error.to_string()))?;
    let Value::Object(mut job) = job else { return Err(refused("it is no object".to_owned()).into()) };
    sections.iter().chain(&["output"]).for_each(|section| drop(job.remove(*section)));
    if let Some(Value::Object(section)) = job.get_mut(of) {
        options.iter().for_each(|option| drop(section.remove(*option)));
    }
    job.insert("precision".to_owned(), Value::from(assignment.precision.name()));
    Ok(job)
}

/// Has the job in files say the orders that it has now.
pub(crate) fn say_orders(job: &mut Value, orders: &OrdersSpec) {
    // A spec is plain data: it can always be written.
    if let (Value::Object(job), Ok(orders)) = (job, serde_json::to_value(orders)) {
        job.insert("orders".to_owned(), orders);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_is_said_where_samples_can_be_counted() {
        let took = VecDeque::from([0.5, 1.5]);
        assert_eq!(speed(&took, Some(8)).unwrap(), "8.000 images/s over the last 2 steps");
        assert_eq!((speed(&took, None), speed(&VecDeque::new(), Some(8))), (None, None));
    }
}
