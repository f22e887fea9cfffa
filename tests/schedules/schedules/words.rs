//! From the worker's words to the coordinator's and back, as the two sides of the wire do it.

use ringtune_coordinator::core::{self, Down, Input, LogLevel, RankReport, Sender, StepRecord};
use ringtune_shared::{
    ids::Epoch,
    job::MixedPrecision,
    ring::{Member, RingView},
};
use ringtune_worker::{
    engine::Precision,
    fault::Fault,
    ring::TroubleKind,
    session::{
        Assignment, Level, NextRing, Phase, RankKey, StepSummary,
        state::{Event, HeldRank, Message},
    },
};

/// Input of a worker's message after its hello.
pub(crate) fn input(sender: Sender, message: &Message) -> Input {
    match message {
        Message::Report { held, .. } => {
            Input::RankReport(sender, RankReport { held: self::held(held), progress: None })
        }
        Message::Step(key, step) => Input::RankStep(sender, key.job, key.epoch, record(key.epoch, step)),
        Message::Timings(key, rank, timings) => {
            let timing = core::RankTiming {
                rank: u32::try_from(*rank).unwrap_or(u32::MAX),
                epoch: key.epoch,
                step: timings.step,
                compute_seconds: timings.compute_seconds,
                exchange_seconds: timings.exchange_seconds,
                wait_seconds: timings.wait_seconds,
                traffic: None,
                microbatches: 1,
            };
            Input::RankTimings(sender, key.job, timing)
        }
        Message::Log(key, _, level, line) => {
            let level = match level {
                Level::Info => LogLevel::Info,
                Level::Warn => LogLevel::Warn,
                Level::Error => LogLevel::Error,
            };
            Input::RankLog { sender, job: key.job, epoch: key.epoch, level, message: line.clone() }
        }
    }
}

/// A rank as a hello, a heartbeat or a report shows it.
pub(crate) fn held(held: &HeldRank) -> core::HeldRank {
    core::HeldRank {
        job: held.key.job,
        epoch: held.key.epoch,
        rank: held.rank.map(|rank| rank as u32),
        phase: match held.phase {
            Phase::Preparing => core::Phase::Preparing,
            Phase::Ready => core::Phase::Ready,
            Phase::Training => core::Phase::Training,
            Phase::Waiting => core::Phase::Waiting,
            Phase::Done => core::Phase::Done,
            Phase::Finished => core::Phase::Finished,
            Phase::Failed => core::Phase::Failed,
            Phase::Stopped => core::Phase::Stopped,
        },
        reason: held.reason.clone(),
        neighbour_lost: held.neighbour_lost,
        fault: match held.fault {
            None => core::Fault::Unknown,
            Some(Fault::Job) => core::Fault::Job,
            Some(Fault::Node) => core::Fault::Node,
            Some(Fault::Machine) => core::Fault::Machine,
            Some(Fault::Coordinator) => core::Fault::Coordinator,
            Some(Fault::Link) => core::Fault::Link,
            Some(Fault::Nobody) => core::Fault::Nobody,
            Some(Fault::Checkpoint) => core::Fault::Checkpoint,
            Some(Fault::Access) => core::Fault::Access,
        },
        step: held.step,
        trouble: held.trouble.as_ref().map(|trouble| core::Trouble {
            kind: match trouble.kind {
                TroubleKind::Closed => core::TroubleKind::Closed,
                TroubleKind::Silent => core::TroubleKind::Silent,
                TroubleKind::Unreachable => core::TroubleKind::Unreachable,
                TroubleKind::Damaged => core::TroubleKind::Damaged,
            },
            rank: Some(trouble.rank as u32),
            text: trouble.text.clone(),
        }),
        leaving: held.leaving,
    }
}

fn record(epoch: Epoch, step: &StepSummary) -> StepRecord {
    StepRecord {
        step: step.step,
        epoch: if (1..epoch.0).contains(&step.epoch.0) { step.epoch } else { epoch },
        loss: f64::from(step.loss),
        learning_rate: step.learning_rate,
        step_seconds: step.step_seconds,
        compute_seconds: step.compute_seconds,
        exchange_seconds: step.exchange_seconds,
        wait_seconds: step.wait_seconds,
        skipped: step.skipped,
        world_size: step.world_size as u32,
        validation_seconds: step.validation_seconds,
        preview_seconds: step.preview_seconds,
        state: step.state,
        ..StepRecord::default()
    }
}

/// Event of a message to a worker. None: handled by the link.
pub(crate) fn event(down: Down) -> Option<Event> {
    Some(match down {
        Down::Welcome(_) | Down::LookAtLinks(_) => return None,
        Down::Assignment(given) => Event::Assigned(Box::new(Assignment {
            ring: view(given.job, given.epoch, given.members),
            rank: given.rank.map(|rank| rank as usize),
            spec: (*given.spec).clone(),
            threads: given.threads_per_rank.max(1) as usize,
            precision: match given.precision {
                MixedPrecision::Bf16 => Precision::Bf16,
                _ => Precision::Fp32,
            },
            numerics_class: given.numerics_class,
            ring_protocol: given.protocol,
            version: given.version,
            resume_from: given.resume_from.map(|hash| hash.uri()).unwrap_or_default(),
            proof: given.proof,
            re_forms: false,
            trace: None,
            orders: given.orders,
        })),
        Down::EnterRing(given) => Event::EnterRing(Box::new(NextRing {
            view: view(given.job, given.epoch, given.members),
            rank: given.rank.map(|rank| rank as usize),
            protocol: given.protocol,
            after_step: given.after_step,
            reason: given.reason,
            orders: given.orders,
        })),
        Down::StartRank(job, epoch) => Event::StartRank(RankKey { job, epoch }),
        Down::StopRank { job, epoch, keep_artifacts, .. } => {
            Event::Stop { key: RankKey { job, epoch }, keep_artifacts }
        }
        Down::StepsStored(job, epoch, step) => Event::StepsStored(RankKey { job, epoch }, step),
    })
}

fn view(
    job: ringtune_shared::ids::JobId,
    epoch: Epoch,
    members: Vec<(ringtune_shared::ids::WorkerId, String)>,
) -> RingView {
    let members = members.into_iter().map(|(worker, address)| Member { worker, address }).collect();
    RingView { job, epoch, members }
}
