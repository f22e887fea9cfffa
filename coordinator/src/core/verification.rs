//! A job that computes steps of another job again: whose they are, and what came of it.
//!
//! It has the other job's spec and pin, and so its steps come to the same bits. Its ring has one member, because the sum of
//! a step is the same for any number.
//!
//! The checkpoint of its spec is the newest one of the other job before the first step, so that contents, retries and
//! restarts work as for any job. Its assignment carries a proof. The worker runs the ordinary loop, validations
//! included, because the state holds the best rows so far; but it writes no file, draws nothing and ends after
//! `proof.last_step`. `max_train_steps`, which decides the learning rate, stays. As a step comes in, the service reads
//! the one hash that is stored of it (`service/handle.rs`) and hands both to the core, which compares: memory does not
//! grow with the steps.
//!
//! Invariant: a verification keeps only steps that are the same; it succeeds only if its last step is kept.

use ringtune_shared::ids::{ContentHash, JobId};
use serde::{Deserialize, Serialize};

use super::failure::Failure;
use super::record::StepRecord;

/// Which steps are computed again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// The job that they are of.
    pub job: JobId,
    /// From 1.
    pub first_step: u64,
    /// The job is over after it.
    pub last_step: u64,
    /// The first step that came to another state than the one that is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference: Option<Difference>,
}

/// Two states after one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The step.
    pub step: u64,
    /// As it is stored.
    pub stored: ContentHash,
    /// As it was computed again.
    pub computed: ContentHash,
}

/// What a step that was computed again says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// The states are the same; or nobody asked for this step, and none is stored of it; or nobody took the hash of either.
    Same,
    /// They are not.
    Differs(Difference),
    /// No state of this step is stored any more.
    NotStored,
    /// The worker did not say to which state it came.
    NotComputed,
}

impl Verification {
    /// Compares a step with the hash of the state that is stored of it, if one is. Steps before the first one count, too:
    /// whatever differs there cannot be the same later.
    pub(super) fn compare(&self, step: &StepRecord, stored: Option<ContentHash>) -> Finding {
        match (stored, step.state) {
            (Some(stored), Some(computed)) if stored == computed => Finding::Same,
            (Some(stored), Some(computed)) => {
                Finding::Differs(Difference { step: step.step, stored, computed })
            }
            (Some(_), None) => Finding::NotComputed,
            (None, _) if step.step < self.first_step => Finding::Same,
            // A job that compares its state in some steps alone, and does so again.
            (None, None) => Finding::Same,
            (None, Some(_)) => Finding::NotStored,
        }
    }

    /// Why a step that does not say "same" ends the verification.
    pub(super) fn failure(&self, finding: Finding, step: u64) -> Option<(Failure, String)> {
        let job = self.job;
        match finding {
            Finding::Same => None,
            Finding::Differs(Difference { step, stored, computed }) => {
                let text = format!(
                    "differs: step {step} of {job}: stored sha256:{stored}, computed sha256:{computed}"
                );
                Some((Failure::Differs, text))
            }
            Finding::NotStored => {
                let text =
                    format!("no state of step {step} of job {job} is stored any more: the job was deleted");
                Some((Failure::NothingToCompare, text))
            }
            Finding::NotComputed => {
                Some((Failure::Rank, format!("rank 0 did not say to which state it came after step {step}")))
            }
        }
    }
}
