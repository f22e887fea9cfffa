//! A copy of a database that is in use, and what a database says of itself.

use std::path::Path;

use ringtune_shared::ids::{ContentHash, StoreId};
use sqlx::{Connection as _, Row as _, SqliteConnection};

use super::examine::{connect, kept_id};
use super::rows::hash;
use super::schema::SCHEMAS;
use crate::store::Error;

/// What a whole database holds.
#[derive(Debug)]
pub struct Inspected {
    /// Its schema; 0: nothing.
    pub schema: i64,
    /// Which store it is of; none: it is of a version that gave no ids.
    pub id: Option<StoreId>,
    /// All contents that its jobs name.
    pub contents: Vec<ContentHash>,
}

/// Why a database was not copied, by the file that is to blame.
#[derive(Debug)]
pub enum CopyFailed {
    /// The database cannot be read.
    Source(Error),
    /// The copy cannot be written.
    Target(Error),
}

/// Copies the database at `from` to `to`, which is not there yet, as it is at one moment; a coordinator may go on writing.
///
/// # Errors
/// What is no database; the file system's.
pub async fn copy_database(from: &Path, to: &Path) -> Result<(), CopyFailed> {
    let mut connection = connect(from).await.map_err(CopyFailed::Source)?;
    // Whether it can be read: what fails after that is the copy, unless there is damage further on.
    let read = sqlx::query("SELECT COUNT(*) FROM sqlite_schema").fetch_one(&mut connection).await;
    read.map_err(|error| CopyFailed::Source(error.into()))?;
    let to = to.to_string_lossy().into_owned();
    let copied = sqlx::query("VACUUM INTO ?").bind(to).execute(&mut connection).await;
    copied.map_err(|error| match Error::from(error) {
        damage @ Error::Corrupt(_) => CopyFailed::Source(damage),
        other => CopyFailed::Target(other),
    })?;
    connection.close().await.map_err(|error| CopyFailed::Source(error.into()))
}

/// Reads all of a database, and what it needs.
///
/// # Errors
/// It is damaged, of a newer schema, or no database at all.
pub async fn inspect_database(path: &Path) -> Result<Inspected, Error> {
    let mut connection = connect(path).await?;
    let found: String =
        sqlx::query("PRAGMA integrity_check(1)").fetch_one(&mut connection).await?.try_get(0)?;
    if found != "ok" {
        return Err(Error::Corrupt(found));
    }
    let schema: i64 = sqlx::query("PRAGMA user_version").fetch_one(&mut connection).await?.try_get(0)?;
    let known = i64::try_from(SCHEMAS.len()).unwrap_or(i64::MAX);
    if schema > known {
        return Err(Error::Newer { found: schema, known });
    }
    let id = kept_id(&mut connection).await?;
    let contents = contents(&mut connection, schema).await?;
    connection.close().await?;
    Ok(Inspected { schema, id, contents })
}

async fn contents(connection: &mut SqliteConnection, schema: i64) -> Result<Vec<ContentHash>, Error> {
    // What manifests name stands beside them since schema 3; before, all contents are kept anyway.
    let query = match schema {
        0 => return Ok(Vec::new()),
        1 | 2 => "SELECT DISTINCT sha256 FROM artifacts",
        _ => {
            "SELECT sha256 FROM artifacts UNION SELECT sha256 FROM content_refs UNION \
             SELECT file.sha256 FROM manifest_files AS file JOIN content_refs AS ref ON ref.sha256 = file.manifest"
        }
    };
    let rows = sqlx::query(query).fetch_all(connection).await?;
    rows.iter().map(|row| hash("sha256", row.try_get(0)?)).collect()
}
