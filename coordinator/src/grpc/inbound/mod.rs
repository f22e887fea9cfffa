//! Wire messages of workers as domain types. Everything from outside is bounded here.

mod hello;

use std::collections::BTreeMap;

use ringtune_proto::convert::{FieldError, parse, unsigned};
use ringtune_proto::v1;
use ringtune_shared::ids::{Epoch, WorkerId};

use crate::core::{
    AnyFloat, Fault, HeldRank, Input, LogLevel, Phase, Progress, ProgressStage, RankReport, RankTiming,
    Sender, Sight, StepRecord, Traffic, Trouble, TroubleKind,
};
pub(super) use hello::hello;

/// Ranks that one worker may say it holds.
const MOST_HELD: usize = 64;
/// Workers that one worker may say it does not reach.
const MOST_LINKS: usize = 1024;
/// Characters of what a rank saw of its neighbour.
const LONGEST_TROUBLE: usize = 400;
/// Seconds that a part of a step may take.
const LONGEST_PART: f64 = 86_400.0;

/// What was heard of a message.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// What the core is told; none where all of it is unknown.
    pub(super) input: Option<Input>,
    /// What a newer worker said that this coordinator does not know: it was skipped.
    pub(super) unknown: Option<Unknown>,
}

/// What may be unknown in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unknown {
    /// The whole message.
    Message,
    /// A rank's phase: what is said of that rank.
    Phase,
    /// A line's level: that line.
    LogLevel,
    /// A progress report's stage: the progress, but not the report.
    ProgressStage,
}

impl Unknown {
    /// A label of a metric.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Phase => "phase",
            Self::LogLevel => "log_level",
            Self::ProgressStage => "progress_stage",
        }
    }
}

impl From<Input> for Heard {
    fn from(input: Input) -> Self {
        Self { input: Some(input), unknown: None }
    }
}

impl From<Unknown> for Heard {
    fn from(unknown: Unknown) -> Self {
        Self { input: None, unknown: Some(unknown) }
    }
}

/// Anything that a worker says after its hello.
pub(super) fn words(sender: Sender, wire: v1::SessionRequest) -> Result<Heard, FieldError> {
    use v1::session_request::Message;
    match wire.message {
        Some(Message::Heartbeat(beat)) => {
            let (held, unknown) = held_ranks("heartbeat.held", beat.held)?;
            Ok(Heard { input: Some(Input::Heartbeat(sender, held)), unknown })
        }
        Some(Message::RankReport(report)) => rank_report(sender, report),
        Some(Message::RankStep(report)) => {
            let job = parse("rank_step.job_id", &report.job_id)?;
            let epoch = Epoch(report.epoch);
            let step = step(epoch, &report.step.unwrap_or_default())?;
            Ok(Input::RankStep(sender, job, epoch, step).into())
        }
        Some(Message::RankLog(log)) => rank_log(sender, log),
        Some(Message::RankTimings(wire)) => rank_timings(sender, &wire),
        Some(Message::LinksSeen(seen)) => links_seen(sender, seen),
        // The session's reader takes it.
        Some(Message::Metrics(_)) => Ok(Heard::default()),
        Some(Message::Hello(_)) => Err(FieldError::new("hello", "came twice; allowed: first and once")),
        None => Ok(Unknown::Message.into()),
    }
}

fn links_seen(sender: Sender, wire: v1::LinksSeen) -> Result<Heard, FieldError> {
    if wire.broken.len() > MOST_LINKS {
        let text = format!("got {} workers; allowed: 0 to {MOST_LINKS}", wire.broken.len());
        return Err(FieldError::new("links_seen.broken", text));
    }
    let broken = wire.broken.into_iter().map(|link| {
        let worker: WorkerId = parse("links_seen.broken.worker_id", &link.worker_id)?;
        Ok((worker, link.reason.chars().take(LONGEST_TROUBLE).collect()))
    });
    let broken = broken.collect::<Result<BTreeMap<WorkerId, String>, FieldError>>()?;
    let sight = if wire.looking { Sight::Looking } else { Sight::Seen(broken) };
    let job = parse("links_seen.job_id", &wire.job_id)?;
    Ok(Input::LinksSeen { sender, job, look: wire.look, sight }.into())
}

