//! A job before its defaults are filled in and its values are checked.

use serde::{Deserialize, Serialize};

use super::{
    ClusterDraft, DebugDraft, ModelDraft,
    common::CommonDraft,
    kinds::{
        WorkDraft,
        generate::GenerateDraft,
        generate_text::GenerateTextDraft,
        gpt2_finetune::Gpt2Draft,
        textual_inversion::{ConceptDraft, DataDraft, TrainDraft},
    },
};

/// A job as it was asked for: everything may be missing, nothing has been checked.
///
/// TOML files and the wire's messages both become one, so that defaults and limits are written
/// down once, in [`super::JobSpec::from_draft`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobDraft {
    /// Required.
    pub kind: Option<String>,
    /// See [`super::JobSpec::name`].
    pub name: Option<String>,
    /// `[model]`
    pub model: ModelDraft,
    /// `[data]`
    pub data: DataDraft,
    /// `[train]`
    pub train: TrainDraft,
    /// `[generate]`
    pub generate: GenerateDraft,
    /// `[gpt2]`
    pub gpt2: Gpt2Draft,
    /// `[generate_text]`
    pub generate_text: GenerateTextDraft,
    /// `[cluster]`
    pub cluster: ClusterDraft,
    /// `[debug]`
    pub debug: DebugDraft,
    /// `[[concepts]]`
    pub concepts: Vec<ConceptDraft>,
}

impl JobDraft {
    /// The kind that was asked for, what all kinds have, and what only some have.
    pub(super) fn parts(self) -> (Option<String>, CommonDraft, WorkDraft) {
        let Self { kind, name, model, data, train, generate, gpt2, generate_text, cluster, debug, concepts } =
            self;
        let common = CommonDraft { name, model, cluster, debug };
        (kind, common, WorkDraft { data, train, concepts, generate, gpt2, generate_text })
    }
}
