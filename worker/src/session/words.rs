//! The session's words for how a rank is, as the wire's.

use ringtune_proto::v1;

use super::types::{Level, Phase, ProgressStage};
use crate::fault::Fault;

pub(super) fn log_level(level: Level) -> v1::LogLevel {
    match level {
        Level::Info => v1::LogLevel::Info,
        Level::Warn => v1::LogLevel::Warn,
        Level::Error => v1::LogLevel::Error,
    }
}

pub(super) fn progress_stage(stage: ProgressStage) -> v1::ProgressStage {
    match stage {
        ProgressStage::Fetch => v1::ProgressStage::Fetch,
        ProgressStage::Download => v1::ProgressStage::Download,
        ProgressStage::Load => v1::ProgressStage::Load,
        ProgressStage::Encode => v1::ProgressStage::Encode,
        ProgressStage::Draw => v1::ProgressStage::Draw,
        ProgressStage::Write => v1::ProgressStage::Write,
    }
}

/// For every coordinator, and more exactly for those that know that.
pub(super) fn fault(fault: Option<Fault>) -> (v1::RankFault, v1::RankBlame) {
    use v1::{RankBlame, RankFault};
    match fault {
        None => (RankFault::Unspecified, RankBlame::Unspecified),
        Some(Fault::Job) => (RankFault::Job, RankBlame::Unspecified),
        Some(Fault::Node) => (RankFault::Node, RankBlame::Unspecified),
        Some(Fault::Machine) => (RankFault::Access, RankBlame::Machine),
        Some(Fault::Coordinator) => (RankFault::Node, RankBlame::Coordinator),
        Some(Fault::Link) => (RankFault::Node, RankBlame::Link),
        Some(Fault::Nobody) => (RankFault::Node, RankBlame::Nobody),
        Some(Fault::Checkpoint) => (RankFault::Checkpoint, RankBlame::Unspecified),
        Some(Fault::Access) => (RankFault::Access, RankBlame::Unspecified),
    }
}

pub(super) fn phase(phase: Phase) -> v1::RankPhase {
    match phase {
        Phase::Preparing => v1::RankPhase::Preparing,
        Phase::Ready => v1::RankPhase::Ready,
        Phase::Training => v1::RankPhase::Training,
        Phase::Waiting => v1::RankPhase::Waiting,
        Phase::Done => v1::RankPhase::Done,
        Phase::Finished => v1::RankPhase::Finished,
        Phase::Failed => v1::RankPhase::Failed,
        Phase::Stopped => v1::RankPhase::Stopped,
    }
}
