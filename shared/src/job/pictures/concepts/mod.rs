//! What jobs teach that learn words: concepts, a `[[concepts]]` each.

mod check;
mod choices;
pub mod limits;
mod word;

pub(in crate::job) use check::check_nameless;
pub use choices::LearnableProperty;
pub use word::{WordDraft, WordSpec};

use super::{
    DataSpec, FolderDraft, FolderSpec, TrainSpec, add_sources, folder_bytes, instead_of_images,
    limits::CAPTION_COLUMN_CHARACTERS,
};
use crate::{
    embedding::LearnedEmbedding,
    job::{ImageUse, section::section, text::text_bytes},
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
        /// See [`WordSpec::initializer_embedding`].
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
    /// See [`WordSpec::initializer_embedding`]; empty where its concept starts from words.
    pub place: &'a mut String,
    /// The rows that its concept learns.
    pub(in crate::job) num_vectors: u32,
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

/// The embeddings that a list's concepts start from, one of each.
pub(in crate::job) fn initializers(
    concepts: &mut [ConceptSpec],
) -> impl Iterator<Item = InitializerEmbedding<'_>> {
    concepts.iter_mut().enumerate().map(|(index, concept)| InitializerEmbedding {
        field: field(index, "initializer_embedding"),
        place: &mut concept.initializer_embedding,
        num_vectors: concept.num_vectors,
    })
}

/// Where the pictures of a list's concepts are, and the embeddings that these start from, by the names of their fields.
#[derive(Default)]
pub(in crate::job) struct ConceptPlaces<'a> {
    pub(in crate::job) pictures: Vec<(String, &'a mut String)>,
    pub(in crate::job) embeddings: Vec<(String, &'a mut String)>,
}

impl<'a> ConceptPlaces<'a> {
    pub(in crate::job) fn of(concepts: &'a mut [ConceptSpec]) -> Self {
        let mut all = Self::default();
        for (index, concept) in concepts.iter_mut().enumerate() {
            let ConceptSpec { images, folders, initializer_embedding, .. } = concept;
            add_sources(&mut all.pictures, |key| field(index, key), images, folders);
            all.embeddings.push((field(index, "initializer_embedding"), initializer_embedding));
        }
        all
    }
}

/// How the pictures of concepts are used, in the order of their places.
pub(in crate::job) fn uses(concepts: Vec<ConceptSpec>) -> impl Iterator<Item = ImageUse> {
    concepts.into_iter().flat_map(|concept| {
        let captions = concept.uses_captions();
        concept.folders().into_iter().map(move |(_, folder)| folder.used(captions))
    })
}

/// The lists without a fixed length of a job of these concepts: the field, their bytes, and what to know of them.
pub(in crate::job) fn lists(
    data: &DataSpec,
    train: &TrainSpec,
    concepts: &[ConceptSpec],
) -> Vec<(String, usize, &'static str)> {
    let mut all = super::lists(data, train);
    // Concepts without prompts of their own have these, each.
    let train = &train.templates;
    let shared = concepts.iter().filter(|concept| !train.is_empty() && concept.templates == *train).count();
    if let Some((_, bytes, each)) = all.first_mut().filter(|_| shared > 0) {
        *bytes *= 1 + shared;
        *each = ", as every concept without templates of its own has them";
    }
    for (index, concept) in concepts.iter().enumerate() {
        if concept.templates != *train {
            all.push((format!("concepts[{index}].templates"), text_bytes(&concept.templates), ""));
        }
        all.push((format!("concepts[{index}].folders"), folder_bytes(&concept.folders), ""));
    }
    all
}

/// A listed concept's field, for messages: `concepts[1].images`.
pub fn field(index: usize, key: &str) -> String {
    format!("concepts[{index}].{key}")
}
