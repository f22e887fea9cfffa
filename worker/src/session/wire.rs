//! Between the session's words and the wire's.

use ringtune_proto::{convert::spec_from_wire, v1};
use ringtune_shared::{
    ids::{Epoch, JobId},
    ring::{Member, RingView},
    version::{RING_PROTOCOLS, VERSION},
};

use super::{
    state::{Event, HeldRank, Message},
    types::{Assignment, Level, Phase, Progress, ProgressStage, RankKey, StepSummary},
};
use crate::{engine::Precision, fault::Fault};

/// A message from the coordinator that makes no sense. It is logged and passed over.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the coordinator's {message}: {field}: {problem}")]
pub(super) struct WireError {
    message: &'static str,
    field: &'static str,
    problem: String,
}

fn wrong(message: &'static str, field: &'static str) -> impl Fn(&dyn ToString) -> WireError {
    move |problem| WireError { message, field, problem: problem.to_string() }
}

/// What was heard of a message.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    /// The session is told.
    Event(Event),
    /// What a session has no event for: a second welcome.
    Nothing,
    /// A message of a newer coordinator: it is skipped.
    Unknown,
}

/// Reads what the coordinator said.
pub(super) fn event(response: v1::SessionResponse) -> Result<Heard, WireError> {
    use v1::session_response::Message as Down;
    let Some(message) = response.message else { return Ok(Heard::Unknown) };
    let key = |message, job: &str, epoch| -> Result<RankKey, WireError> {
        Ok(RankKey { job: job_id(message, job)?, epoch: Epoch(epoch) })
    };
    Ok(Heard::Event(match message {
        Down::Welcome(_) => return Ok(Heard::Nothing),
        Down::EnterRing(_) => return Ok(Heard::Unknown),
        // One whose rank can be told is answered with a failure.
        Down::Assignment(assignment) => match rank_of(&assignment) {
            None => Event::Assigned(Box::new(self::assignment(assignment)?)),
            Some((key, rank)) => match self::assignment(assignment) {
                Ok(assignment) => Event::Assigned(Box::new(assignment)),
                Err(error) => Event::Unreadable { key, rank, reason: error.to_string() },
            },
        },
        Down::StartRank(start) => Event::StartRank(key("StartRank", &start.job_id, start.epoch)?),
        Down::StopRank(stop) => Event::Stop {
            key: key("StopRank", &stop.job_id, stop.epoch)?,
            keep_artifacts: stop.keep_artifacts,
        },
        Down::StepsStored(stored) => Event::StepsStored(
            key("StepsStored", &stored.job_id, stored.epoch)?,
            u64::try_from(stored.step).map_err(|_| wrong("StepsStored", "step")(&stored.step))?,
        ),
    }))
}

fn job_id(message: &'static str, text: &str) -> Result<JobId, WireError> {
    text.parse().map_err(|error| wrong(message, "job_id")(&error))
}

fn rank_of(wire: &v1::Assignment) -> Option<(RankKey, usize)> {
    let ring = wire.ring.as_ref()?;
    let key = RankKey { job: ring.job_id.parse().ok()?, epoch: Epoch(ring.epoch) };
    Some((key, usize::try_from(wire.rank).ok()?))
}

