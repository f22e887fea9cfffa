//! The checks of what a job teaches: one concept or several.

use super::{
    super::{ConceptDraft, ConceptSpec, DataSpec, TrainSpec, concepts::field},
    Check, limits,
    pictures::Places,
    printable, scheme, shortened,
};
use crate::ids::{CONTENT_URI_PREFIX, ContentHash};

/// The words of one concept, unchecked.
pub(super) struct Words {
    pub(super) placeholder_token: Option<String>,
    pub(super) initializer_token: Option<String>,
    pub(super) initializer_embedding: Option<String>,
}

impl Check {
    /// The placeholder of the concept in `section`, and what it starts from: words or an embedding.
    pub(super) fn words(&mut self, section: &str, words: Words) -> [String; 3] {
        let field = format!("{section}.placeholder_token");
        let placeholder = self.token(&field, words.placeholder_token);
        let embedding = words.initializer_embedding.filter(|place| !place.is_empty());
        let initializer = match &embedding {
            None => self.phrase(&format!("{section}.initializer_token"), words.initializer_token),
            Some(place) => {
                self.initializer_embedding(section, place, words.initializer_token);
                String::new()
            }
        };
        if !placeholder.is_empty() && placeholder == initializer {
            let problem = format!("got {placeholder:?}, which is the initializer_token too; give a new word");
            self.refuse(&field, problem);
        }
        [placeholder, initializer, embedding.unwrap_or_default()]
    }

    /// A file or a content URI, and no words beside it.
    fn initializer_embedding(&mut self, section: &str, place: &str, words: Option<String>) {
        let field = format!("{section}.initializer_embedding");
        if words.is_some_and(|words| !words.is_empty()) {
            self.refuse(&field, "given together with initializer_token; allowed: one of them");
        } else if let Err(problem) = printable(place, limits::PATH_CHARACTERS) {
            self.refuse(&field, problem);
        } else if place.starts_with(CONTENT_URI_PREFIX) {
            if let Err(error) = ContentHash::from_uri(place) {
                self.refuse(&field, error.to_string());
            }
        } else if let Some(scheme) = scheme(place) {
            let given = shortened(place);
            self.refuse(&field, format!("got {given:?}; {scheme}:// is not supported: give a file"));
        }
    }

    /// One word or several.
    fn phrase(&mut self, field: &str, given: Option<String>) -> String {
        let phrase = given.unwrap_or_default();
        if phrase.is_empty() {
            self.refuse(
                field,
                "missing; give one word, or one for each of several vectors; or an initializer_embedding",
            );
        } else if let Err(problem) = printable(&phrase, limits::NAME_CHARACTERS) {
            self.refuse(field, problem);
        } else if phrase.trim() != phrase {
            self.refuse(field, format!("got {phrase:?}; allowed: no space at either end"));
        }
        phrase
    }

    /// `[train]` has no words where `[[concepts]]` have theirs.
    pub(super) fn no_words(&mut self, words: Words) -> [String; 3] {
        let placeholder = self.refuse_beside_concepts("train.placeholder_token", words.placeholder_token);
        let initializer = self.refuse_beside_concepts("train.initializer_token", words.initializer_token);
        let embedding =
            self.refuse_beside_concepts("train.initializer_embedding", words.initializer_embedding);
        [placeholder, initializer, embedding]
    }

    /// A key that each of several concepts has for itself.
    pub(super) fn refuse_beside_concepts(&mut self, field: &str, given: Option<String>) -> String {
        if let Some(given) = given.filter(|given| !given.is_empty()) {
            let problem =
                format!("got {:?} together with [[concepts]]; give it in each of them", shortened(&given));
            self.refuse(field, problem);
        }
        String::new()
    }

    /// The list of concepts, with what `[train]` says for all of them; empty: the job has no list.
    pub(super) fn concepts(&mut self, drafts: Vec<ConceptDraft>, train: &TrainSpec) -> Vec<ConceptSpec> {
        if drafts.len() > limits::CONCEPTS {
            self.refuse("concepts", format!("got {}; allowed: at most {}", drafts.len(), limits::CONCEPTS));
        }
        let drafts = drafts.into_iter().take(limits::CONCEPTS).enumerate();
        let concepts: Vec<ConceptSpec> =
            drafts.map(|(index, draft)| self.concept(index, draft, train)).collect();
        self.check_placeholders(&concepts);
        let vectors: u32 = concepts.iter().map(|concept| concept.num_vectors).sum();
        if vectors > limits::ALL_VECTORS {
            let allowed = limits::ALL_VECTORS;
            self.refuse("concepts", format!("got {vectors} vectors in all; allowed: at most {allowed}"));
        }
        concepts
    }

    fn concept(&mut self, index: usize, draft: ConceptDraft, train: &TrainSpec) -> ConceptSpec {
        let words = Words {
            placeholder_token: draft.placeholder_token,
            initializer_token: draft.initializer_token,
            initializer_embedding: draft.initializer_embedding,
        };
        let [placeholder_token, initializer_token, initializer_embedding] =
            self.words(&format!("concepts[{index}]"), words);
        // A property of its own would mean nothing beside the job's templates.
        let has_prompts = draft.templates.is_some() || draft.learnable_property.is_some();
        let templates = if has_prompts {
            self.templates(&field(index, "templates"), draft.templates)
        } else {
            train.templates.clone()
        };
        let places = Places { images: draft.images, folders: draft.folders };
        let DataSpec { images, folders } = self.places(&format!("concepts[{index}]"), places);
        ConceptSpec {
            placeholder_token,
            initializer_token,
            initializer_embedding,
            images,
            folders,
            num_vectors: self.count(
                &field(index, "num_vectors"),
                draft.num_vectors,
                train.num_vectors,
                1..=limits::NUM_VECTORS,
            ),
            learnable_property: self.choice(
                &field(index, "learnable_property"),
                draft.learnable_property,
                train.learnable_property,
            ),
            templates,
        }
    }

    /// Learned words are found in a prompt without regard to case and to what stands around them, and tools replace
    /// them in its text: one within another would be taken for it.
    fn check_placeholders(&mut self, concepts: &[ConceptSpec]) {
        let lower: Vec<String> =
            concepts.iter().map(|concept| concept.placeholder_token.to_lowercase()).collect();
        for (index, own) in lower.iter().enumerate().filter(|(_, own)| !own.is_empty()) {
            let contained =
                |other: &&String| !other.is_empty() && (own.contains(*other) || other.contains(own));
            let Some(other) = lower.iter().take(index).position(|other| contained(&other)) else { continue };
            let (token, other_token) =
                (&concepts[index].placeholder_token, &concepts[other].placeholder_token);
            let problem = format!(
                "got {token:?}, which cannot be told apart from {other_token:?} of concepts[{other}]; allowed: \
                 words none of which is part of another, ignoring case"
            );
            self.refuse(&field(index, "placeholder_token"), problem);
        }
    }
}
