//! Defaults and limits of every field, written once.

mod checkpoints;
mod concepts;
mod generate;
mod model;
mod pictures;
mod schedule_choice;
mod size;

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::{
    ClusterDraft, ClusterSpec, DataDraft, DataSpec, DebugSpec, JobDraft, JobKind, JobSpec, LearnableProperty,
    LrScheduler, MixedPrecision, PredictionType, ReportTo, SpecError, TrainDraft, TrainSpec, Violation,
};
use crate::ids::{CONTENT_URI_PREFIX, ContentHash};
use concepts::Words;
pub(super) use generate::nothing_to_train;
use pictures::Places;

mod validation;

/// The largest values that are accepted: far above what is useful, low enough that no size
/// computed from them overflows or exhausts a machine by accident.
pub mod limits {
    /// Rows learned for the placeholder.
    pub const NUM_VECTORS: i64 = 64;
    /// Concepts in a job.
    pub const CONCEPTS: usize = 64;
    /// Rows learned for all concepts of a job together: every microbatch sends its gradient of them around the ring.
    pub const ALL_VECTORS: u32 = 1024;
    /// Pixels.
    pub const RESOLUTION: i64 = 4096;
    /// Samples in a microbatch.
    pub const TRAIN_BATCH_SIZE: i64 = 1024;
    /// Microbatches a rank adds up in a step of a full ring.
    pub const GRADIENT_ACCUMULATION_STEPS: i64 = 1024;
    /// Ranks.
    pub const WORLD_SIZE: i64 = 1024;
    /// Microbatches in a step over all ranks: each sends its own row around the ring.
    pub const GLOBAL_MICROBATCHES: u32 = 65_536;
    /// Compute threads of a rank.
    pub const THREADS_PER_RANK: i64 = 1024;
    /// Steps of any kind.
    pub const STEPS: i64 = 10_000_000;
    /// Folders of a concept.
    pub const FOLDERS: usize = 64;
    /// Times that each picture of a folder is shown.
    pub const FOLDER_REPEATS: i64 = 1000;
    /// Tags that stay first.
    pub const TAGS: i64 = 4096;
    /// Times that an image counts in an epoch.
    pub const REPEATS: i64 = 1_000_000;
    /// Before `scale_lr`.
    pub const LEARNING_RATE: f64 = 1000.0;
    /// Of AdamW's numbers that are not a share.
    pub const ADAM: f64 = 1000.0;
    /// Length of a step's gradient.
    pub const GRAD_NORM: f64 = 1e6;
    /// Gamma of the min-SNR weights: far above the ratios of any schedule in use.
    pub const SNR_GAMMA: f64 = 1e6;
    /// Held-out samples.
    pub const VALIDATION_LOSS_SAMPLES: i64 = 4096;
    /// Pictures drawn at a time while training goes on.
    pub const VALIDATION_IMAGES: i64 = 64;
    /// Standard deviations of the noise.
    pub const NOISE_OFFSET: f64 = 100.0;
    /// Characters of names and tokens.
    pub const NAME_CHARACTERS: usize = 200;
    /// Characters of paths and URIs.
    pub const PATH_CHARACTERS: usize = 4096;
    /// Templates in a job.
    pub const TEMPLATES: usize = 1000;
    /// Characters of a template.
    pub const TEMPLATE_CHARACTERS: usize = 512;
    /// Bytes of a job as JSON with every default filled in: it goes to every rank in one message, which may have 4 MiB.
    pub const JOB_BYTES: usize = 1 << 20;
}

pub(super) fn validate(mut draft: JobDraft) -> Result<JobSpec, SpecError> {
    let mut check = Check { violations: Vec::new() };

    let kind = check.kind(draft.kind.take());
    let name = check.name(draft.name.take(), kind);
    let model = check.model(std::mem::take(&mut draft.model));
    let (data, train, concepts, generate) = check.work(kind, &mut draft);
    let cluster = check.cluster(draft.cluster);
    let debug = DebugSpec { trace_dir: check.trace_dir(draft.debug.trace_dir) };
    if kind == JobKind::Generate && !debug.trace_dir.is_empty() {
        check.refuse("debug.trace_dir", "a job that only draws has no steps to trace");
    }

    let spec = JobSpec { kind, name, model, data, train, generate, cluster, debug, concepts };
    check.across_fields(&spec);
    check.pipeline_of_a_folder(&spec);
    check.whole_job(&spec);
    if check.violations.is_empty() { Ok(spec) } else { Err(SpecError { violations: check.violations }) }
}

/// Collects violations; a value that is wrong is replaced by one that is right, so that the
/// checks of the others go on.
struct Check {
    violations: Vec<Violation>,
}

