//! What a job teaches: one concept, described by `[data]` and `[train]`, or several, a `[[concepts]]` each.

use super::TextualInversionSpec;
use crate::job::pictures::{
    DataSpec,
    concepts::{ConceptSpec, InitializerEmbedding, WordSpec, field, initializers},
};

impl TextualInversionSpec {
    /// What the job teaches, in the order of the learned rows: at least one concept.
    pub fn concepts(&self) -> Vec<ConceptSpec> {
        if !self.concepts.is_empty() {
            return self.concepts.clone();
        }
        let WordSpec {
            placeholder_token,
            initializer_token,
            initializer_embedding,
            learnable_property,
            num_vectors,
        } = self.word.clone();
        let DataSpec { images, folders, caption_column, .. } = self.data.clone();
        vec![ConceptSpec {
            placeholder_token,
            initializer_token,
            initializer_embedding,
            images,
            folders,
            caption_column,
            num_vectors,
            learnable_property,
            templates: self.train.templates.clone(),
        }]
    }

    /// The full name of a concept's field, for messages: `concepts[1].images`, or `data.images` in a job that has no
    /// list of them. `index`: as in [`TextualInversionSpec::concepts`].
    pub fn concept_field(&self, index: usize, key: &str) -> String {
        match (self.concepts.is_empty(), key) {
            (false, _) => field(index, key),
            (true, "images") if !self.data.source.is_empty() => "data.source".to_owned(),
            (true, _) if key.contains("images") => format!("data.{key}"),
            (true, _) => format!("train.{key}"),
        }
    }

    /// The embeddings that concepts start from, one of each in the order of [`TextualInversionSpec::concepts`].
    pub(super) fn initializers_of_all(&mut self) -> Vec<InitializerEmbedding<'_>> {
        let word = &mut self.word;
        let own = self.concepts.is_empty().then(|| InitializerEmbedding {
            field: "train.initializer_embedding".to_owned(),
            place: &mut word.initializer_embedding,
            num_vectors: word.num_vectors,
        });
        own.into_iter().chain(initializers(&mut self.concepts)).collect()
    }
}
