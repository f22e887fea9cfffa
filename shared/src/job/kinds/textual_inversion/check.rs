//! The checks of what a job teaches: one concept or several.

use super::TextualInversionSpec;
use crate::job::{
    CommonSpec,
    check::Check,
    kinds::JobDraft,
    pictures::{
        DataSpec, TrainSpec,
        concepts::{WordSpec, check_nameless},
    },
    section::Spec as _,
};

/// Fills in the defaults of `[data]`, `[train]` and `[[concepts]]` and checks every value.
pub(super) fn checked(draft: JobDraft, check: &mut Check, common: &CommonSpec) -> TextualInversionSpec {
    let JobDraft { mut data, mut word, train, concepts, .. } = draft;
    if !concepts.is_empty() {
        check.nothing_beside_concepts(&mut data, &mut word);
    }
    let several = !concepts.is_empty();
    let data = if several { DataSpec::default() } else { DataSpec::checked(data, check, "data") };
    let word = WordSpec::checked(word, check, "train");
    if !several {
        check.words("train", &word.placeholder_token, &word.initializer_token, &word.initializer_embedding);
    }
    let train = TrainSpec::checked(train, check, "train");
    let concepts = check.concepts(concepts, &word, &train);
    let work = TextualInversionSpec { data, word, train, concepts };
    let concepts = work.concepts();
    let templates = || concepts.iter().flat_map(|concept| &concept.templates);
    work.data.check(check, work.train.needs_image_count());
    work.train.check(check, common, templates());
    check_nameless(check, &work.train, templates());
    work
}
