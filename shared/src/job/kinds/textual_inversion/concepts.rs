//! What a job teaches: one concept, described by `[data]` and `[train]`, or several, a `[[concepts]]` each.

use super::{LearnableProperty, TextualInversionSpec, WordSpec, limits};
use crate::{
    embedding::LearnedEmbedding,
    job::{
        pictures::{DataSpec, FolderDraft, FolderSpec, instead_of_images, limits::CAPTION_COLUMN_CHARACTERS},
        section::section,
    },
    templates::use_captions,
};

section! {
    /// One concept: a new word, and what it is learned from.
    #[derive(Eq)]
    ConceptSpec from draft: ConceptDraft, concept_keys {
        /// The new word, as it will be written in prompts.
        placeholder_token: String = string.text(),
        /// The known word or words whose embeddings the new one's rows start from: one after the other, and again from the
        /// first where there are more rows than tokens.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        initializer_token: String = string.text(),
        /// See [`super::WordSpec::initializer_embedding`].
        #[serde(default, skip_serializing_if = "String::is_empty")]
        initializer_embedding: String = string.text(),
        /// Its pictures; see [`crate::job::pictures::DataSpec::images`].
        images: String = string.images(instead_of_images(draft.folders.is_some(), None)),
        /// Several folders of them instead; see [`crate::job::pictures::DataSpec::folders`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        folders: Vec<FolderSpec> = tables<FolderDraft>.folders(),
        /// See [`crate::job::pictures::DataSpec::caption_column`].
        #[serde(default, skip_serializing_if = "String::is_empty")]
        caption_column: String = string.line(CAPTION_COLUMN_CHARACTERS),
        /// Rows learned for it. Default: `train.num_vectors`.
        num_vectors: u32 = integer.count(1, 1..=limits::NUM_VECTORS),
        /// Which of the two lists of prompts is used where `templates` is empty. Default: `train.learnable_property`.
        learnable_property: LearnableProperty = string.choice(LearnableProperty::Object),
        /// Prompts with a mark for the token, instead of `learnable_property`'s. Default: `train.templates`, unless
        /// the concept has a `learnable_property` of its own.
        templates: Vec<String> = strings.templates(),
    }
}

impl ConceptSpec {
    /// Whether one of its prompts has the picture's caption in it.
    pub fn uses_captions(&self) -> bool {
        use_captions(&self.templates)
    }

    /// Where its pictures are: at least one folder, each with its key ("images" or "folders[0].images").
    pub fn folders(&self) -> Vec<(String, FolderSpec)> {
        let Self { images, folders, caption_column, .. } = self.clone();
        DataSpec { images, folders, caption_column, ..DataSpec::default() }.folders()
    }
}

/// The embedding that a concept starts from.
#[derive(Debug, PartialEq, Eq)]
pub struct InitializerEmbedding<'a> {
    /// The full name of the field that names it, for messages.
    pub field: String,
    /// See [`super::WordSpec::initializer_embedding`]; empty where its concept starts from words.
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
            Ok(found) if found <= limits::NUM_VECTORS => format!("give num_vectors = {found}"),
            _ => format!("a concept has at most {}", limits::NUM_VECTORS),
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
    pub fn initializer_embeddings(&mut self) -> Vec<InitializerEmbedding<'_>> {
        let word = &mut self.word;
        let own = self.concepts.is_empty().then(|| InitializerEmbedding {
            field: "train.initializer_embedding".to_owned(),
            place: &mut word.initializer_embedding,
            num_vectors: word.num_vectors,
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