fn rank_timings(sender: Sender, wire: &v1::RankTimings) -> Result<Heard, FieldError> {
    let seconds = |field: &str, given: f64| number(&format!("rank_timings.{field}"), given, LONGEST_PART);
    let timing = RankTiming {
        rank: unsigned("rank_timings.rank", wire.rank.into())?,
        epoch: Epoch(wire.epoch),
        step: unsigned("rank_timings.step", wire.step)?,
        compute_seconds: seconds("compute_seconds", wire.compute_seconds)?,
        exchange_seconds: seconds("exchange_seconds", wire.exchange_seconds)?,
        wait_seconds: seconds("wait_seconds", wire.wait_seconds)?,
        traffic: traffic("rank_timings.traffic", wire.traffic.as_ref(), LONGEST_PART)?,
        // The core knows.
        microbatches: 1,
    };
    let job = parse("rank_timings.job_id", &wire.job_id)?;
    Ok(Input::RankTimings(sender, job, timing).into())
}

/// A number that is not negative, and no more than `most`.
fn number(field: &str, given: f64, most: f64) -> Result<f64, FieldError> {
    match given {
        given if (0.0..=most).contains(&given) => Ok(given),
        given => Err(FieldError::new(field, format!("got {given}; allowed: 0 to {most}"))),
    }
}

/// `longest`: seconds that a part of it may have.
fn traffic(field: &str, wire: Option<&v1::RingTraffic>, longest: f64) -> Result<Option<Traffic>, FieldError> {
    let Some(wire) = wire else { return Ok(None) };
    let number = |name: &str, given, most| number(&format!("{field}.{name}"), given, most);
    Ok(Some(Traffic {
        hidden_exchange_seconds: number("hidden_exchange_seconds", wire.hidden_exchange_seconds, longest)?,
        sent_bytes: unsigned(&format!("{field}.sent_bytes"), wire.sent_bytes)?,
        collective_seconds: number("collective_seconds", wire.collective_seconds, longest)?,
        bus_bytes_per_second: number("bus_bytes_per_second", wire.bus_bytes_per_second, f64::MAX)?,
    }))
}

fn rank_log(sender: Sender, wire: v1::RankLog) -> Result<Heard, FieldError> {
    let line = wire.line.unwrap_or_default();
    let level = match v1::LogLevel::try_from(line.level) {
        Ok(v1::LogLevel::Info) => LogLevel::Info,
        Ok(v1::LogLevel::Warn) => LogLevel::Warn,
        Ok(v1::LogLevel::Error) => LogLevel::Error,
        Ok(v1::LogLevel::Unspecified) => {
            return Err(not_given("rank_log.line.level", "1 (INFO) to 3 (ERROR)"));
        }
        Err(_) => return Ok(Unknown::LogLevel.into()),
    };
    let job = parse("rank_log.job_id", &wire.job_id)?;
    Ok(Input::RankLog { sender, job, epoch: Epoch(wire.epoch), level, message: line.message }.into())
}

fn rank_report(sender: Sender, wire: v1::RankReport) -> Result<Heard, FieldError> {
    let (progress, reported) = (wire.progress, wire.phase);
    let held = v1::HeldRank {
        job_id: wire.job_id,
        epoch: wire.epoch,
        rank: wire.rank,
        phase: wire.phase,
        step: wire.step,
        reason: wire.reason,
        neighbour_lost: wire.neighbour_lost,
        fault: wire.fault,
        trouble: wire.trouble,
        leaving: wire.leaving,
        blame: wire.blame,
    };
    let rank = rank("rank_report.rank", held.rank)?;
    let Some(phase) = phase("rank_report.phase", reported)? else { return Ok(Unknown::Phase.into()) };
    let (progress, unknown) = match progress {
        None => (None, None),
        Some(wire) => match stage(wire.stage)? {
            None => (None, Some(Unknown::ProgressStage)),
            Some(stage) => {
                let done = unsigned("rank_report.progress.done", wire.done)?;
                let total = unsigned("rank_report.progress.total", wire.total)?;
                (Some(Progress { rank: rank.unwrap_or_default(), stage, done, total }), None)
            }
        },
    };
    let held = held_rank("rank_report", held, phase)?;
    Ok(Heard { input: Some(Input::RankReport(sender, RankReport { held, progress })), unknown })
}

