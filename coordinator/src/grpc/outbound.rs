//! Domain types as wire messages.

use ringtune_proto::convert::{spec_to_wire, timestamp};
use ringtune_proto::v1;

use crate::core::{
    ArtifactRecord, Assignment, Capabilities, Down, EventBody, Job, JobEvent, JobState, Progress, StepRecord,
    Time, Worker, WorkerState,
};

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
        JobState::Succeeded => v1::JobState::Succeeded,
        JobState::Failed => v1::JobState::Failed,
        JobState::Cancelled => v1::JobState::Cancelled,
    }
}

pub(super) fn job(job: &Job) -> v1::Job {
    v1::Job { spec: Some(spec_to_wire(&job.spec)), ..job_without_spec(job) }
}

pub(super) fn job_without_spec(job: &Job) -> v1::Job {
    let ring = job.ring.as_ref();
    v1::Job {
        job_id: job.id.to_string(),
        name: job.spec.name.clone(),
        spec: None,
        state: job_state(job.state).into(),
        state_reason: job.reason.clone(),
        create_time: Some(time(job.created)),
        start_time: job.started.map(time),
        end_time: job.ended.map(time),
        step: signed(job.step),
        total_steps: signed(job.spec.total_steps()),
        loss: job.loss,
        epoch: ring.map_or(0, |ring| ring.epoch.0),
        worker_ids: ring
            .map(|ring| ring.members.iter().map(|member| member.worker.to_string()).collect())
            .unwrap_or_default(),
        last_sequence: job.last_sequence,
        precision: job.precision.map(|precision| precision.as_str().to_owned()).unwrap_or_default(),
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
            Event::Log(v1::LogLine { level, rank: rank.map_or(-1, small), message })
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
        stage: progress.stage,
        done: signed(progress.done),
        total: signed(progress.total),
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

pub(super) fn worker(worker: &Worker) -> v1::Worker {
    let state = match worker.state() {
        WorkerState::Idle => v1::WorkerState::Idle,
        WorkerState::Busy => v1::WorkerState::Busy,
        WorkerState::Lost => v1::WorkerState::Lost,
    };
    v1::Worker {
        worker_id: worker.id.to_string(),
        host_name: worker.host_name.clone(),
        address: worker.address.clone(),
        state: state.into(),
        job_id: worker.rank.map(|(job, _)| job.to_string()).unwrap_or_default(),
        rank: worker.rank.map_or(0, |(_, rank)| small(rank)),
        capabilities: Some(capabilities(&worker.capabilities)),
        connect_time: Some(time(worker.connected)),
        last_heartbeat_time: Some(time(worker.last_sign)),
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
        Down::Welcome => Message::Welcome(welcome.clone()),
        Down::Assignment(given) => Message::Assignment(assignment(&given)),
        Down::StartTraining(job, epoch) => {
            Message::StartTraining(v1::StartTraining { job_id: job.to_string(), epoch: epoch.0 })
        }
        Down::StopRank { job, epoch, reason, keep_artifacts } => Message::StopRank(v1::StopRank {
            job_id: job.to_string(),
            epoch: epoch.0,
            reason,
            keep_artifacts,
        }),
        Down::StepsStored(job, step) => {
            Message::StepsStored(v1::StepsStored { job_id: job.to_string(), step: signed(step) })
        }
    };
    v1::SessionResponse { message: Some(message) }
}

fn assignment(given: &Assignment) -> v1::Assignment {
    let member = |(worker, address): &(ringtune_shared::ids::WorkerId, String)| v1::RingMember {
        worker_id: worker.to_string(),
        address: address.clone(),
    };
    v1::Assignment {
        ring: Some(v1::RingView {
            job_id: given.job.to_string(),
            epoch: given.epoch.0,
            members: given.members.iter().map(member).collect(),
        }),
        rank: small(given.rank),
        spec: Some(spec_to_wire(&given.spec)),
        threads_per_rank: small(given.threads_per_rank),
        precision: given.precision.as_str().to_owned(),
        numerics_class: given.numerics_class.clone(),
    }
}
