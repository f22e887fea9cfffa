//! Textual inversion: the embedding of a new word is learned from a few pictures (Gal et al. 2022).

mod check;
mod concepts;
mod facts;

use serde::ser::SerializeMap;

use super::{JobDraft, Kind, StoredSections, sections::Joined};
use crate::job::{
    CommonSpec,
    check::Check,
    pictures::{
        self, DataSpec, TrainSpec,
        concepts::{ConceptSpec, WordSpec},
    },
    reader::ForeignKeys,
    section::Spec,
};

/// What is learned, and from what.
#[derive(Debug, Clone, PartialEq)]
pub struct TextualInversionSpec {
    /// What is learned from.
    pub data: DataSpec,
    /// What of `[train]` says what is learned.
    pub word: WordSpec,
    /// How it is learned: the rest of `[train]`.
    pub train: TrainSpec,
    /// What is learned, where it is more than one concept; empty: the one that `data` and `word` describe. Use
    /// [`TextualInversionSpec::concepts`], which has the same form for both.
    pub concepts: Vec<ConceptSpec>,
}

impl Kind for TextualInversionSpec {
    const PARTS: &'static [&'static str] = &["data", "word", "train", "concepts"];
    const FOREIGN_KEYS: ForeignKeys = pictures::FOREIGN_KEYS;

    fn checked(draft: JobDraft, check: &mut Check, common: &CommonSpec) -> Self {
        check::checked(draft, check, common)
    }

    fn fill(&self, draft: &mut JobDraft) {
        draft.data = self.data.draft();
        draft.word = self.word.draft();
        draft.train = self.train.to_draft();
        draft.concepts = self.concepts.iter().map(Spec::draft).collect();
    }

    fn write<M: SerializeMap>(&self, sections: &mut M) -> Result<(), M::Error> {
        if !self.data.is_unused() {
            sections.serialize_entry("data", &self.data)?;
        }
        sections.serialize_entry("train", &Joined { own: &self.word, shared: &self.train })
    }

    fn write_tables<M: SerializeMap>(&self, sections: &mut M) -> Result<(), M::Error> {
        match self.concepts.is_empty() {
            true => Ok(()),
            false => sections.serialize_entry("concepts", &self.concepts),
        }
    }

    fn read(sections: &mut StoredSections) -> Result<Self, serde_json::Error> {
        let Joined { own: word, shared: train } = sections.take("train")?;
        let (data, concepts) = (sections.take_or_default("data")?, sections.take_or_default("concepts")?);
        Ok(Self { data, word, train, concepts })
    }
}
