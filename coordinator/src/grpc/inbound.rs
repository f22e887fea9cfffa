//! Wire messages of workers as domain types. Everything from outside is bounded here.

use std::sync::Arc;

use ringtune_proto::convert::{FieldError, parse, unsigned};
use ringtune_proto::v1;
use ringtune_shared::ids::Epoch;

use crate::core::{
    AnyFloat, Capabilities, HeldRank, Hello, Input, Phase, Progress, RankReport, Sender, StepRecord,
};

/// Ranks that one worker may say it holds.
const MOST_HELD: usize = 64;
/// Characters of a name that a worker gives.
const LONGEST_NAME: usize = 256;
/// Processor flags that a worker may name.
const MOST_FLAGS: usize = 64;

/// A worker's first words.
pub(super) fn hello(wire: v1::Hello) -> Result<Hello, FieldError> {
    let capabilities = wire.capabilities.unwrap_or_default();
    Ok(Hello {
        worker: parse("hello.worker_id", &wire.worker_id)?,
        incarnation: wire.incarnation,
        host_name: name("hello.host_name", wire.host_name)?,
        address: name("hello.address", wire.address)?,
        capabilities: Arc::new(self::capabilities(capabilities)?),
        held: held_ranks("hello.held", wire.held)?,
        protocol: wire.protocol,
    })
}

/// Anything that a worker says after its hello.
pub(super) fn words(sender: Sender, wire: v1::SessionRequest) -> Result<Input, FieldError> {
    use v1::session_request::Message;
    match wire.message {
        Some(Message::Heartbeat(beat)) => {
            Ok(Input::Heartbeat(sender, held_ranks("heartbeat.held", beat.held)?))
        }
        Some(Message::RankReport(report)) => Ok(Input::RankReport(sender, rank_report(report)?)),
        Some(Message::RankStep(report)) => {
            let job = parse("rank_step.job_id", &report.job_id)?;
            Ok(Input::RankStep(sender, job, Epoch(report.epoch), step(&report.step.unwrap_or_default())?))
        }
        Some(Message::RankLog(log)) => {
            let line = log.line.unwrap_or_default();
            let level = match line.level.as_str() {
                level @ ("info" | "warn" | "error") => level.to_owned(),
                other => return Err(not_among("rank_log.line.level", other, "info, warn, error")),
            };
            Ok(Input::RankLog {
                sender,
                job: parse("rank_log.job_id", &log.job_id)?,
                level,
                message: line.message,
            })
        }
        Some(Message::Hello(_)) => Err(FieldError::new("hello", "came twice; allowed: first and once")),
        None => Err(FieldError::new("message", "is missing or of a newer protocol")),
    }
}

fn rank_report(wire: v1::RankReport) -> Result<RankReport, FieldError> {
    let rank = unsigned("rank_report.rank", wire.rank.into())?;
    let progress = match wire.progress {
        None => None,
        Some(progress) => Some(Progress {
            rank,
            stage: name("rank_report.progress.stage", progress.stage)?,
            done: unsigned("rank_report.progress.done", progress.done)?,
            total: unsigned("rank_report.progress.total", progress.total)?,
        }),
    };
    let held = HeldRank {
        job: parse("rank_report.job_id", &wire.job_id)?,
        epoch: Epoch(wire.epoch),
        rank,
        phase: phase("rank_report.phase", wire.phase)?,
        reason: wire.reason,
        neighbour_lost: wire.neighbour_lost,
        step: unsigned("rank_report.step", wire.step)?,
    };
    Ok(RankReport { held, progress })
}

fn step(wire: &v1::StepReport) -> Result<StepRecord, FieldError> {
    if wire.step < 1 {
        return Err(FieldError::new("rank_step.step.step", format!("got {}; allowed: 1 or more", wire.step)));
    }
    Ok(StepRecord {
        step: unsigned("rank_step.step.step", wire.step)?,
        loss: wire.loss,
        learning_rate: wire.learning_rate,
        step_seconds: wire.step_seconds,
        compute_seconds: wire.compute_seconds,
        exchange_seconds: wire.exchange_seconds,
        wait_seconds: wire.wait_seconds,
        skipped: wire.skipped,
        world_size: unsigned("rank_step.step.world_size", wire.world_size.into())?,
        validation_loss: wire.validation_loss.map(AnyFloat),
        validation_seconds: wire.validation_seconds,
        preview_seconds: wire.preview_seconds,
    })
}

fn held_ranks(field: &str, wire: Vec<v1::HeldRank>) -> Result<Vec<HeldRank>, FieldError> {
    if wire.len() > MOST_HELD {
        return Err(FieldError::new(field, format!("{} ranks; allowed: at most {MOST_HELD}", wire.len())));
    }
    let held = wire.into_iter().map(|held| {
        Ok(HeldRank {
            job: parse(&format!("{field}.job_id"), &held.job_id)?,
            epoch: Epoch(held.epoch),
            rank: unsigned(&format!("{field}.rank"), held.rank.into())?,
            phase: phase(&format!("{field}.phase"), held.phase)?,
            reason: held.reason,
            neighbour_lost: held.neighbour_lost,
            step: unsigned(&format!("{field}.step"), held.step)?,
        })
    });
    held.collect()
}