fn assignment(wire: v1::Assignment) -> Result<Assignment, WireError> {
    let wrong = |field| wrong("Assignment", field);
    let ring = wire.ring.ok_or_else(|| wrong("ring")(&"absent"))?;
    let members: Vec<Member> = ring
        .members
        .into_iter()
        .map(|member| {
            let worker = member.worker_id.parse().map_err(|error| wrong("ring.members.worker_id")(&error))?;
            Ok(Member { worker, address: member.address })
        })
        .collect::<Result<_, WireError>>()?;
    let ring_protocol =
        Some(ring.protocol).filter(|protocol| RING_PROTOCOLS.contains(*protocol)).ok_or_else(|| {
            wrong("ring.protocol")(&format!("{}; this worker speaks {RING_PROTOCOLS}", ring.protocol))
        })?;
    let rank = usize::try_from(wire.rank)
        .ok()
        .filter(|rank| *rank < members.len())
        .ok_or_else(|| wrong("rank")(&format!("{} of {} members", wire.rank, members.len())))?;
    let threads = usize::try_from(wire.threads_per_rank)
        .ok()
        .filter(|threads| *threads >= 1)
        .ok_or_else(|| wrong("threads_per_rank")(&wire.threads_per_rank))?;
    let precision = match wire.precision.as_str() {
        "bf16" => Precision::Bf16,
        "no" => Precision::Fp32,
        other => return Err(wrong("precision")(&format!("{other:?}; allowed: \"bf16\", \"no\""))),
    };
    let spec = spec_from_wire(wire.spec.ok_or_else(|| wrong("spec")(&"absent"))?)
        .map_err(|error| wrong("spec")(&error))?;
    if !wire.spec_sha256.is_empty() && spec.hash().is_ok_and(|hash| hash.to_string() != wire.spec_sha256) {
        // It would compute something else than the other ranks, and nobody would notice.
        let version = &wire.version;
        let reason =
            format!("this worker ({VERSION}) does not know all its options; install version {version}");
        return Err(wrong("spec")(&reason));
    }
    Ok(Assignment {
        ring: RingView { job: job_id("Assignment", &ring.job_id)?, epoch: Epoch(ring.epoch), members },
        rank,
        spec,
        threads,
        precision,
        numerics_class: wire.numerics_class,
        ring_protocol,
        // A ring of release 0.1.0 names none.
        version: Some(wire.version)
            .filter(|version| !version.is_empty())
            .unwrap_or_else(|| VERSION.to_owned()),
    })
}

/// A message up the stream.
pub(super) fn request(message: &Message) -> v1::SessionRequest {
    use v1::session_request::Message as Up;
    let message = match message {
        Message::Report { held, progress } => Up::RankReport(v1::RankReport {
            job_id: held.key.job.to_string(),
            epoch: held.key.epoch.0,
            rank: rank_number(held.rank),
            phase: phase(held.phase).into(),
            progress: progress.as_ref().map(|progress| rank_progress(held.rank, progress)),
            reason: held.reason.clone(),
            neighbour_lost: held.neighbour_lost,
            step: i64::try_from(held.step).unwrap_or(i64::MAX),
            fault: fault(held.fault).into(),
            trouble: None,
            leaving: false,
        }),
        Message::Step(key, step) => Up::RankStep(v1::RankStep {
            job_id: key.job.to_string(),
            epoch: key.epoch.0,
            step: Some(step_report(key.epoch, step)),
        }),
        Message::Log(key, rank, level, line) => Up::RankLog(v1::RankLog {
            job_id: key.job.to_string(),
            line: Some(v1::LogLine {
                level: log_level(*level).into(),
                rank: Some(rank_number(*rank)),
                message: line.clone(),
            }),
            epoch: key.epoch.0,
        }),
    };
    v1::SessionRequest { message: Some(message) }
}

/// The ranks of a hello or heartbeat.
pub(super) fn held_ranks(held: &[HeldRank]) -> Vec<v1::HeldRank> {
    held.iter()
        .map(|held| v1::HeldRank {
            job_id: held.key.job.to_string(),
            epoch: held.key.epoch.0,
            rank: rank_number(held.rank),
            phase: phase(held.phase).into(),
            step: i64::try_from(held.step).unwrap_or(i64::MAX),
            reason: held.reason.clone(),
            neighbour_lost: held.neighbour_lost,
            fault: fault(held.fault).into(),
            trouble: None,
            leaving: false,
        })
        .collect()
}

fn rank_number(rank: usize) -> i32 {
    i32::try_from(rank).unwrap_or(i32::MAX)
}

