//! What a LoRA's file says of itself.

use std::collections::BTreeMap;

use super::{
    LoraFile,
    write::{NETWORK_ALPHA, NETWORK_RANK},
};

/// The entries of its metadata that people look for, and in which order.
const FACTS: [&str; 10] = [
    "modelspec.title",
    "ss_output_name",
    "modelspec.trigger_phrase",
    "ss_base_model_version",
    "ss_sd_model_name",
    "ss_network_module",
    NETWORK_RANK,
    NETWORK_ALPHA,
    "ss_num_train_images",
    "ss_training_comment",
];

impl LoraFile<'_> {
    /// What its metadata says that people look for, as (key, text).
    pub fn facts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        FACTS.iter().filter_map(|key| Some((*key, self.metadata.get(*key)?.as_str())))
    }

    /// The words that most of its training pictures were described by, at most `most`: kohya's scripts count them by folder
    /// and tag.
    pub fn frequent_tags(&self, most: usize) -> Vec<String> {
        let counts = self.metadata.get("ss_tag_frequency").map(String::as_str).unwrap_or_default();
        let folders: BTreeMap<String, BTreeMap<String, u64>> =
            serde_json::from_str(counts).unwrap_or_default();
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for (tag, count) in folders.into_values().flatten() {
            let sum = sums.entry(tag.trim().to_owned()).or_default();
            *sum = sum.saturating_add(count);
        }
        let mut tags: Vec<(String, u64)> = sums.into_iter().collect();
        tags.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        tags.into_iter().take(most).map(|(tag, _)| tag).collect()
    }
}
