//! What rank 0 leaves: the embedding and its model card, the metrics, the job as it was run, the log. A file that does
//! not read back as it was written fails the job and is not uploaded.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use ringtune_shared::{
    files::write_atomically,
    job::{
        JobSpec,
        kinds::textual_inversion::{ReportTo, TextualInversionSpec},
        parse_job_toml,
    },
};

use super::{
    RankError, checkpoints::Checkpoints, facts::facts, journal::LOG_FILE, prepare::Prepared, preview::Shown,
    uploads::Uploads,
};
use crate::{
    engine::RgbImage,
    output::{
        self, Concept, EmbeddingFacts, EventFile, Learned, MetricsCsv, StepMetrics, embeds, metrics_csv,
        model_card, picture,
        read_back::{check_text, different},
        tensorboard::{self, EventPicture},
    },
    session::{Assignment, StepSummary},
    train::{Best, SavedState},
};

/// The job file among the artifacts.
const JOB_FILE: &str = "job.toml";

/// Rank 0's files of one job.
#[derive(Debug)]
pub(super) struct JobFiles {
    folder: PathBuf,
    concepts: Arc<Vec<Concept>>,
    facts: Arc<EmbeddingFacts>,
    csv: Option<MetricsCsv>,
    events: Option<EventFile>,
    select_best: bool,
    uploads: Option<Uploads>,
    checkpoints: Checkpoints,
    last: StepJudged,
}

/// A step, and the loss that was taken after it.
#[derive(Clone, Copy, Debug, Default)]
struct StepJudged {
    step: u64,
    validation_loss: Option<f32>,
}

/// What is written at the end: the rows after the last step, and the best ones where they are the job's.
#[derive(Clone, Debug)]
pub(super) struct LearnedRows {
    /// [num_vectors, width] flat.
    pub(super) last: Arc<Vec<f32>>,
    /// Of the lowest validation loss.
    pub(super) best: Option<Best>,
}

/// What there is after the last recorded step.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// The learned rows, if there is anything learned.
    pub(super) rows: Option<LearnedRows>,
    /// The whole state, of a job that was stopped before its last step and can go on.
    pub(super) state: Option<SavedState>,
}

/// Writes one concept's file and reads it back. Blocks.
type Write = fn(&Path, &Learned<'_>, &EmbeddingFacts) -> Result<(), output::Error>;

/// Makes the empty folder that a rank writes in. What an earlier try left there goes. Blocks.
pub(super) fn make_work_folder(folder: &Path) -> Result<(), RankError> {
    let failed = |source| RankError::Io { path: folder.to_owned(), source };
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
        _ => fs::create_dir_all(folder).map_err(failed),
    }
}

impl JobFiles {
    /// Begins the files in `folder`, which is there.
    pub(super) async fn create(
        folder: &Path,
        assignment: &Assignment,
        job: &TextualInversionSpec,
        prepared: &Prepared,
        uploads: Uploads,
    ) -> Result<Self, RankError> {
        let (place, spec) = (folder.to_owned(), assignment.spec.clone());
        let (select_best, report_to) = (job.train.validation.select_best, job.train.report_to);
        let (csv, events) = tokio::task::spawn_blocking(move || begin(&place, &spec, report_to)).await??;
        let done = prepared.done.steps;
        Ok(Self {
            folder: folder.to_owned(),
            concepts: Arc::new(prepared.concepts.clone()),
            facts: Arc::new(facts(assignment, job, prepared)?),
            csv: Some(csv),
            events,
            select_best,
            uploads: Some(uploads),
            checkpoints: Checkpoints::new(folder.to_owned(), assignment, &job.train, prepared),
            last: StepJudged { step: done, validation_loss: prepared.state.selection().loss_after(done) },
        })
    }

    /// Adds a step to metrics.csv and to TensorBoard's events: one short line and record, handed to the system at
    /// once.
    pub(super) fn record(&mut self, step: &StepSummary) -> Result<(), RankError> {
        self.last = StepJudged { step: step.step, validation_loss: step.validation_loss };
        let metrics = StepMetrics {
            step: step.step,
            loss: step.loss,
            lr: step.learning_rate,
            step_seconds: step.step_seconds,
            compute_seconds: step.compute_seconds,
            exchange_seconds: step.exchange_seconds,
            wait_seconds: step.wait_seconds,
            validation_loss: step.validation_loss,
            validation_seconds: step.validation_seconds,
            preview_seconds: step.preview_seconds,
        };
        if let Some(csv) = &mut self.csv {
            csv.append(&metrics)?;
        }
        if let Some(events) = &mut self.events {
            events.append_step(&metrics)?;
        }
        Ok(())
    }

