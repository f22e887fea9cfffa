//! What the commands print as JSON: one object a line.

use std::collections::BTreeMap;

use ringtune_proto::{
    convert::{
        job_reason_name, job_state_name, log_level_name, progress_stage_name, rank_phase_name,
        worker_state_name,
    },
    v1::{self, job_event::Event},
};
use serde::Serialize;
use uuid::Uuid;

use crate::{
    client::SavedArtifact,
    output::time_text,
    sweep_objects::{SweepPlaceObject, ValidationObject},
    timing_objects::{RankTimingObject, TrafficObject},
};

/// A job as a line of JSON.
#[derive(Debug, Serialize)]
pub struct JobObject {
    r#type: &'static str,
    job_id: String,
    name: String,
    state: &'static str,
    state_reason: String,
    step: i64,
    total_steps: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<f64>,
    precision: String,
    epoch: u64,
    worker_ids: Vec<String>,
    reason_code: &'static str,
    owner: String,
    labels: BTreeMap<String, String>,
    priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    ring: Option<RingObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verification: Option<VerificationObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting: Option<WaitingObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sweep: Option<SweepPlaceObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    validation: Option<ValidationObject>,
    create_time: String,
    start_time: String,
    end_time: String,
    update_time: String,
}

/// What a job verifies within its line of JSON.
#[derive(Debug, Serialize)]
struct VerificationObject {
    job_id: String,
    first_step: i64,
    last_step: i64,
    compared: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<DifferenceObject>,
}

#[derive(Debug, Serialize)]
struct DifferenceObject {
    step: i64,
    stored_sha256: String,
    computed_sha256: String,
}

impl From<&v1::Verification> for VerificationObject {
    fn from(verification: &v1::Verification) -> Self {
        let difference = |difference: &v1::StateDifference| DifferenceObject {
            step: difference.step,
            stored_sha256: difference.stored_sha256.clone(),
            computed_sha256: difference.computed_sha256.clone(),
        };
        Self {
            job_id: verification.job_id.clone(),
            first_step: verification.first_step,
            last_step: verification.last_step,
            compared: verification.compared,
            difference: verification.difference.as_ref().map(difference),
        }
    }
}

/// What a job waits for within its line of JSON.
#[derive(Debug, Serialize)]
struct WaitingObject {
    needed: i32,
    free: i32,
    usable: i32,
    ahead: i32,
    #[serde(skip_serializing_if = "String::is_empty")]
    behind_job_id: String,
    since: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    estimated_start_time: String,
}

impl From<&v1::Waiting> for WaitingObject {
    fn from(waiting: &v1::Waiting) -> Self {
        Self {
            needed: waiting.needed,
            free: waiting.free,
            usable: waiting.usable,
            ahead: waiting.ahead,
            behind_job_id: waiting.behind_job_id.clone(),
            since: time_text(waiting.since.as_ref()),
            estimated_start_time: time_text(waiting.estimated_start_time.as_ref()),
        }
    }
}

/// A job's ring within its line of JSON.
#[derive(Debug, Serialize)]
struct RingObject {
    epoch: u64,
    members: Vec<MemberObject>,
}

#[derive(Debug, Serialize)]
struct MemberObject {
    rank: i32,
    worker_id: String,
    address: String,
    host_name: String,
    phase: &'static str,
}

impl From<&v1::Ring> for RingObject {
    fn from(ring: &v1::Ring) -> Self {
        let member = |member: &v1::ring::Member| MemberObject {
            rank: member.rank,
            worker_id: member.worker_id.clone(),
            address: member.address.clone(),
            host_name: member.host_name.clone(),
            phase: rank_phase_name(member.phase()),
        };
        Self { epoch: ring.epoch, members: ring.members.iter().map(member).collect() }
    }
}

impl From<&v1::Job> for JobObject {
    fn from(job: &v1::Job) -> Self {
        let queue = job.queue.clone().unwrap_or_default();
        let ring = job.ring.as_ref();
        let members = ring.iter().flat_map(|ring| &ring.members);
        Self {
            r#type: "job",
            job_id: job.job_id.clone(),
            name: job.name.clone(),
            state: job_state_name(job.state()),
            state_reason: job.state_reason.clone(),
            step: job.step,
            total_steps: job.total_steps,
            loss: job.loss,
            precision: job.precision.clone(),
            epoch: ring.map_or(0, |ring| ring.epoch),
            worker_ids: members.map(|member| member.worker_id.clone()).collect(),
            reason_code: job_reason_name(job.reason_code()),
            owner: queue.owner,
            labels: queue.labels.into_iter().collect(),
            priority: queue.priority,
            ring: ring.map(RingObject::from),
            verification: job.verification.as_ref().map(VerificationObject::from),
            waiting: job.waiting.as_ref().map(WaitingObject::from),
            sweep: job.sweep.as_ref().map(SweepPlaceObject::from),
            validation: job.validation.as_ref().map(ValidationObject::from),
            create_time: time_text(job.create_time.as_ref()),
            start_time: time_text(job.start_time.as_ref()),
            end_time: time_text(job.end_time.as_ref()),
            update_time: time_text(job.update_time.as_ref()),
        }
    }
}

