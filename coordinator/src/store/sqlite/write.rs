//! One commit's writes as rows: each table gets all of its rows in a few statements.

use std::collections::{BTreeMap, BTreeSet};

use ringtune_shared::ids::{ContentHash, JobId, WorkerId};
use ringtune_shared::job::{ContentUse, STORED_VERSION};
use sqlx::query_builder::Separated;
use sqlx::{Connection as _, QueryBuilder, Sqlite, SqliteConnection};

use super::lists;
use super::portions::{insert, portions};
use super::rows::{integer, to_json};
use crate::core::{Account, ArtifactRecord, EventBody, Job, JobEvent, StepRecord, Time, Validation, Write};
use crate::store::Error;

/// What changes of a job with each step.
#[derive(Clone, Copy)]
struct Progress {
    step: u64,
    loss: Option<f64>,
    validation: Option<Validation>,
    last_sequence: u64,
    artifacts: u64,
    updated: Time,
}

impl Progress {
    fn of(job: &Job) -> Self {
        let Job { step, loss, validation, last_sequence, artifacts, updated, .. } = *job;
        Self { step, loss, validation, last_sequence, artifacts, updated }
    }
}

/// The writes of a commit by their tables. Of several versions of a row only the last is there; files of jobs keep their
/// order.
#[derive(Default)]
struct Changes<'a> {
    inserted: BTreeMap<JobId, &'a Job>,
    updated: BTreeMap<JobId, &'a Job>,
    progress: BTreeMap<JobId, Progress>,
    steps: Vec<(JobId, &'a StepRecord)>,
    events: Vec<&'a JobEvent>,
    files: Vec<&'a Write>,
    drained: Vec<(WorkerId, bool)>,
    accounts: BTreeMap<&'a str, Option<Account>>,
}

impl<'a> Changes<'a> {
    /// Fails where a job is inserted twice.
    fn new(writes: &'a [Write]) -> Result<Self, Error> {
        let mut changes = Self::default();
        for write in writes {
            match write {
                Write::InsertJob(job) => {
                    if changes.inserted.insert(job.id, job).is_some() {
                        return Err(Error::Database(format!("job {} is inserted twice", job.id)));
                    }
                    changes.progress.insert(job.id, Progress::of(job));
                }
                Write::UpdateJob(job) => {
                    let rows = if changes.inserted.contains_key(&job.id) {
                        &mut changes.inserted
                    } else {
                        &mut changes.updated
                    };
                    rows.insert(job.id, job);
                    changes.progress.insert(job.id, Progress::of(job));
                }
                Write::UpdateProgress { job, step, loss, validation, last_sequence, artifacts, updated } => {
                    let (step, loss, validation) = (*step, *loss, *validation);
                    let (last_sequence, artifacts, updated) = (*last_sequence, *artifacts, *updated);
                    let progress = Progress { step, loss, validation, last_sequence, artifacts, updated };
                    changes.progress.insert(*job, progress);
                }
                Write::AppendStep(job, step) => changes.steps.push((*job, step)),
                Write::AppendEvent(event) => changes.events.push(event),
                Write::PutArtifact(_) | Write::DropArtifact(..) => changes.files.push(write),
                Write::SetDraining(worker, draining) => changes.drained.push((*worker, *draining)),
                Write::SetAccount(owner, account) => drop(changes.accounts.insert(owner, *account)),
            }
        }
        Ok(changes)
    }
}

