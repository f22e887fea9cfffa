//! The job spec. An empty text and an absent number on the wire both mean "not given".

use ringtune_shared::job::{
    ClusterDraft, DebugDraft, JobDraft, JobSpec, ModelDraft, SpecError, Work,
    kinds::textual_inversion::TextualInversionSpec,
};

use super::{
    fields::given,
    kinds::{generate, generate_text, gpt2_finetune, textual_inversion},
};
use crate::v1;

/// The draft of a spec as it was sent; defaults and checks are [`JobSpec::from_draft`]'s.
pub fn draft_from_wire(wire: v1::JobSpec) -> JobDraft {
    let model = wire.model.unwrap_or_default();
    let cluster = wire.cluster.unwrap_or_default();
    JobDraft {
        kind: given(wire.kind),
        name: given(wire.name),
        model: ModelDraft {
            base: given(model.base),
            revision: given(model.revision),
            variant: given(model.variant),
            prediction_type: model.prediction_type,
            tokenizer: model.tokenizer,
        },
        data: textual_inversion::data_from_wire(wire.data.unwrap_or_default()),
        train: textual_inversion::train_from_wire(wire.train.unwrap_or_default()),
        generate: wire.generate.map(generate::draft_from_wire).unwrap_or_default(),
        gpt2: wire.gpt2.map(|gpt2| gpt2_finetune::draft_from_wire(*gpt2)).unwrap_or_default(),
        generate_text: wire
            .generate_text
            .map(|texts| generate_text::draft_from_wire(*texts))
            .unwrap_or_default(),
        cluster: ClusterDraft {
            world_size: cluster.world_size,
            min_world_size: cluster.min_world_size,
            threads_per_rank: cluster.threads_per_rank,
        },
        debug: DebugDraft { trace_dir: wire.debug.and_then(|debug| given(debug.trace_dir)) },
        concepts: wire.concepts.into_iter().map(textual_inversion::concept_from_wire).collect(),
    }
}

/// The spec of a message, defaults filled in and checked.
///
/// # Errors
/// All fields that are wrong, by their full names.
pub fn spec_from_wire(wire: v1::JobSpec) -> Result<JobSpec, SpecError> {
    JobSpec::from_draft(draft_from_wire(wire))
}

/// A resolved spec as a message: every field is set but those that have no value.
pub fn spec_to_wire(spec: &JobSpec) -> v1::JobSpec {
    let common = &spec.common;
    let wire = v1::JobSpec {
        kind: spec.kind().as_str().to_owned(),
        name: common.name.clone(),
        model: Some(v1::ModelSpec {
            base: common.model.base.clone(),
            revision: common.model.revision.clone(),
            variant: common.model.variant.clone(),
            prediction_type: common.model.prediction_type.map(|prediction| prediction.as_str().to_owned()),
            tokenizer: given(common.model.tokenizer.clone()),
        }),
        cluster: Some(v1::ClusterSpec {
            world_size: Some(i64::from(common.cluster.world_size)),
            min_world_size: Some(i64::from(common.cluster.min_world_size)),
            threads_per_rank: Some(i64::from(common.cluster.threads_per_rank)),
        }),
        debug: Some(v1::DebugSpec { trace_dir: common.debug.trace_dir.clone() }),
        ..Default::default()
    };
    match &spec.work {
        Work::TextualInversion(TextualInversionSpec { data, train, concepts }) => v1::JobSpec {
            data: Some(textual_inversion::data_to_wire(data)),
            train: Some(textual_inversion::train_to_wire(train)),
            concepts: concepts.iter().map(textual_inversion::concept_to_wire).collect(),
            ..wire
        },
        Work::Generate(generate) => v1::JobSpec { generate: Some(generate::to_wire(generate)), ..wire },
        Work::GenerateText(texts) => {
            v1::JobSpec { generate_text: Some(Box::new(generate_text::to_wire(texts))), ..wire }
        }
        Work::Gpt2Finetune(gpt2) => {
            v1::JobSpec { gpt2: Some(Box::new(gpt2_finetune::to_wire(gpt2))), ..wire }
        }
    }
}
