//! States as people and scripts write them: the enum's name without its prefix.

use crate::v1::{JobReason, JobState, LogLevel, ProgressStage, RankPhase, WorkerState};

/// QUEUED, PREPARING, RUNNING, PAUSED, SUCCEEDED, FAILED or CANCELLED.
pub fn job_state_name(state: JobState) -> &'static str {
    let name = state.as_str_name();
    name.strip_prefix("JOB_STATE_").unwrap_or(name)
}

/// Reads what [`job_state_name`] writes, in upper or lower case.
pub fn job_state_from_name(name: &str) -> Option<JobState> {
    JobState::from_str_name(&format!("JOB_STATE_{}", name.to_ascii_uppercase()))
        .filter(|state| *state != JobState::Unspecified)
}

/// IDLE, BUSY or LOST.
pub fn worker_state_name(state: WorkerState) -> &'static str {
    let name = state.as_str_name();
    name.strip_prefix("WORKER_STATE_").unwrap_or(name)
}

/// Reads what [`worker_state_name`] writes, in upper or lower case.
pub fn worker_state_from_name(name: &str) -> Option<WorkerState> {
    WorkerState::from_str_name(&format!("WORKER_STATE_{}", name.to_ascii_uppercase()))
        .filter(|state| *state != WorkerState::Unspecified)
}

/// WAITING_FOR_WORKERS and the like.
pub fn job_reason_name(reason: JobReason) -> &'static str {
    let name = reason.as_str_name();
    name.strip_prefix("JOB_REASON_").unwrap_or(name)
}

/// ASSIGNED, PREPARING, READY, TRAINING, FINISHED, FAILED or STOPPED.
pub fn rank_phase_name(phase: RankPhase) -> &'static str {
    let name = phase.as_str_name();
    name.strip_prefix("RANK_PHASE_").unwrap_or(name)
}

/// "info", "warn" or "error"; "unknown" of a newer coordinator.
pub fn log_level_name(level: i32) -> &'static str {
    match LogLevel::try_from(level) {
        Ok(LogLevel::Info) => "info",
        Ok(LogLevel::Warn) => "warn",
        Ok(LogLevel::Error) => "error",
        Ok(LogLevel::Unspecified) | Err(_) => "unknown",
    }
}

/// "fetch", "download", "load", "encode" or "draw"; "busy" of a newer coordinator.
pub fn progress_stage_name(stage: i32) -> &'static str {
    match ProgressStage::try_from(stage) {
        Ok(ProgressStage::Fetch) => "fetch",
        Ok(ProgressStage::Download) => "download",
        Ok(ProgressStage::Load) => "load",
        Ok(ProgressStage::Encode) => "encode",
        Ok(ProgressStage::Draw) => "draw",
        Ok(ProgressStage::Write) => "write",
        Ok(ProgressStage::Unspecified) | Err(_) => "busy",
    }
}

/// Whether a job in this state never changes again.
pub fn is_terminal(state: JobState) -> bool {
    matches!(state, JobState::Succeeded | JobState::Failed | JobState::Cancelled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_prefix_and_are_read_back() {
        assert_eq!(job_state_name(JobState::Queued), "QUEUED");
        assert_eq!(worker_state_name(WorkerState::Idle), "IDLE");
        assert_eq!(worker_state_from_name("idle"), Some(WorkerState::Idle));
        assert_eq!(job_reason_name(JobReason::RankFailed), "RANK_FAILED");
        assert_eq!(rank_phase_name(RankPhase::Ready), "READY");
        for state in [JobState::Queued, JobState::Preparing, JobState::Running, JobState::Cancelled] {
            assert_eq!(job_state_from_name(job_state_name(state)), Some(state));
        }
        assert_eq!(job_state_from_name("running"), Some(JobState::Running));
        assert_eq!(job_state_from_name("unspecified"), None);
        assert_eq!(job_state_from_name("x"), None);
    }
}