/// Writes all of it or nothing.
pub(super) async fn write_all(connection: &mut SqliteConnection, writes: &[Write]) -> Result<(), Error> {
    let changes = Changes::new(writes)?;
    let mut transaction = connection.begin().await?;
    insert_jobs(&mut transaction, &changes).await?;
    for job in changes.updated.values() {
        update_job(&mut transaction, job).await?;
    }
    let (new, known): (Vec<_>, Vec<_>) =
        changes.progress.iter().partition(|(job, _)| changes.inserted.contains_key(*job));
    insert_progress(&mut transaction, &new).await?;
    update_progress(&mut transaction, &known).await?;
    append_steps(&mut transaction, &changes.steps).await?;
    append_events(&mut transaction, &changes.events).await?;
    for write in changes.files {
        match write {
            Write::PutArtifact(artifact) => put_artifact(&mut transaction, artifact).await?,
            Write::DropArtifact(job, name) => drop_artifact(&mut transaction, *job, name).await?,
            _ => {}
        }
    }
    for (worker, draining) in changes.drained {
        set_draining(&mut transaction, worker, draining).await?;
    }
    for (owner, account) in changes.accounts {
        set_account(&mut transaction, owner, account).await?;
    }
    transaction.commit().await?;
    Ok(())
}

async fn insert_jobs(connection: &mut SqliteConnection, changes: &Changes<'_>) -> Result<(), Error> {
    struct Row<'a> {
        job: &'a Job,
        spec: String,
        resumed: Option<String>,
        queue: String,
    }
    let Some(last) = changes.inserted.values().map(|job| job.number).max() else { return Ok(()) };
    let mut rows = Vec::with_capacity(changes.inserted.len());
    let mut contents: Vec<(ContentHash, JobId, ContentUse)> = Vec::new();
    for job in changes.inserted.values() {
        let spec = job.spec.to_stored().map_err(|error| Error::Damaged {
            what: "job_specs.spec".to_owned(),
            problem: error.to_string(),
        })?;
        let resumed = job.resumed.as_ref().map(|resumed| to_json("jobs.resumed", resumed)).transpose()?;
        contents.extend(job.spec.contents().into_iter().map(|(used, hash)| (hash, job.id, used)));
        let queue = to_json("jobs.queue", &*job.queue)?;
        rows.push(Row { job, spec, resumed, queue });
    }
    let into = "INSERT INTO job_specs (number, version, spec) ";
    insert(connection, into, &rows, |row, Row { job, spec, .. }| {
        row.push_bind(integer(job.number)).push_bind(STORED_VERSION).push_bind(spec.as_str());
    })
    .await?;
    let into = "INSERT INTO jobs (job_id, number, request_id, request_fingerprint, created, resumed, queue, trace, state, reason) ";
    insert(connection, into, &rows, |row, Row { job, resumed, queue, .. }| {
        row.push_bind(job.id.to_string())
            .push_bind(integer(job.number))
            .push_bind(job.request.as_ref().map(|request| request.id.as_str()))
            .push_bind(job.request.as_ref().map(|request| request.fingerprint.to_string()))
            .push_bind(job.created.0)
            .push_bind(resumed.as_deref())
            .push_bind(queue.as_str())
            .push_bind(job.trace.map(|trace| trace.to_string()))
            .push_bind(job.state.as_str())
            .push_bind(job.reason.as_str());
    })
    .await?;
    let jobs: Vec<&Job> = changes.inserted.values().copied().collect();
    lists::insert_jobs(connection, &jobs).await?;
    for row in rows.iter().filter(|row| !is_new(row.job)) {
        update_job(connection, row.job).await?;
    }
    refer(connection, &contents).await?;
    sqlx::query("UPDATE counters SET value = MAX(value, ?) WHERE name = 'last_job_number'")
        .bind(integer(last))
        .execute(connection)
        .await?;
    Ok(())
}

/// Whether all that a job got after its creation is absent.
fn is_new(job: &Job) -> bool {
    job.started.is_none()
        && job.ended.is_none()
        && job.rings == 0
        && job.tries == 0
        && job.errors == 0
        && job.failure.is_none()
        && job.ring.is_none()
        && job.pin.is_none()
        && job.stop.is_none()
        && job.checkpoint.is_none()
        && job.verification.is_none()
        && job.orders.is_empty()
        && job.sweep.is_none()
        && !job.preempted
}

