//! The kinds of work: where they and their sections are registered. Each has a folder of its own, and none names another.

#[macro_use]
mod registry;

mod facts;
pub mod generate;
pub mod generate_text;
pub mod gpt2_finetune;
pub mod lora;
mod sections;
pub mod textual_inversion;
pub mod unet_finetune;

use serde::ser::SerializeMap;

use self::{
    generate::{GenerateDraft, GenerateSpec},
    generate_text::{GenerateTextDraft, GenerateTextSpec},
    gpt2_finetune::{Gpt2Draft, Gpt2Spec},
    lora::{AdapterDraft, LoraSpec, TextEncoderDraft},
    textual_inversion::TextualInversionSpec,
    unet_finetune::{UnetDraft, UnetFinetuneSpec},
};
use super::{
    ClusterDraft, CommonSpec, DebugDraft, ModelDraft, OrdersDraft, OutputDraft,
    check::Check,
    choices::choice,
    pictures::{
        DataDraft, DenoiserDraft, PromptDraft, TrainDraft,
        concepts::{ConceptDraft, WordDraft},
    },
    reader::{ForeignKeys, Keys, Reader, Section},
};

pub(super) use facts::Facts;
pub(super) use sections::StoredSections;

kinds! {
    /// Learns the embedding of a new word from a few pictures (Gal et al. 2022).
    TextualInversion(TextualInversionSpec) = "textual_inversion",
    /// Learns small matrices beside a model's layers from pictures with captions (Hu et al. 2021).
    Lora(LoraSpec) = "lora",
    /// Trains the weights of a model's UNet on pictures with captions.
    UnetFinetune(UnetFinetuneSpec) = "unet_finetune",
    /// Draws pictures, with learned embeddings or without.
    Generate(GenerateSpec) = "generate",
    /// Trains all parameters of a GPT-2 (Radford et al. 2019) on tokens.
    Gpt2Finetune(Gpt2Spec) = "gpt2_finetune",
    /// Makes texts with a GPT-2.
    GenerateText(GenerateTextSpec) = "generate_text",
}

draft! {
    "data": prompt: PromptDraft, data: DataDraft;
    "train": word: WordDraft, text_encoder: TextEncoderDraft, denoiser: DenoiserDraft, unet: UnetDraft, train: TrainDraft;
    "lora": lora: AdapterDraft;
    "generate": generate: GenerateDraft;
    "gpt2": gpt2: Gpt2Draft;
    "generate_text": generate_text: GenerateTextDraft;
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

/// The work of a kind, as it is asked for and as it is written.
trait Kind: Facts + Sized {
    /// The parts of a [`JobDraft`] that it has and not all other kinds. A section may have parts of several kinds: a kind
    /// takes of it what is named here, and its jobs do not know the other keys.
    const PARTS: &'static [&'static str];
    /// What people who know other trainers write.
    const FOREIGN_KEYS: ForeignKeys;

    /// Fills in the defaults and checks every value.
    fn checked(draft: JobDraft, check: &mut Check, common: &CommonSpec) -> Self;

    /// Takes its parts of a draft that becomes this.
    fn fill(&self, draft: &mut JobDraft);

    /// Writes its sections.
    fn write<M: SerializeMap>(&self, sections: &mut M) -> Result<(), M::Error>;

    /// Writes its lists of tables, which stand at the end of a job.
    fn write_tables<M: SerializeMap>(&self, sections: &mut M) -> Result<(), M::Error> {
        let _ = sections;
        Ok(())
    }

    /// Reads what [`Kind::write`] and [`Kind::write_tables`] wrote, without checks.
    fn read(sections: &mut StoredSections) -> Result<Self, serde_json::Error>;
}

/// A part of a section that not all kinds have.
struct Part {
    /// `[section]`.
    section: &'static str,
    /// The field of a [`JobDraft`].
    part: &'static str,
    /// Its keys, or those that are given.
    keys: Vec<&'static str>,
}

/// The kind that was asked for.
pub(super) fn check_kind(check: &mut Check, given: Option<String>) -> JobKind {
    let kind = JobKind::TextualInversion;
    match given.as_deref() {
        None | Some("") => check.refuse("kind", format!("missing; allowed: {}", JobKind::allowed())),
        Some(_) => return check.choice("kind", given, kind),
    }
    kind
}

/// The keys of the sections that not all kinds have, each with its section; those come last that jobs of this kind do not
/// have.
pub(super) fn sections_of_keys(kind: Option<JobKind>) -> Vec<(&'static str, &'static str)> {
    let mut parts = parts();
    parts.sort_by_key(|part| kind.is_some_and(|kind| !has_section(kind, part.section)));
    parts
        .into_iter()
        .flat_map(|Part { section, keys, .. }| keys.into_iter().map(move |key| (key, section)))
        .collect()
}

/// The names of all sections that not all kinds have.
pub(super) fn sections() -> impl Iterator<Item = &'static str> {
    parts().into_iter().map(|part| part.section).chain(["concepts"])
}

/// Whether jobs of this kind have something of a section.
fn has_section(kind: JobKind, section: &str) -> bool {
    parts().iter().any(|part| part.section == section && kind.parts().contains(&part.part))
}

/// Fills in the defaults of a kind and checks its values; what only other kinds have is refused.
pub(super) fn checked(kind: JobKind, draft: JobDraft, check: &mut Check, common: &CommonSpec) -> Work {
    let word = kind.as_str();
    for Part { section, keys, .. } in
        draft.given().into_iter().filter(|part| !kind.parts().contains(&part.part))
    {
        if has_section(kind, section) {
            for key in keys {
                check.refuse(
                    &format!("{section}.{key}"),
                    format!("a job of kind {word:?} has no {section}.{key}"),
                );
            }
        } else if !check.has_refused(section) {
            check.refuse(section, format!("a job of kind {word:?} has no [{section}]"));
        }
    }
    Work::checked(kind, draft, check, common)
}