/// -1 stands for a worker that has none, but prepares to join.
fn rank(field: &str, wire: i32) -> Result<Option<u32>, FieldError> {
    match wire {
        -1 => Ok(None),
        wire => unsigned(field, wire.into()).map(Some),
    }
}

fn held_rank(field: &str, wire: v1::HeldRank, phase: Phase) -> Result<HeldRank, FieldError> {
    Ok(HeldRank {
        job: parse(&format!("{field}.job_id"), &wire.job_id)?,
        epoch: Epoch(wire.epoch),
        rank: rank(&format!("{field}.rank"), wire.rank)?,
        phase,
        reason: wire.reason,
        neighbour_lost: wire.neighbour_lost,
        fault: fault(wire.fault, wire.blame),
        step: unsigned(&format!("{field}.step"), wire.step)?,
        trouble: wire.trouble.map(trouble),
        leaving: wire.leaving,
    })
}

/// What a rank saw. A neighbour that there cannot be is none.
fn trouble(wire: v1::RingTrouble) -> Trouble {
    use v1::ring_trouble::Kind;
    let kind = match Kind::try_from(wire.kind) {
        Ok(Kind::Closed) => TroubleKind::Closed,
        Ok(Kind::Silent) => TroubleKind::Silent,
        Ok(Kind::Unreachable) => TroubleKind::Unreachable,
        Ok(Kind::Damaged) => TroubleKind::Damaged,
        Ok(Kind::Unspecified) | Err(_) => TroubleKind::Unknown,
    };
    let text = wire.text.chars().take(LONGEST_TROUBLE).collect();
    Trouble { kind, rank: u32::try_from(wire.rank).ok(), text }
}

/// None for one that this coordinator does not know.
fn stage(wire: i32) -> Result<Option<ProgressStage>, FieldError> {
    use v1::ProgressStage as Wire;
    match Wire::try_from(wire) {
        Ok(Wire::Fetch) => Ok(Some(ProgressStage::Fetch)),
        Ok(Wire::Download) => Ok(Some(ProgressStage::Download)),
        Ok(Wire::Load) => Ok(Some(ProgressStage::Load)),
        Ok(Wire::Encode) => Ok(Some(ProgressStage::Encode)),
        Ok(Wire::Draw) => Ok(Some(ProgressStage::Draw)),
        Ok(Wire::Write) => Ok(Some(ProgressStage::Write)),
        Ok(Wire::Unspecified) => Err(not_given("rank_report.progress.stage", "1 (FETCH) to 5 (DRAW)")),
        Err(_) => Ok(None),
    }
}

fn step(epoch: Epoch, wire: &v1::StepReport) -> Result<StepRecord, FieldError> {
    if wire.step < 1 {
        return Err(FieldError::new("rank_step.step.step", format!("got {}; allowed: 1 or more", wire.step)));
    }
    Ok(StepRecord {
        step: unsigned("rank_step.step.step", wire.step)?,
        // One that rank 0 sends for the rank 0 before it.
        epoch: if (1..epoch.0).contains(&wire.epoch) { Epoch(wire.epoch) } else { epoch },
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
        state: match wire.state_sha256.as_str() {
            "" => None,
            text => Some(parse("rank_step.step.state_sha256", text)?),
        },
        traffic: traffic("rank_step.step.traffic", wire.traffic.as_ref(), f64::MAX)?,
    })
}

/// Ranks in a phase that this coordinator does not know are left out.
fn held_ranks(field: &str, wire: Vec<v1::HeldRank>) -> Result<(Vec<HeldRank>, Option<Unknown>), FieldError> {
    if wire.len() > MOST_HELD {
        return Err(FieldError::new(field, format!("{} ranks; allowed: at most {MOST_HELD}", wire.len())));
    }
    let (mut known, mut unknown) = (Vec::with_capacity(wire.len()), None);
    for held in wire {
        let Some(phase) = phase(&format!("{field}.phase"), held.phase)? else {
            unknown = Some(Unknown::Phase);
            continue;
        };
        known.push(held_rank(field, held, phase)?);
    }
    Ok((known, unknown))
}

