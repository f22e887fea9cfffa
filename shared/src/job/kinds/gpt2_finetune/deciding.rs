//! Which of its options decide a bit of what is learned; see [`crate::checkpoint::deciding_options`].

use std::collections::BTreeMap;

use serde_json::Value;

use super::Gpt2Spec;
use crate::job::ClusterSpec;

/// Keys of `[gpt2]` that decide no bit of what is learned: what is kept, where it went on, what is shown, and how often
/// ranks look whether they agree; and which rank has what.
const WITHOUT_EFFECT: [&str; 6] = [
    "gpt2.checkpointing_steps",
    "gpt2.checkpoints_total_limit",
    "gpt2.resume_from_checkpoint",
    "gpt2.report_to",
    "gpt2.compare_interval",
    "gpt2.shard_optimizer",
];

const COMPARED_OTHERWISE: [&str; 3] = [
    // By content.
    "gpt2.tokens",
    // Only its product with the world size counts.
    "gpt2.gradient_accumulation_steps",
    // As decided.
    "gpt2.mixed_precision",
];
/// Without effect where the rate is always the same.
const OF_THE_CURVE: [&str; 3] = ["gpt2.warmup_iters", "gpt2.lr_decay_iters", "gpt2.min_lr"];
const MICROBATCHES: &str = "cluster.world_size x gpt2.gradient_accumulation_steps";

impl Gpt2Spec {
    /// Whether an option of this kind, by its full name, decides a bit of what is learned.
    pub(in crate::job) fn decides(&self, option: &str) -> bool {
        let is_curve = OF_THE_CURVE.contains(&option);
        !WITHOUT_EFFECT.contains(&option)
            && !COMPARED_OTHERWISE.contains(&option)
            && (self.decay_lr || !is_curve)
    }

    /// What counts of several options together.
    pub(in crate::job) fn add_deciding(&self, cluster: &ClusterSpec, options: &mut BTreeMap<String, Value>) {
        options.insert(MICROBATCHES.to_owned(), Value::from(self.global_microbatches(cluster)));
        if self.ring_decides(cluster) {
            let ranks = format!("cluster.world_size (with gpt2.exchange = \"{}\")", self.exchange);
            options.insert(ranks, Value::from(cluster.world_size));
        }
    }

    /// Whether `max_iters` has decided anything up to `step`: a rate that falls towards it has, and so has a validation
    /// that was due only because `step` was the last.
    pub(in crate::job) fn total_decides(&self, step: u64) -> bool {
        let curve_ends_there = self.decay_lr && self.lr_decay_iters == 0;
        let chooses = self.select_best || self.early_stop_patience > 0;
        let judged_as_the_last = step == self.max_iters
            && chooses
            && self.validation_is_due(step, step)
            && !self.validation_is_due(step, u64::MAX);
        curve_ends_there || judged_as_the_last
    }
}
