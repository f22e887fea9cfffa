//! Whose contents are, in SQLite.

use std::collections::HashMap;

use async_trait::async_trait;
use ringtune_shared::ids::ContentHash;
use sqlx::{Connection as _, Row as _, SqliteConnection};

use super::SqliteStore;
use super::portions::insert;
use super::rows::{counter, hash, integer, to_json};
use crate::core::{OverQuota, OwnerLimits, Usage};
use crate::store::Error;
use crate::store::quota::{QuotaStore, Sized};

#[async_trait]
impl QuotaStore for SqliteStore {
    async fn usage(&self, owner: &str) -> Result<Usage, Error> {
        let found = usage(&mut *self.readers.pool.acquire().await?, owner).await;
        found.inspect_err(|error| self.see(error))
    }

    async fn more(&self, owner: &str, contents: &[Sized]) -> Result<Usage, Error> {
        let found = new(&mut *self.readers.pool.acquire().await?, owner, contents).await;
        Ok(sum(&found.inspect_err(|error| self.see(error))?))
    }

    async fn own(
        &self,
        owner: &str,
        contents: &[Sized],
        limits: OwnerLimits,
    ) -> Result<Result<(), OverQuota>, Error> {
        let mut connection = self.writer.acquire().await?;
        let outcome = own(&mut connection, owner, contents, limits).await;
        self.changed(connection, outcome)
    }

    async fn owned(&self, after: Option<ContentHash>, limit: u32) -> Result<Vec<ContentHash>, Error> {
        let query = "SELECT DISTINCT sha256 FROM owned_contents WHERE sha256 > ? ORDER BY sha256 LIMIT ?";
        let after = after.map(|hash| hash.to_string()).unwrap_or_default();
        let found = sqlx::query(query).bind(after).bind(limit).fetch_all(&self.readers).await?;
        found.iter().map(|row| hash("owned_contents.sha256", row.try_get(0)?)).collect()
    }

    async fn disown(&self, gone: &[ContentHash]) -> Result<(), Error> {
        let query = "DELETE FROM owned_contents WHERE sha256 IN (SELECT value FROM json_each(?))";
        self.remove(query, gone).await
    }

    async fn disown_unwanted(&self, contents: &[ContentHash]) -> Result<(), Error> {
        let query = "DELETE FROM owned_contents AS owned WHERE sha256 IN (SELECT value FROM json_each(?)) \
            AND NOT EXISTS (SELECT 1 FROM manifests WHERE is_read = 0 AND sha256 IN (SELECT sha256 FROM content_refs)) \
            AND NOT EXISTS (SELECT 1 FROM artifacts JOIN jobs USING (job_id) JOIN job_list AS list USING (number) \
                            WHERE artifacts.sha256 = owned.sha256 AND list.owner = owned.owner) \
            AND NOT EXISTS (SELECT 1 FROM content_refs AS ref JOIN jobs USING (job_id) JOIN job_list AS list USING (number) \
                            WHERE ref.sha256 = owned.sha256 AND list.owner = owned.owner) \
            AND NOT EXISTS (SELECT 1 FROM manifest_files AS file JOIN content_refs AS ref ON ref.sha256 = file.manifest \
                            JOIN jobs USING (job_id) JOIN job_list AS list USING (number) \
                            WHERE file.sha256 = owned.sha256 AND list.owner = owned.owner)";
        self.remove(query, contents).await
    }
}

impl SqliteStore {
    /// Removes rows of these contents.
    async fn remove(&self, query: &'static str, contents: &[ContentHash]) -> Result<(), Error> {
        if contents.is_empty() {
            return Ok(());
        }
        let contents = to_json("contents", &contents)?;
        let mut connection = self.writer.acquire().await?;
        let outcome = sqlx::query(query).bind(contents).execute(&mut *connection).await;
        self.changed(connection, outcome.map(drop).map_err(Error::from))
    }
}

async fn own(
    connection: &mut SqliteConnection,
    owner: &str,
    contents: &[Sized],
    limits: OwnerLimits,
) -> Result<Result<(), OverQuota>, Error> {
    let mut transaction = connection.begin().await?;
    let new = new(&mut transaction, owner, contents).await?;
    if new.is_empty() {
        return Ok(Ok(()));
    }
    let used = usage(&mut transaction, owner).await?;
    if let Err(over) = limits.check(owner, used, sum(&new)) {
        return Ok(Err(over));
    }
    let (rows, larger): (Vec<_>, Vec<_>) = new.into_iter().partition(|one| one.before.is_none());
    insert(&mut transaction, "INSERT INTO owned_contents (owner, sha256, size) ", &rows, |row, one| {
        row.push_bind(owner).push_bind(one.hash.to_string()).push_bind(integer(one.size));
    })
    .await?;
    for one in larger {
        sqlx::query("UPDATE owned_contents SET size = ? WHERE owner = ? AND sha256 = ?")
            .bind(integer(one.size))
            .bind(owner)
            .bind(one.hash.to_string())
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    Ok(Ok(()))
}

async fn usage(connection: &mut SqliteConnection, owner: &str) -> Result<Usage, Error> {
    let query = "SELECT files, bytes FROM owner_usage WHERE owner = ?";
    let row = sqlx::query(query).bind(owner).fetch_optional(connection).await?;
    let Some(row) = row else { return Ok(Usage::default()) };
    Ok(Usage { files: counter(&row, "files")?, bytes: counter(&row, "bytes")? })
}

/// A content that an owner does not have, or only with fewer bytes.
struct New {
    hash: ContentHash,
    size: u64,
    before: Option<u64>,
}

async fn new(connection: &mut SqliteConnection, owner: &str, contents: &[Sized]) -> Result<Vec<New>, Error> {
    let hashes: Vec<ContentHash> = contents.iter().map(|(hash, _)| *hash).collect();
    let query = "SELECT sha256, size FROM owned_contents WHERE owner = ? \
                 AND sha256 IN (SELECT value FROM json_each(?))";
    let rows =
        sqlx::query(query).bind(owner).bind(to_json("contents", &hashes)?).fetch_all(connection).await?;
    let theirs =
        rows.iter().map(|row| Ok((hash("owned_contents.sha256", row.try_get(0)?)?, counter(row, "size")?)));
    let theirs = theirs.collect::<Result<HashMap<_, _>, Error>>()?;
    let new = contents.iter().map(|(hash, size)| New {
        hash: *hash,
        size: *size,
        before: theirs.get(hash).copied(),
    });
    Ok(new.filter(|one| one.before.is_none_or(|before| before < one.size)).collect())
}

fn sum(new: &[New]) -> Usage {
    let files = new.iter().filter(|one| one.before.is_none()).count() as u64;
    let bytes = new.iter().map(|one| one.size - one.before.unwrap_or(0)).fold(0, u64::saturating_add);
    Usage { files, bytes }
}