    /// Writes the embeddings as they are after `step` and sends them on their way.
    pub(super) async fn save_step(&mut self, step: u64, rows: Arc<Vec<f32>>) -> Result<(), RankError> {
        let judged =
            if self.last.step == step { self.last } else { StepJudged { step, validation_loss: None } };
        for (index, concept) in self.concepts.iter().enumerate() {
            let name = concept.files.at_step(step);
            self.write_concept(index, &name, embeds::write, judged, Arc::clone(&rows)).await?;
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

    /// Keeps the state as it is after `step`.
    pub(super) async fn save_checkpoint(&mut self, step: u64, state: SavedState) -> Result<(), RankError> {
        match &mut self.uploads {
            Some(uploads) => self.checkpoints.save(step, state, &mut uploads.queue).await,
            None => Ok(()),
        }
    }

    /// Writes pictures and sends them on their way. One that is missing was told already.
    pub(super) async fn save_previews(
        &mut self,
        of: Shown,
        pictures: Vec<Option<RgbImage>>,
    ) -> Result<(), RankError> {
        let mut shown = Vec::new();
        for (number, picture) in pictures.into_iter().enumerate() {
            let Some(picture) = picture else { continue };
            let (name, label) = match of {
                Shown::Step(step) => (picture::file_name_at(step, number), number.to_string()),
                Shown::Best(_) => (picture::file_name_of_best(number), format!("best/{number}")),
            };
            let file = self.folder.join(name);
            let (height, width, path) = (picture.height, picture.width, file.clone());
            let png = tokio::task::spawn_blocking(move || picture::write(&path, &picture)).await??;
            shown.push(EventPicture { label, height, width, png });
            if let Some(uploads) = &mut self.uploads {
                uploads.queue.push(file).await;
            }
        }
        let Some(mut events) = self.events.take() else { return Ok(()) };
        let (Shown::Step(step) | Shown::Best(step)) = of;
        let append = move || events.append_pictures(step, shown).map(|()| events);
        self.events = Some(tokio::task::spawn_blocking(append).await??);
        Ok(())
    }

    /// Writes what is left to write, and waits until everything that reads back is at the coordinator.
    pub(super) async fn finish(&mut self, left: Left) -> Result<(), RankError> {
        let mut names = Vec::new();
        let kept = match left.state {
            Some(state) if self.checkpoints.lacks(self.last.step) => {
                self.save_checkpoint(self.last.step, state).await
            }
            _ => Ok(()),
        };
        let written = self.write_results(left.rows, &mut names).await;
        if let Some(uploads) = self.uploads.take() {
            let mut uploads = uploads.for_the_last_files();
            for name in names {
                uploads.queue.push(self.folder.join(name)).await;
            }
            // Last, so that it says how the uploads went.
            uploads.queue.push(self.folder.join(LOG_FILE)).await;
            uploads.finish().await?;
        }
        written.and(kept)
    }

    /// Why nothing more gets to the coordinator. Never ends while it does.
    pub(super) async fn upload_failure(&mut self) -> RankError {
        match &mut self.uploads {
            Some(uploads) => uploads.task.failure().await,
            None => std::future::pending().await,
        }
    }

    /// Adds the names of the files that are good. What went wrong with another one does not keep them back.
    async fn write_results(
        &mut self,
        rows: Option<LearnedRows>,
        names: &mut Vec<String>,
    ) -> Result<(), RankError> {
        names.push(JOB_FILE.to_owned());
        if let Some(csv) = self.csv.take() {
            tokio::task::spawn_blocking(move || csv.finish()).await??;
            names.push(metrics_csv::FILE_NAME.to_owned());
        }
        if let Some(events) = self.events.take() {
            tokio::task::spawn_blocking(move || events.finish()).await??;
            names.push(tensorboard::FILE_NAME.to_owned());
        }
        let Some(LearnedRows { last, best }) = rows else { return Ok(()) };
        let (judged, rows) = match best {
            Some(Best { step, loss, rows }) => (StepJudged { step, validation_loss: Some(loss) }, rows),
            None => (self.last, Arc::clone(&last)),
        };
        for (index, concept) in self.concepts.iter().enumerate() {
            if self.select_best {
                let name = concept.files.last();
                self.write_concept(index, &name, embeds::write, self.last, Arc::clone(&last)).await?;
                names.push(name);
            }
            let files: [(String, Write); 2] = [
                (concept.files.diffusers(), embeds::write),
                (concept.files.emb_params(), embeds::write_emb_params),
            ];
            for (name, write) in files {
                self.write_concept(index, &name, write, judged, Arc::clone(&rows)).await?;
                names.push(name);
            }
        }
        self.write(model_card::FILE_NAME, judged, rows, model_card::write).await?;
        names.push(model_card::FILE_NAME.to_owned());
        Ok(())
    }

    /// Writes a file of concept `index`.
    async fn write_concept(
        &self,
        index: usize,
        name: &str,
        write: Write,
        judged: StepJudged,
        rows: Arc<Vec<f32>>,
    ) -> Result<(), RankError> {
        self.write(name, judged, rows, move |file, learned, facts| {
            learned.get(index).map_or(Ok(()), |learned| write(file, learned, facts))
        })
        .await
    }

    /// Writes a file of what has been learned of all concepts. `rows`: as they are after the step.
    async fn write(
        &self,
        name: &str,
        judged: StepJudged,
        rows: Arc<Vec<f32>>,
        write: impl FnOnce(&Path, &[Learned<'_>], &EmbeddingFacts) -> Result<(), output::Error> + Send + 'static,
    ) -> Result<(), RankError> {
        let (file, facts) = (self.folder.join(name), Arc::clone(&self.facts));
        let concepts = Arc::clone(&self.concepts);
        let write = move || {
            let mut learned = Concept::split(&concepts, &rows, judged.step);
            learned.iter_mut().for_each(|one| one.validation_loss = judged.validation_loss);
            write(&file, &learned, &facts)
        };
        Ok(tokio::task::spawn_blocking(write).await??)
    }
}

/// Writes the job file and begins those that grow with every step. Blocks.
fn begin(
    folder: &Path,
    spec: &JobSpec,
    report_to: ReportTo,
) -> Result<(MetricsCsv, Option<EventFile>), RankError> {
    let toml = spec.to_toml().map_err(|error| RankError::JobFile(error.to_string()))?;
    write_job_file(&folder.join(JOB_FILE), &toml, spec)?;
    let csv = MetricsCsv::create(&folder.join(metrics_csv::FILE_NAME))?;
    let events = match report_to {
        ReportTo::Tensorboard => Some(EventFile::create(&folder.join(tensorboard::FILE_NAME))?),
        ReportTo::Nothing => None,
    };
    Ok((csv, events))
}

/// The job as it was run, which has to be the same job when it is read.
pub(super) fn write_job_file(file: &Path, toml: &str, spec: &JobSpec) -> Result<(), RankError> {
    write_atomically(file, toml.as_bytes())?;
    check_text(file, toml)?;
    match parse_job_toml(toml) {
        Ok(read) if read == *spec => Ok(()),
        Ok(_) => Err(different(file, "it is read as another job".to_owned()).into()),
        Err(error) => Err(different(file, error.to_string()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_file_that_says_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(JOB_FILE);
        let text = "kind = \"textual_inversion\"\n[model]\nbase = \"/m\"\n[data]\nimages = \"/i\"\n\
            [train]\nplaceholder_token = \"<a>\"\ninitializer_token = \"b\"\n";
        let spec = parse_job_toml(text).unwrap();
        write_job_file(&file, &spec.to_toml().unwrap(), &spec).unwrap();
        for other in [text.replace("<a>", "<c>"), text.replace("kind", "kin")] {
            let refused = write_job_file(&file, &other, &spec);
            let Err(RankError::Output(output::Error::ReadBack { .. })) = refused else {
                panic!("{refused:?}")
            };
        }
    }
}
