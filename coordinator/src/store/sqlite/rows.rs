//! Rows of the database and the types they become.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use ringtune_shared::ids::{ContentHash, Epoch, JobId};
use ringtune_shared::job::{JobSpec, QueueSpec};
use serde::{Serialize, de::DeserializeOwned};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tracing::error;

use crate::core::{
    ArtifactRecord, EventBody, Job, JobEvent, JobState, Links, Ordered, RequestKey, Ring, StepRecord, Time,
    Validation,
};
use crate::store::Error;

/// What a query of jobs begins with: the columns that [`job`] reads. Rows of the other two tables may be missing in a
/// damaged database.
pub(super) const SELECT_JOBS: &str = "SELECT jobs.job_id, jobs.number, request_id, request_fingerprint, state, \
     reason, created, started, ended, rings, tries, errors, ring, pin, stop, checkpoint, verification, orders, preempted, sweep, trace, resumed, queue, failure, version, spec, \
     step, loss, validation_step, validation_loss, last_sequence, artifacts, updated \
     FROM jobs LEFT JOIN job_specs ON job_specs.number = jobs.number \
     LEFT JOIN job_progress ON job_progress.job_id = jobs.job_id";

/// What a query of events begins with: the columns that [`event`] reads.
pub(super) const SELECT_EVENTS: &str = "SELECT sequence, time, events.body, events.step, steps.body AS step_body \
     FROM events LEFT JOIN steps ON steps.job_id = events.job_id AND steps.step = events.step";

/// Jobs whose rows cannot be read and whose damage was logged.
#[derive(Debug, Clone, Default)]
pub(super) struct Damaged(Arc<Mutex<HashSet<JobId>>>);

impl Damaged {
    fn log(&self, job: JobId, problem: &str) {
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(job) {
            error!(%job, problem, "a stored job cannot be read; DeleteJob removes it");
        }
    }
}

/// A number as SQLite keeps it. Counters do not reach 2^63.
pub(super) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn damaged(what: &str, problem: impl std::fmt::Display) -> Error {
    Error::Damaged { what: what.to_owned(), problem: problem.to_string() }
}

pub(super) fn to_json<T: Serialize>(what: &str, value: &T) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| damaged(what, error))
}

fn from_json<T: DeserializeOwned>(what: &str, text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| damaged(what, error))
}

pub(super) fn parsed<T>(what: &str, text: &str) -> Result<T, Error>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| damaged(what, error))
}

pub(super) fn hash(what: &str, text: &str) -> Result<ContentHash, Error> {
    parsed(what, text)
}

pub(super) fn counter(row: &SqliteRow, column: &str) -> Result<u64, Error> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|_| damaged(column, format!("{number} is negative")))
}

fn optional_counter(row: &SqliteRow, column: &str) -> Result<Option<u64>, Error> {
    match row.try_get::<Option<i64>, _>(column)? {
        Some(_) => counter(row, column).map(Some),
        None => Ok(None),
    }
}

fn time(row: &SqliteRow, column: &str) -> Result<Time, Error> {
    Ok(Time(row.try_get(column)?))
}

fn optional_time(row: &SqliteRow, column: &str) -> Result<Option<Time>, Error> {
    Ok(row.try_get::<Option<i64>, _>(column)?.map(Time))
}

pub(super) fn job_state(row: &SqliteRow) -> Result<JobState, Error> {
    let name: &str = row.try_get("state")?;
    JobState::from_name(name)
        .ok_or_else(|| damaged("jobs.state", format!("{name:?} is not a state of a job")))
}

pub(super) fn job_id(row: &SqliteRow) -> Result<JobId, Error> {
    parsed("jobs.job_id", row.try_get("job_id")?)
}

/// A job; where its row is damaged, one in its place that says so. None where not even its name can be read.
pub(super) fn job_or_stand_in(row: &SqliteRow, known: &Damaged) -> Result<Option<Job>, Error> {
    match job(row) {
        Ok(job) => Ok(Some(job)),
        Err(error @ Error::Damaged { .. }) => Ok(stand_in(row, &error, known)),
        Err(error) => Err(error),
    }
}

