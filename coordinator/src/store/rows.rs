//! Rows of the database and the types they become.

use std::sync::Arc;

use ringtune_shared::ids::JobId;
use ringtune_shared::spec::{JobSpec, QueueSpec};
use serde::{Serialize, de::DeserializeOwned};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::Error;
use crate::core::{ArtifactRecord, Job, JobEvent, JobState, RequestKey, Ring, StepRecord, Time};

/// The columns that [`job`] reads, in the order of the table.
pub(super) const JOB_COLUMNS: &str = "job_id, number, spec, request_id, request_fingerprint, state, reason, \
     created, started, ended, step, loss, last_sequence, artifacts, ring, precision, cancel, finish_by, resumed, \
     queue, updated, failure, rings";

/// A number as SQLite keeps it. Counters do not reach 2^63.
pub(super) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn to_json<T: Serialize>(what: &str, value: &T) -> Result<String, Error> {
    serde_json::to_string(value)
        .map_err(|error| Error::Damaged { what: what.to_owned(), problem: error.to_string() })
}

fn from_json<T: DeserializeOwned>(what: &str, text: &str) -> Result<T, Error> {
    serde_json::from_str(text)
        .map_err(|error| Error::Damaged { what: what.to_owned(), problem: error.to_string() })
}

fn parsed<T>(what: &str, text: &str) -> Result<T, Error>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| Error::Damaged { what: what.to_owned(), problem: error.to_string() })
}

fn counter(row: &SqliteRow, column: &str) -> Result<u64, Error> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number)
        .map_err(|_| Error::Damaged { what: column.to_owned(), problem: format!("{number} is negative") })
}

fn time(row: &SqliteRow, column: &str) -> Result<Time, Error> {
    Ok(Time(row.try_get(column)?))
}

fn optional_time(row: &SqliteRow, column: &str) -> Result<Option<Time>, Error> {
    Ok(row.try_get::<Option<i64>, _>(column)?.map(Time))
}

pub(super) fn job(row: &SqliteRow) -> Result<Job, Error> {
    let text = |column| row.try_get::<&str, _>(column);
    let optional = |column| row.try_get::<Option<&str>, _>(column);
    let state = text("state")?;
    let ring = optional("ring")?.map(|text| from_json::<Ring>("jobs.ring", text)).transpose()?;
    Ok(Job {
        id: parsed("jobs.job_id", text("job_id")?)?,
        number: counter(row, "number")?,
        spec: Arc::new(from_json::<JobSpec>("jobs.spec", text("spec")?)?),
        queue: Arc::new(from_json::<QueueSpec>("jobs.queue", text("queue")?)?),
        request: request(row)?,
        state: JobState::from_name(state)
            .ok_or_else(|| Error::Damaged { what: "jobs.state".to_owned(), problem: state.to_owned() })?,
        reason: text("reason")?.to_owned(),
        failure: optional("failure")?.map(|text| from_json("jobs.failure", text)).transpose()?,
        created: time(row, "created")?,
        updated: time(row, "updated")?,
        started: optional_time(row, "started")?,
        ended: optional_time(row, "ended")?,
        step: counter(row, "step")?,
        loss: row.try_get("loss")?,
        last_sequence: counter(row, "last_sequence")?,
        artifacts: counter(row, "artifacts")?,
        // A ring of an older version was not counted yet.
        rings: counter(row, "rings")?.max(ring.as_ref().map_or(0, |ring| ring.epoch.0)),
        ring: ring.map(Arc::new),
        precision: optional("precision")?.map(|text| parsed("jobs.precision", text)).transpose()?,
        cancel: optional("cancel")?.map(|text| from_json("jobs.cancel", text)).transpose()?,
        finish_by: optional_time(row, "finish_by")?,
        resumed: optional("resumed")?.map(|text| from_json("jobs.resumed", text)).transpose()?,
    })
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

pub(super) fn event(job: JobId, row: &SqliteRow) -> Result<JobEvent, Error> {
    let body = from_json("events.body", row.try_get("body")?)?;
    Ok(JobEvent { job, sequence: counter(row, "sequence")?, time: time(row, "time")?, body })
}

pub(super) fn step(row: &SqliteRow) -> Result<StepRecord, Error> {
    from_json("steps.body", row.try_get("body")?)
}

pub(super) fn artifact(row: &SqliteRow) -> Result<ArtifactRecord, Error> {
    Ok(ArtifactRecord {
        job: parsed("artifacts.job_id", row.try_get("job_id")?)?,
        name: row.try_get("name")?,
        hash: parsed("artifacts.sha256", row.try_get("sha256")?)?,
        size: counter(row, "size")?,
        media_type: row.try_get("media_type")?,
        created: time(row, "created")?,
    })
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        // SQLITE_FULL; the primary code is the low byte of an extended one.
        const FULL: i32 = 13;
        let code = error.as_database_error().and_then(|error| error.code()?.parse::<i32>().ok());
        if code.is_some_and(|code| code & 0xff == FULL) {
            Self::Full
        } else {
            Self::Database(error.to_string())
        }
    }
}