/// A job and what the steps of its ranks take now, as a line of JSON.
#[derive(Debug, Serialize)]
pub struct StatusObject {
    #[serde(flatten)]
    job: JobObject,
    /// In rank order; left out where nobody says so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    timings: Vec<RankTimingObject>,
}

impl StatusObject {
    /// Of both.
    pub fn new(job: &v1::Job, timings: &[v1::RankTiming]) -> Self {
        Self { job: job.into(), timings: timings.iter().map(RankTimingObject::from).collect() }
    }
}

/// A job that is deleted, as a line of JSON.
#[derive(Debug, Serialize)]
pub struct DeletedObject {
    r#type: &'static str,
    job_id: String,
}

impl From<Uuid> for DeletedObject {
    fn from(job: Uuid) -> Self {
        Self { r#type: "deleted", job_id: job.to_string() }
    }
}

/// A worker as a line of JSON.
#[derive(Debug, Serialize)]
pub struct WorkerObject {
    r#type: &'static str,
    worker_id: String,
    host_name: String,
    address: String,
    state: &'static str,
    job_id: String,
    /// None without a job.
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<i32>,
    version: String,
    libtorch_version: String,
    cpu_model: String,
    cpu_flags: Vec<String>,
    cores: i32,
    threads: i32,
    numa_nodes: i32,
    memory_bytes: i64,
    numerics_class: String,
    bf16: bool,
    connect_time: String,
    last_heartbeat_time: String,
    draining: bool,
    labels: BTreeMap<String, String>,
    /// None: it may get ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    rest_until_time: Option<String>,
}

impl From<&v1::Worker> for WorkerObject {
    fn from(worker: &v1::Worker) -> Self {
        let capabilities = worker.capabilities.clone().unwrap_or_default();
        Self {
            r#type: "worker",
            worker_id: worker.worker_id.clone(),
            host_name: worker.host_name.clone(),
            address: worker.address.clone(),
            state: worker_state_name(worker.state()),
            job_id: worker.job_id.clone(),
            rank: worker.rank,
            version: capabilities.version,
            libtorch_version: capabilities.libtorch_version,
            cpu_model: capabilities.cpu_model,
            cpu_flags: capabilities.cpu_flags,
            cores: capabilities.cores,
            threads: capabilities.threads,
            numa_nodes: capabilities.numa_nodes,
            memory_bytes: capabilities.memory_bytes,
            numerics_class: capabilities.numerics_class,
            bf16: capabilities.bf16,
            connect_time: time_text(worker.connect_time.as_ref()),
            last_heartbeat_time: time_text(worker.last_heartbeat_time.as_ref()),
            draining: worker.draining,
            labels: worker.labels.clone(),
            rest_until_time: worker.rest_until_time.as_ref().map(|time| time_text(Some(time))),
        }
    }
}

/// What an owner has of what is limited, as a line of JSON.
#[derive(Debug, Serialize)]
pub struct LimitsObject {
    r#type: &'static str,
    owner: String,
    limits: Vec<LimitObject>,
}

/// One limit.
#[derive(Debug, Serialize)]
struct LimitObject {
    setting: String,
    what: String,
    /// None: it does not add up.
    #[serde(skip_serializing_if = "Option::is_none")]
    used: Option<i64>,
    /// None: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed: Option<i64>,
}

impl From<&v1::GetLimitsResponse> for LimitsObject {
    fn from(answer: &v1::GetLimitsResponse) -> Self {
        let limits = answer.limits.iter().cloned();
        let limit = |limit| {
            let v1::Limit { setting, what, used, allowed } = limit;
            LimitObject { setting, what, used, allowed }
        };
        Self { r#type: "limits", owner: answer.owner.clone(), limits: limits.map(limit).collect() }
    }
}

/// A saved artifact as a line of JSON.
#[derive(Debug, Serialize)]
pub struct ArtifactObject {
    r#type: &'static str,
    job_id: String,
    name: String,
    path: String,
    sha256: String,
    size: u64,
}

impl ArtifactObject {
    /// An artifact of `job_id`, saved on this machine.
    pub fn new(job_id: &str, saved: &SavedArtifact) -> Self {
        Self {
            r#type: "artifact",
            job_id: job_id.to_owned(),
            name: saved.name.clone(),
            path: saved.path.display().to_string(),
            sha256: saved.sha256.clone(),
            size: saved.size,
        }
    }
}

/// An event of a job as a line of JSON.
#[derive(Debug, Serialize)]
pub struct EventObject {
    r#type: &'static str,
    job_id: String,
    sequence: u64,
    time: String,
    #[serde(flatten)]
    event: EventDetails,
}

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum EventDetails {
    StateChange {
        from: &'static str,
        state: &'static str,
        reason: String,
    },
    Step {
        step: i64,
        loss: f64,
        learning_rate: f64,
        step_seconds: f64,
        compute_seconds: f64,
        exchange_seconds: f64,
        wait_seconds: f64,
        skipped: bool,
        world_size: i32,
        #[serde(skip_serializing_if = "Option::is_none")]
        validation_loss: Option<f64>,
        validation_seconds: f64,
        preview_seconds: f64,
        epoch: u64,
        /// Of the state after the step; an older worker does not say it.
        #[serde(skip_serializing_if = "String::is_empty")]
        state_sha256: String,
        /// As rank 0 saw it; an older worker does not say it.
        #[serde(flatten)]
        traffic: Option<TrafficObject>,
    },
    Artifact {
        name: String,
        uri: String,
        size: i64,
    },
    Log {
        level: &'static str,
        /// None: the coordinator.
        rank: Option<i32>,
        message: String,
    },
    /// Of a newer coordinator than this command.
    Unknown,
}

impl From<&v1::JobEvent> for EventObject {
    fn from(event: &v1::JobEvent) -> Self {
        let details = match event.event.clone() {
            Some(Event::StateChange(change)) => EventDetails::StateChange {
                from: job_state_name(change.from()),
                state: job_state_name(change.to()),
                reason: change.reason,
            },
            Some(Event::Step(step)) => EventDetails::Step {
                step: step.step,
                loss: step.loss,
                learning_rate: step.learning_rate,
                step_seconds: step.step_seconds,
                compute_seconds: step.compute_seconds,
                exchange_seconds: step.exchange_seconds,
                wait_seconds: step.wait_seconds,
                skipped: step.skipped,
                world_size: step.world_size,
                validation_loss: step.validation_loss,
                validation_seconds: step.validation_seconds,
                preview_seconds: step.preview_seconds,
                epoch: step.epoch,
                state_sha256: step.state_sha256,
                traffic: step.traffic.as_ref().map(TrafficObject::from),
            },
            Some(Event::Artifact(artifact)) => {
                EventDetails::Artifact { name: artifact.name, uri: artifact.uri, size: artifact.size }
            }
            Some(Event::Log(line)) => EventDetails::Log {
                level: log_level_name(line.level),
                rank: line.rank,
                message: line.message,
            },
            None => EventDetails::Unknown,
        };
        Self {
            r#type: "event",
            job_id: event.job_id.clone(),
            sequence: event.sequence,
            time: time_text(event.time.as_ref()),
            event: details,
        }
    }
}

/// How far a rank is, as a line of JSON; no part of the job's history, and so without a sequence number.
#[derive(Debug, Serialize)]
pub struct ProgressObject {
    r#type: &'static str,
    job_id: String,
    event: &'static str,
    rank: i32,
    stage: &'static str,
    done: i64,
    total: i64,
}

impl ProgressObject {
    /// A rank of `job_id`.
    pub fn new(job_id: &str, progress: &v1::RankProgress) -> Self {
        Self {
            r#type: "event",
            job_id: job_id.to_owned(),
            event: "progress",
            rank: progress.rank,
            stage: progress_stage_name(progress.stage),
            done: progress.done,
            total: progress.total,
        }
    }
}

#[cfg(test)]
mod tests {
    use ringtune_proto::v1::JobState;