/// Every part is as it is stored; a part that cannot be read is an error.
pub(super) fn job(row: &SqliteRow) -> Result<Job, Error> {
    let text = |column| row.try_get::<&str, _>(column);
    let optional = |column| row.try_get::<Option<&str>, _>(column);
    let Some(version) = row.try_get("version")? else {
        return Err(damaged("job_specs", "the job has no row there"));
    };
    let ring = optional("ring")?.map(|text| from_json::<Ring>("jobs.ring", text)).transpose()?;
    let spec = JobSpec::from_stored(version, text("spec")?);
    let mut spec = spec.map_err(|error| damaged("job_specs.spec", error))?;
    let orders = optional("orders")?.map(|text| from_json::<Vec<Ordered>>("jobs.orders", text));
    let orders = orders.transpose()?.unwrap_or_default();
    spec.take_orders(orders.iter().map(|order| &order.live));
    Ok(Job {
        id: job_id(row)?,
        number: counter(row, "number")?,
        spec: Arc::new(spec),
        orders: Arc::new(orders),
        preempted: row.try_get("preempted")?,
        queue: Arc::new(from_json::<QueueSpec>("jobs.queue", text("queue")?)?),
        request: request(row)?,
        state: job_state(row)?,
        reason: text("reason")?.to_owned(),
        failure: optional("failure")?.map(|text| from_json("jobs.failure", text)).transpose()?,
        created: time(row, "created")?,
        updated: time(row, "updated")?,
        started: optional_time(row, "started")?,
        ended: optional_time(row, "ended")?,
        step: counter(row, "step")?,
        loss: row.try_get("loss")?,
        validation: optional_counter(row, "validation_step")?
            .zip(row.try_get("validation_loss")?)
            .map(|(step, loss)| Validation { step, loss }),
        sweep: optional("sweep")?.map(|text| from_json("jobs.sweep", text)).transpose()?.map(Arc::new),
        last_sequence: counter(row, "last_sequence")?,
        artifacts: counter(row, "artifacts")?,
        // A ring of an older version was not counted yet.
        rings: counter(row, "rings")?.max(ring.as_ref().map_or(0, |ring| ring.epoch.0)),
        tries: counter(row, "tries")?,
        errors: counter(row, "errors")?,
        ring: ring.map(Arc::new),
        pin: optional("pin")?.map(|text| from_json("jobs.pin", text)).transpose()?.map(Arc::new),
        stop: optional("stop")?.map(|text| from_json("jobs.stop", text)).transpose()?,
        checkpoint: optional("checkpoint")?.map(|text| from_json("jobs.checkpoint", text)).transpose()?,
        verification: optional("verification")?
            .map(|text| from_json("jobs.verification", text))
            .transpose()?,
        // No job is damaged for it.
        trace: optional("trace")?.and_then(|text| text.parse().ok()),
        refused_by: BTreeSet::new(),
        links: Links::default(),
        refusals: 0,
        waits_behind: false,
        wait: None,
        waits_since: Time::default(),
        overdue: false,
        resumed: optional("resumed")?.map(|text| from_json("jobs.resumed", text)).transpose()?,
    })
}