fn phase(field: &str, wire: i32) -> Result<Phase, FieldError> {
    use v1::RankPhase;
    match RankPhase::try_from(wire) {
        Ok(RankPhase::Preparing) => Ok(Phase::Preparing),
        Ok(RankPhase::Ready) => Ok(Phase::Ready),
        Ok(RankPhase::Training) => Ok(Phase::Training),
        Ok(RankPhase::Finished) => Ok(Phase::Finished),
        Ok(RankPhase::Failed) => Ok(Phase::Failed),
        Ok(RankPhase::Stopped) => Ok(Phase::Stopped),
        Ok(RankPhase::Unspecified | RankPhase::Assigned) | Err(_) => {
            Err(FieldError::new(field, format!("got {wire}; allowed: 1 (PREPARING) to 6 (STOPPED)")))
        }
    }
}

fn capabilities(wire: v1::Capabilities) -> Result<Capabilities, FieldError> {
    if wire.cpu_flags.len() > MOST_FLAGS {
        let problem = format!("{} flags; allowed: at most {MOST_FLAGS}", wire.cpu_flags.len());
        return Err(FieldError::new("hello.capabilities.cpu_flags", problem));
    }
    let flag = |flag| name("hello.capabilities.cpu_flags", flag);
    Ok(Capabilities {
        version: name("hello.capabilities.version", wire.version)?,
        libtorch_version: name("hello.capabilities.libtorch_version", wire.libtorch_version)?,
        cpu_model: name("hello.capabilities.cpu_model", wire.cpu_model)?,
        cpu_flags: wire.cpu_flags.into_iter().map(flag).collect::<Result<_, _>>()?,
        cores: unsigned("hello.capabilities.cores", wire.cores.into())?,
        numa_nodes: unsigned("hello.capabilities.numa_nodes", wire.numa_nodes.into())?,
        memory_bytes: unsigned("hello.capabilities.memory_bytes", wire.memory_bytes)?,
        numerics_class: name("hello.capabilities.numerics_class", wire.numerics_class)?,
        bf16: wire.bf16,
        threads: unsigned("hello.capabilities.threads", wire.threads.into())?,
    })
}

fn name(field: &str, text: String) -> Result<String, FieldError> {
    let length = text.chars().count();
    if length > LONGEST_NAME {
        return Err(FieldError::new(field, format!("{length} characters; allowed: at most {LONGEST_NAME}")));
    }
    Ok(text)
}

fn not_among(field: &str, given: &str, allowed: &str) -> FieldError {
    let given: String = given.chars().take(100).collect();
    FieldError::new(field, format!("got {given:?}; allowed: {allowed}"))
}

#[cfg(test)]
mod tests {
    use ringtune_shared::ids::{JobId, WorkerId};

    use super::*;
    use crate::core::SessionId;

    fn sender() -> Sender {
        Sender { worker: WorkerId::new(), session: SessionId(1) }
    }

    fn refused(message: v1::session_request::Message) -> String {
        words(sender(), v1::SessionRequest { message: Some(message) }).unwrap_err().field
    }

    #[test]
    fn bad_words_are_refused_by_field() {
        use v1::session_request::Message;
        let job_id = JobId::new().to_string();
        let report = v1::RankReport { job_id: job_id.clone(), phase: 2, rank: -1, ..Default::default() };
        assert_eq!(refused(Message::RankReport(report)), "rank_report.rank");
        let report = v1::RankReport { job_id: job_id.clone(), phase: 99, ..Default::default() };
        assert_eq!(refused(Message::RankReport(report)), "rank_report.phase");
        let step = v1::RankStep { job_id: job_id.clone(), epoch: 1, step: None };
        assert_eq!(refused(Message::RankStep(step)), "rank_step.step.step");
        let held = vec![v1::HeldRank::default(); MOST_HELD + 1];
        assert_eq!(refused(Message::Heartbeat(v1::Heartbeat { held })), "heartbeat.held");
        assert_eq!(refused(Message::Hello(v1::Hello::default())), "hello");
        let line = Some(v1::LogLine { level: "loud".to_owned(), ..Default::default() });
        assert_eq!(refused(Message::RankLog(v1::RankLog { job_id, line })), "rank_log.line.level");
    }

    #[test]
    fn a_hello_is_bounded() {
        let good = v1::Hello { worker_id: WorkerId::new().to_string(), ..Default::default() };
        assert!(hello(good.clone()).is_ok());
        let long = v1::Hello { host_name: "x".repeat(LONGEST_NAME + 1), ..good.clone() };
        assert_eq!(hello(long).unwrap_err().field, "hello.host_name");
        let nobody = v1::Hello { worker_id: "me".to_owned(), ..good };
        assert_eq!(hello(nobody).unwrap_err().field, "hello.worker_id");
    }
}
