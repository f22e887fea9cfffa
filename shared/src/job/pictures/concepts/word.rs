//! What of `[train]` says what is learned.

use super::{LearnableProperty, limits};
use crate::job::section::section;

section! {
    /// The new word of a job that teaches one, and what a job of several says for all of them.
    #[derive(Eq)]
    WordSpec from draft: WordDraft, word_keys {
        /// The new word, as it will be written in prompts. Empty in a job of several concepts.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        placeholder_token: String = string.text(),
        /// The known word or words whose embeddings the new one's rows start from: one after the other, and again from the
        /// first where there are more rows than tokens. Empty in a job of several concepts.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        initializer_token: String = string.text(),
        /// A learned embedding whose rows are the start, instead of `initializer_token`: a file, or a content URI once it is
        /// uploaded. It has `num_vectors` rows.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        initializer_embedding: String = string.text(),
        /// Which of the two lists of prompts is used where `templates` is empty. Default object.
        learnable_property: LearnableProperty = string.choice(LearnableProperty::Object),
        /// Rows learned for the placeholder. Default 1.
        num_vectors: u32 = integer.count(1, 1..=limits::NUM_VECTORS),
    }
}