    use super::*;

    #[test]
    fn a_job_is_one_object_with_its_id_and_state() {
        let job = v1::Job { job_id: "x".into(), state: JobState::Queued as i32, ..v1::Job::default() };
        let line = serde_json::to_value(JobObject::from(&job)).expect("serializes");
        assert_eq!(line["job_id"], "x");
        assert_eq!(line["state"], "QUEUED");
        assert_eq!((&line["reason_code"], &line["priority"]), (&"UNSPECIFIED".into(), &0.into()));
        assert!(line["labels"].is_object() && line.get("ring").is_none());
        assert!(line.get("loss").is_none());
        let status = serde_json::to_value(StatusObject::new(&job, &[])).expect("serializes");
        assert_eq!(status, line);
        let status = serde_json::to_value(StatusObject::new(&job, &[v1::RankTiming::default()]));
        assert_eq!(status.expect("serializes")["timings"][0]["rank"], 0);
    }

    #[test]
    fn an_event_is_one_flat_object() {
        let step = v1::StepReport { step: 3, loss: f64::NAN, skipped: true, ..v1::StepReport::default() };
        let event = v1::JobEvent { sequence: 9, event: Some(Event::Step(step)), ..v1::JobEvent::default() };
        let line = serde_json::to_value(EventObject::from(&event)).expect("serializes");
        assert_eq!(
            (&line["event"], &line["step"], &line["sequence"]),
            (&"step".into(), &3.into(), &9.into())
        );
        assert!(line["loss"].is_null(), "JSON has no NaN");
    }
}