fn rank_progress(rank: usize, progress: &Progress) -> v1::RankProgress {
    v1::RankProgress {
        rank: rank_number(rank),
        stage: progress_stage(progress.stage).into(),
        done: i64::try_from(progress.done).unwrap_or(i64::MAX),
        total: i64::try_from(progress.total).unwrap_or(i64::MAX),
    }
}

fn log_level(level: Level) -> v1::LogLevel {
    match level {
        Level::Info => v1::LogLevel::Info,
        Level::Warn => v1::LogLevel::Warn,
        Level::Error => v1::LogLevel::Error,
    }
}

fn progress_stage(stage: ProgressStage) -> v1::ProgressStage {
    match stage {
        ProgressStage::Fetch => v1::ProgressStage::Fetch,
        ProgressStage::Download => v1::ProgressStage::Download,
        ProgressStage::Load => v1::ProgressStage::Load,
        ProgressStage::Encode => v1::ProgressStage::Encode,
        ProgressStage::Draw => v1::ProgressStage::Draw,
    }
}

fn step_report(epoch: Epoch, step: &StepSummary) -> v1::StepReport {
    v1::StepReport {
        step: i64::try_from(step.step).unwrap_or(i64::MAX),
        loss: f64::from(step.loss),
        learning_rate: step.learning_rate,
        step_seconds: step.step_seconds,
        compute_seconds: step.compute_seconds,
        exchange_seconds: step.exchange_seconds,
        wait_seconds: step.wait_seconds,
        skipped: step.skipped,
        world_size: rank_number(step.world_size),
        validation_loss: step.validation_loss.map(f64::from),
        validation_seconds: step.validation_seconds,
        preview_seconds: step.preview_seconds,
        epoch: epoch.0,
        state_sha256: String::new(),
    }
}

fn fault(fault: Option<Fault>) -> v1::RankFault {
    match fault {
        None => v1::RankFault::Unspecified,
        Some(Fault::Job) => v1::RankFault::Job,
        Some(Fault::Node) => v1::RankFault::Node,
    }
}

fn phase(phase: Phase) -> v1::RankPhase {
    match phase {
        Phase::Preparing => v1::RankPhase::Preparing,
        Phase::Ready => v1::RankPhase::Ready,
        Phase::Training => v1::RankPhase::Training,
        Phase::Finished => v1::RankPhase::Finished,
        Phase::Failed => v1::RankPhase::Failed,
        Phase::Stopped => v1::RankPhase::Stopped,
    }
}

#[cfg(test)]
mod tests {
    use ringtune_proto::convert::spec_to_wire;
    use ringtune_shared::{
        ids::{JobId, WorkerId},
        job::parse_job_toml,
    };

    use super::*;

    fn wire() -> v1::Assignment {
        let text = "kind = \"generate\"\n[model]\nbase = \"/m\"\n[generate]\nprompts = [\"a cat\"]\n";
        let spec = parse_job_toml(text).unwrap();
        let member = v1::RingMember { worker_id: WorkerId::new().to_string(), address: String::new() };
        let ring = v1::RingView {
            job_id: JobId::new().to_string(),
            epoch: 1,
            members: vec![member],
            protocol: RING_PROTOCOLS.max,
        };
        v1::Assignment {
            ring: Some(ring),
            spec: Some(spec_to_wire(&spec)),
            threads_per_rank: 1,
            precision: "no".to_owned(),
            version: "0.3.0".to_owned(),
            spec_sha256: spec.hash().unwrap().to_string(),
            ..v1::Assignment::default()
        }
    }

    #[test]
    fn a_job_with_options_that_this_build_does_not_know_is_refused() {
        assert!(assignment(wire()).is_ok());
        assert!(assignment(v1::Assignment { spec_sha256: String::new(), ..wire() }).is_ok());
        // What is unknown is skipped on the wire: only the hash tells.
        let other = v1::Assignment { spec_sha256: "0".repeat(64), ..wire() };
        let text = assignment(other).unwrap_err().to_string();
        assert!(text.contains("does not know all its options; install version 0.3.0"), "{text}");
    }
}
