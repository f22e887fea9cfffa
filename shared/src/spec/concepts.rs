//! What a job teaches: one concept, described by `[data]` and `[train]`, or several, a `[[concepts]]` each.

use serde::{Deserialize, Serialize};

use super::{FolderDraft, FolderSpec, JobSpec, LearnableProperty};

/// One concept: a new word, and what it is learned from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConceptSpec {
    /// The new word, as it will be written in prompts.
    pub placeholder_token: String,
    /// The known word or words whose embeddings the new one's rows start from: one after the other, and again from the
    /// first where there are more rows than tokens.
    pub initializer_token: String,
    /// Its pictures; see [`super::DataSpec::images`].
    pub images: String,
    /// Several folders of them instead; see [`super::DataSpec::folders`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub folders: Vec<FolderSpec>,
    /// Rows learned for it. Default: `train.num_vectors`.
    pub num_vectors: u32,
    /// Which of the two lists of prompts is used where `templates` is empty. Default: `train.learnable_property`.
    pub learnable_property: LearnableProperty,
    /// Prompts with a mark for the token, instead of `learnable_property`'s. Default: `train.templates`, unless
    /// the concept has a `learnable_property` of its own.
    pub templates: Vec<String>,
}

/// `[[concepts]]`, unchecked; see [`ConceptSpec`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "documented in ConceptSpec")]
pub struct ConceptDraft {
    pub placeholder_token: Option<String>,
    pub initializer_token: Option<String>,
    pub images: Option<String>,
    pub folders: Option<Vec<FolderDraft>>,
    pub num_vectors: Option<i64>,
    pub learnable_property: Option<String>,
    pub templates: Option<Vec<String>>,
}

impl JobSpec {
    /// What the job teaches, in the order of the learned rows: at least one concept.
    pub fn concepts(&self) -> Vec<ConceptSpec> {
        if !self.concepts.is_empty() {
            return self.concepts.clone();
        }
        let train = &self.train;
        vec![ConceptSpec {
            placeholder_token: train.placeholder_token.clone(),
            initializer_token: train.initializer_token.clone(),
            images: self.data.images.clone(),
            folders: self.data.folders.clone(),
            num_vectors: train.num_vectors,
            learnable_property: train.learnable_property,
            templates: train.templates.clone(),
        }]
    }

    /// The full name of a concept's field, for messages: `concepts[1].images`, or `data.images` in a job that has no
    /// list of them. `index`: as in [`JobSpec::concepts`].
    pub fn concept_field(&self, index: usize, key: &str) -> String {
        match (self.concepts.is_empty(), key) {
            (false, _) => field(index, key),
            (true, _) if key.contains("images") => format!("data.{key}"),
            (true, _) => format!("train.{key}"),
        }
    }
}

pub(super) fn field(index: usize, key: &str) -> String {
    format!("concepts[{index}].{key}")
}
