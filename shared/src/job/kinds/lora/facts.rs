//! What is asked of its work.

use super::{COMPARE_INTERVAL, LoraSpec};
use crate::{
    job::{
        ImageUse, JobFile, PathUse, Teaches,
        kinds::facts::Facts,
        pictures::{self, DataSpec, DenoiserSpec, PromptSpec, TrainSpec},
    },
    templates::use_captions,
};

/// Options of `[train]` that decide no bit of what is learned.
pub const OPTIONS_WITHOUT_EFFECT: [&str; 11] = pictures::OPTIONS_WITHOUT_EFFECT;

/// The file to go on from.
const INITIALIZER: &str = "lora.initializer_lora";

impl Facts for LoraSpec {
    fn pictures(&self) -> Option<(&DataSpec, &TrainSpec)> {
        Some((&self.data, &self.train))
    }

    fn pictures_mut(&mut self) -> Option<(&mut DataSpec, &mut TrainSpec)> {
        Some((&mut self.data, &mut self.train))
    }

    fn initializer(&self) -> &str {
        &self.lora.initializer_lora
    }

    fn places(&mut self) -> Vec<(String, PathUse, &mut String)> {
        let pictures = self.data.all_places().into_iter().chain(self.prompt.class_source());
        let pictures = pictures.map(|(field, place)| (field, PathUse::Pictures, place));
        let initializer = (INITIALIZER.to_owned(), PathUse::Embedding, &mut self.lora.initializer_lora);
        pictures.chain(self.train.checkpoint_place()).chain([initializer]).collect()
    }

    fn files(&mut self) -> Vec<JobFile<'_>> {
        let place = &mut self.lora.initializer_lora;
        vec![JobFile { field: INITIALIZER.to_owned(), place, teaches: Teaches::Layers, is_start: true }]
    }

    fn state_interval(&self) -> u64 {
        COMPARE_INTERVAL
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
}
