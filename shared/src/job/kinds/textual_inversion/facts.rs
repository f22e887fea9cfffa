//! What is asked of its work.

use super::{ConceptSpec, TextualInversionSpec, concepts::field};
use crate::{
    ids::ContentHash,
    job::{
        ContentUse, ImageUse, PathUse,
        kinds::facts::Facts,
        pictures::{self, DataSpec, TrainSpec, add_sources, folder_bytes},
        text::text_bytes,
    },
};

impl Facts for TextualInversionSpec {
    fn pictures(&self) -> Option<(&DataSpec, &TrainSpec)> {
        Some((&self.data, &self.train))
    }

    fn pictures_mut(&mut self) -> Option<(&mut DataSpec, &mut TrainSpec)> {
        Some((&mut self.data, &mut self.train))
    }

    fn contents(&self) -> Vec<(ContentUse, ContentHash)> {
        let mut all = Vec::new();
        let mut add = |used, text: &str| all.extend(ContentHash::from_uri(text).map(|hash| (used, hash)));
        for concept in self.concepts() {
            concept.folders().iter().for_each(|(_, folder)| add(ContentUse::Images, &folder.images));
            add(ContentUse::Embedding, &concept.initializer_embedding);
        }
        add(ContentUse::Images, &self.data.masks);
        add(ContentUse::Checkpoint, &self.train.resume_from_checkpoint);
        all
    }

    fn places(&mut self) -> Vec<(String, PathUse, &mut String)> {
        let Self { data, word, train, concepts } = self;
        let own = ("train.initializer_embedding".to_owned(), &mut word.initializer_embedding);
        let (mut pictures, mut embeddings) = (data.all_places(), vec![own]);
        for (index, concept) in concepts.iter_mut().enumerate() {
            add_sources(&mut pictures, |key| field(index, key), &mut concept.images, &mut concept.folders);
            embeddings.push((field(index, "initializer_embedding"), &mut concept.initializer_embedding));
        }
        let embeddings = embeddings.into_iter().map(|(field, place)| (field, PathUse::Embedding, place));
        let pictures = pictures.into_iter().map(|(field, place)| (field, PathUse::Pictures, place));
        embeddings.chain(pictures).chain(train.checkpoint_place()).collect()
    }

    fn lists(&self) -> Vec<(String, usize, &'static str)> {
        let train = &self.train.templates;
        let mut all = pictures::lists(&self.data, &self.train);
        // Concepts without prompts of their own have these, each.
        let shared =
            self.concepts.iter().filter(|concept| !train.is_empty() && concept.templates == *train).count();
        if let Some((_, bytes, each)) = all.first_mut().filter(|_| shared > 0) {
            *bytes *= 1 + shared;
            *each = ", as every concept without templates of its own has them";
        }
        for (index, concept) in self.concepts.iter().enumerate() {
            if concept.templates != *train {
                all.push((format!("concepts[{index}].templates"), text_bytes(&concept.templates), ""));
            }
            all.push((format!("concepts[{index}].folders"), folder_bytes(&concept.folders), ""));
        }
        all
    }

    fn image_sources(&mut self) -> Vec<(String, &mut String)> {
        let Self { data, concepts, .. } = self;
        let mut all = if concepts.is_empty() { data.sources() } else { Vec::new() };
        for (index, concept) in concepts.iter_mut().enumerate() {
            add_sources(&mut all, |key| field(index, key), &mut concept.images, &mut concept.folders);
        }
        all
    }

    fn image_uses(&self) -> Vec<ImageUse> {
        if !self.data.source.is_empty() {
            return Vec::new();
        }
        let uses = |concept: ConceptSpec| {
            let captions = concept.uses_captions();
            concept.folders().into_iter().map(move |(_, folder)| folder.used(captions))
        };
        self.concepts().into_iter().flat_map(uses).chain(self.data.masks_used()).collect()
    }

    fn learned_tokens(&self) -> Vec<String> {
        self.concepts().into_iter().map(|ConceptSpec { placeholder_token, .. }| placeholder_token).collect()
    }
}
