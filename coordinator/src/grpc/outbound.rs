//! Domain types as wire messages.

use ringtune_proto::convert::{activity_to_wire, live_order_to_wire, queue_to_wire, spec_to_wire, timestamp};
use ringtune_proto::v1;
use ringtune_shared::ids::{Epoch, JobId, WorkerId};
use ringtune_shared::job::{JobRequest, Rung};
use ringtune_shared::version::Agreement;

use crate::core::{
    ArtifactRecord, Assignment, Capabilities, Cluster, Difference, Down, EnterRing, EventBody, Failure, Job,
    JobEvent, JobState, LogLevel, Phase, Progress, ProgressStage, RankTiming, ReasonCode, Ring, StepRecord,
    SweepPlace, Time, Traffic, Validation, Verification, Wait, Worker, WorkerState,
};
use crate::service::RingTimings;

/// The rank on the wire of a worker without one.
const NO_RANK: i32 = -1;

pub(super) fn time(time: Time) -> prost_types::Timestamp {
    timestamp(time.0)
}

/// Counters on the wire are signed; ours do not get near 2^63.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn small(number: impl TryInto<i32>) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}

pub(super) fn job_state(state: JobState) -> v1::JobState {
    match state {
        JobState::Queued => v1::JobState::Queued,
        JobState::Preparing => v1::JobState::Preparing,
        JobState::Running => v1::JobState::Running,
        JobState::Paused => v1::JobState::Paused,
        JobState::Succeeded => v1::JobState::Succeeded,
        JobState::Failed => v1::JobState::Failed,
        JobState::Cancelled => v1::JobState::Cancelled,
    }
}

pub(super) fn job(job: &Job) -> v1::Job {
    v1::Job { spec: Some(spec_to_wire(&job.spec)), ..job_without_spec(job) }
}

/// Spec and queue as a job file.
pub(super) fn job_file(job: &Job) -> String {
    let request = JobRequest { spec: (*job.spec).clone(), queue: (*job.queue).clone() };
    // A checked request can be written.
    request.to_toml().unwrap_or_default()
}

pub(super) fn job_without_spec(job: &Job) -> v1::Job {
    v1::Job {
        job_id: job.id.to_string(),
        name: job.spec.common.name.clone(),
        kind: job.spec.kind().as_str().to_owned(),
        spec: None,
        state: job_state(job.state).into(),
        state_reason: job.reason.clone(),
        create_time: Some(time(job.created)),
        start_time: job.started.map(time),
        end_time: job.ended.map(time),
        step: signed(job.step),
        total_steps: signed(job.total_steps()),
        loss: job.loss,
        last_sequence: job.last_sequence,
        precision: job.pin.as_ref().map(|pin| pin.precision.as_str().to_owned()).unwrap_or_default(),
        queue: Some(queue_to_wire(&job.queue)),
        update_time: Some(time(job.updated)),
        reason_code: reason_code(job.reason_code()).into(),
        ring: job.ring.as_deref().map(ring),
        verification: job.verification.as_ref().map(|one| verification(one, job.compared())),
        waiting: job.wait.as_ref().map(waiting),
        orders: job.orders.iter().map(|order| live_order_to_wire(&order.live)).collect(),
        sweep: job.sweep.as_deref().map(sweep_place),
        validation: job.validation.map(validation),
    }
}

fn sweep_place(place: &SweepPlace) -> v1::SweepPlace {
    v1::SweepPlace {
        sweep_id: place.sweep.to_string(),
        point: small(place.point),
        points: small(place.points),
        settings: place.settings.clone(),
        rungs: rungs(place),
        passed: small(place.passed),
    }
}

fn rungs(place: &SweepPlace) -> Vec<v1::Rung> {
    let rung = |rung: &Rung| v1::Rung { step: signed(rung.step), keep: small(rung.keep) };
    place.rungs.iter().map(rung).collect()
}

fn validation(validation: Validation) -> v1::ValidationLoss {
    v1::ValidationLoss { step: signed(validation.step), loss: validation.loss }
}