/// None for one that this coordinator does not know.
fn phase(field: &str, wire: i32) -> Result<Option<Phase>, FieldError> {
    use v1::RankPhase;
    match RankPhase::try_from(wire) {
        Ok(RankPhase::Preparing) => Ok(Some(Phase::Preparing)),
        Ok(RankPhase::Ready) => Ok(Some(Phase::Ready)),
        Ok(RankPhase::Training) => Ok(Some(Phase::Training)),
        Ok(RankPhase::Waiting) => Ok(Some(Phase::Waiting)),
        Ok(RankPhase::Done) => Ok(Some(Phase::Done)),
        Ok(RankPhase::Finished) => Ok(Some(Phase::Finished)),
        Ok(RankPhase::Failed) => Ok(Some(Phase::Failed)),
        Ok(RankPhase::Stopped) => Ok(Some(Phase::Stopped)),
        Ok(RankPhase::Unspecified | RankPhase::Assigned) => {
            Err(not_given(field, "1 (PREPARING) to 9 (DONE)"))
        }
        Err(_) => Ok(None),
    }
}

fn not_given(field: &str, allowed: &str) -> FieldError {
    FieldError::new(field, format!("got 0 (UNSPECIFIED); allowed: {allowed}"))
}

/// A newer worker's finer distinctions are not known here.
fn fault(wire: i32, blame: i32) -> Fault {
    match v1::RankBlame::try_from(blame) {
        Ok(v1::RankBlame::Machine) => return Fault::Machine,
        Ok(v1::RankBlame::Coordinator) => return Fault::Coordinator,
        Ok(v1::RankBlame::Link) => return Fault::Link,
        Ok(v1::RankBlame::Nobody) => return Fault::Nobody,
        Ok(v1::RankBlame::Unspecified) | Err(_) => {}
    }
    match v1::RankFault::try_from(wire) {
        Ok(v1::RankFault::Job) => Fault::Job,
        Ok(v1::RankFault::Node) => Fault::Node,
        Ok(v1::RankFault::Checkpoint) => Fault::Checkpoint,
        Ok(v1::RankFault::Access) => Fault::Access,
        Ok(v1::RankFault::Unspecified) | Err(_) => Fault::Unknown,
    }
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
    fn all_that_may_be_unknown_is_counted_from_the_start() {
        let all = [Unknown::Message, Unknown::Phase, Unknown::LogLevel, Unknown::ProgressStage];
        assert_eq!(all.map(Unknown::name), crate::metrics::UNKNOWN);
    }

    #[test]
    fn bad_words_are_refused_by_field() {
        use v1::session_request::Message;
        let job_id = JobId::new().to_string();
        let report = v1::RankReport { job_id: job_id.clone(), phase: 2, rank: -2, ..Default::default() };
        assert_eq!(refused(Message::RankReport(report)), "rank_report.rank");
        let report = v1::RankReport { job_id: job_id.clone(), phase: 0, ..Default::default() };
        assert_eq!(refused(Message::RankReport(report)), "rank_report.phase");
        let progress = Some(v1::RankProgress { done: 1, total: 2, ..Default::default() });
        let report = v1::RankReport { job_id: job_id.clone(), phase: 1, progress, ..Default::default() };
        assert_eq!(refused(Message::RankReport(report)), "rank_report.progress.stage");
        let step = v1::RankStep { job_id: job_id.clone(), epoch: 1, step: None };
        assert_eq!(refused(Message::RankStep(step)), "rank_step.step.step");
        let timings = v1::RankTimings { job_id: job_id.clone(), step: 1, ..Default::default() };
        let fine = v1::SessionRequest { message: Some(Message::RankTimings(timings.clone())) };
        assert!(words(sender(), fine).is_ok_and(|heard| heard.input.is_some()));
        for seconds in [-0.1, f64::NAN, f64::INFINITY, LONGEST_PART * 2.0] {
            let wait = v1::RankTimings { wait_seconds: seconds, ..timings.clone() };
            assert_eq!(refused(Message::RankTimings(wait)), "rank_timings.wait_seconds");
            let traffic = v1::RingTraffic { collective_seconds: seconds, ..Default::default() };
            let travelled = v1::RankTimings { traffic: Some(traffic), ..timings.clone() };
            assert_eq!(refused(Message::RankTimings(travelled)), "rank_timings.traffic.collective_seconds");
        }
        let timings = v1::RankTimings { rank: -1, ..timings };
        assert_eq!(refused(Message::RankTimings(timings)), "rank_timings.rank");
        let links = |broken| v1::LinksSeen { job_id: job_id.clone(), broken, ..Default::default() };
        let link = v1::BrokenLink { worker_id: WorkerId::new().to_string(), reason: "x".repeat(1_000) };
        let fine = v1::SessionRequest { message: Some(Message::LinksSeen(links(vec![link.clone()]))) };
        let heard = words(sender(), fine).unwrap().input;
        let Some(Input::LinksSeen { sight: Sight::Seen(broken), .. }) = heard else { panic!("{heard:?}") };
        assert!(broken.values().all(|why| why.len() == LONGEST_TROUBLE));
        assert_eq!(refused(Message::LinksSeen(links(vec![link; MOST_LINKS + 1]))), "links_seen.broken");
        let nobody = links(vec![v1::BrokenLink::default()]);
        assert_eq!(refused(Message::LinksSeen(nobody)), "links_seen.broken.worker_id");
        let held = vec![v1::HeldRank::default(); MOST_HELD + 1];
        assert_eq!(refused(Message::Heartbeat(v1::Heartbeat { held })), "heartbeat.held");
        assert_eq!(refused(Message::Hello(v1::Hello::default())), "hello");
        let line = Some(v1::LogLine::default());
        assert_eq!(refused(Message::RankLog(v1::RankLog { job_id, line, epoch: 1 })), "rank_log.line.level");
    }

    #[test]
    fn what_a_newer_worker_says_beyond_this_is_skipped_and_named() {
        use v1::session_request::Message;
        let heard = |message| words(sender(), v1::SessionRequest { message }).unwrap();
        let job_id = JobId::new().to_string();
        let skipped = |message, expected| {
            let heard = heard(Some(message));
            assert!(heard.input.is_none(), "{heard:?}");
            assert_eq!(heard.unknown, Some(expected));
        };
        assert_eq!(heard(None).unknown, Some(Unknown::Message));
        let report = v1::RankReport { job_id: job_id.clone(), phase: 99, ..Default::default() };
        skipped(Message::RankReport(report), Unknown::Phase);
        let line = Some(v1::LogLine { level: 99, ..Default::default() });
        skipped(Message::RankLog(v1::RankLog { job_id: job_id.clone(), line, epoch: 1 }), Unknown::LogLevel);

        // Only the progress is unknown: the phase counts.
        let progress = Some(v1::RankProgress { stage: 99, ..Default::default() });
        let report = v1::RankReport { job_id: job_id.clone(), phase: 1, progress, ..Default::default() };
        let heard_report = heard(Some(Message::RankReport(report)));
        assert_eq!(heard_report.unknown, Some(Unknown::ProgressStage));
        let Some(Input::RankReport(_, report)) = heard_report.input else { panic!("{heard_report:?}") };
        assert_eq!((report.held.phase, report.progress), (Phase::Preparing, None));

        // Only one of two ranks is unknown: the sign of life counts.
        let held = [1, 99].map(|phase| v1::HeldRank { job_id: job_id.clone(), phase, ..Default::default() });
        let beat = heard(Some(Message::Heartbeat(v1::Heartbeat { held: held.to_vec() })));
        assert_eq!(beat.unknown, Some(Unknown::Phase));
        let Some(Input::Heartbeat(_, held)) = beat.input else { panic!("{beat:?}") };
        assert_eq!(held.len(), 1);
    }
}
