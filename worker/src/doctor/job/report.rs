//! What a dry run found, as plain data.

use std::path::PathBuf;

use ringtune_shared::{
    ids::ContentHash,
    job::{
        CommonSpec,
        kinds::{
            generate::GenerateSpec,
            generate_text::GenerateTextSpec,
            gpt2_finetune::{Gpt2Init, Gpt2Spec},
            textual_inversion::TextualInversionSpec,
        },
    },
};
use serde::Serialize;

use super::{pictures::FolderReport, problem::Problem};
use crate::{
    engine::ModelInfo,
    engine::Precision,
    kinds::{Rehearsal, RehearsedDrawing, RehearsedTexts, RehearsedWord, RehearsedWords},
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) drawing: Option<DrawingReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) language: Option<LanguageReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) texts: Option<TextsReport>,
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

/// What is drawn.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DrawingReport {
    pub(super) prompts: usize,
    /// Of each prompt.
    pub(super) count: u32,
    /// All of them.
    pub(super) pictures: u64,
    /// Passes through the UNet, and pictures in one.
    pub(super) batches: usize,
    pub(super) batch: u32,
    pub(super) scheduler: String,
    pub(super) steps: u32,
    pub(super) guidance_scale: f64,
    pub(super) embeddings: Vec<EmbeddingReport>,
}

/// A language model, and how it is trained.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LanguageReport {
    pub(super) base: String,
    /// Of the files below, together.
    pub(super) sha256: String,
    /// Those that are used.
    pub(super) files: Vec<String>,
    pub(super) from_scratch: bool,
    pub(super) tokens: String,
    pub(super) steps: u64,
    /// Of all ranks together.
    pub(super) windows_per_step: u64,
    pub(super) tokens_per_step: u64,
    pub(super) learning_rate: f64,
}

/// A language model, and the texts that it is to make.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TextsReport {
    pub(super) base: String,
    /// Of the files below, together.
    pub(super) sha256: String,
    /// Those that are used.
    pub(super) files: Vec<String>,
    /// Tokens of each prompt.
    pub(super) prompt_tokens: Vec<usize>,
    pub(super) texts: u32,
    /// Of each, behind its prompt.
    pub(super) max_new_tokens: u32,
}

/// What a file teaches.
#[derive(Clone, Debug, Serialize)]
pub(super) struct EmbeddingReport {
    pub(super) token: String,
    pub(super) vectors: usize,
    pub(super) sha256: String,
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
    /// All pictures, spread over the ranks; of a job that draws: the words and the VAE of a batch.
    pub(super) encode_seconds: f64,
    /// One step of a rank; of a job that draws: of a batch.
    pub(super) step_seconds: f64,
    /// All of a rank's share.
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
        self.problems.is_empty() && (self.model.is_some() || self.language.is_some() || self.texts.is_some())
    }

    /// What a dry run of a job that learns from words found.
    pub(super) fn take_words(&mut self, common: &CommonSpec, job: &Gpt2Spec, found: RehearsedWords) {
        let RehearsedWords { model_files, model_hash, warnings } = found;
        let windows =
            u64::from(job.global_microbatches(&common.cluster)).saturating_mul(u64::from(job.batch_size));
        self.language = Some(LanguageReport {
            base: common.model.base.clone(),
            sha256: model_hash.to_string(),
            files: model_files,
            from_scratch: job.init_from == Gpt2Init::Scratch,
            tokens: job.tokens.clone(),
            steps: job.max_iters,
            windows_per_step: windows,
            tokens_per_step: windows.saturating_mul(u64::from(job.block_size)),
            learning_rate: job.learning_rate,
        });
        self.warnings.extend(warnings);
    }

    /// What a dry run of a job that makes texts found.
    pub(super) fn take_texts(&mut self, common: &CommonSpec, job: &GenerateTextSpec, found: RehearsedTexts) {
        let RehearsedTexts { model_files, model_hash, prompt_tokens, warnings } = found;
        self.texts = Some(TextsReport {
            base: common.model.base.clone(),
            sha256: model_hash.to_string(),
            files: model_files,
            prompt_tokens,
            texts: job.texts(),
            max_new_tokens: job.max_new_tokens,
        });
        self.warnings.extend(warnings);
    }

    /// Takes in what the rehearsal of a job that draws gave.
    pub(super) fn take_drawing(
        &mut self,
        common: &CommonSpec,
        job: &GenerateSpec,
        rehearsal: RehearsedDrawing,
        (precision, threads): (Precision, usize),
    ) {
        let (width, height) = rehearsal.size;
        let pictures = job.prompts.len() as u64 * u64::from(job.count);
        let side = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
        let shown = usize::try_from(pictures).unwrap_or(usize::MAX);
        self.sizes.push(SizeReport { width: side(width), height: side(height), pictures: shown });
        self.warnings.extend(rehearsal.warnings);
        self.prompts = rehearsal.prompts.into_iter().map(in_chunks).collect();
        self.model = Some(ModelReport::of(common, &rehearsal.model, rehearsal.model_hash));
        let embedding = |(token, vectors, hash): (String, usize, ContentHash)| EmbeddingReport {
            token,
            vectors,
            sha256: hash.to_string(),
        };
        self.drawing = Some(DrawingReport {
            prompts: job.prompts.len(),
            count: job.count,
            pictures,
            batches: rehearsal.batches,
            batch: job.batch,
            scheduler: rehearsal.scheduler.to_owned(),
            steps: job.steps,
            guidance_scale: job.guidance_scale,
            embeddings: rehearsal.embeddings.into_iter().map(embedding).collect(),
        });
        let ranks = common.cluster.world_size;
        let share = rehearsal.batches.div_ceil(ranks.max(1) as usize);
        self.estimate = rehearsal.timing.map(|timing| Estimate {
            precision: precision.name().to_owned(),
            threads,
            private_bytes: timing.private_bytes,
            encode_seconds: timing.other_seconds,
            step_seconds: timing.step_seconds,
            total_seconds: (timing.other_seconds + timing.step_seconds * f64::from(job.steps)) * share as f64,
            world_size: ranks,
        });
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
        self.model = Some(ModelReport::of(common, &rehearsal.model, rehearsal.model_hash));
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

impl ModelReport {
    fn of(common: &CommonSpec, model: &ModelInfo, hash: ContentHash) -> Self {
        Self {
            base: common.model.base.clone(),
            sha256: hash.to_string(),
            prediction_type: model.prediction_type.name().to_owned(),
            text_width: model.text_width,
            vae_factor: model.vae_factor,
        }
    }
}

/// A prompt, and whether the text encoder gets it in parts.
fn in_chunks((prompt, chunks): (String, usize)) -> String {
    match chunks {
        1 => prompt,
        _ => format!("{prompt} (long: in {chunks} parts, nothing is cut off)"),
    }
}
