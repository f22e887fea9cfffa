//! Between the session's words and the wire's.

use ringtune_proto::{
    convert::{live_order_from_wire, spec_from_wire},
    v1,
};
use ringtune_shared::{
    ids::{Epoch, JobId},
    job::LiveOrder,
    ring::{Member, RingView},
    version::{RING_PROTOCOLS, VERSION},
};

use super::{
    looking::Question,
    state::{Event, HeldRank, Message},
    types::{Assignment, NextRing, Progress, RankKey, StepSummary},
    words::{fault, log_level, phase, progress_stage},
};
use crate::{
    engine::Precision,
    ring::{Traffic, Trouble, TroubleKind},
};

/// Workers that are looked at for one question.
pub(super) const MOST_LOOKED_AT: usize = 1024;

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

/// A decoded message.
#[derive(Debug, PartialEq)]
pub(super) enum Heard {
    /// The session is told.
    Event(Event),
    /// A question which workers are reached, answered besides.
    Question(Question),
    /// No event of the session: a second welcome, or a change of trust.
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
        // The link has followed it.
        Down::Welcome(_) | Down::Trust(_) | Down::AskMetrics(_) => return Ok(Heard::Nothing),
        Down::LookAtLinks(asked) => return Ok(Heard::Question(question(asked)?)),
        Down::EnterRing(enter) => match place_of(enter.ring.as_ref(), enter.rank) {
            None => Event::EnterRing(Box::new(next_ring(enter)?)),
            // Malformed, with a known place: answered with a failure.
            Some((key, rank)) => match next_ring(enter) {
                Ok(next) => Event::EnterRing(Box::new(next)),
                Err(error) => Event::Unreadable { key, rank, reason: error.to_string() },
            },
        },
        // Malformed, with a known rank: answered with a failure.
        Down::Assignment(assignment) => match place_of(assignment.ring.as_ref(), assignment.rank) {
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

/// The ring that is meant, and the place in it, if there is one.
fn place_of(ring: Option<&v1::RingView>, rank: i32) -> Option<(RankKey, Option<usize>)> {
    let ring = ring?;
    let key = RankKey { job: ring.job_id.parse().ok()?, epoch: Epoch(ring.epoch) };
    Some((key, usize::try_from(rank).ok()))
}

fn assignment(wire: v1::Assignment) -> Result<Assignment, WireError> {
    let wrong = |field| wrong("Assignment", field);
    let (ring, ring_protocol) = ring_view("Assignment", wire.ring)?;
    // A joiner has no place in the ring that it is shown.
    let rank = match wire.joins {
        true => None,
        false => Some(rank_in(&ring, wire.rank).ok_or_else(|| wrong("rank")(&no_rank(&ring, wire.rank)))?),
    };
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
    let last_step = |proof: v1::Proof| {
        u64::try_from(proof.last_step)
            .ok()
            .filter(|last| *last >= 1)
            .ok_or_else(|| wrong("proof.last_step")(&proof.last_step))
    };
    let proof = wire.proof.map(last_step).transpose()?;
    Ok(Assignment {
        ring,
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
        resume_from: wire.resume_from,
        proof,
        // The session knows.
        re_forms: false,
        // Work is done whether it can be traced or not.
        trace: wire.traceparent.parse().ok(),
        orders: orders("Assignment", wire.orders)?,
    })
}

/// A ring, and what its members say to each other.
fn ring_view(message: &'static str, wire: Option<v1::RingView>) -> Result<(RingView, u32), WireError> {
    let wrong = |field| wrong(message, field);
    let wire = wire.ok_or_else(|| wrong("ring")(&"absent"))?;
    let members = members(wire.members, &wrong("ring.members.worker_id"))?;
    let protocol =
        Some(wire.protocol).filter(|protocol| RING_PROTOCOLS.contains(*protocol)).ok_or_else(|| {
            wrong("ring.protocol")(&format!("{}; this worker speaks {RING_PROTOCOLS}", wire.protocol))
        })?;
    Ok((RingView { job: job_id(message, &wire.job_id)?, epoch: Epoch(wire.epoch), members }, protocol))
}

fn members(
    wire: Vec<v1::RingMember>,
    wrong: &dyn Fn(&dyn ToString) -> WireError,
) -> Result<Vec<Member>, WireError> {
    let member = |member: v1::RingMember| {
        let worker = member.worker_id.parse().map_err(|error| wrong(&error))?;
        Ok(Member { worker, address: member.address })
    };
    wire.into_iter().map(member).collect()
}

fn question(wire: v1::LookAtLinks) -> Result<Question, WireError> {
    const MESSAGE: &str = "LookAtLinks";
    if wire.workers.len() > MOST_LOOKED_AT {
        let text = format!("{} of them; allowed: 0 to {MOST_LOOKED_AT}", wire.workers.len());
        return Err(wrong(MESSAGE, "workers")(&text));
    }
    let workers = members(wire.workers, &wrong(MESSAGE, "workers.worker_id"))?;
    Ok(Question { job: job_id(MESSAGE, &wire.job_id)?, look: wire.look, workers })
}

fn rank_in(ring: &RingView, rank: i32) -> Option<usize> {
    usize::try_from(rank).ok().filter(|rank| *rank < ring.members.len())
}

fn no_rank(ring: &RingView, rank: i32) -> String {
    format!("{rank} of {} members", ring.members.len())
}

fn next_ring(wire: v1::EnterRing) -> Result<NextRing, WireError> {
    let (view, protocol) = ring_view("EnterRing", wire.ring)?;
    let rank = match wire.rank {
        -1 => None,
        rank => Some(rank_in(&view, rank).ok_or_else(|| wrong("EnterRing", "rank")(&no_rank(&view, rank)))?),
    };
    let orders = orders("EnterRing", wire.orders)?;
    Ok(NextRing { view, rank, protocol, after_step: wire.after_step, reason: wire.reason, orders })
}

fn orders(message: &'static str, wire: Vec<v1::LiveOrder>) -> Result<Vec<LiveOrder>, WireError> {
    let read = |order| live_order_from_wire(order).map_err(|error| wrong(message, "orders")(&error));
    wire.into_iter().map(read).collect()
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
            fault: fault(held.fault).0.into(),
            blame: fault(held.fault).1.into(),
            trouble: held.trouble.as_ref().map(ring_trouble),
            leaving: held.leaving,
        }),
        Message::Step(key, step) => Up::RankStep(v1::RankStep {
            job_id: key.job.to_string(),
            epoch: key.epoch.0,
            step: Some(step_report(step)),
        }),
        Message::Log(key, rank, level, line) => Up::RankLog(v1::RankLog {
            job_id: key.job.to_string(),
            line: Some(v1::LogLine {
                level: log_level(*level).into(),
                rank: rank.map(|rank| rank_number(Some(rank))),
                message: line.clone(),
            }),
            epoch: key.epoch.0,
        }),
        Message::Timings(key, rank, timings) => Up::RankTimings(v1::RankTimings {
            job_id: key.job.to_string(),
            epoch: key.epoch.0,
            rank: rank_number(Some(*rank)),
            step: i64::try_from(timings.step).unwrap_or(i64::MAX),
            compute_seconds: timings.compute_seconds,
            exchange_seconds: timings.exchange_seconds,
            wait_seconds: timings.wait_seconds,
            traffic: Some(traffic(timings.traffic)),
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
            fault: fault(held.fault).0.into(),
            blame: fault(held.fault).1.into(),
            trouble: held.trouble.as_ref().map(ring_trouble),
            leaving: held.leaving,
        })
        .collect()
}