impl Check {
    fn refuse(&mut self, field: &str, problem: impl Into<String>) {
        self.violations.push(Violation::new(field, problem));
    }

    fn kind(&mut self, given: Option<String>) -> JobKind {
        let kind = JobKind::TextualInversion;
        match given.as_deref() {
            None | Some("") => self.refuse("kind", format!("missing; allowed: {}", JobKind::allowed())),
            Some(later @ ("unet_finetune" | "gpt2_finetune")) => {
                self.refuse(
                    "kind",
                    format!("{later:?} is not supported yet; allowed: {}", JobKind::allowed()),
                );
            }
            Some(_) => return self.choice("kind", given, kind),
        }
        kind
    }

    fn name(&mut self, given: Option<String>, kind: JobKind) -> String {
        let Some(name) = given.filter(|name| !name.is_empty()) else { return kind.to_string() };
        if let Err(problem) = printable(&name, limits::NAME_CHARACTERS) {
            self.refuse("name", problem);
        } else if name.trim() != name {
            self.refuse("name", format!("got {name:?}; allowed: no space at either end"));
        }
        name
    }

    fn data(&mut self, draft: DataDraft, several: bool) -> DataSpec {
        if several {
            if draft.folders.is_some() {
                self.refuse("data.folders", "is given beside [[concepts]]; give it in each of them");
            }
            let images = self.refuse_beside_concepts("data.images", draft.images);
            return DataSpec { images, folders: Vec::new() };
        }
        self.places("data", Places { images: draft.images, folders: draft.folders })
    }

    fn images(&mut self, field: &str, given: Option<String>) -> String {
        const WANTED: &str = "a folder of images";
        let images = self.required(field, given, WANTED);
        if images.starts_with(CONTENT_URI_PREFIX) {
            if let Err(error) = ContentHash::from_uri(&images) {
                self.refuse(field, error.to_string());
            }
        } else if let Some(scheme) = scheme(&images) {
            let given = shortened(&images);
            self.refuse(field, format!("got {given:?}; {scheme}:// is not supported yet: give {WANTED}"));
        }
        images
    }

    fn trace_dir(&mut self, given: Option<String>) -> String {
        let folder = given.unwrap_or_default();
        if let Err(problem) = printable(&folder, limits::PATH_CHARACTERS) {
            self.refuse("debug.trace_dir", problem);
        } else if let Some(scheme) = scheme(&folder) {
            self.refuse(
                "debug.trace_dir",
                format!("got {folder:?}; {scheme}:// is not supported: give a folder"),
            );
        }
        folder
    }

