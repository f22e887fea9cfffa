//! The kinds of work: where they are registered. Each has a folder of its own, and none names another.

pub mod generate;
pub mod generate_text;
pub mod gpt2_finetune;
pub mod textual_inversion;

use std::collections::BTreeMap;

use serde_json::Value;

use self::{
    generate::{GenerateDraft, GenerateSpec},
    generate_text::{GenerateTextDraft, GenerateTextSpec},
    gpt2_finetune::{Gpt2Draft, Gpt2Spec},
    textual_inversion::{ConceptDraft, DataDraft, TextualInversionSpec, TrainDraft},
};
use super::{
    ClusterSpec, CommonSpec, ContentUse, MixedPrecision, ModelLocation, PathUse, check::Check,
    choices::choice,
};
use crate::ids::ContentHash;

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

/// What is said of a training that succeeded after `done` of `planned` steps.
fn trained(done: u64, planned: u64, early_stop_patience: u64) -> String {
    if done >= planned {
        return format!("{done} steps done");
    }
    format!(
        "{done} of {planned} steps done: stopped early, no lower validation loss in {early_stop_patience} validations"
    )
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

    /// See [`super::JobSpec::total_steps`].
    pub(super) fn total_steps(&self) -> u64 {
        match self {
            Self::TextualInversion(work) => work.train.max_train_steps,
            Self::Generate(_) | Self::GenerateText(_) => 0,
            Self::Gpt2Finetune(work) => work.max_iters,
        }
    }

    /// The option that says how many steps there are, by its full name; none: it has no steps.
    pub(crate) fn steps_option(&self) -> Option<&'static str> {
        match self {
            Self::TextualInversion(_) => Some("train.max_train_steps"),
            Self::Generate(_) | Self::GenerateText(_) => None,
            Self::Gpt2Finetune(_) => Some("gpt2.max_iters"),
        }
    }

    /// See [`super::JobSpec::global_microbatches`].
    pub(super) fn global_microbatches(&self, cluster: &ClusterSpec) -> u32 {
        match self {
            Self::TextualInversion(work) => work.global_microbatches(cluster),
            Self::Generate(_) | Self::GenerateText(_) => cluster.world_size,
            Self::Gpt2Finetune(work) => work.global_microbatches(cluster),
        }
    }

    /// The option that says where it goes on, by its full name, and what it says; none: it has no steps.
    pub(super) fn resume(&self) -> Option<(&'static str, &str)> {
        match self {
            Self::TextualInversion(work) => {
                Some(("train.resume_from_checkpoint", &work.train.resume_from_checkpoint))
            }
            Self::Generate(_) | Self::GenerateText(_) => None,
            Self::Gpt2Finetune(work) => Some(("gpt2.resume_from_checkpoint", &work.resume_from_checkpoint)),
        }
    }

    /// See [`super::JobSpec::resume_from_mut`].
    pub(super) fn resume_from_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::TextualInversion(work) => Some(&mut work.train.resume_from_checkpoint),
            Self::Generate(_) | Self::GenerateText(_) => None,
            Self::Gpt2Finetune(work) => Some(&mut work.resume_from_checkpoint),
        }
    }

    /// See [`super::JobSpec::checkpoints_total_limit`].
    pub(super) fn checkpoints_total_limit(&self) -> u64 {
        match self {
            Self::TextualInversion(work) => work.train.checkpoints_total_limit,
            Self::Generate(_) | Self::GenerateText(_) => 0,
            Self::Gpt2Finetune(work) => work.checkpoints_total_limit,
        }
    }

    /// See [`super::JobSpec::may_stop_early`].
    pub(super) fn may_stop_early(&self) -> bool {
        match self {
            Self::TextualInversion(work) => work.train.validation.early_stop_patience > 0,
            Self::Generate(_) | Self::GenerateText(_) => false,
            Self::Gpt2Finetune(work) => work.early_stop_patience > 0,
        }
    }

    /// See [`super::JobSpec::warning`].
    pub(super) fn warning(&self, cluster: &ClusterSpec) -> Option<String> {
        match self {
            Self::TextualInversion(work) => work.warning(),
            Self::Generate(_) | Self::GenerateText(_) => None,
            Self::Gpt2Finetune(work) => work.warning(cluster),
        }
    }

    /// See [`super::JobSpec::mixed_precision`].
    pub(super) fn mixed_precision(&self) -> MixedPrecision {
        match self {
            Self::TextualInversion(work) => work.train.mixed_precision,
            Self::Generate(work) => work.mixed_precision,
            Self::GenerateText(work) => work.mixed_precision,
            Self::Gpt2Finetune(work) => work.mixed_precision,
        }
    }

    /// The uploaded contents that it names, with repetitions.
    pub(super) fn contents(&self) -> Vec<(ContentUse, ContentHash)> {
        match self {
            Self::TextualInversion(work) => work.contents(),
            Self::Generate(work) => work.contents(),
            Self::Gpt2Finetune(work) => work.contents(),
            Self::GenerateText(_) => Vec::new(),
        }
    }

    /// The paths, URIs and addresses that it gives and a job file's folder may be the base of, by their fields' names, each
    /// with what it is for; those that are not given are empty.
    pub(super) fn places(&mut self) -> Vec<(String, PathUse, &mut String)> {
        match self {
            Self::TextualInversion(work) => work.places(),
            Self::Generate(work) => work.places(),
            Self::Gpt2Finetune(work) => work.places(),
            Self::GenerateText(_) => Vec::new(),
        }
    }

    /// What else than the model its ranks read from where it is, with the field's name, where that can be read.
    pub(super) fn locations(&self) -> Vec<(&'static str, ModelLocation)> {
        match self {
            Self::TextualInversion(_) | Self::Generate(_) | Self::GenerateText(_) => Vec::new(),
            Self::Gpt2Finetune(work) => {
                work.tokens_location().ok().map(|location| ("gpt2.tokens", location)).into_iter().collect()
            }
        }
    }

    /// Its lists without a fixed length: the field, their bytes, and what to know of them.
    pub(super) fn lists(&self) -> Vec<(String, usize, &'static str)> {
        match self {
            Self::TextualInversion(work) => work.lists(),
            Self::Generate(work) => work.lists(),
            Self::Gpt2Finetune(_) => Vec::new(),
            Self::GenerateText(work) => work.lists(),
        }
    }

    /// Whether an option that only some kinds have, by its full name, decides a bit of the result.
    pub(crate) fn decides(&self, option: &str) -> bool {
        match self {
            Self::TextualInversion(work) => work.decides(option),
            Self::Generate(_) | Self::GenerateText(_) => true,
            Self::Gpt2Finetune(work) => work.decides(option),
        }
    }

    /// What counts of several options together, by what is said to people of it.
    pub(crate) fn add_deciding(&self, cluster: &ClusterSpec, options: &mut BTreeMap<String, Value>) {
        match self {
            Self::TextualInversion(work) => work.add_deciding(cluster, options),
            Self::Generate(_) | Self::GenerateText(_) => (),
            Self::Gpt2Finetune(work) => work.add_deciding(cluster, options),
        }
    }

    /// Whether the number of steps has decided anything up to `step`.
    pub(crate) fn total_decides(&self, step: u64) -> bool {
        match self {
            Self::TextualInversion(work) => work.total_decides(step),
            Self::Generate(_) | Self::GenerateText(_) => false,
            Self::Gpt2Finetune(work) => work.total_decides(step),
        }
    }

    /// See [`super::JobSpec::state_interval`].
    pub(super) fn state_interval(&self) -> u64 {
        match self {
            Self::Gpt2Finetune(work) => work.compare_interval.max(1),
            Self::TextualInversion(_) | Self::Generate(_) | Self::GenerateText(_) => 1,
        }
    }

    /// See [`super::JobSpec::ring_decides`].
    pub(super) fn ring_decides(&self, cluster: &ClusterSpec) -> bool {
        match self {
            Self::Gpt2Finetune(work) => work.ring_decides(cluster),
            Self::TextualInversion(_) | Self::Generate(_) | Self::GenerateText(_) => false,
        }
    }

    /// See [`super::JobSpec::activity`].
    pub(super) fn activity(&self) -> Activity {
        match self {
            Self::TextualInversion(_) | Self::Gpt2Finetune(_) => Activity::Training,
            Self::Generate(_) => Activity::Drawing,
            Self::GenerateText(_) => Activity::Writing,
        }
    }

    /// See [`super::JobSpec::success`].
    pub(super) fn success(&self, done: u64) -> String {
        match self {
            Self::TextualInversion(work) => work.success(done),
            Self::Generate(_) => "all pictures are drawn".to_owned(),
            Self::GenerateText(_) => "all texts are made".to_owned(),
            Self::Gpt2Finetune(work) => work.success(done),
        }
    }
}