/// -1: none.
fn rank_number(rank: Option<usize>) -> i32 {
    rank.map_or(-1, |rank| i32::try_from(rank).unwrap_or(i32::MAX))
}

fn ring_trouble(trouble: &Trouble) -> v1::RingTrouble {
    use v1::ring_trouble::Kind;
    let kind = match trouble.kind {
        TroubleKind::Closed => Kind::Closed,
        TroubleKind::Silent => Kind::Silent,
        TroubleKind::Unreachable => Kind::Unreachable,
        TroubleKind::Damaged => Kind::Damaged,
    };
    v1::RingTrouble { kind: kind.into(), rank: rank_number(Some(trouble.rank)), text: trouble.text.clone() }
}

fn rank_progress(rank: Option<usize>, progress: &Progress) -> v1::RankProgress {
    v1::RankProgress {
        rank: rank_number(rank),
        stage: progress_stage(progress.stage).into(),
        done: i64::try_from(progress.done).unwrap_or(i64::MAX),
        total: i64::try_from(progress.total).unwrap_or(i64::MAX),
    }
}

fn traffic(traffic: Traffic) -> v1::RingTraffic {
    v1::RingTraffic {
        hidden_exchange_seconds: traffic.hidden_seconds,
        sent_bytes: i64::try_from(traffic.sent_bytes).unwrap_or(i64::MAX),
        collective_seconds: traffic.collective_seconds,
        bus_bytes_per_second: traffic.bus_bandwidth(),
    }
}