    fn train(&mut self, draft: TrainDraft, several: bool) -> TrainSpec {
        let (validation, previews) = (self.validation(&draft), self.previews(&draft));
        let learning_rates = self.learning_rates(&draft);
        let words = Words {
            placeholder_token: draft.placeholder_token,
            initializer_token: draft.initializer_token,
            initializer_embedding: draft.initializer_embedding,
        };
        let [placeholder_token, initializer_token, initializer_embedding] =
            if several { self.no_words(words) } else { self.words("train", words) };
        TrainSpec {
            placeholder_token,
            initializer_token,
            initializer_embedding,
            learnable_property: self.choice(
                "train.learnable_property",
                draft.learnable_property,
                LearnableProperty::Object,
            ),
            num_vectors: self.count("train.num_vectors", draft.num_vectors, 1, 1..=limits::NUM_VECTORS),
            resolution: self.count("train.resolution", draft.resolution, 512, 1..=limits::RESOLUTION),
            train_batch_size: self.count(
                "train.train_batch_size",
                draft.train_batch_size,
                16,
                1..=limits::TRAIN_BATCH_SIZE,
            ),
            gradient_accumulation_steps: self.count(
                "train.gradient_accumulation_steps",
                draft.gradient_accumulation_steps,
                1,
                1..=limits::GRADIENT_ACCUMULATION_STEPS,
            ),
            max_train_steps: self.count(
                "train.max_train_steps",
                draft.max_train_steps,
                if draft.num_train_epochs.is_some() { 0 } else { 5000 },
                1..=limits::STEPS,
            ),
            learning_rate: match &learning_rates {
                Some(rates) => rates.at(1),
                None => self.learning_rate(draft.learning_rate),
            },
            scale_lr: draft.scale_lr.unwrap_or(false),
            lr_scheduler: self.choice("train.lr_scheduler", draft.lr_scheduler, LrScheduler::Constant),
            lr_warmup_steps: self.count(
                "train.lr_warmup_steps",
                draft.lr_warmup_steps,
                if learning_rates.is_some() { 0 } else { 500 },
                0..=limits::STEPS,
            ),
            learning_rates,
            seed: self.count("train.seed", draft.seed, 0, 0..=i64::MAX),
            mixed_precision: self.choice("train.mixed_precision", draft.mixed_precision, MixedPrecision::No),
            center_crop: draft.center_crop.unwrap_or(false),
            templates: self.templates("train.templates", draft.templates),
            save_steps: self.count("train.save_steps", draft.save_steps, 500, 0..=limits::STEPS),
            adam_beta1: self.share("train.adam_beta1", draft.adam_beta1, 0.9),
            adam_beta2: self.share("train.adam_beta2", draft.adam_beta2, 0.999),
            adam_weight_decay: self.number(
                "train.adam_weight_decay",
                draft.adam_weight_decay,
                1e-2,
                limits::ADAM,
            ),
            adam_epsilon: self.number("train.adam_epsilon", draft.adam_epsilon, 1e-8, limits::ADAM),
            lr_num_cycles: self.count("train.lr_num_cycles", draft.lr_num_cycles, 1, 1..=limits::STEPS),
            max_grad_norm: self.number("train.max_grad_norm", draft.max_grad_norm, 0.0, limits::GRAD_NORM),
            snr_gamma: self.number("train.snr_gamma", draft.snr_gamma, 0.0, limits::SNR_GAMMA),
            noise_offset: self.number("train.noise_offset", draft.noise_offset, 0.0, limits::NOISE_OFFSET),
            rescale_betas_zero_snr: draft.rescale_betas_zero_snr.unwrap_or(false),
            num_train_epochs: draft
                .num_train_epochs
                .map(|epochs| self.count("train.num_train_epochs", Some(epochs), 1, 1..=limits::STEPS)),
            repeats: self.count("train.repeats", draft.repeats, 100, 1..=limits::REPEATS),
            checkpointing_steps: self.count(
                "train.checkpointing_steps",
                draft.checkpointing_steps,
                500,
                0..=limits::STEPS,
            ),
            checkpoints_total_limit: self.count(
                "train.checkpoints_total_limit",
                draft.checkpoints_total_limit,
                0,
                0..=limits::STEPS,
            ),
            resume_from_checkpoint: self.resume_from(draft.resume_from_checkpoint),
            save_as_full_pipeline: draft.save_as_full_pipeline.unwrap_or(false),
            validation,
            previews,
            report_to: self.choice("train.report_to", draft.report_to, ReportTo::Tensorboard),
            caption_dropout: self.number("train.caption_dropout", draft.caption_dropout, 0.0, 1.0),
            shuffle_tags: draft.shuffle_tags.unwrap_or(false),
            keep_tags: self.count("train.keep_tags", draft.keep_tags, 0, 0..=limits::TAGS),
            enable_bucket: draft.enable_bucket.unwrap_or(false),
            min_bucket_reso: self.side("train.min_bucket_reso", draft.min_bucket_reso, 256),
            max_bucket_reso: self.side("train.max_bucket_reso", draft.max_bucket_reso, 1024),
            bucket_reso_steps: self.side("train.bucket_reso_steps", draft.bucket_reso_steps, 64),
            bucket_no_upscale: draft.bucket_no_upscale.unwrap_or(false),
        }
    }

    fn cluster(&mut self, draft: ClusterDraft) -> ClusterSpec {
        let world_size = self.count("cluster.world_size", draft.world_size, 1, 1..=limits::WORLD_SIZE);
        let min_world_size =
            self.count("cluster.min_world_size", draft.min_world_size, world_size, 1..=limits::WORLD_SIZE);
        let threads_per_rank =
            self.count("cluster.threads_per_rank", draft.threads_per_rank, 0, 0..=limits::THREADS_PER_RANK);
        ClusterSpec { world_size, min_world_size, threads_per_rank }
    }

    fn across_fields(&mut self, spec: &JobSpec) {
        self.rates_reach_the_end(&spec.train);
        if spec.train.rescale_betas_zero_snr && spec.model.prediction_type == Some(PredictionType::Epsilon) {
            let problem = "got true with model.prediction_type = \"epsilon\"; only a checkpoint that predicts the \
                           velocity (v_prediction) can be trained on pure noise";
            self.refuse("train.rescale_betas_zero_snr", problem);
        }
        self.caption_options(spec);
        self.buckets(&spec.train);
        let ClusterSpec { world_size, min_world_size, .. } = spec.cluster;
        let world_size_is_right =
            !self.violations.iter().any(|violation| violation.field == "cluster.world_size");
        if min_world_size > world_size && world_size_is_right {
            self.refuse(
                "cluster.min_world_size",
                format!("got {min_world_size}; allowed: 1 to {world_size}, the job's world_size"),
            );
        }
        let microbatches = spec.global_microbatches();
        if microbatches > limits::GLOBAL_MICROBATCHES {
            self.refuse(
                "train.gradient_accumulation_steps",
                format!(
                    "got {} with world_size {world_size}, that is {microbatches} microbatches a step; allowed: {}",
                    spec.train.gradient_accumulation_steps,
                    limits::GLOBAL_MICROBATCHES
                ),
            );
        }
    }

