//! Where a job is in its life.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The life of a job.
///
/// | from      | to        | when                                                              |
/// |-----------|-----------|-------------------------------------------------------------------|
/// | (none)    | Queued    | CreateJob                                                         |
/// | Queued    | Preparing | enough free workers of one numerics class: a new epoch's ring     |
/// | Queued    | Paused    | PauseJob                                                          |
/// | Queued    | Failed    | the time by which it had to be done is over                       |
/// | Queued    | Cancelled | CancelJob                                                         |
/// | Preparing | Running   | every rank is ready                                               |
/// | Preparing | Queued    | a node failed or its worker is gone: tried again, twice at most   |
/// | Preparing | Paused    | PauseJob, and every rank stopped or its time to do so is over     |
/// | Preparing | Failed    | a rank failed otherwise, or too often; or its time is over        |
/// | Preparing | Cancelled | CancelJob, and every rank stopped or its time to do so is over    |
/// | Running   | Succeeded | every rank finished                                               |
/// | Running   | Failed    | a rank failed by the job's own fault, or too often; or its time is over |
/// | Running   | Queued    | nobody is left who could go on, or nobody came to help in time; or its workers are for a more urgent job |
/// | Running   | Paused    | PauseJob, after a step                                            |
/// | Running   | Cancelled | CancelJob, and every rank stopped or its time to do so is over    |
/// | Paused    | Queued    | ResumeJob                                                         |
/// | Paused    | Failed    | the time by which it had to be done is over                       |
/// | Paused    | Cancelled | CancelJob                                                         |
///
/// Succeeded, Failed and Cancelled are final: a job in one of them never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Waits for enough free workers.
    Queued,
    /// Ranks fetch the data, load the model, encode the images.
    Preparing,
    /// Ranks train.
    Running,
    /// Waits for its owner, and holds no worker.
    Paused,
    /// Every step is done and the artifacts are kept.
    Succeeded,
    /// Ended by an error.
    Failed,
    /// Ended on request.
    Cancelled,
}

impl JobState {
    /// Every state, in the order of a life.
    pub const ALL: [Self; 7] = [
        Self::Queued,
        Self::Preparing,
        Self::Running,
        Self::Paused,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Whether a job in this state never changes again.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// Whether the table above has this transition.
    pub fn may_become(self, to: Self) -> bool {
        use JobState::{Cancelled, Failed, Paused, Preparing, Queued, Running, Succeeded};
        matches!(
            (self, to),
            (Queued, Preparing | Paused | Failed | Cancelled)
                | (Preparing, Queued | Running | Paused | Failed | Cancelled)
                | (Running, Queued | Paused | Succeeded | Failed | Cancelled)
                | (Paused, Queued | Failed | Cancelled)
        )
    }

    /// The name, as stored and as shown in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Preparing => "preparing",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Reads what [`JobState::as_str`] gives.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn final_states_have_no_way_out_and_others_have_one() {
        for from in JobState::ALL {
            let exits = JobState::ALL.into_iter().filter(|to| from.may_become(*to)).count();
            assert_eq!(exits == 0, from.is_terminal(), "{from}");
            assert_eq!(JobState::from_name(from.as_str()), Some(from));
        }
    }
}