fn step_report(step: &StepSummary) -> v1::StepReport {
    v1::StepReport {
        step: i64::try_from(step.step).unwrap_or(i64::MAX),
        loss: f64::from(step.loss),
        learning_rate: step.learning_rate,
        step_seconds: step.step_seconds,
        compute_seconds: step.compute_seconds,
        exchange_seconds: step.exchange_seconds,
        wait_seconds: step.wait_seconds,
        skipped: step.skipped,
        world_size: rank_number(Some(step.world_size)),
        validation_loss: step.validation_loss.map(f64::from),
        validation_seconds: step.validation_seconds,
        preview_seconds: step.preview_seconds,
        epoch: step.epoch.0,
        state_sha256: step.state.map(|hash| hash.to_string()).unwrap_or_default(),
        traffic: Some(traffic(step.traffic)),
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
    use crate::session::types::Phase;

    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

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
        // A trace that cannot be read is no reason to do nothing.
        for (given, known) in [("", false), ("00-nonsense", false), (TRACE, true)] {
            let traced = v1::Assignment { traceparent: given.to_owned(), ..wire() };
            assert_eq!(assignment(traced).unwrap().trace.is_some(), known, "{given}");
        }
        let other = v1::Assignment { spec_sha256: "0".repeat(64), ..wire() };
        let text = assignment(other).unwrap_err().to_string();
        assert!(text.contains("does not know all its options; install version 0.3.0"), "{text}");
    }

    #[test]
    fn steps_to_be_computed_again_end_with_one_that_there_is() {
        assert_eq!(assignment(wire()).unwrap().proof, None);
        let proving =
            |last_step| assignment(v1::Assignment { proof: Some(v1::Proof { last_step }), ..wire() });
        assert_eq!(proving(7).unwrap().proof, Some(7));
        for wrong in [0, -1] {
            let text = proving(wrong).unwrap_err().to_string();
            assert!(text.contains("proof.last_step"), "{text}");
        }
    }

    #[test]
    fn a_joiner_has_no_rank_and_another_must_have_one_of_its_ring() {
        let joins =
            v1::Assignment { joins: true, rank: -1, resume_from: "artifact://x".to_owned(), ..wire() };
        let joiner = assignment(joins).unwrap();
        assert_eq!((joiner.rank, joiner.resume_from.as_str()), (None, "artifact://x"));
        for rank in [-1, 1] {
            let text = assignment(v1::Assignment { rank, ..wire() }).unwrap_err().to_string();
            assert_eq!(text, format!("the coordinator's Assignment: rank: {rank} of 1 members"));
        }
    }

    fn heard(message: v1::session_response::Message) -> Event {
        match event(v1::SessionResponse { message: Some(message) }) {
            Ok(Heard::Event(event)) => event,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_ring_to_enter_names_a_place_or_none() {
        use v1::session_response::Message::EnterRing;
        let ring = wire().ring;
        let (reason, orders) = ("a joined".to_owned(), Vec::new());
        let enter = v1::EnterRing { ring, rank: 0, after_step: true, reason, orders };
        let Event::EnterRing(next) = heard(EnterRing(enter.clone())) else { panic!("not read") };
        assert_eq!((next.rank, next.after_step, next.reason.as_str()), (Some(0), true, "a joined"));
        let Event::EnterRing(next) = heard(EnterRing(v1::EnterRing { rank: -1, ..enter.clone() })) else {
            panic!("not read")
        };
        assert_eq!((next.rank, next.view.members.len()), (None, 1));
        // A malformed order is answered, so that nobody waits for this rank.
        let Event::Unreadable { rank, reason, .. } = heard(EnterRing(v1::EnterRing { rank: 3, ..enter }))
        else {
            panic!("read")
        };
        assert_eq!((rank, reason.as_str()), (Some(3), "the coordinator's EnterRing: rank: 3 of 1 members"));
        assert!(event(v1::SessionResponse { message: Some(EnterRing(v1::EnterRing::default())) }).is_err());
    }

    #[test]
    fn a_report_says_what_broke_the_ring_and_a_step_what_it_gave() {
        let key = RankKey { job: JobId::new(), epoch: Epoch(4) };
        let text = "rank 2 was lost: the stream ended".to_owned();
        let held = HeldRank {
            rank: Some(1),
            phase: Phase::Waiting,
            step: 7,
            trouble: Some(Trouble { kind: TroubleKind::Closed, rank: 2, text: text.clone() }),
            leaving: true,
            ..HeldRank::new(key, None)
        };
        let wire = held_ranks(std::slice::from_ref(&held)).remove(0);
        let kind = v1::ring_trouble::Kind::Closed.into();
        let trouble = Some(v1::RingTrouble { kind, rank: 2, text });
        assert_eq!((wire.phase(), wire.step, wire.leaving), (v1::RankPhase::Waiting, 7, true));
        assert_eq!(wire.trouble, trouble);
        let up = request(&Message::Report { held, progress: None }).message;
        let Some(v1::session_request::Message::RankReport(report)) = up else { panic!("{up:?}") };
        assert_eq!((report.trouble, report.leaving, report.epoch), (trouble, true, 4));
        // A step that an earlier ring took keeps that one's epoch; the message has the present one.
        let hash = ringtune_shared::ids::ContentHash::of(b"state");
        let step = StepSummary { epoch: Epoch(2), state: Some(hash), ..StepSummary::example(9) };
        let up = request(&Message::Step(key, step)).message;
        let Some(v1::session_request::Message::RankStep(sent)) = up else { panic!("{up:?}") };
        let report = sent.step.unwrap();
        assert_eq!((sent.epoch, report.epoch, report.state_sha256), (4, 2, hash.to_string()));
        assert_eq!(held_ranks(&[HeldRank::new(key, None)])[0].rank, -1);
    }
}
