//! Schemas, and how a database of an older one is brought forward.

use sqlx::sqlite::SqlitePool;
use sqlx::{AssertSqlSafe, Row};

use crate::store::Error;

/// Every schema there ever was, each as the steps from the one before it.
pub(super) const SCHEMAS: [&str; 13] = [
    include_str!("schema_1.sql"),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
    include_str!("schema_5.sql"),
    include_str!("schema_6.sql"),
    include_str!("schema_7.sql"),
    include_str!("schema_8.sql"),
    include_str!("schema_9.sql"),
    include_str!("schema_10.sql"),
    include_str!("schema_11.sql"),
    include_str!("schema_12.sql"),
    include_str!("schema_13.sql"),
];

/// Makes what is missing, step by step, each step whole or not at all.
pub(super) async fn bring_up_to_date(writer: &SqlitePool) -> Result<(), Error> {
    let known = i64::try_from(SCHEMAS.len()).unwrap_or(i64::MAX);
    let found: i64 = sqlx::query("PRAGMA user_version").fetch_one(writer).await?.try_get(0)?;
    if found > known {
        return Err(Error::Newer { found, known });
    }
    for (version, schema) in (1_i64..).zip(SCHEMAS).filter(|(version, _)| *version > found) {
        let mut transaction = writer.begin().await?;
        sqlx::raw_sql(schema).execute(&mut *transaction).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("PRAGMA user_version = {version}")))
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
    }
    Ok(())
}
