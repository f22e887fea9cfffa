//! What is asked of its work.

use super::TextualInversionSpec;
use crate::job::{
    ImageUse, PathUse,
    kinds::facts::Facts,
    pictures::{
        DataSpec, TrainSpec,
        concepts::{self, ConceptPlaces, ConceptSpec, InitializerEmbedding},
    },
};

impl Facts for TextualInversionSpec {
    fn pictures(&self) -> Option<(&DataSpec, &TrainSpec)> {
        Some((&self.data, &self.train))
    }

    fn pictures_mut(&mut self) -> Option<(&mut DataSpec, &mut TrainSpec)> {
        Some((&mut self.data, &mut self.train))
    }

    fn concepts(&self) -> Vec<ConceptSpec> {
        self.concepts()
    }

    fn initializer_embeddings(&mut self) -> Vec<InitializerEmbedding<'_>> {
        self.initializers_of_all()
    }

    fn places(&mut self) -> Vec<(String, PathUse, &mut String)> {
        let Self { data, word, train, concepts } = self;
        let own = ("train.initializer_embedding".to_owned(), &mut word.initializer_embedding);
        let ConceptPlaces { pictures, embeddings } = ConceptPlaces::of(concepts);
        let embeddings = [own].into_iter().chain(embeddings);
        let embeddings = embeddings.map(|(field, place)| (field, PathUse::Embedding, place));
        let pictures = data.all_places().into_iter().chain(pictures);
        let pictures = pictures.map(|(field, place)| (field, PathUse::Pictures, place));
        embeddings.chain(pictures).chain(train.checkpoint_place()).collect()
    }

    fn lists(&self) -> Vec<(String, usize, &'static str)> {
        concepts::lists(&self.data, &self.train, &self.concepts)
    }

    fn image_sources(&mut self) -> Vec<(String, &mut String)> {
        let Self { data, concepts, .. } = self;
        let own = if concepts.is_empty() { data.sources() } else { Vec::new() };
        own.into_iter().chain(ConceptPlaces::of(concepts).pictures).collect()
    }

    fn image_uses(&self) -> Vec<ImageUse> {
        if !self.data.source.is_empty() {
            return Vec::new();
        }
        concepts::uses(self.concepts()).chain(self.data.masks_used()).collect()
    }
}
