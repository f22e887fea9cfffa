//! The kinds of work: where they are registered. Each has a folder of its own, and none names another.

mod facts;
pub mod generate;
pub mod generate_text;
pub mod gpt2_finetune;
pub mod textual_inversion;

use self::{
    facts::Facts,
    generate::{GenerateDraft, GenerateSpec},
    generate_text::{GenerateTextDraft, GenerateTextSpec},
    gpt2_finetune::{Gpt2Draft, Gpt2Spec},
    textual_inversion::{ConceptDraft, DataDraft, TextualInversionSpec, TrainDraft},
};
use super::{CommonSpec, check::Check, choices::choice};

choice! {
    /// What a job does.
    JobKind {
        /// Learns the embedding of a new word from a few pictures (Gal et al. 2022).
        TextualInversion = "textual_inversion",
        /// Draws pictures, with learned embeddings or without.
        Generate = "generate",
        /// Trains all parameters of a GPT-2 (Radford et al. 2019) on tokens.
        Gpt2Finetune = "gpt2_finetune",
        /// Makes texts with a GPT-2.
        GenerateText = "generate_text",
    }
}

choice! {
    /// What the ranks of a job do when they are prepared.
    Activity {
        /// They take steps.
        Training = "training",
        /// They draw pictures.
        Drawing = "drawing",
        /// They make texts.
        Writing = "writing",
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
    /// See [`Gpt2Spec`].
    Gpt2Finetune(Gpt2Spec),
    /// See [`GenerateTextSpec`].
    GenerateText(GenerateTextSpec),
}

/// The sections of a job file that not all kinds have, unchecked.
#[derive(Debug, Default)]
pub(super) struct WorkDraft {
    pub(super) data: DataDraft,
    pub(super) train: TrainDraft,
    pub(super) concepts: Vec<ConceptDraft>,
    pub(super) generate: GenerateDraft,
    pub(super) gpt2: Gpt2Draft,
    pub(super) generate_text: GenerateTextDraft,
}

impl WorkDraft {
    /// The sections that say something.
    fn given(&self) -> Vec<&'static str> {
        let all = [
            ("data", self.data != DataDraft::default()),
            ("train", self.train != TrainDraft::default()),
            ("concepts", !self.concepts.is_empty()),
            ("generate", self.generate != GenerateDraft::default()),
            ("gpt2", self.gpt2 != Gpt2Draft::default()),
            ("generate_text", self.generate_text != GenerateTextDraft::default()),
        ];
        all.into_iter().filter(|(_, given)| *given).map(|(section, _)| section).collect()
    }
}

/// The kind that was asked for.
pub(super) fn check_kind(check: &mut Check, given: Option<String>) -> JobKind {
    let kind = JobKind::TextualInversion;
    match given.as_deref() {
        None | Some("") => check.refuse("kind", format!("missing; allowed: {}", JobKind::allowed())),
        Some(later @ "unet_finetune") => {
            check.refuse("kind", format!("{later:?} is not supported yet; allowed: {}", JobKind::allowed()));
        }
        Some(_) => return check.choice("kind", given, kind),
    }
    kind
}

/// The sections of a job file that jobs of this kind have and not all others.
pub(super) fn sections(kind: JobKind) -> &'static [&'static str] {
    match kind {
        JobKind::TextualInversion => &textual_inversion::SECTIONS,
        JobKind::Generate => &generate::SECTIONS,
        JobKind::Gpt2Finetune => &gpt2_finetune::SECTIONS,
        JobKind::GenerateText => &generate_text::SECTIONS,
    }
}

/// Fills in the defaults of a kind and checks its values; sections that only other kinds have are refused.
pub(super) fn check(check: &mut Check, kind: JobKind, draft: WorkDraft, common: &CommonSpec) -> Work {
    let own = sections(kind);
    for foreign in draft.given().into_iter().filter(|section| !own.contains(section)) {
        check.refuse(foreign, format!("a job of kind {:?} has no [{foreign}]", kind.as_str()));
    }
    let WorkDraft { data, train, concepts, generate, gpt2, generate_text } = draft;
    match kind {
        JobKind::TextualInversion => {
            Work::TextualInversion(textual_inversion::check(check, data, train, concepts, common))
        }
        JobKind::Generate => Work::Generate(generate::check(check, generate, common)),
        JobKind::Gpt2Finetune => Work::Gpt2Finetune(gpt2_finetune::check(check, gpt2, common)),
        JobKind::GenerateText => Work::GenerateText(generate_text::check(check, generate_text, common)),
    }
}

impl Work {
    /// What kind it is.
    pub fn kind(&self) -> JobKind {
        match self {
            Self::TextualInversion(_) => JobKind::TextualInversion,
            Self::Generate(_) => JobKind::Generate,
            Self::Gpt2Finetune(_) => JobKind::Gpt2Finetune,
            Self::GenerateText(_) => JobKind::GenerateText,
        }
    }

    /// What is asked of it.
    pub(crate) fn facts(&self) -> &dyn Facts {
        match self {
            Self::TextualInversion(work) => work,
            Self::Generate(work) => work,
            Self::Gpt2Finetune(work) => work,
            Self::GenerateText(work) => work,
        }
    }

    /// The same, to be changed.
    pub(super) fn facts_mut(&mut self) -> &mut dyn Facts {
        match self {
            Self::TextualInversion(work) => work,
            Self::Generate(work) => work,
            Self::Gpt2Finetune(work) => work,
            Self::GenerateText(work) => work,
        }
    }
}
