//! What only some kinds of job have, a file for each kind.

pub(super) mod generate;
pub(super) mod generate_text;
pub(super) mod gpt2_finetune;
pub(super) mod textual_inversion;

use ringtune_shared::job::Activity;

use crate::v1::JobReason;

/// Why a running job is in its state: what its ranks do.
pub fn activity_to_wire(activity: Activity) -> JobReason {
    match activity {
        Activity::Training => JobReason::Training,
        Activity::Drawing => JobReason::Drawing,
        Activity::Writing => JobReason::Writing,
    }
}