/// What users see instead of a job that cannot be read.
fn stand_in(row: &SqliteRow, error: &Error, known: &Damaged) -> Option<Job> {
    let id = job_id(row).ok()?;
    known.log(id, &error.to_string());
    Some(Job {
        id,
        number: counter(row, "number").unwrap_or_default(),
        spec: Arc::new(JobSpec::unreadable()),
        queue: Arc::default(),
        request: None,
        state: job_state(row).unwrap_or(JobState::Failed),
        reason: damage(error),
        failure: None,
        created: time(row, "created").unwrap_or_default(),
        updated: time(row, "updated").unwrap_or_default(),
        started: optional_time(row, "started").unwrap_or_default(),
        ended: optional_time(row, "ended").unwrap_or_default(),
        step: counter(row, "step").unwrap_or_default(),
        loss: None,
        validation: None,
        sweep: None,
        last_sequence: counter(row, "last_sequence").unwrap_or_default(),
        artifacts: counter(row, "artifacts").unwrap_or_default(),
        rings: 0,
        tries: 0,
        errors: 0,
        ring: None,
        pin: None,
        stop: None,
        checkpoint: None,
        verification: None,
        trace: None,
        refused_by: BTreeSet::new(),
        links: Links::default(),
        refusals: 0,
        waits_behind: false,
        wait: None,
        waits_since: Time::default(),
        overdue: false,
        orders: Arc::default(),
        preempted: false,
        resumed: None,
    })
}

/// Why a damaged job is FAILED.
pub(super) fn damage(error: &Error) -> String {
    format!("what is stored of the job cannot be read, so that it can only be deleted: {error}")
}

pub(super) fn request(row: &SqliteRow) -> Result<Option<RequestKey>, Error> {
    let id: Option<String> = row.try_get("request_id")?;
    let fingerprint: Option<&str> = row.try_get("request_fingerprint")?;
    match (id, fingerprint) {
        (Some(id), Some(text)) => {
            Ok(Some(RequestKey { id, fingerprint: parsed("jobs.request_fingerprint", text)? }))
        }
        _ => Ok(None),
    }
}

/// The event of a step is put together from the step's row.
pub(super) fn event(job: JobId, row: &SqliteRow) -> Result<JobEvent, Error> {
    let sequence = counter(row, "sequence")?;
    let body = match row.try_get::<Option<i64>, _>("step")? {
        None => from_json("events.body", row.try_get("body")?)?,
        Some(step) => match row.try_get::<Option<&str>, _>("step_body")? {
            Some(body) => EventBody::Step(from_json("steps.body", body)?),
            None => return Err(damaged("events.step", format!("step {step} of job {job} is not there"))),
        },
    };
    Ok(JobEvent { job, sequence, time: time(row, "time")?, body })
}

pub(super) fn step(row: &SqliteRow) -> Result<StepRecord, Error> {
    from_json("steps.body", row.try_get("body")?)
}

pub(super) fn artifact(row: &SqliteRow) -> Result<ArtifactRecord, Error> {
    Ok(ArtifactRecord {
        job: parsed("artifacts.job_id", row.try_get("job_id")?)?,
        name: row.try_get("name")?,
        hash: hash("artifacts.sha256", row.try_get("sha256")?)?,
        size: counter(row, "size")?,
        media_type: row.try_get("media_type")?,
        created: time(row, "created")?,
        epoch: optional_counter(row, "epoch")?.map(Epoch),
    })
}

/// SQLite's extended code, whose low byte is the primary one.
fn code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error().and_then(|error| error.code()?.parse().ok())
}

/// Whether the file itself is not what SQLite wrote: SQLITE_CORRUPT, SQLITE_NOTADB.
pub(super) fn is_damage(error: &sqlx::Error) -> bool {
    matches!(code(error).map(|code| code & 0xff), Some(11 | 26))
}

/// Whether SQLite gave up because it was told to: SQLITE_INTERRUPT.
pub(super) fn is_interrupt(error: &sqlx::Error) -> bool {
    code(error) == Some(9)
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        // SQLITE_FULL; SQLITE_IOERR_SHMSIZE: no room for the index of the log, which each start makes.
        if matches!(code(&error), Some(13 | 4874)) {
            return Self::Full;
        }
        if is_damage(&error) {
            return Self::Corrupt(error.to_string());
        }
        match error {
            // Not what the schema says, or nothing where something must be.
            sqlx::Error::ColumnDecode { index, source } => damaged(&index, source),
            error => Self::Database(error.to_string()),
        }
    }
}
