//! Jobs, events, workers and artifacts as the API shows them.

use prost_types::Timestamp;
use ringtune_proto::{
    convert::{spec_to_wire, timestamp},
    v1,
};

use crate::core::{
    ArtifactRecord, Capabilities, EventBody, Job, JobEvent, JobState, Progress, StepRecord, Time, Worker,
    WorkerState,
};

/// A time.
pub fn time(time: Time) -> Timestamp {
    timestamp(time.0)
}

/// A count; what no i64 holds is shown as the largest one.
fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A rank or a size of a ring.
fn small(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// A job's state.
pub fn job_state(state: JobState) -> v1::JobState {
    match state {
        JobState::Queued => v1::JobState::Queued,
        JobState::Preparing => v1::JobState::Preparing,
        JobState::Running => v1::JobState::Running,
        JobState::Succeeded => v1::JobState::Succeeded,
        JobState::Failed => v1::JobState::Failed,
        JobState::Cancelled => v1::JobState::Cancelled,
    }
}

/// A job.
pub fn job(job: &Job) -> v1::Job {
    let ring = job.ring.as_ref();
    v1::Job {
        job_id: job.id.to_string(),
        name: job.spec.name.clone(),
        spec: Some(spec_to_wire(&job.spec)),
        state: job_state(job.state).into(),
        state_reason: job.reason.clone(),
        create_time: Some(time(job.created)),
        start_time: job.started.map(time),
        end_time: job.ended.map(time),
        step: count(job.step),
        total_steps: count(job.spec.train.max_train_steps),
        loss: job.loss,
        epoch: ring.map_or(0, |ring| ring.epoch.0),
        worker_ids: ring
            .map(|ring| ring.members.iter().map(|member| member.worker.to_string()).collect())
            .unwrap_or_default(),
        last_sequence: job.last_sequence,
        precision: job.precision.map(|precision| precision.as_str().to_owned()).unwrap_or_default(),
    }
}

/// An event of a job.
pub fn event(event: &JobEvent) -> v1::JobEvent {
    v1::JobEvent {
        job_id: event.job.to_string(),
        sequence: event.sequence,
        time: Some(time(event.time)),
        event: Some(body(&event.body)),
    }
}

fn body(body: &EventBody) -> v1::job_event::Event {
    use v1::job_event::Event;
    match body {
        EventBody::StateChange { from, to, reason } => Event::StateChange(v1::StateChange {
            from: from.map_or(v1::JobState::Unspecified, job_state).into(),
            to: job_state(*to).into(),
            reason: reason.clone(),
        }),
        EventBody::Step(record) => Event::Step(step(record)),
        EventBody::Progress(Progress { rank, stage, done, total }) => Event::Progress(v1::RankProgress {
            rank: small(*rank),
            stage: stage.clone(),
            done: count(*done),
            total: count(*total),
        }),
        EventBody::Artifact(record) => Event::Artifact(artifact(record)),
        EventBody::Log { level, rank, message } => Event::Log(v1::LogLine {
            level: level.clone(),
            rank: rank.map_or(-1, small),
            message: message.clone(),
        }),
    }
}

/// An optimizer update.
pub fn step(record: &StepRecord) -> v1::StepReport {
    v1::StepReport {
        step: count(record.step),
        loss: record.loss,
        learning_rate: record.learning_rate,
        step_seconds: record.step_seconds,
        compute_seconds: record.compute_seconds,
        exchange_seconds: record.exchange_seconds,
        wait_seconds: record.wait_seconds,
        skipped: record.skipped,
        world_size: small(record.world_size),
    }
}

/// A file kept with a job.
pub fn artifact(record: &ArtifactRecord) -> v1::Artifact {
    v1::Artifact {
        job_id: record.job.to_string(),
        name: record.name.clone(),
        uri: record.hash.uri(),
        sha256: record.hash.to_string(),
        size: count(record.size),
        media_type: record.media_type.clone(),
        create_time: Some(time(record.created)),
    }
}

/// A worker.
pub fn worker(worker: &Worker) -> v1::Worker {
    let state = match worker.state() {
        WorkerState::Idle => v1::WorkerState::Idle,
        WorkerState::Busy => v1::WorkerState::Busy,
        WorkerState::Lost => v1::WorkerState::Lost,
    };
    let (job_id, rank) = worker.rank.map_or((String::new(), 0), |(job, rank)| (job.to_string(), small(rank)));
    v1::Worker {
        worker_id: worker.id.to_string(),
        host_name: worker.host_name.clone(),
        address: worker.address.clone(),
        state: state.into(),
        job_id,
        rank,
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
        memory_bytes: count(capabilities.memory_bytes),
        numerics_class: capabilities.numerics_class.clone(),
        bf16: capabilities.bf16,
        threads: small(capabilities.threads),
    }
}
