//! What is asked of its work.

use super::{COMPARE_INTERVAL, LoraSpec};
use crate::{
    job::{
        ImageUse, JobFile, PathUse, Teaches,
        kinds::facts::Facts,
        pictures::{
            self, DataSpec, DenoiserSpec, PromptSpec, TrainSpec,
            concepts::{self, ConceptPlaces, ConceptSpec, InitializerEmbedding},
        },
    },
    templates::use_captions,
};

/// Options of `[train]` that decide no bit of what is learned.
pub const OPTIONS_WITHOUT_EFFECT: [&str; 12] = pictures::OPTIONS_WITHOUT_EFFECT;

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
        let ConceptPlaces { pictures, embeddings } = ConceptPlaces::of(&mut self.concepts);
        let own = if pictures.is_empty() { self.data.all_places() } else { Vec::new() };
        let pictures = own.into_iter().chain(pictures).chain(self.prompt.class_source());
        let pictures = pictures.map(|(field, place)| (field, PathUse::Pictures, place));
        let embeddings = embeddings.into_iter().map(|(field, place)| (field, PathUse::Embedding, place));
        let initializer = (INITIALIZER.to_owned(), PathUse::Embedding, &mut self.lora.initializer_lora);
        pictures.chain(embeddings).chain(self.train.checkpoint_place()).chain([initializer]).collect()
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

    fn prompt_to_try(&self) -> Option<String> {
        let of_word =
            self.concepts.first().map(|concept| format!("a photo of {}", concept.placeholder_token));
        let given = [&self.train.previews.validation_prompt, &self.prompt.instance_prompt];
        of_word.or_else(|| given.into_iter().find(|prompt| !prompt.is_empty()).cloned())
    }

    fn forget_class(&mut self) {
        self.prompt.class_images.clear();
        self.prompt.class_prompt.clear();
    }

    fn image_sources(&mut self) -> Vec<(String, &mut String)> {
        let own = if self.concepts.is_empty() { self.data.sources() } else { Vec::new() };
        let listed = ConceptPlaces::of(&mut self.concepts).pictures;
        own.into_iter().chain(listed).chain(self.prompt.class_source()).collect()
    }

    fn image_uses(&self) -> Vec<ImageUse> {
        let class = self.prompt.class_used(self.denoiser.num_class_images);
        let own = if self.concepts.is_empty() {
            self.data.uses(use_captions(&self.templates()))
        } else {
            Vec::new()
        };
        own.into_iter().chain(concepts::uses(self.concepts.clone())).chain(class).collect()
    }

    fn lists(&self) -> Vec<(String, usize, &'static str)> {
        concepts::lists(&self.data, &self.train, &self.concepts)
    }

    fn concepts(&self) -> Vec<ConceptSpec> {
        self.concepts.clone()
    }

    fn initializer_embeddings(&mut self) -> Vec<InitializerEmbedding<'_>> {
        concepts::initializers(&mut self.concepts).collect()
    }
}