/// The sweep that these jobs are, in the order of their numbers; none: there is no such job.
pub(super) fn sweep(jobs: &[Job]) -> Option<v1::Sweep> {
    let first = jobs.first()?;
    let place = first.sweep.as_deref()?;
    let point = |job: &Job| {
        let place = job.sweep.as_deref()?;
        Some(v1::SweepPoint {
            point: small(place.point),
            job_id: job.id.to_string(),
            name: job.spec.common.name.clone(),
            settings: place.settings.clone(),
            state: job_state(job.state).into(),
            state_reason: job.reason.clone(),
            step: signed(job.step),
            total_steps: signed(job.total_steps()),
            loss: job.loss,
            validation: job.validation.map(validation),
            passed: small(place.passed),
            reason_code: reason_code(job.reason_code()).into(),
        })
    };
    // What was not good enough has no files.
    let stands = |job: &&Job| !matches!(job.state, JobState::Failed | JobState::Cancelled);
    let losses = jobs.iter().filter(stands).filter_map(|job| Some((job.id, job.validation?.loss)));
    let best = losses.filter(|(_, loss)| !loss.is_nan()).min_by(|one, other| one.1.total_cmp(&other.1));
    Some(v1::Sweep {
        sweep_id: place.sweep.to_string(),
        name: first.spec.common.name.clone(),
        owner: first.queue.owner.clone(),
        create_time: Some(time(first.created)),
        rungs: rungs(place),
        points: jobs.iter().filter_map(point).collect(),
        best_job_id: best.map(|(job, _)| job.to_string()).unwrap_or_default(),
    })
}

fn waiting(wait: &Wait) -> v1::Waiting {
    v1::Waiting {
        needed: small(wait.needed),
        free: small(wait.free),
        usable: small(wait.usable),
        ahead: small(wait.ahead),
        behind_job_id: wait.behind.map(|job| job.to_string()).unwrap_or_default(),
        since: Some(time(wait.since)),
        estimated_start_time: wait.start.map(time),
    }
}

fn verification(verification: &Verification, compared: u64) -> v1::Verification {
    let difference = |difference: &Difference| v1::StateDifference {
        step: signed(difference.step),
        stored_sha256: difference.stored.to_string(),
        computed_sha256: difference.computed.to_string(),
    };
    v1::Verification {
        job_id: verification.job.to_string(),
        first_step: signed(verification.first_step),
        last_step: signed(verification.last_step),
        compared: signed(compared),
        difference: verification.difference.as_ref().map(difference),
    }
}

fn reason_code(code: ReasonCode) -> v1::JobReason {
    match code {
        ReasonCode::WaitingForWorkers => v1::JobReason::WaitingForWorkers,
        ReasonCode::WaitingBehindJob => v1::JobReason::WaitingBehindJob,
        ReasonCode::Recovering => v1::JobReason::Recovering,
        ReasonCode::Preempted => v1::JobReason::Preempted,
        ReasonCode::StoppedByOrder => v1::JobReason::StoppedByOrder,
        ReasonCode::Reforming => v1::JobReason::Reforming,
        ReasonCode::WaitingForSpare => v1::JobReason::WaitingForSpare,
        ReasonCode::Preparing => v1::JobReason::Preparing,
        ReasonCode::Verifying => v1::JobReason::Verifying,
        ReasonCode::Running(activity) => activity_to_wire(activity),
        ReasonCode::Cancelling => v1::JobReason::Cancelling,
        ReasonCode::Completed => v1::JobReason::Completed,
        ReasonCode::StoppedEarly => v1::JobReason::StoppedEarly,
        ReasonCode::Pausing => v1::JobReason::Pausing,
        ReasonCode::PausedByUser => v1::JobReason::PausedByUser,
        ReasonCode::WaitingForSweep => v1::JobReason::WaitingForSweep,
        ReasonCode::OutOfSweep => v1::JobReason::OutOfSweep,
        ReasonCode::CancelledByUser => v1::JobReason::CancelledByUser,
        ReasonCode::Failed(Failure::Rank) => v1::JobReason::RankFailed,
        ReasonCode::Failed(Failure::WorkerLost) => v1::JobReason::WorkerLost,
        ReasonCode::Failed(Failure::NeighbourLost) => v1::JobReason::NeighbourLost,
        ReasonCode::Failed(Failure::Diverged) => v1::JobReason::Diverged,
        ReasonCode::Failed(Failure::Differs) => v1::JobReason::Differs,
        ReasonCode::Failed(Failure::NothingToCompare) => v1::JobReason::NothingToCompare,
        ReasonCode::Failed(Failure::OutOfTime) => v1::JobReason::OutOfTime,
    }
}

fn ring(ring: &Ring) -> v1::Ring {
    let member = |(rank, member): (usize, &crate::core::Member)| v1::ring::Member {
        rank: small(rank),
        worker_id: member.worker.to_string(),
        address: member.address.clone(),
        host_name: member.host_name.clone(),
        phase: rank_phase(member.phase).into(),
    };
    v1::Ring { epoch: ring.epoch.0, members: ring.present().map(member).collect() }
}

