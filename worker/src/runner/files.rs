//! What rank 0 leaves: the embedding, the metrics, the job as it was run, the log.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use ringtune_shared::{files::write_atomically, spec::JobSpec, version::VERSION};
use serde_json::Value;

use super::{ArtifactClient, RankError, journal::LOG_FILE, prepare::Prepared, uploads::Uploads};
use crate::{
    output::{EmbeddingFacts, MetricsCsv, StepMetrics, embeds, metrics_csv},
    session::{Assignment, StepSummary},
};

/// The job file among the artifacts.
const JOB_FILE: &str = "job.toml";

/// Rank 0's files of one job.
#[derive(Debug)]
pub(super) struct JobFiles {
    folder: PathBuf,
    spec: JobSpec,
    facts: Arc<EmbeddingFacts>,
    csv: Option<MetricsCsv>,
    uploads: Option<Uploads>,
}

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
        let spec = assignment.spec.clone();
        let toml = spec.to_toml().map_err(|error| RankError::JobFile(error.to_string()))?;
        write_atomically(&folder.join(JOB_FILE), toml.as_bytes())?;
        let csv = MetricsCsv::create(&folder.join(metrics_csv::FILE_NAME))?;
        Ok(Self {
            folder: folder.to_owned(),
            facts: Arc::new(facts(assignment, prepared)?),
            csv: Some(csv),
            uploads: Some(Uploads::start(assignment.ring.job, client)),
            spec,
        })
    }

    /// Adds a step to metrics.csv: one short line, handed to the system at once.
    pub(super) fn record(&mut self, step: &StepSummary) -> Result<(), RankError> {
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

    /// Writes the embedding as it is after `step` and sends it on its way.
    pub(super) async fn save_step(&self, step: u64, rows: Arc<Vec<f32>>) -> Result<(), RankError> {
        let file = self.folder.join(embeds::file_name_at(step));
        self.write_embedding(file.clone(), rows).await?;
        if let Some(uploads) = &self.uploads {
            uploads.push(file).await;
        }
        Ok(())
    }

    /// Writes what is left to write, and waits until everything is at the coordinator. `rows`: the learned rows,
    /// if there is anything learned.
    pub(super) async fn finish(&mut self, rows: Option<Arc<Vec<f32>>>) -> Result<(), RankError> {
        let mut names = vec![metrics_csv::FILE_NAME, JOB_FILE];
        if let Some(csv) = self.csv.take() {
            tokio::task::spawn_blocking(move || csv.finish()).await??;
        }
        if let Some(rows) = rows {
            self.write_embedding(self.folder.join(embeds::FILE_NAME), rows).await?;
            names.insert(0, embeds::FILE_NAME);
        }
        if let Some(uploads) = self.uploads.take() {
            for name in names {
                uploads.push(self.folder.join(name)).await;
            }
            // Last, so that it says how the uploads went.
            uploads.push(self.folder.join(LOG_FILE)).await;
            uploads.finish().await?;
        }
        Ok(())
    }

    async fn write_embedding(&self, file: PathBuf, rows: Arc<Vec<f32>>) -> Result<(), RankError> {
        let (token, vectors) =
            (self.spec.train.placeholder_token.clone(), self.spec.train.num_vectors as usize);
        let facts = Arc::clone(&self.facts);
        Ok(tokio::task::spawn_blocking(move || embeds::write(&file, &token, vectors, &rows, &facts))
            .await??)
    }
}

/// Everything that decides the learned bits and nothing that does not: where model and images lie is replaced by
/// what they are, and traces leave no mark.
fn facts(assignment: &Assignment, prepared: &Prepared) -> Result<EmbeddingFacts, RankError> {
    let mut job =
        serde_json::to_value(&assignment.spec).map_err(|error| RankError::JobFile(error.to_string()))?;
    if let Value::Object(sections) = &mut job {
        for place in ["model", "data", "debug"] {
            sections.remove(place);
        }
        sections.insert("precision".to_owned(), Value::from(assignment.precision.name()));
    }
    Ok(EmbeddingFacts {
        model_hash: prepared.model_hash.to_string(),
        data_hash: prepared.data_hash.to_string(),
        job,
        numerics_class: format!("{}/threads-{}", assignment.numerics_class, assignment.threads),
        version: VERSION.to_owned(),
    })
}
