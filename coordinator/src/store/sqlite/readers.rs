//! The connections that read, and the alarm for a damaged file.

use std::fmt::Display;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt as _, TryFutureExt as _, TryStreamExt as _};
use sqlx::sqlite::{SqlitePool, SqliteQueryResult, SqliteRow, SqliteStatement, SqliteTypeInfo};
use sqlx::{Either, Execute, Executor, SqlStr, Sqlite};
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::rows::is_damage;

/// Raised once, when SQLite says that the file is damaged: nobody may go on with it.
#[derive(Debug, Clone, Default)]
pub(super) struct Alarm(CancellationToken);

impl Alarm {
    /// Raises the alarm if an error says that the file is damaged.
    pub(super) fn see(&self, failed: &sqlx::Error) {
        if is_damage(failed) {
            self.raise(failed);
        }
    }

    /// The file is damaged.
    pub(super) fn raise(&self, problem: impl Display) {
        if !self.0.is_cancelled() {
            error!(%problem, "the database is damaged: the coordinator ends, so that nothing is built on it");
        }
        self.0.cancel();
    }

    pub(super) fn raised(&self) -> CancellationToken {
        self.0.clone()
    }
}

/// Connections that read. Used as sqlx's pool is, with whose errors they are.
#[derive(Debug, Clone)]
pub(super) struct Readers {
    pub(super) pool: SqlitePool,
    pub(super) alarm: Alarm,
}

impl<'pool> Executor<'pool> for &'pool Readers {
    type Database = Sqlite;

    fn fetch_many<'found, 'query: 'found, E>(
        self,
        query: E,
    ) -> BoxStream<'found, Result<Either<SqliteQueryResult, SqliteRow>, sqlx::Error>>
    where
        'pool: 'found,
        E: 'query + Execute<'query, Sqlite>,
    {
        Box::pin(self.pool.fetch_many(query).inspect_err(|error| self.alarm.see(error)))
    }

    fn fetch_optional<'found, 'query: 'found, E>(
        self,
        query: E,
    ) -> BoxFuture<'found, Result<Option<SqliteRow>, sqlx::Error>>
    where
        'pool: 'found,
        E: 'query + Execute<'query, Sqlite>,
    {
        self.pool.fetch_optional(query).inspect_err(|error| self.alarm.see(error)).boxed()
    }

    fn prepare_with<'found>(
        self,
        sql: SqlStr,
        parameters: &'found [SqliteTypeInfo],
    ) -> BoxFuture<'found, Result<SqliteStatement, sqlx::Error>>
    where
        'pool: 'found,
    {
        self.pool.prepare_with(sql, parameters)
    }
}
