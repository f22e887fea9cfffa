//! Which of its options decide a bit of what is learned; see [`crate::checkpoint::deciding_options`].

use std::collections::BTreeMap;

use serde_json::Value;

use super::TextualInversionSpec;
use crate::job::ClusterSpec;
use crate::job::LrScheduler;

/// Keys of `[train]` that decide no bit of what is learned: how max_train_steps came about, what is kept, where it went
/// on, and what is shown.
pub const TRAIN_OPTIONS_WITHOUT_EFFECT: [&str; 11] = [
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
];

const COMPARED_OTHERWISE: [&str; 4] = [
    // By content.
    "data.images",
    "data.folders",
    // Only its product with the world size counts.
    "train.gradient_accumulation_steps",
    // As decided.
    "train.mixed_precision",
];
const MICROBATCHES: &str = "cluster.world_size x train.gradient_accumulation_steps";

impl TextualInversionSpec {
    /// Whether an option of this kind, by its full name, decides a bit of what is learned.
    pub(in crate::job) fn decides(&self, option: &str) -> bool {
        let key = option.strip_prefix("train.").unwrap_or_default();
        !TRAIN_OPTIONS_WITHOUT_EFFECT.contains(&key) && !COMPARED_OTHERWISE.contains(&option)
    }

    /// What counts of several options together.
    pub(in crate::job) fn add_deciding(&self, cluster: &ClusterSpec, options: &mut BTreeMap<String, Value>) {
        options.insert(MICROBATCHES.to_owned(), Value::from(self.global_microbatches(cluster)));
    }

    /// Whether the number of steps has decided anything up to `step`. A run may become longer where no step up to it
    /// depends on how many there are: a learning rate may, and so does a validation that was due only because `step`
    /// was the last.
    pub(in crate::job) fn total_decides(&self, step: u64) -> bool {
        let (train, validation) = (&self.train, &self.train.validation);
        let curve_has_no_end =
            matches!(train.lr_scheduler, LrScheduler::Constant | LrScheduler::ConstantWithWarmup);
        let chooses = validation.select_best || validation.early_stop_patience > 0;
        let judged_as_the_last = step == train.max_train_steps
            && chooses
            && validation.is_due(step, step)
            && !validation.is_due(step, u64::MAX);
        !curve_has_no_end || judged_as_the_last
    }
}