fn rank_phase(phase: Phase) -> v1::RankPhase {
    match phase {
        Phase::Assigned => v1::RankPhase::Assigned,
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

/// None for what only older versions kept.
pub(super) fn event(event: JobEvent) -> Option<v1::JobEvent> {
    use v1::job_event::Event;
    let body = match event.body {
        EventBody::StateChange { from, to, reason } => Event::StateChange(v1::StateChange {
            from: from.map_or(v1::JobState::Unspecified, job_state).into(),
            to: job_state(to).into(),
            reason,
        }),
        EventBody::Step(record) => Event::Step(step(&record)),
        EventBody::Progress(_) => return None,
        EventBody::Artifact(record) => Event::Artifact(artifact(&record)),
        EventBody::Log { level, rank, message } => {
            let level = log_level(level).into();
            Event::Log(v1::LogLine { level, rank: rank.map(small), message })
        }
    };
    Some(v1::JobEvent {
        job_id: event.job.to_string(),
        sequence: event.sequence,
        time: Some(time(event.time)),
        event: Some(body),
    })
}

pub(super) fn progress(progress: Progress) -> v1::RankProgress {
    v1::RankProgress {
        rank: small(progress.rank),
        stage: progress_stage(progress.stage).into(),
        done: signed(progress.done),
        total: signed(progress.total),
    }
}

/// What the steps of a ring's ranks take.
pub(super) fn timings(timings: &RingTimings) -> v1::RingTimings {
    let slowdown_of = |timing: &RankTiming| {
        timings.straggler.filter(|found| found.rank == timing.rank).map(|found| found.slowdown)
    };
    let rank = |timing: &RankTiming| v1::RankTiming {
        rank: small(timing.rank),
        epoch: timing.epoch.0,
        step: signed(timing.step),
        compute_seconds: timing.compute_seconds,
        exchange_seconds: timing.exchange_seconds,
        wait_seconds: timing.wait_seconds,
        straggler: slowdown_of(timing).is_some(),
        traffic: timing.traffic.as_ref().map(traffic),
        slowdown: slowdown_of(timing).unwrap_or_default(),
    };
    v1::RingTimings { ranks: timings.ranks.iter().map(rank).collect() }
}

fn traffic(traffic: &Traffic) -> v1::RingTraffic {
    v1::RingTraffic {
        hidden_exchange_seconds: traffic.hidden_exchange_seconds,
        sent_bytes: signed(traffic.sent_bytes),
        collective_seconds: traffic.collective_seconds,
        bus_bytes_per_second: traffic.bus_bytes_per_second,
    }
}

fn log_level(level: LogLevel) -> v1::LogLevel {
    match level {
        LogLevel::Info => v1::LogLevel::Info,
        LogLevel::Warn => v1::LogLevel::Warn,
        LogLevel::Error => v1::LogLevel::Error,
    }
}

fn progress_stage(stage: ProgressStage) -> v1::ProgressStage {
    match stage {
        ProgressStage::Fetch => v1::ProgressStage::Fetch,
        ProgressStage::Download => v1::ProgressStage::Download,
        ProgressStage::Load => v1::ProgressStage::Load,
        ProgressStage::Encode => v1::ProgressStage::Encode,
        ProgressStage::Draw => v1::ProgressStage::Draw,
        ProgressStage::Write => v1::ProgressStage::Write,
        ProgressStage::Other => v1::ProgressStage::Unspecified,
    }
}

pub(super) fn step(step: &StepRecord) -> v1::StepReport {
    v1::StepReport {
        step: signed(step.step),
        loss: step.loss,
        learning_rate: step.learning_rate,
        step_seconds: step.step_seconds,
        compute_seconds: step.compute_seconds,
        exchange_seconds: step.exchange_seconds,
        wait_seconds: step.wait_seconds,
        skipped: step.skipped,
        world_size: small(step.world_size),
        validation_loss: step.validation_loss.map(|loss| loss.0),
        validation_seconds: step.validation_seconds,
        preview_seconds: step.preview_seconds,
        epoch: step.epoch.0,
        state_sha256: step.state.map(|state| state.to_string()).unwrap_or_default(),
        traffic: step.traffic.as_ref().map(traffic),
    }
}

pub(super) fn artifact(artifact: &ArtifactRecord) -> v1::Artifact {
    v1::Artifact {
        job_id: artifact.job.to_string(),
        name: artifact.name.clone(),
        uri: artifact.hash.uri(),
        sha256: artifact.hash.to_string(),
        size: signed(artifact.size),
        media_type: artifact.media_type.clone(),
        create_time: Some(time(artifact.created)),
    }
}

pub(super) fn worker_state(state: WorkerState) -> v1::WorkerState {
    match state {
        WorkerState::Idle => v1::WorkerState::Idle,
        WorkerState::Busy => v1::WorkerState::Busy,
        WorkerState::Lost => v1::WorkerState::Lost,
    }
}

/// `cluster`: the one that knows the worker.
pub(super) fn worker(cluster: &Cluster, worker: &Worker) -> v1::Worker {
    let place = cluster.place_of(worker.id);
    v1::Worker {
        worker_id: worker.id.to_string(),
        host_name: worker.host_name.clone(),
        address: worker.address.clone(),
        state: worker_state(cluster.worker_state(worker)).into(),
        job_id: place.map(|place| place.job().to_string()).unwrap_or_default(),
        rank: cluster.rank_of(worker.id).map(|(_, rank)| small(rank)),
        capabilities: Some(capabilities(&worker.capabilities)),
        connect_time: Some(time(worker.connected)),
        last_heartbeat_time: Some(time(worker.last_sign)),
        draining: worker.draining,
        labels: worker.capabilities.labels.clone(),
        rest_until_time: worker.rests_until.map(time),
    }
}

fn capabilities(capabilities: &Capabilities) -> v1::Capabilities {
    v1::Capabilities {
        version: capabilities.version.clone(),
        libtorch_version: capabilities.libtorch_version.clone(),
        cpu_model: capabilities.cpu_model.clone(),
        cpu_flags: capabilities.cpu_flags.clone(),
        cores: small(capabilities.cores),
        numa_nodes: small(capabilities.numa_nodes),
        memory_bytes: signed(capabilities.memory_bytes),
        numerics_class: capabilities.numerics_class.clone(),
        bf16: capabilities.bf16,
        threads: small(capabilities.threads),
    }
}

/// What a worker is told. `welcome`: this coordinator's own.
pub(super) fn down(message: Down, welcome: &v1::Welcome) -> v1::SessionResponse {
    use v1::session_response::Message;
    let message = match message {
        Down::Welcome(Agreement { protocol, features }) => {
            Message::Welcome(v1::Welcome { protocol, features, ..welcome.clone() })
        }
        Down::Assignment(given) => Message::Assignment(assignment(&given)),
        Down::EnterRing(given) => Message::EnterRing(enter_ring(*given)),
        Down::StartRank(job, epoch) => {
            Message::StartRank(v1::StartRank { job_id: job.to_string(), epoch: epoch.0 })
        }
        Down::StopRank { job, epoch, reason, keep_artifacts } => Message::StopRank(v1::StopRank {
            job_id: job.to_string(),
            epoch: epoch.0,
            reason,
            keep_artifacts,
        }),
        Down::StepsStored(job, epoch, step) => Message::StepsStored(v1::StepsStored {
            job_id: job.to_string(),
            step: signed(step),
            epoch: epoch.0,
        }),
        Down::LookAtLinks(question) => Message::LookAtLinks(v1::LookAtLinks {
            job_id: question.job.to_string(),
            look: question.look,
            workers: ring_members(&question.workers),
        }),
    };
    v1::SessionResponse { message: Some(message) }
}

fn assignment(given: &Assignment) -> v1::Assignment {
    v1::Assignment {
        ring: Some(ring_view(given.job, given.epoch, &given.members, given.protocol)),
        rank: given.rank.map_or(NO_RANK, small),
        spec: Some(spec_to_wire(&given.spec)),
        threads_per_rank: small(given.threads_per_rank),
        precision: given.precision.as_str().to_owned(),
        numerics_class: given.numerics_class.clone(),
        version: given.version.clone(),
        // Empty is not compared.
        spec_sha256: given.spec.hash().map(|hash| hash.to_string()).unwrap_or_default(),
        joins: given.rank.is_none(),
        resume_from: given.resume_from.map(|checkpoint| checkpoint.uri()).unwrap_or_default(),
        proof: given.proof.map(|last_step| v1::Proof { last_step: signed(last_step) }),
        traceparent: given.trace.map(|trace| trace.to_string()).unwrap_or_default(),
        orders: given.orders.iter().map(live_order_to_wire).collect(),
    }
}

fn enter_ring(given: EnterRing) -> v1::EnterRing {
    v1::EnterRing {
        ring: Some(ring_view(given.job, given.epoch, &given.members, given.protocol)),
        rank: given.rank.map_or(NO_RANK, small),
        after_step: given.after_step,
        reason: given.reason,
        orders: given.orders.iter().map(live_order_to_wire).collect(),
    }
}

fn ring_view(job: JobId, epoch: Epoch, members: &[(WorkerId, String)], protocol: u32) -> v1::RingView {
    v1::RingView { job_id: job.to_string(), epoch: epoch.0, members: ring_members(members), protocol }
}

fn ring_members(members: &[(WorkerId, String)]) -> Vec<v1::RingMember> {
    let member = |(worker, address): &(WorkerId, String)| v1::RingMember {
        worker_id: worker.to_string(),
        address: address.clone(),
    };
    members.iter().map(member).collect()
}