    /// A text that must be there; empty counts as missing.
    fn required(&mut self, field: &str, given: Option<String>, wanted: &str) -> String {
        let text = given.unwrap_or_default();
        if text.is_empty() {
            self.refuse(field, format!("missing; give {wanted}"));
        } else if let Err(problem) = printable(&text, limits::PATH_CHARACTERS) {
            self.refuse(field, problem);
        }
        text
    }

    /// A word of a prompt.
    fn token(&mut self, field: &str, given: Option<String>) -> String {
        let token = given.unwrap_or_default();
        if token.is_empty() {
            self.refuse(field, "missing; give one word without spaces");
        } else if token.chars().any(char::is_whitespace) {
            self.refuse(field, format!("got {:?}; allowed: one word without spaces", shortened(&token)));
        } else if let Err(problem) = printable(&token, limits::NAME_CHARACTERS) {
            self.refuse(field, problem);
        }
        token
    }

    fn choice<T: FromStr<Err: Display>>(&mut self, field: &str, given: Option<String>, default: T) -> T {
        // The wire writes "not given" as an empty text where a field cannot be absent.
        let Some(text) = given else { return default };
        match text.parse() {
            Ok(value) => value,
            Err(error) => {
                self.refuse(field, error.to_string());
                default
            }
        }
    }

    /// A whole number. `allowed` lies within `T`, whatever it is.
    fn count<T>(&mut self, field: &str, given: Option<i64>, default: T, allowed: RangeInclusive<i64>) -> T
    where
        T: TryFrom<i64>,
    {
        let Some(number) = given else { return default };
        let fitting = if allowed.contains(&number) { T::try_from(number).ok() } else { None };
        fitting.unwrap_or_else(|| {
            self.refuse(field, format!("got {number}; allowed: {} to {}", allowed.start(), allowed.end()));
            default
        })
    }

    fn learning_rate(&mut self, given: Option<f64>) -> f64 {
        const DEFAULT: f64 = 1e-4;
        let Some(rate) = given else { return DEFAULT };
        // Written so that NaN fails it.
        if rate > 0.0 && rate <= limits::LEARNING_RATE {
            return rate;
        }
        let allowed = format!("a number above 0, at most {}", limits::LEARNING_RATE);
        self.refuse("train.learning_rate", format!("got {rate}; allowed: {allowed}"));
        DEFAULT
    }

    /// A number from 0 to `most`. A zero comes out without a sign, so that equal jobs are written equally.
    fn number(&mut self, field: &str, given: Option<f64>, default: f64, most: f64) -> f64 {
        let Some(number) = given else { return default };
        // NaN is in no range.
        if (0.0..=most).contains(&number) {
            return number.abs();
        }
        self.refuse(field, format!("got {number}; allowed: 0 to {most}"));
        default
    }

    /// A number from 0 up to, but not, 1.
    fn share(&mut self, field: &str, given: Option<f64>, default: f64) -> f64 {
        let Some(number) = given else { return default };
        if (0.0..1.0).contains(&number) {
            return number.abs();
        }
        self.refuse(field, format!("got {number}; allowed: 0 to 1, without 1"));
        default
    }
}

fn printable(text: &str, limit: usize) -> Result<(), String> {
    let length = text.chars().count();
    if length > limit {
        return Err(format!("got {length} characters ({:?}); allowed: at most {limit}", shortened(text)));
    }
    if text.chars().any(char::is_control) {
        return Err(format!("got {:?}; allowed: no control characters", shortened(text)));
    }
    Ok(())
}

/// The scheme of a URI: letters, digits, `+`, `-`, `.` before `://`.
pub(super) fn scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once("://")?;
    let is_scheme = scheme.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && scheme.chars().all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter));
    is_scheme.then_some(scheme)
}

/// For messages: a text as it is, or the beginning of a long one.
pub(super) fn shortened(text: &str) -> String {
    const LONGEST: usize = 80;
    if text.chars().count() <= LONGEST {
        return text.to_owned();
    }
    text.chars().take(LONGEST).chain(['…']).collect()
}