/// Ties contents to jobs. A manifest that no job named before is to be read.
async fn refer(
    connection: &mut SqliteConnection,
    contents: &[(ContentHash, JobId, ContentUse)],
) -> Result<(), Error> {
    let into = "INSERT INTO content_refs (sha256, job_id, use) ";
    insert(connection, into, contents, |row, (hash, job, used)| {
        row.push_bind(hash.to_string()).push_bind(job.to_string()).push_bind(used.as_str());
    })
    .await?;
    let manifests: BTreeSet<ContentHash> =
        contents.iter().filter(|(_, _, used)| *used == ContentUse::Images).map(|(hash, ..)| *hash).collect();
    let manifests: Vec<ContentHash> = manifests.into_iter().collect();
    insert(connection, "INSERT OR IGNORE INTO manifests (sha256, is_read) ", &manifests, |row, hash| {
        row.push_bind(hash.to_string()).push_bind(false);
    })
    .await
}

async fn update_job(connection: &mut SqliteConnection, job: &Job) -> Result<(), Error> {
    let query = "UPDATE jobs SET state = ?, reason = ?, started = ?, ended = ?, rings = ?, tries = ?, errors = ?, ring = ?, pin = ?, \
                 stop = ?, checkpoint = ?, failure = ?, verification = ?, orders = ?, preempted = ?, sweep = ? WHERE job_id = ?";
    sqlx::query(query)
        .bind(job.state.as_str())
        .bind(job.reason.as_str())
        .bind(job.started.map(|time| time.0))
        .bind(job.ended.map(|time| time.0))
        .bind(integer(job.rings))
        .bind(integer(job.tries))
        .bind(integer(job.errors))
        .bind(job.ring.as_ref().map(|ring| to_json("jobs.ring", &**ring)).transpose()?)
        .bind(job.pin.as_ref().map(|pin| to_json("jobs.pin", &**pin)).transpose()?)
        .bind(job.stop.as_ref().map(|stop| to_json("jobs.stop", stop)).transpose()?)
        .bind(job.checkpoint.as_ref().map(|newest| to_json("jobs.checkpoint", newest)).transpose()?)
        .bind(job.failure.map(|failure| to_json("jobs.failure", &failure)).transpose()?)
        .bind(job.verification.as_ref().map(|one| to_json("jobs.verification", one)).transpose()?)
        .bind((!job.orders.is_empty()).then(|| to_json("jobs.orders", &*job.orders)).transpose()?)
        .bind(job.preempted)
        .bind(job.sweep.as_ref().map(|place| to_json("jobs.sweep", &**place)).transpose()?)
        .bind(job.id.to_string())
        .execute(&mut *connection)
        .await?;
    lists::update_job(connection, job).await
}

fn bind_progress(row: &mut Separated<'_, Sqlite, &'static str>, (job, progress): &(&JobId, &Progress)) {
    row.push_bind(job.to_string())
        .push_bind(integer(progress.step))
        .push_bind(progress.loss)
        .push_bind(progress.validation.map(|validation| integer(validation.step)))
        .push_bind(progress.validation.map(|validation| validation.loss))
        .push_bind(integer(progress.last_sequence))
        .push_bind(integer(progress.artifacts))
        .push_bind(progress.updated.0);
}

async fn insert_progress(
    connection: &mut SqliteConnection,
    rows: &[(&JobId, &Progress)],
) -> Result<(), Error> {
    let into = "INSERT INTO job_progress (job_id, step, loss, validation_step, validation_loss, last_sequence, artifacts, updated) ";
    insert(connection, into, rows, bind_progress).await
}

