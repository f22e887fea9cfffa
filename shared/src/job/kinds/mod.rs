//! The kinds of work: where they are registered. Each has a folder of its own, and none names another.

pub mod generate;
pub mod textual_inversion;

use std::collections::BTreeMap;

use serde_json::Value;

use self::{
    generate::{GenerateDraft, GenerateSpec},
    textual_inversion::{ConceptDraft, DataDraft, TextualInversionSpec, TrainDraft},
};
use super::{ClusterSpec, CommonSpec, ContentUse, MixedPrecision, PathUse, check::Check, choices::choice};
use crate::ids::ContentHash;

choice! {
    /// What a job does.
    JobKind {
        /// Learns the embedding of a new word from a few pictures (Gal et al. 2022).
        TextualInversion = "textual_inversion",
        /// Draws pictures, with learned embeddings or without.
        Generate = "generate",
    }
}

choice! {
    /// What the ranks of a job do when they are prepared.
    Activity {
        /// They take steps.
        Training = "training",
        /// They draw pictures.
        Drawing = "drawing",
    }
}

/// What a job does, with every default filled in and every value checked.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a job is one of these, and there is one for each job")]
pub enum Work {
    /// See [`TextualInversionSpec`].
    TextualInversion(TextualInversionSpec),
    /// See [`GenerateSpec`].
    Generate(GenerateSpec),
}

/// The sections of a job file that not all kinds have, unchecked.
#[derive(Debug, Default)]
pub(super) struct WorkDraft {
    pub(super) data: DataDraft,
    pub(super) train: TrainDraft,
    pub(super) concepts: Vec<ConceptDraft>,
    pub(super) generate: GenerateDraft,
}

impl WorkDraft {
    /// The sections that say something.
    fn given(&self) -> Vec<&'static str> {
        let all = [
            ("data", self.data != DataDraft::default()),
            ("train", self.train != TrainDraft::default()),
            ("concepts", !self.concepts.is_empty()),
            ("generate", self.generate != GenerateDraft::default()),
        ];
        all.into_iter().filter(|(_, given)| *given).map(|(section, _)| section).collect()
    }
}

/// The kind that was asked for.
pub(super) fn check_kind(check: &mut Check, given: Option<String>) -> JobKind {
    let kind = JobKind::TextualInversion;
    match given.as_deref() {
        None | Some("") => check.refuse("kind", format!("missing; allowed: {}", JobKind::allowed())),
        Some(later @ ("unet_finetune" | "gpt2_finetune")) => {
            check.refuse("kind", format!("{later:?} is not supported yet; allowed: {}", JobKind::allowed()));
        }
        Some(_) => return check.choice("kind", given, kind),
    }
    kind
}

/// Fills in the defaults of a kind and checks its values; sections that only other kinds have are refused.
pub(super) fn check(check: &mut Check, kind: JobKind, draft: WorkDraft, common: &CommonSpec) -> Work {
    let own: &[&str] = match kind {
        JobKind::TextualInversion => &textual_inversion::SECTIONS,
        JobKind::Generate => &generate::SECTIONS,
    };
    for foreign in draft.given().into_iter().filter(|section| !own.contains(section)) {
        check.refuse(foreign, format!("a job of kind {:?} has no [{foreign}]", kind.as_str()));
    }
    let WorkDraft { data, train, concepts, generate } = draft;
    match kind {
        JobKind::TextualInversion => {
            Work::TextualInversion(textual_inversion::check(check, data, train, concepts, common))
        }
        JobKind::Generate => Work::Generate(generate::check(check, generate, common)),
    }
}

impl Work {
    /// What kind it is.
    pub fn kind(&self) -> JobKind {
        match self {
            Self::TextualInversion(_) => JobKind::TextualInversion,
            Self::Generate(_) => JobKind::Generate,
        }
    }

    /// See [`super::JobSpec::total_steps`].
    pub(super) fn total_steps(&self) -> u64 {
        match self {
            Self::TextualInversion(work) => work.train.max_train_steps,
            Self::Generate(_) => 0,
        }
    }

    /// See [`super::JobSpec::mixed_precision`].
    pub(super) fn mixed_precision(&self) -> MixedPrecision {
        match self {
            Self::TextualInversion(work) => work.train.mixed_precision,
            Self::Generate(work) => work.mixed_precision,
        }
    }

    /// The uploaded contents that it names, with repetitions.
    pub(super) fn contents(&self) -> Vec<(ContentUse, ContentHash)> {
        match self {
            Self::TextualInversion(work) => work.contents(),
            Self::Generate(work) => work.contents(),
        }
    }

    /// The paths, URIs and addresses that it gives and a job file's folder may be the base of, by their fields' names, each
    /// with what it is for; those that are not given are empty.
    pub(super) fn places(&mut self) -> Vec<(String, PathUse, &mut String)> {
        match self {
            Self::TextualInversion(work) => work.places(),
            Self::Generate(work) => work.places(),
        }
    }

    /// Its lists without a fixed length: the field, their bytes, and what to know of them.
    pub(super) fn lists(&self) -> Vec<(String, usize, &'static str)> {
        match self {
            Self::TextualInversion(work) => work.lists(),
            Self::Generate(work) => work.lists(),
        }
    }

    /// Whether an option that only some kinds have, by its full name, decides a bit of the result.
    pub(crate) fn decides(&self, option: &str) -> bool {
        match self {
            Self::TextualInversion(work) => work.decides(option),
            Self::Generate(_) => true,
        }
    }

    /// What counts of several options together, by what is said to people of it.
    pub(crate) fn add_deciding(&self, cluster: &ClusterSpec, options: &mut BTreeMap<String, Value>) {
        match self {
            Self::TextualInversion(work) => work.add_deciding(cluster, options),
            Self::Generate(_) => (),
        }
    }

    /// Whether the number of steps has decided anything up to `step`.
    pub(crate) fn total_decides(&self, step: u64) -> bool {
        match self {
            Self::TextualInversion(work) => work.total_decides(step),
            Self::Generate(_) => false,
        }
    }

    /// See [`super::JobSpec::activity`].
    pub(super) fn activity(&self) -> Activity {
        match self {
            Self::TextualInversion(_) => Activity::Training,
            Self::Generate(_) => Activity::Drawing,
        }
    }

    /// See [`super::JobSpec::success`].
    pub(super) fn success(&self, done: u64) -> String {
        match self {
            Self::TextualInversion(work) => work.success(done),
            Self::Generate(_) => "all pictures are drawn".to_owned(),
        }
    }
}
