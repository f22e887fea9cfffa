//! The checks of what a job teaches.

use super::{ConceptDraft, ConceptSpec, WordDraft, WordSpec, field, limits};
use crate::{
    ids::{CONTENT_URI_PREFIX, ContentHash},
    job::{
        check::Check,
        limits::{NAME_CHARACTERS, PATH_CHARACTERS},
        pictures::{DataDraft, TrainSpec},
        section::Spec as _,
        text::{printable, scheme, shortened},
    },
    names,
    templates::Template,
};

/// A caption that is left empty must leave what is learned where it is. `templates`: all that pictures are shown with.
pub(in crate::job) fn check_nameless<'a>(
    check: &mut Check,
    train: &TrainSpec,
    mut templates: impl Iterator<Item = &'a String>,
) {
    let is_nameless = |text: &&String| Template::parse(text).is_ok_and(|template| !template.has_name());
    if let Some(template) = templates.find(is_nameless).filter(|_| train.caption_dropout > 0.0) {
        let problem = format!(
            "leaves the caption of the template {template:?} empty, and with it the token; put [name] into it"
        );
        check.refuse("train.caption_dropout", problem);
    }
}

impl Check {
    /// The placeholder of the concept in `section`, and what it starts from: words or an embedding.
    pub(in crate::job) fn words(
        &mut self,
        section: &str,
        placeholder: &str,
        initializer: &str,
        embedding: &str,
    ) {
        let field = format!("{section}.placeholder_token");
        self.token(&field, placeholder);
        if embedding.is_empty() {
            self.phrase(&format!("{section}.initializer_token"), initializer);
        } else {
            self.initializer_embedding(section, embedding, initializer);
        }
        if !placeholder.is_empty() && embedding.is_empty() && placeholder == initializer {
            let problem = format!("got {placeholder:?}, which is the initializer_token too; give a new word");
            self.refuse(&field, problem);
        }
    }

    /// A word of a prompt.
    fn token(&mut self, field: &str, token: &str) {
        if token.is_empty() {
            self.refuse(field, "missing; give one word without spaces");
        } else if token.chars().any(char::is_whitespace) {
            self.refuse(field, format!("got {:?}; allowed: one word without spaces", shortened(token)));
        } else if let Err(problem) = names::check(token, NAME_CHARACTERS) {
            self.refuse(field, problem);
        }
    }

    /// A file or a content URI, and no words beside it.
    fn initializer_embedding(&mut self, section: &str, place: &str, words: &str) {
        let field = format!("{section}.initializer_embedding");
        if !words.is_empty() {
            self.refuse(&field, "given together with initializer_token; allowed: one of them");
        } else if let Err(problem) = printable(place, PATH_CHARACTERS) {
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
    fn phrase(&mut self, field: &str, phrase: &str) {
        if phrase.is_empty() {
            self.refuse(
                field,
                "missing; give one word, or one for each of several vectors; or an initializer_embedding",
            );
        } else if let Err(problem) = printable(phrase, NAME_CHARACTERS) {
            self.refuse(field, problem);
        } else if phrase.trim() != phrase {
            self.refuse(field, format!("got {phrase:?}; allowed: no space at either end"));
        }
    }

    /// `[data]` and `[train]` have no pictures and no words where `[[concepts]]` have theirs.
    pub(in crate::job) fn nothing_beside_concepts(&mut self, data: &mut DataDraft, word: &mut WordDraft) {
        if data.folders.is_some() {
            self.refuse("data.folders", "is given together with [[concepts]]; give it in each of them");
        }
        if data.alpha_mask.take() == Some(true) {
            self.refuse("data.alpha_mask", "got true together with [[concepts]], which have no masks");
        }
        let WordDraft { placeholder_token, initializer_token, initializer_embedding, .. } = word;
        for (field, given) in [
            ("data.images", &mut data.images),
            ("data.source", &mut data.source),
            ("data.caption_column", &mut data.caption_column),
            ("data.masks", &mut data.masks),
            ("train.placeholder_token", placeholder_token),
            ("train.initializer_token", initializer_token),
            ("train.initializer_embedding", initializer_embedding),
        ] {
            if let Some(given) = given.take().filter(|given| !given.is_empty()) {
                let given = shortened(&given);
                self.refuse(
                    field,
                    format!("got {given:?} together with [[concepts]]; give it in each of them"),
                );
            }
        }
    }

    /// The list of concepts, with what `[train]` says for all of them; empty: the job has no list.
    pub(in crate::job) fn concepts(
        &mut self,
        drafts: Vec<ConceptDraft>,
        word: &WordSpec,
        train: &TrainSpec,
    ) -> Vec<ConceptSpec> {
        if drafts.len() > limits::CONCEPTS {
            self.refuse("concepts", format!("got {}; allowed: at most {}", drafts.len(), limits::CONCEPTS));
        }
        let drafts = drafts.into_iter().take(limits::CONCEPTS).enumerate();
        let concepts: Vec<ConceptSpec> =
            drafts.map(|(index, draft)| self.concept(index, draft, word, train)).collect();
        self.check_placeholders(&concepts);
        let vectors: u32 = concepts.iter().map(|concept| concept.num_vectors).sum();
        if vectors > limits::ALL_VECTORS {
            let allowed = limits::ALL_VECTORS;
            self.refuse("concepts", format!("got {vectors} vectors in all; allowed: at most {allowed}"));
        }
        concepts
    }

    fn concept(
        &mut self,
        index: usize,
        draft: ConceptDraft,
        word: &WordSpec,
        train: &TrainSpec,
    ) -> ConceptSpec {
        let section = format!("concepts[{index}]");
        let (vectors, property) = (draft.num_vectors, draft.learnable_property.is_some());
        // A property of its own would mean nothing beside the job's templates.
        let has_prompts = draft.templates.is_some() || property;
        let mut concept = ConceptSpec::checked(draft, self, &section);
        let ConceptSpec { placeholder_token, initializer_token, initializer_embedding, .. } = &concept;
        self.words(&section, placeholder_token, initializer_token, initializer_embedding);
        if vectors.is_none() {
            concept.num_vectors = word.num_vectors;
        }
        if !property {
            concept.learnable_property = word.learnable_property;
        }
        if !has_prompts {
            concept.templates.clone_from(&train.templates);
        }
        concept
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
