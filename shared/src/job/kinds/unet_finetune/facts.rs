//! What is asked of its work.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{COMPARE_INTERVAL, UnetFinetuneSpec, UnetInit};
use crate::{
    job::{
        ClusterSpec, ImageUse, PathUse,
        kinds::facts::Facts,
        pictures::{self, DataSpec, DenoiserSpec, PromptSpec, TrainSpec},
    },
    templates::use_captions,
};

/// Options of this kind that decide no bit of what is learned.
const WITHOUT_EFFECT: [&str; 3] = ["gradient_checkpointing", "offload", "shard_optimizer"];

/// Options of `[train]` that decide no bit of what is learned.
pub fn options_without_effect() -> Vec<&'static str> {
    pictures::OPTIONS_WITHOUT_EFFECT.into_iter().chain(WITHOUT_EFFECT).collect()
}

impl Facts for UnetFinetuneSpec {
    fn pictures(&self) -> Option<(&DataSpec, &TrainSpec)> {
        Some((&self.data, &self.train))
    }

    fn pictures_mut(&mut self) -> Option<(&mut DataSpec, &mut TrainSpec)> {
        Some((&mut self.data, &mut self.train))
    }

    fn local_steps(&self) -> u32 {
        self.unet.local_steps.unwrap_or(1)
    }

    fn places(&mut self) -> Vec<(String, PathUse, &mut String)> {
        let pictures = self.data.all_places().into_iter().chain(self.prompt.class_source());
        let pictures = pictures.map(|(field, place)| (field, PathUse::Pictures, place));
        pictures.chain(self.train.checkpoint_place()).collect()
    }

    fn state_interval(&self) -> u64 {
        COMPARE_INTERVAL
    }

    fn exact_instead(&self, cluster: &ClusterSpec) -> Option<&'static str> {
        let follows = self.unet.exchange.follows_the_ring() && cluster.world_size > 1;
        follows.then_some("train.exchange = \"exact\"")
    }

    fn warning(&self, cluster: &ClusterSpec) -> Option<String> {
        let ClusterSpec { world_size, min_world_size, .. } = cluster;
        let may_shrink = (self.exact_instead(cluster).is_some() && min_world_size < world_size).then(|| {
            format!(
                "train.exchange = \"{}\" and cluster.min_world_size = {min_world_size} of {world_size}: with fewer ranks than \
                 {world_size} gradients are added up in another order, and the result has other bits",
                self.unet.exchange
            )
        });
        let all: Vec<String> = self.train.warning().into_iter().chain(may_shrink).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    fn class_pictures(&self) -> Option<(&PromptSpec, &DenoiserSpec)> {
        (!self.prompt.class_images.is_empty()).then_some((&self.prompt, &self.denoiser))
    }

    fn forget_class(&mut self) {
        self.prompt.class_images.clear();
        self.prompt.class_prompt.clear();
    }

    fn image_sources(&mut self) -> Vec<(String, &mut String)> {
        self.data.sources().into_iter().chain(self.prompt.class_source()).collect()
    }

    fn image_uses(&self) -> Vec<ImageUse> {
        let class = self.prompt.class_used(self.denoiser.num_class_images);
        self.data.uses(use_captions(&self.templates())).into_iter().chain(class).collect()
    }

    fn prompt_to_try(&self) -> Option<String> {
        let given = [&self.train.previews.validation_prompt, &self.prompt.instance_prompt];
        given.into_iter().find(|prompt| !prompt.is_empty()).cloned()
    }

    fn draws_unet(&self) -> bool {
        self.unet.init_from == UnetInit::Scratch && self.unet.trainable == ["all"]
    }

    fn trains_unet(&self) -> bool {
        true
    }

    fn decides(&self, option: &str) -> bool {
        let key = option.strip_prefix("train.").unwrap_or_default();
        TrainSpec::decides(option) && !WITHOUT_EFFECT.contains(&key)
    }

    fn add_deciding(&self, cluster: &ClusterSpec, options: &mut BTreeMap<String, Value>) {
        self.train.add_deciding(cluster, options);
        if self.exact_instead(cluster).is_some() {
            let ranks = format!("cluster.world_size (with train.exchange = \"{}\")", self.unet.exchange);
            options.insert(ranks, Value::from(cluster.world_size));
        }
    }
}