async fn update_progress(
    connection: &mut SqliteConnection,
    rows: &[(&JobId, &Progress)],
) -> Result<(), Error> {
    for portion in portions(rows) {
        let mut query = QueryBuilder::<Sqlite>::new(
            "UPDATE job_progress SET step = new.column2, loss = new.column3, validation_step = new.column4, \
             validation_loss = new.column5, last_sequence = new.column6, artifacts = new.column7, updated = new.column8 FROM (",
        );
        query.push_values(portion, |mut row, item| bind_progress(&mut row, item));
        query.push(") AS new WHERE job_progress.job_id = new.column1");
        query.build().execute(&mut *connection).await?;
    }
    Ok(())
}

async fn append_steps(
    connection: &mut SqliteConnection,
    steps: &[(JobId, &StepRecord)],
) -> Result<(), Error> {
    let rows = steps.iter().map(|(job, step)| Ok((job, step.step, to_json("steps.body", *step)?)));
    let rows = rows.collect::<Result<Vec<_>, Error>>()?;
    insert(connection, "INSERT INTO steps (job_id, step, body) ", &rows, |row, (job, step, body)| {
        row.push_bind(job.to_string()).push_bind(integer(*step)).push_bind(body.as_str());
    })
    .await
}

/// The event of a step only names it: its numbers are stored once.
async fn append_events(connection: &mut SqliteConnection, events: &[&JobEvent]) -> Result<(), Error> {
    let rows = events.iter().map(|event| {
        Ok(match &event.body {
            EventBody::Step(step) => (event, String::new(), Some(step.step)),
            body => (event, to_json("events.body", body)?, None),
        })
    });
    let rows = rows.collect::<Result<Vec<_>, Error>>()?;
    let into = "INSERT INTO events (job_id, sequence, time, body, step) ";
    insert(connection, into, &rows, |row, (event, body, step)| {
        row.push_bind(event.job.to_string())
            .push_bind(integer(event.sequence))
            .push_bind(event.time.0)
            .push_bind(body.as_str())
            .push_bind(step.map(integer));
    })
    .await
}

async fn put_artifact(connection: &mut SqliteConnection, artifact: &ArtifactRecord) -> Result<(), Error> {
    let query = "INSERT OR REPLACE INTO artifacts (job_id, name, sha256, size, media_type, created, epoch) \
                 VALUES (?, ?, ?, ?, ?, ?, ?)";
    sqlx::query(query)
        .bind(artifact.job.to_string())
        .bind(artifact.name.as_str())
        .bind(artifact.hash.to_string())
        .bind(integer(artifact.size))
        .bind(artifact.media_type.as_str())
        .bind(artifact.created.0)
        .bind(artifact.epoch.map(|epoch| integer(epoch.0)))
        .execute(connection)
        .await?;
    Ok(())
}

async fn drop_artifact(connection: &mut SqliteConnection, job: JobId, name: &str) -> Result<(), Error> {
    let query = "DELETE FROM artifacts WHERE job_id = ? AND name = ?";
    sqlx::query(query).bind(job.to_string()).bind(name).execute(connection).await?;
    Ok(())
}

async fn set_draining(
    connection: &mut SqliteConnection,
    worker: WorkerId,
    draining: bool,
) -> Result<(), Error> {
    let query = match draining {
        true => "INSERT OR IGNORE INTO drained_workers (worker_id) VALUES (?)",
        false => "DELETE FROM drained_workers WHERE worker_id = ?",
    };
    sqlx::query(query).bind(worker.to_string()).execute(connection).await?;
    Ok(())
}

async fn set_account(
    connection: &mut SqliteConnection,
    owner: &str,
    account: Option<Account>,
) -> Result<(), Error> {
    let query = match account {
        Some(Account { used, as_of, .. }) => {
            let query = "INSERT OR REPLACE INTO fair_share (owner, used, as_of) VALUES (?, ?, ?)";
            sqlx::query(query).bind(owner).bind(used).bind(as_of.0)
        }
        None => sqlx::query("DELETE FROM fair_share WHERE owner = ?").bind(owner),
    };
    query.execute(connection).await?;
    Ok(())
}
