//! What a dry run found, as plain data.

use std::path::PathBuf;

use ringtune_shared::job::{CommonSpec, kinds::textual_inversion::TextualInversionSpec};
use serde::Serialize;

use super::{pictures::FolderReport, problem::Problem};
use crate::{
    engine::Precision,
    kinds::{Rehearsal, RehearsedWord},
};

/// Everything about a job.
#[derive(Clone, Debug, Default, Serialize)]
pub(in crate::doctor) struct JobReport {
    pub(super) job_file: PathBuf,
    pub(super) name: String,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<String>,
    pub(super) folders: Vec<FolderReport>,
    pub(super) sizes: Vec<SizeReport>,
    pub(super) words: Vec<RehearsedWord>,
    /// Of the first samples; learned tokens stand in brackets.
    pub(super) prompts: Vec<String>,
    pub(super) training: Option<TrainingReport>,
    pub(super) model: Option<ModelReport>,
    pub(super) estimate: Option<Estimate>,
    pub(super) sheet: Option<SheetReport>,
}

/// Pictures that are brought to one size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct SizeReport {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) pictures: usize,
}

/// How long and how fast it learns.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TrainingReport {
    pub(super) steps: u64,
    pub(super) global_batch: u64,
    pub(super) samples: u64,
    /// Samples in which every picture is shown as often as its folder says.
    pub(super) epoch_samples: u64,
    /// How many such passes the job has.
    pub(super) epochs: f64,
    pub(super) learning_rate: f64,
}

/// The model.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ModelReport {
    pub(super) base: String,
    pub(super) sha256: String,
    pub(super) prediction_type: String,
    pub(super) text_width: usize,
    pub(super) vae_factor: usize,
}

/// Measured here; see docs/doctor.md for the rule.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Estimate {
    pub(super) precision: String,
    pub(super) threads: usize,
    /// Memory that one rank needs beside the mapped files.
    pub(super) private_bytes: u64,
    /// All pictures, spread over the ranks.
    pub(super) encode_seconds: f64,
    /// One step of a rank.
    pub(super) step_seconds: f64,
    /// Pictures and steps.
    pub(super) total_seconds: f64,
    pub(super) world_size: u32,
}

/// Where the contact sheet is.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SheetReport {
    pub(super) file: PathBuf,
    pub(super) shown: usize,
    pub(super) total: usize,
}

impl JobReport {
    /// One object on one line.
    pub(in crate::doctor) fn to_json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Whole<'a> {
            can_start: bool,
            #[serde(flatten)]
            report: &'a JobReport,
        }
        serde_json::to_string(&Whole { can_start: self.can_start(), report: self })
    }

    /// Nothing is in the way of the job.
    pub(in crate::doctor) fn can_start(&self) -> bool {
        self.problems.is_empty() && self.model.is_some()
    }

    /// Takes in what the rehearsal gave.
    pub(super) fn take(
        &mut self,
        common: &CommonSpec,
        job: &TextualInversionSpec,
        rehearsal: &Rehearsal,
        precision: Precision,
        threads: usize,
    ) {
        let pictures: usize = rehearsal.pictures.iter().map(Vec::len).sum();
        self.warnings.extend(rehearsal.warnings.iter().cloned());
        self.words = rehearsal.words.clone();
        self.prompts = rehearsal.prompts.clone();
        for (_, target) in rehearsal.pictures.iter().flatten() {
            let (width, height) = target.size();
            match self.sizes.iter_mut().find(|size| (size.width, size.height) == (width, height)) {
                Some(size) => size.pictures += 1,
                None => self.sizes.push(SizeReport { width, height, pictures: 1 }),
            }
        }
        self.sizes.sort_by_key(|size| (size.width, size.height));
        let (steps, global_batch) = (job.train.max_train_steps, job.global_batch(&common.cluster));
        let samples = steps.saturating_mul(global_batch);
        self.training = Some(TrainingReport {
            steps,
            global_batch,
            samples,
            epoch_samples: rehearsal.epoch_samples,
            epochs: samples as f64 / rehearsal.epoch_samples.max(1) as f64,
            learning_rate: job.effective_learning_rate(&common.cluster),
        });
        self.model = Some(ModelReport {
            base: common.model.base.clone(),
            sha256: rehearsal.model_hash.to_string(),
            prediction_type: rehearsal.model.prediction_type.name().to_owned(),
            text_width: rehearsal.model.text_width,
            vae_factor: rehearsal.model.vae_factor,
        });
        let ranks = common.cluster.world_size;
        self.estimate = rehearsal.timing.map(|timing| {
            let share = pictures.div_ceil(ranks.max(1) as usize);
            let encode_seconds = timing.encode_seconds * share as f64;
            let step_seconds = timing.microbatch_seconds * f64::from(job.train.gradient_accumulation_steps);
            Estimate {
                precision: precision.name().to_owned(),
                threads,
                private_bytes: timing.private_bytes,
                encode_seconds,
                step_seconds,
                total_seconds: encode_seconds + step_seconds * steps as f64,
                world_size: ranks,
            }
        });
    }
}
