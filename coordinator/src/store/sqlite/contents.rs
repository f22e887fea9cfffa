//! Which contents jobs want, and what goes with a job.

use ringtune_shared::ids::{ContentHash, JobId};
use sqlx::{Connection as _, Row, SqliteConnection};

use super::portions::insert;
use super::readers::Readers;
use super::rows::{hash, to_json};
use crate::store::Error;

/// Forgets a job but for its events and steps, which [`purge`] takes. Returns the contents of its files that no job
/// wants any more.
pub(super) async fn delete_job(
    connection: &mut SqliteConnection,
    id: JobId,
) -> Result<Vec<ContentHash>, Error> {
    let id = id.to_string();
    let mut transaction = connection.begin().await?;
    let files = "SELECT DISTINCT sha256 FROM artifacts WHERE job_id = ?";
    let files = sqlx::query(files).bind(id.as_str()).fetch_all(&mut *transaction).await?;
    let files = files.iter().map(|row| hash("artifacts.sha256", row.try_get(0)?));
    let files = files.collect::<Result<Vec<_>, Error>>()?;
    for statement in [
        "INSERT OR IGNORE INTO deleted_jobs (job_id) SELECT job_id FROM jobs WHERE job_id = ?",
        "DELETE FROM artifacts WHERE job_id = ?",
        "DELETE FROM content_refs WHERE job_id = ?",
        "DELETE FROM job_progress WHERE job_id = ?",
        "DELETE FROM job_list WHERE number = (SELECT number FROM jobs WHERE job_id = ?)",
        "DELETE FROM job_labels WHERE number = (SELECT number FROM jobs WHERE job_id = ?)",
        "DELETE FROM job_specs WHERE number = (SELECT number FROM jobs WHERE job_id = ?)",
        "DELETE FROM jobs WHERE job_id = ?",
    ] {
        sqlx::query(statement).bind(id.as_str()).execute(&mut *transaction).await?;
    }
    let free = unwanted(&mut transaction, &files).await?;
    transaction.commit().await?;
    Ok(free)
}

/// Removes at most `rows` events and as many steps of deleted jobs. Whether there may be more.
pub(super) async fn purge(connection: &mut SqliteConnection, rows: u32) -> Result<bool, Error> {
    let job: Option<String> = sqlx::query("SELECT job_id FROM deleted_jobs LIMIT 1")
        .fetch_optional(&mut *connection)
        .await?
        .map(|row| row.try_get(0))
        .transpose()?;
    let Some(job) = job else { return Ok(false) };
    let mut transaction = connection.begin().await?;
    let mut deleted = 0;
    for statement in [
        "DELETE FROM events WHERE job_id = ?1 AND sequence IN \
         (SELECT sequence FROM events WHERE job_id = ?1 ORDER BY sequence LIMIT ?2)",
        "DELETE FROM steps WHERE job_id = ?1 AND step IN \
         (SELECT step FROM steps WHERE job_id = ?1 ORDER BY step LIMIT ?2)",
    ] {
        let query = sqlx::query(statement).bind(job.as_str()).bind(rows);
        deleted += query.execute(&mut *transaction).await?.rows_affected();
    }
    if deleted == 0 {
        let query = sqlx::query("DELETE FROM deleted_jobs WHERE job_id = ?").bind(job);
        query.execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(true)
}

/// Those of `contents` that no job wants. While a manifest of a job is not read nobody knows: then there are none.
pub(super) async fn unwanted(
    connection: &mut SqliteConnection,
    contents: &[ContentHash],
) -> Result<Vec<ContentHash>, Error> {
    if contents.is_empty() {
        return Ok(Vec::new());
    }
    let query = "SELECT value FROM json_each(?) AS content \
        WHERE NOT EXISTS (SELECT 1 FROM manifests WHERE is_read = 0 AND sha256 IN (SELECT sha256 FROM content_refs)) \
        AND NOT EXISTS (SELECT 1 FROM artifacts WHERE sha256 = content.value) \
        AND NOT EXISTS (SELECT 1 FROM content_refs WHERE sha256 = content.value) \
        AND NOT EXISTS (SELECT 1 FROM manifest_files AS file JOIN content_refs AS ref ON ref.sha256 = file.manifest \
                        WHERE file.sha256 = content.value) \
        ORDER BY value";
    let found = sqlx::query(query).bind(to_json("contents", &contents)?).fetch_all(connection).await?;
    found.iter().map(|row| hash("contents", row.try_get(0)?)).collect()
}

/// Whether it is known what a manifest names.
pub(super) async fn is_read(readers: &Readers, manifest: ContentHash) -> Result<bool, Error> {
    let query = "SELECT 1 FROM manifests WHERE sha256 = ? AND is_read = 1";
    Ok(sqlx::query(query).bind(manifest.to_string()).fetch_optional(readers).await?.is_some())
}

/// Keeps what a manifest names.
pub(super) async fn put_manifest(
    connection: &mut SqliteConnection,
    manifest: ContentHash,
    files: &[ContentHash],
) -> Result<(), Error> {
    let manifest = manifest.to_string();
    let mut transaction = connection.begin().await?;
    let into = "INSERT OR IGNORE INTO manifest_files (manifest, sha256) ";
    insert(&mut transaction, into, files, |row, file| {
        row.push_bind(manifest.as_str()).push_bind(file.to_string());
    })
    .await?;
    sqlx::query("INSERT OR REPLACE INTO manifests (sha256, is_read) VALUES (?, 1)")
        .bind(manifest.as_str())
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(())
}

/// Manifests that jobs name and that were not read yet, from behind `after`, at most `limit`.
pub(super) async fn unread_manifests(
    readers: &Readers,
    after: Option<ContentHash>,
    limit: u32,
) -> Result<Vec<ContentHash>, Error> {
    let query = "SELECT sha256 FROM manifests WHERE is_read = 0 AND sha256 > ? \
                 AND sha256 IN (SELECT sha256 FROM content_refs) ORDER BY sha256 LIMIT ?";
    let after = after.map(|hash| hash.to_string()).unwrap_or_default();
    let found = sqlx::query(query).bind(after).bind(limit).fetch_all(readers).await?;
    found.iter().map(|row| hash("manifests.sha256", row.try_get(0)?)).collect()
}

/// Forgets what manifests among `contents` name, where no job names the manifest.
pub(super) async fn forget_contents(
    connection: &mut SqliteConnection,
    contents: &[ContentHash],
) -> Result<(), Error> {
    let known = "SELECT 1 FROM manifests WHERE sha256 IN (SELECT value FROM json_each(?)) LIMIT 1";
    let contents = to_json("contents", &contents)?;
    if sqlx::query(known).bind(contents.as_str()).fetch_optional(&mut *connection).await?.is_none() {
        return Ok(());
    }
    let mut transaction = connection.begin().await?;
    for statement in [
        "DELETE FROM manifest_files WHERE manifest IN (SELECT value FROM json_each(?1)) \
         AND NOT EXISTS (SELECT 1 FROM content_refs WHERE content_refs.sha256 = manifest_files.manifest)",
        "DELETE FROM manifests WHERE sha256 IN (SELECT value FROM json_each(?1)) \
         AND NOT EXISTS (SELECT 1 FROM content_refs WHERE content_refs.sha256 = manifests.sha256)",
    ] {
        sqlx::query(statement).bind(contents.as_str()).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(())
}
