//! The job spec.

use ringtune_shared::job::{Activity, JobDraft, JobSpec, SpecError};

use super::sections::{Part, given, list_from_wire, list_to_wire};
use crate::v1;

/// Registers the sections of a job by the parts of its draft that each message has.
macro_rules! sections {
    ($($section:ident: $($part:ident),+;)+) => {
        /// The draft of a spec as it was sent; defaults and checks are [`JobSpec::from_draft`]'s.
        pub fn draft_from_wire(wire: v1::JobSpec) -> JobDraft {
            let mut draft = JobDraft {
                kind: given(wire.kind),
                name: given(wire.name),
                concepts: list_from_wire(wire.concepts),
                ..JobDraft::default()
            };
            $(if let Some(mut message) = wire.$section {
                $(draft.$part = Part::taken(&mut message);)+
            })+
            draft
        }

        /// A resolved spec as a message: every field is set but those that have no value.
        pub fn spec_to_wire(spec: &JobSpec) -> v1::JobSpec {
            let draft = spec.to_draft();
            let nothing = JobDraft::default();
            let mut wire = v1::JobSpec {
                kind: draft.kind.unwrap_or_default(),
                name: draft.name.unwrap_or_default(),
                concepts: list_to_wire(draft.concepts),
                ..v1::JobSpec::default()
            };
            $($(if draft.$part != nothing.$part {
                Part::put(draft.$part, wire.$section.get_or_insert_default());
            })+)+
            wire
        }
    };
}

sections! {
    model: model;
    data: prompt, data;
    train: word, text_encoder, denoiser, unet, train;
    lora: lora;
    generate: generate;
    gpt2: gpt2;
    generate_text: generate_text;
    cluster: cluster;
    debug: debug;
    output: output;
    orders: orders;
}

/// The spec of a message, defaults filled in and checked.
///
/// # Errors
/// All fields that are wrong, by their full names.
pub fn spec_from_wire(wire: v1::JobSpec) -> Result<JobSpec, SpecError> {
    JobSpec::from_draft(draft_from_wire(wire))
}

/// Why a running job is in its state: what its ranks do.
pub fn activity_to_wire(activity: Activity) -> v1::JobReason {
    match activity {
        Activity::Training => v1::JobReason::Training,
        Activity::Drawing => v1::JobReason::Drawing,
        Activity::Writing => v1::JobReason::Writing,
    }
}
