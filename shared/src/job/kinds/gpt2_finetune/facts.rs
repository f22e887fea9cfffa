//! What is asked of its work.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Gpt2Spec;
use crate::job::{
    ClusterSpec, MixedPrecision, ModelLocation, PathUse, ResumeFrom, kinds::facts::Facts, steps::Steps,
};

/// Options of `[gpt2]` that decide no bit of what is learned: what is kept, where it went on, what is shown, how often
/// ranks look whether they agree, and which rank has what.
pub const OPTIONS_WITHOUT_EFFECT: [&str; 6] = [
    "checkpointing_steps",
    "checkpoints_total_limit",
    "resume_from_checkpoint",
    "report_to",
    "compare_interval",
    "shard_optimizer",
];

const COMPARED_OTHERWISE: [&str; 3] = [
    // By content.
    "tokens",
    // Only its product with the world size counts.
    "gradient_accumulation_steps",
    // As decided.
    "mixed_precision",
];
/// Without effect where the rate is always the same.
const OF_THE_CURVE: [&str; 3] = ["warmup_iters", "lr_decay_iters", "min_lr"];
const MICROBATCHES: &str = "cluster.world_size x gpt2.gradient_accumulation_steps";

impl Facts for Gpt2Spec {
    fn mixed_precision(&self) -> MixedPrecision {
        self.mixed_precision
    }

    fn has_language_model(&self) -> bool {
        true
    }

    fn steps(&self) -> Option<Steps<'_>> {
        Some(Steps {
            total: self.max_iters,
            last: self.max_iters,
            option: "gpt2.max_iters",
            resume_from: &self.resume_from_checkpoint,
            resume_option: "gpt2.resume_from_checkpoint",
            checkpoints_total_limit: self.checkpoints_total_limit,
            total_decides_rates: self.decay_lr && self.lr_decay_iters == 0,
            validation_interval: self.eval_interval,
            select_best: self.select_best,
            early_stop_patience: self.early_stop_patience,
        })
    }

    fn resume_from_mut(&mut self) -> Option<&mut String> {
        Some(&mut self.resume_from_checkpoint)
    }

    fn global_microbatches(&self, cluster: &ClusterSpec) -> u32 {
        self.global_microbatches(cluster)
    }

    fn state_interval(&self) -> u64 {
        self.compare_interval.max(1)
    }

    fn exact_instead(&self, cluster: &ClusterSpec) -> Option<&'static str> {
        (self.exchange.follows_the_ring() && cluster.world_size > 1).then_some("gpt2.exchange = \"exact\"")
    }

    /// Says that the rate is still rising when the job ends, and that a loss of workers may decide the result.
    fn warning(&self, cluster: &ClusterSpec) -> Option<String> {
        let Self { max_iters, warmup_iters, exchange, .. } = self;
        let never_warm = (self.decay_lr && warmup_iters >= max_iters).then(|| {
            format!(
                "gpt2.warmup_iters = {warmup_iters} and gpt2.max_iters = {max_iters}: the job ends before the learning \
                 rate has come up to gpt2.learning_rate"
            )
        });
        let ClusterSpec { world_size, min_world_size, .. } = cluster;
        let may_shrink = (self.exact_instead(cluster).is_some() && min_world_size < world_size).then(|| {
            format!(
                "gpt2.exchange = \"{exchange}\" and cluster.min_world_size = {min_world_size} of {world_size}: with fewer ranks \
                 than {world_size} gradients are added up in another order, and the result has other bits; with \
                 min_world_size = {world_size} the job waits for them instead"
            )
        });
        let all: Vec<String> = never_warm.into_iter().chain(may_shrink).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    fn places(&mut self) -> Vec<(String, PathUse, &mut String)> {
        let mut all = vec![("gpt2.tokens".to_owned(), PathUse::Tokens, &mut self.tokens)];
        // Others are words and numbers.
        if matches!(ResumeFrom::parse(&self.resume_from_checkpoint), Ok(ResumeFrom::File(_))) {
            let field = "gpt2.resume_from_checkpoint".to_owned();
            all.push((field, PathUse::Checkpoint, &mut self.resume_from_checkpoint));
        }
        all
    }

    fn locations(&self) -> Vec<(&'static str, ModelLocation)> {
        self.tokens_location().ok().map(|location| ("gpt2.tokens", location)).into_iter().collect()
    }

    fn decides(&self, option: &str) -> bool {
        let key = option.strip_prefix("gpt2.").unwrap_or_default();
        !OPTIONS_WITHOUT_EFFECT.contains(&key)
            && !COMPARED_OTHERWISE.contains(&key)
            && (self.decay_lr || !OF_THE_CURVE.contains(&key))
    }

    fn add_deciding(&self, cluster: &ClusterSpec, options: &mut BTreeMap<String, Value>) {
        options.insert(MICROBATCHES.to_owned(), Value::from(self.global_microbatches(cluster)));
        if self.exact_instead(cluster).is_some() {
            let ranks = format!("cluster.world_size (with gpt2.exchange = \"{}\")", self.exchange);
            options.insert(ranks, Value::from(cluster.world_size));
        }
    }
}
