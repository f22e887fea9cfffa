//! What a start looks at before it opens a database for good: is it whole, and whose is it? Nothing is changed.

use std::path::Path;
use std::time::{Duration, Instant};

use ringtune_shared::ids::StoreId;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use sqlx::{ConnectOptions as _, Connection as _, Row as _, SqliteConnection};
use tracing::warn;

use super::rows::{is_interrupt, parsed};
use super::schema::SCHEMAS;
use crate::store::Error;

/// SQLite's operations between two looks at the clock.
const OPERATIONS: i32 = 10_000;

/// What is in a database's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Examined {
    /// Nothing was ever stored there: there is no file, or an empty one.
    Nothing,
    /// A database.
    Database {
        /// Which store it is of; none: it is of a version that gave no ids.
        id: Option<StoreId>,
        /// Whether its jobs name files.
        names_files: bool,
    },
}

/// Looks at a database. A damaged one is found for as long as `patience` lasts: the rest of a large one is not looked at.
///
/// # Errors
/// It is damaged, of a newer schema, or no database at all; the file system's.
pub async fn examine(path: &Path, patience: Duration) -> Result<Examined, Error> {
    // SQLite would make the file, and throw away a log (WAL) that it finds beside an empty one.
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Examined::Nothing),
        Err(error) => return Err(Error::Database(error.to_string())),
        Ok(about) if about.len() == 0 => return Ok(Examined::Nothing),
        Ok(_) => {}
    }
    let mut connection = connect(path).await?;
    let schema: i64 = sqlx::query("PRAGMA user_version").fetch_one(&mut connection).await?.try_get(0)?;
    let known = i64::try_from(SCHEMAS.len()).unwrap_or(i64::MAX);
    if schema > known {
        return Err(Error::Newer { found: schema, known });
    }
    check(&mut connection, patience).await?;
    if schema == 0 {
        return Ok(Examined::Nothing);
    }
    let id = kept_id(&mut connection).await?;
    // What jobs name besides their files stands in the database since schema 3.
    let named = match schema {
        1 | 2 => "SELECT EXISTS (SELECT 1 FROM artifacts)",
        _ => "SELECT EXISTS (SELECT 1 FROM artifacts) OR EXISTS (SELECT 1 FROM content_refs)",
    };
    let names_files = sqlx::query(named).fetch_one(&mut connection).await?.try_get(0)?;
    connection.close().await?;
    Ok(Examined::Database { id, names_files })
}

/// Reads all pages and how they hang together, but not whether indexes fit their tables, for as long as `patience` lasts.
async fn check(connection: &mut SqliteConnection, patience: Duration) -> Result<(), Error> {
    let until = Instant::now() + patience;
    connection.lock_handle().await?.set_progress_handler(OPERATIONS, move || Instant::now() < until);
    let found = sqlx::query("PRAGMA quick_check(3)").fetch_all(&mut *connection).await;
    connection.lock_handle().await?.remove_progress_handler();
    match found {
        Err(error) if is_interrupt(&error) => {
            warn!(
                seconds = patience.as_secs(),
                "the database is large: a part of it was not looked at for damage; `ringtune-coordinator backup` looks at all"
            );
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(rows) => {
            let lines = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, _>>()?;
            if lines == ["ok"] { Ok(()) } else { Err(Error::Corrupt(lines.join("; "))) }
        }
    }
}

pub(super) async fn connect(path: &Path) -> Result<SqliteConnection, Error> {
    // Not opened read-only: SQLite wants to write the WAL's index for readers too.
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        .busy_timeout(Duration::from_secs(10));
    Ok(options.connect().await?)
}

/// Which store a database says that it is of.
pub(super) async fn kept_id(connection: &mut SqliteConnection) -> Result<Option<StoreId>, Error> {
    let table = "SELECT 1 FROM sqlite_schema WHERE name = 'store_identity'";
    if sqlx::query(table).fetch_optional(&mut *connection).await?.is_none() {
        return Ok(None);
    }
    let row = sqlx::query("SELECT id FROM store_identity").fetch_optional(connection).await?;
    row.map(|row| parsed("store_identity.id", row.try_get(0)?)).transpose()
}

/// Which store a database is of, which is made up if it does not say.
pub(super) async fn id(writer: &SqlitePool) -> Result<StoreId, Error> {
    let mut connection = writer.acquire().await?;
    if let Some(id) = kept_id(&mut connection).await? {
        return Ok(id);
    }
    let id = StoreId::new();
    let query = "INSERT INTO store_identity (id) VALUES (?)";
    sqlx::query(query).bind(id.to_string()).execute(&mut *connection).await?;
    Ok(id)
}
