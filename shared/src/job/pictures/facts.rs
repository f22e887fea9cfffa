//! What is asked of jobs that learn from pictures, whatever they learn.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{CLASS_IMAGES, DataSpec, FolderSpec, MASKS, TrainSpec};
use crate::job::{ClusterSpec, LrScheduler, PathUse, ResumeFrom, steps::Steps, text::text_bytes};

/// Options of `[train]` that decide no bit of what is learned: how max_train_steps came about, what is kept, where it went
/// on, what is shown, and what is computed twice.
pub const OPTIONS_WITHOUT_EFFECT: [&str; 12] = [
    "num_train_epochs",
    "repeats",
    "save_steps",
    "checkpointing_steps",
    "checkpoints_total_limit",
    "resume_from_checkpoint",
    "save_as_full_pipeline",
    "validation_prompt",
    "num_validation_images",
    "validation_steps",
    "report_to",
    "cache_latents",
];

const COMPARED_OTHERWISE: [&str; 8] = [
    // By content.
    "data.images",
    "data.folders",
    "data.source",
    "data.caption_column",
    MASKS,
    CLASS_IMAGES,
    // Only its product with the world size counts.
    "train.gradient_accumulation_steps",
    // As decided.
    "train.mixed_precision",
];
const RESUME_FROM: &str = "train.resume_from_checkpoint";
const MICROBATCHES: &str = "cluster.world_size x train.gradient_accumulation_steps";

impl TrainSpec {
    pub(in crate::job) fn steps(&self) -> Steps<'_> {
        let curve_has_no_end =
            matches!(self.lr_scheduler, LrScheduler::Constant | LrScheduler::ConstantWithWarmup);
        Steps {
            total: self.max_train_steps,
            last: self.max_train_steps,
            option: "train.max_train_steps",
            resume_from: &self.resume_from_checkpoint,
            resume_option: RESUME_FROM,
            checkpoints_total_limit: self.checkpoints_total_limit,
            total_decides_rates: !curve_has_no_end,
            validation_interval: self.validation.validation_loss_steps,
            select_best: self.validation.select_best,
            early_stop_patience: self.validation.early_stop_patience,
        }
    }

    /// Says that a number of passes is without effect beside a number of steps.
    pub(in crate::job) fn warning(&self) -> Option<String> {
        let steps = self.max_train_steps;
        let passes = self.num_train_epochs.filter(|_| steps > 0)?;
        Some(format!(
            "train.num_train_epochs = {passes} has no effect: train.max_train_steps = {steps} takes precedence"
        ))
    }

    /// Whether an option of pictures, by its full name, decides a bit of what is learned.
    pub(in crate::job) fn decides(option: &str) -> bool {
        let key = option.strip_prefix("train.").unwrap_or_default();
        !OPTIONS_WITHOUT_EFFECT.contains(&key) && !COMPARED_OTHERWISE.contains(&option)
    }

    /// What counts of several options together.
    pub(in crate::job) fn add_deciding(&self, cluster: &ClusterSpec, options: &mut BTreeMap<String, Value>) {
        options.insert(MICROBATCHES.to_owned(), Value::from(self.global_microbatches(cluster)));
    }

    /// The file of the checkpoint that it goes on from; others are words and numbers.
    pub(in crate::job) fn checkpoint_place(&mut self) -> Option<(String, PathUse, &mut String)> {
        let is_file = matches!(ResumeFrom::parse(&self.resume_from_checkpoint), Ok(ResumeFrom::File(_)));
        is_file.then(|| (RESUME_FROM.to_owned(), PathUse::Checkpoint, &mut self.resume_from_checkpoint))
    }
}

/// The lists without a fixed length: the field, their bytes, and what to know of them.
pub(in crate::job) fn lists(data: &DataSpec, train: &TrainSpec) -> Vec<(String, usize, &'static str)> {
    let folders = ("data.folders".to_owned(), folder_bytes(&data.folders), "");
    vec![("train.templates".to_owned(), text_bytes(&train.templates), ""), folders]
}

/// For what makes a job too large.
pub(in crate::job) fn folder_bytes(folders: &[FolderSpec]) -> usize {
    folders.iter().map(|folder| folder.images.len()).sum()
}
