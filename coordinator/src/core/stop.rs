//! A job that is on its way out of its ring.

use serde::{Deserialize, Serialize};

use super::failure::Failure;
use super::job_state::JobState;
use super::time::Time;

/// The ranks come to their end by themselves; then, or when their time is over, the job becomes what the goal says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// What the job is to become.
    pub goal: Goal,
    /// When the ranks' time is over.
    pub deadline: Time,
}

/// What a job becomes when it leaves its ring, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Succeeded: all ranks finished, and the reports of the last steps are on their way.
    Succeeded,
    /// Cancelled.
    Cancelled {
        /// As the user gave it.
        reason: String,
    },
    /// Failed.
    Failed {
        /// What failed.
        failure: Failure,
        /// In words.
        reason: String,
    },
    /// Queued again, for another ring.
    Queued {
        /// Why it left the one that it had.
        reason: String,
        /// A more urgent job takes its workers.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        preempted: bool,
    },
}

impl Goal {
    /// Queued again, for another reason than that its workers are taken.
    pub(super) fn queued(reason: impl Into<String>) -> Self {
        Self::Queued { reason: reason.into(), preempted: false }
    }

    /// The state that it stands for.
    pub fn state(&self) -> JobState {
        match self {
            Self::Succeeded => JobState::Succeeded,
            Self::Cancelled { .. } => JobState::Cancelled,
            Self::Failed { .. } => JobState::Failed,
            Self::Queued { .. } => JobState::Queued,
        }
    }

    /// Why the ranks are told to stop; none where they ended by themselves.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Succeeded => None,
            Self::Cancelled { reason } | Self::Failed { reason, .. } | Self::Queued { reason, .. } => {
                Some(reason)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_forms_stay_as_they_are() {
        let reason = || "why".to_owned();
        for (goal, state, stored) in [
            (Goal::Succeeded, JobState::Succeeded, r#"{"goal":"succeeded","deadline":7}"#),
            (
                Goal::Cancelled { reason: reason() },
                JobState::Cancelled,
                r#"{"goal":{"cancelled":{"reason":"why"}},"deadline":7}"#,
            ),
            (
                Goal::Failed { failure: Failure::WorkerLost, reason: reason() },
                JobState::Failed,
                r#"{"goal":{"failed":{"failure":"worker_lost","reason":"why"}},"deadline":7}"#,
            ),
            (
                Goal::queued(reason()),
                JobState::Queued,
                r#"{"goal":{"queued":{"reason":"why"}},"deadline":7}"#,
            ),
        ] {
            assert_eq!(goal.state(), state);
            let stop = Stop { goal, deadline: Time(7) };
            assert_eq!(serde_json::to_string(&stop).unwrap(), stored);
            assert_eq!(serde_json::from_str::<Stop>(stored).unwrap(), stop);
        }
    }
}
