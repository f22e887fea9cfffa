//! What rank 0 leaves: the embedding and its model card, the metrics, the job as it was run, the log. A file that does
//! not read back as it was written fails the job and is not uploaded.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use ringtune_shared::{
    files::write_atomically,
    spec::{JobSpec, parse_job_toml},
};

use super::{
    ArtifactClient, RankError, checkpoints::Checkpoints, facts::facts, journal::LOG_FILE, prepare::Prepared,
    uploads::Uploads,
};
use crate::{
    output::{
        self, Concept, EmbeddingFacts, Learned, MetricsCsv, StepMetrics, embeds, metrics_csv, model_card,
        read_back::{check_text, different},
    },
    session::{Assignment, StepSummary},
    train::SavedState,
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
    uploads: Option<Uploads>,
    checkpoints: Checkpoints,
    last_step: u64,
}

/// What there is after the last recorded step.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// The learned rows, if there is anything learned.
    pub(super) rows: Option<Arc<Vec<f32>>>,
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
    /// Begins the files in `folder`, which is there. Blocks.
    pub(super) fn create(
        folder: &Path,
        assignment: &Assignment,
        prepared: &Prepared,
        client: ArtifactClient,
    ) -> Result<Self, RankError> {
        let spec = &assignment.spec;
        let toml = spec.to_toml().map_err(|error| RankError::JobFile(error.to_string()))?;
        write_job_file(&folder.join(JOB_FILE), &toml, spec)?;
        let csv = MetricsCsv::create(&folder.join(metrics_csv::FILE_NAME))?;
        Ok(Self {
            folder: folder.to_owned(),
            concepts: Arc::new(prepared.concepts.clone()),
            facts: Arc::new(facts(assignment, prepared)?),
            csv: Some(csv),
            uploads: Some(Uploads::start(assignment.ring.job, client)),
            checkpoints: Checkpoints::new(folder.to_owned(), assignment, prepared),
            last_step: prepared.done.steps,
        })
    }

    /// Adds a step to metrics.csv: one short line, handed to the system at once.
    pub(super) fn record(&mut self, step: &StepSummary) -> Result<(), RankError> {
        self.last_step = step.step;
        if let Some(csv) = &mut self.csv {
            csv.append(&StepMetrics {
                step: step.step,
                loss: step.loss,
                lr: step.learning_rate,
                step_seconds: step.step_seconds,
                compute_seconds: step.compute_seconds,
                exchange_seconds: step.exchange_seconds,
                wait_seconds: step.wait_seconds,
            })?;
        }
        Ok(())
    }

    /// Writes the embeddings as they are after `step` and sends them on their way.
    pub(super) async fn save_step(&self, step: u64, rows: Arc<Vec<f32>>) -> Result<(), RankError> {
        for (index, concept) in self.concepts.iter().enumerate() {
            let name = concept.file_name_at(step);
            self.write_concept(index, &name, embeds::write, step, Arc::clone(&rows)).await?;
            if let Some(uploads) = &self.uploads {
                uploads.push(self.folder.join(name)).await;
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
        match &self.uploads {
            Some(uploads) => self.checkpoints.save(step, state, uploads).await,
            None => Ok(()),
        }
    }

    /// Writes what is left to write, and waits until everything that reads back is at the coordinator.
    pub(super) async fn finish(&mut self, left: Left) -> Result<(), RankError> {
        let mut names = Vec::new();
        let kept = match left.state {
            Some(state) if self.checkpoints.lacks(self.last_step) => {
                self.save_checkpoint(self.last_step, state).await
            }
            _ => Ok(()),
        };
        let written = self.write_results(left.rows, &mut names).await;
        if let Some(uploads) = self.uploads.take() {
            for name in names {
                uploads.push(self.folder.join(name)).await;
            }
            // Last, so that it says how the uploads went.
            uploads.push(self.folder.join(LOG_FILE)).await;
            uploads.finish().await?;
        }
        written.and(kept)
    }

    /// Adds the names of the files that are good. What went wrong with another one does not keep them back.
    async fn write_results(
        &mut self,
        rows: Option<Arc<Vec<f32>>>,
        names: &mut Vec<String>,
    ) -> Result<(), RankError> {
        names.push(JOB_FILE.to_owned());
        if let Some(csv) = self.csv.take() {
            tokio::task::spawn_blocking(move || csv.finish()).await??;
            names.push(metrics_csv::FILE_NAME.to_owned());
        }
        let Some(rows) = rows else { return Ok(()) };
        for (index, concept) in self.concepts.iter().enumerate() {
            let files: [(String, Write); 2] = [
                (concept.file_name(), embeds::write),
                (concept.emb_params_file_name(), embeds::write_emb_params),
            ];
            for (name, write) in files {
                self.write_concept(index, &name, write, self.last_step, Arc::clone(&rows)).await?;
                names.push(name);
            }
        }
        self.write(model_card::FILE_NAME, self.last_step, rows, model_card::write).await?;
        names.push(model_card::FILE_NAME.to_owned());
        Ok(())
    }

    /// Writes a file of concept `index`.
    async fn write_concept(
        &self,
        index: usize,
        name: &str,
        write: Write,
        step: u64,
        rows: Arc<Vec<f32>>,
    ) -> Result<(), RankError> {
        self.write(name, step, rows, move |file, learned, facts| {
            learned.get(index).map_or(Ok(()), |learned| write(file, learned, facts))
        })
        .await
    }

    /// Writes a file of what has been learned of all concepts. `rows`: as they are after `step`.
    async fn write(
        &self,
        name: &str,
        step: u64,
        rows: Arc<Vec<f32>>,
        write: impl FnOnce(&Path, &[Learned<'_>], &EmbeddingFacts) -> Result<(), output::Error> + Send + 'static,
    ) -> Result<(), RankError> {
        let (file, facts) = (self.folder.join(name), Arc::clone(&self.facts));
        let concepts = Arc::clone(&self.concepts);
        let write = move || write(&file, &Concept::split(&concepts, &rows, step), &facts);
        Ok(tokio::task::spawn_blocking(write).await??)
    }
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
