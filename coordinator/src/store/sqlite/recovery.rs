//! What a start reads beside the jobs themselves.

use ringtune_shared::ids::{ContentHash, JobId, WorkerId};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use tracing::error;

use super::readers::Readers;
use super::rows;
use crate::core::{Account, Checkpoint, Job, Options, Time};
use crate::store::Error;

/// The checkpoints of jobs that have not ended.
pub(super) async fn checkpoints(readers: &Readers) -> Result<Vec<(JobId, Checkpoint)>, Error> {
    let query = "SELECT artifacts.* FROM jobs JOIN artifacts ON artifacts.job_id = jobs.job_id \
                 WHERE state IN ('queued', 'preparing', 'running', 'paused') AND epoch IS NOT NULL \
                 AND (name >= 'checkpoint-' AND name < 'checkpoint.' OR name >= '.recovery-' AND name < '.recovery.')";
    let mut checkpoints = Vec::new();
    for row in sqlx::query(query).fetch_all(readers).await? {
        match rows::artifact(&row) {
            Ok(artifact) => checkpoints.extend(artifact.checkpoint().map(|one| (artifact.job, one))),
            // It can still be listed, which says so; nobody goes on from it.
            Err(error @ Error::Damaged { .. }) => {
                let job: String = row.try_get("job_id")?;
                error!(job, %error, "a stored artifact cannot be read");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(checkpoints)
}

/// The states after the newest steps of jobs that have not ended and did any.
pub(super) async fn newest_hashes(
    readers: &Readers,
    jobs: &[Job],
) -> Result<Vec<(JobId, u64, ContentHash)>, Error> {
    let most = i64::try_from(Options::default().hashes).unwrap_or(i64::MAX);
    let query = "SELECT body FROM steps WHERE job_id = ? ORDER BY step DESC LIMIT ?";
    let mut hashes = Vec::new();
    for job in jobs.iter().filter(|job| job.rings > 0 && job.step > 0) {
        let found = sqlx::query(query).bind(job.id.to_string()).bind(most).fetch_all(readers).await?;
        for row in &found {
            match rows::step(row) {
                Ok(step) => hashes.extend(step.state.map(|state| (job.id, step.step, state))),
                // It can still be listed, which says so; nothing that is done again is compared with it.
                Err(error @ Error::Damaged { .. }) => {
                    error!(job = %job.id, %error, "a stored step cannot be read");
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(hashes)
}

/// What owners have used.
pub(super) async fn accounts(readers: &Readers) -> Result<Vec<(String, Account)>, Error> {
    let found = sqlx::query("SELECT owner, used, as_of FROM fair_share").fetch_all(readers).await?;
    let account = |row: &SqliteRow| {
        let (used, as_of) = (row.try_get("used")?, Time(row.try_get("as_of")?));
        Ok((row.try_get("owner")?, Account { used, as_of, held: 0 }))
    };
    found.iter().map(account).collect()
}

/// The workers that get no rank. A name that cannot be read is nobody's.
pub(super) async fn drained(readers: &Readers) -> Result<Vec<WorkerId>, Error> {
    let found = sqlx::query("SELECT worker_id FROM drained_workers").fetch_all(readers).await?;
    let mut workers = Vec::with_capacity(found.len());
    for row in &found {
        workers.extend(row.try_get::<&str, _>("worker_id")?.parse::<WorkerId>().ok());
    }
    Ok(workers)
}
