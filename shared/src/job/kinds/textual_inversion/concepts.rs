//! What a job teaches: one concept, described by `[data]` and `[train]`, or several, a `[[concepts]]` each.

use serde::{Deserialize, Serialize};

use super::{
    FolderDraft, FolderSpec, LearnableProperty, TextualInversionSpec, folders::key, limits::NUM_VECTORS,
};
use crate::{embedding::LearnedEmbedding, job::reader::section, templates::use_captions};

/// One concept: a new word, and what it is learned from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConceptSpec {
    /// The new word, as it will be written in prompts.
    pub placeholder_token: String,
    /// The known word or words whose embeddings the new one's rows start from: one after the other, and again from the
    /// first where there are more rows than tokens.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub initializer_token: String,
    /// See [`super::TrainSpec::initializer_embedding`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub initializer_embedding: String,
    /// Its pictures; see [`DataSpec::images`].
    pub images: String,
    /// Several folders of them instead; see [`DataSpec::folders`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folders: Vec<FolderSpec>,
    /// Rows learned for it. Default: `train.num_vectors`.
    pub num_vectors: u32,
    /// Which of the two lists of prompts is used where `templates` is empty. Default: `train.learnable_property`.
    pub learnable_property: LearnableProperty,
    /// Prompts with a mark for the token, instead of `learnable_property`'s. Default: `train.templates`, unless
    /// the concept has a `learnable_property` of its own.
    pub templates: Vec<String>,
}

section! {
    /// `[[concepts]]`, unchecked; see [`ConceptSpec`].
    ConceptDraft {
        placeholder_token: String as string,
        initializer_token: String as string,
        initializer_embedding: String as string,
        images: String as string,
        folders: Vec<FolderDraft> as tables,
        num_vectors: i64 as integer,
        learnable_property: String as string,
        templates: Vec<String> as strings,
    }
}

impl ConceptSpec {
    /// Whether one of its prompts has the picture's caption in it.
    pub fn uses_captions(&self) -> bool {
        use_captions(&self.templates)
    }

    /// Where its pictures are: at least one folder, each with its key ("images" or "folders[0].images").
    pub fn folders(&self) -> Vec<(String, FolderSpec)> {
        if self.folders.is_empty() {
            return vec![("images".to_owned(), FolderSpec { images: self.images.clone(), repeats: 1 })];
        }
        let folders = self.folders.iter().cloned().enumerate();
        folders.map(|(index, folder)| (key(index), folder)).collect()
    }
}

/// The embedding that a concept starts from.
#[derive(Debug, PartialEq, Eq)]
pub struct InitializerEmbedding<'a> {
    /// The full name of the field that names it, for messages.
    pub field: String,
    /// See [`super::TrainSpec::initializer_embedding`]; empty where its concept starts from words.
    pub place: &'a mut String,
    /// The rows that its concept learns.
    num_vectors: u32,
}

impl InitializerEmbedding<'_> {
    /// Refuses what is not a start for this concept. Whether it is as wide as the text encoder only a worker can tell.
    ///
    /// # Errors
    /// It has another number of rows than the concept learns: both, without the field's name.
    pub fn check(&self, learned: &LearnedEmbedding) -> Result<(), String> {
        let (found, wanted) = (learned.vectors(), self.num_vectors);
        if found == wanted as usize {
            return Ok(());
        }
        let vectors = if found == 1 { "vector" } else { "vectors" };
        let advice = match i64::try_from(found) {
            Ok(found) if found <= NUM_VECTORS => format!("give num_vectors = {found}"),
            _ => format!("a concept has at most {NUM_VECTORS}"),
        };
        Err(format!("it has {found} {vectors} and num_vectors is {wanted}; {advice}"))
    }
}

impl TextualInversionSpec {
    /// What the job teaches, in the order of the learned rows: at least one concept.
    pub fn concepts(&self) -> Vec<ConceptSpec> {
        if !self.concepts.is_empty() {
            return self.concepts.clone();
        }
        let train = &self.train;
        vec![ConceptSpec {
            placeholder_token: train.placeholder_token.clone(),
            initializer_token: train.initializer_token.clone(),
            initializer_embedding: train.initializer_embedding.clone(),
            images: self.data.images.clone(),
            folders: self.data.folders.clone(),
            num_vectors: train.num_vectors,
            learnable_property: train.learnable_property,
            templates: train.templates.clone(),
        }]
    }

    /// The full name of a concept's field, for messages: `concepts[1].images`, or `data.images` in a job that has no
    /// list of them. `index`: as in [`TextualInversionSpec::concepts`].
    pub fn concept_field(&self, index: usize, key: &str) -> String {
        match (self.concepts.is_empty(), key) {
            (false, _) => field(index, key),
            (true, _) if key.contains("images") => format!("data.{key}"),
            (true, _) => format!("train.{key}"),
        }
    }

    /// The embeddings that concepts start from, one of each in the order of [`TextualInversionSpec::concepts`].
    pub fn initializer_embeddings(&mut self) -> Vec<InitializerEmbedding<'_>> {
        let train = &mut self.train;
        let own = self.concepts.is_empty().then(|| InitializerEmbedding {
            field: "train.initializer_embedding".to_owned(),
            place: &mut train.initializer_embedding,
            num_vectors: train.num_vectors,
        });
        let listed = self.concepts.iter_mut().enumerate().map(|(index, concept)| InitializerEmbedding {
            field: field(index, "initializer_embedding"),
            place: &mut concept.initializer_embedding,
            num_vectors: concept.num_vectors,
        });
        own.into_iter().chain(listed).collect()
    }
}

pub(super) fn field(index: usize, key: &str) -> String {
    format!("concepts[{index}].{key}")
}
