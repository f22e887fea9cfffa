//! Tokens and certificates in SQLite.

use std::collections::BTreeMap;

use async_trait::async_trait;
use ringtune_security::{Revoked, Role, SecretHash, TokenId};
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Connection as _, Row as _, SqliteConnection};

use super::SqliteStore;
use super::rows::{counter, damaged, parsed};
use crate::core::Time;
use crate::store::Error;
use crate::store::access::{
    AccessStore, CertificateRecord, Joined, MOST_REPEATS, MemberRevoked, NewestFirst, TokenKind, TokenRecord,
};

/// A certificate that is in use; ?1 is now.
const IN_USE: &str = "expires > ?1 AND revoked IS NULL AND replaced IS NULL";

#[async_trait]
impl AccessStore for SqliteStore {
    async fn add_token(&self, token: &TokenRecord, most: u32) -> Result<bool, Error> {
        let mut connection = self.writer.acquire().await?;
        let outcome = add_token(&mut connection, token, most).await;
        self.changed(connection, outcome)
    }

    async fn token(&self, id: TokenId) -> Result<Option<TokenRecord>, Error> {
        let query = "SELECT * FROM tokens WHERE token_id = ?";
        let row = sqlx::query(query).bind(id.to_string()).fetch_optional(&self.readers).await?;
        row.as_ref().map(token).transpose()
    }

    async fn list_tokens(&self, page: &NewestFirst) -> Result<Vec<TokenRecord>, Error> {
        let rows = self.newest_first("tokens", "token_id", "AND uses_left > 0", page).await?;
        rows.iter().map(token).collect()
    }

    async fn remove_token(&self, id: TokenId) -> Result<bool, Error> {
        let mut connection = self.writer.acquire().await?;
        let query = "DELETE FROM tokens WHERE token_id = ?";
        let outcome = sqlx::query(query).bind(id.to_string()).execute(&mut *connection).await;
        self.changed(connection, outcome.map(|done| done.rows_affected() > 0).map_err(Error::from))
    }

    async fn join(&self, token: TokenId, certificate: &CertificateRecord) -> Result<Joined, Error> {
        let mut connection = self.writer.acquire().await?;
        let outcome = join(&mut connection, token, certificate).await;
        self.changed(connection, outcome)
    }

    async fn renew(&self, old: &str, certificate: &CertificateRecord) -> Result<bool, Error> {
        let mut connection = self.writer.acquire().await?;
        let outcome = renew(&mut connection, old, certificate).await;
        self.changed(connection, outcome)
    }

    async fn certificate(&self, serial: &str) -> Result<Option<CertificateRecord>, Error> {
        let query = "SELECT * FROM certificates WHERE serial = ?";
        let row = sqlx::query(query).bind(serial).fetch_optional(&self.readers).await?;
        row.as_ref().map(certificate).transpose()
    }

    async fn list_certificates(&self, page: &NewestFirst) -> Result<Vec<CertificateRecord>, Error> {
        let rows = self.newest_first("certificates", "serial", "", page).await?;
        rows.iter().map(certificate).collect()
    }

    async fn revoke_serial(&self, serial: &str, now: Time, most: u32) -> Result<bool, Error> {
        let mut connection = self.writer.acquire().await?;
        let outcome = revoke_serial(&mut connection, serial, now, most).await;
        self.changed(connection, outcome)
    }

    async fn revoke_member(
        &self,
        role: Role,
        name: &str,
        now: Time,
        most: u32,
    ) -> Result<Option<MemberRevoked>, Error> {
        let mut connection = self.writer.acquire().await?;
        let outcome = revoke_member(&mut connection, role, name, now, most).await;
        self.changed(connection, outcome)
    }

    async fn revoked(&self, now: Time) -> Result<Revoked, Error> {
        let mut revoked = Revoked::default();
        let query = "SELECT serial FROM certificates WHERE revoked IS NOT NULL AND expires > ? \
                     UNION SELECT serial FROM revoked_serials";
        for row in sqlx::query(query).bind(now.0).fetch_all(&self.readers).await? {
            revoked.serials.insert(row.try_get(0)?);
        }
        for row in sqlx::query("SELECT role, name FROM revoked_members").fetch_all(&self.readers).await? {
            revoked.members.insert((role("revoked_members.role", &row)?, row.try_get("name")?));
        }
        Ok(revoked)
    }

    async fn in_use(&self, now: Time) -> Result<BTreeMap<u32, u64>, Error> {
        let query = format!("SELECT root, COUNT(*) FROM certificates WHERE {IN_USE} GROUP BY root");
        let rows = sqlx::query(AssertSqlSafe(query)).bind(now.0).fetch_all(&self.readers).await?;
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get::<i64, _>(1)?.unsigned_abs()))).collect()
    }

    async fn holders_before(&self, root: u32, now: Time, limit: u32) -> Result<Vec<(Role, String)>, Error> {
        let query = format!(
            "SELECT DISTINCT role, name FROM certificates WHERE {IN_USE} AND root < ?2 ORDER BY role, name LIMIT ?3"
        );
        let query = sqlx::query(AssertSqlSafe(query)).bind(now.0).bind(root).bind(limit);
        let rows = query.fetch_all(&self.readers).await?;
        rows.iter().map(|row| Ok((role("certificates.role", row)?, row.try_get("name")?))).collect()
    }

    async fn forget_before(&self, root: u32) -> Result<(), Error> {
        let mut connection = self.writer.acquire().await?;
        let query = "DELETE FROM certificates WHERE root < ? AND revoked IS NULL";
        let outcome = sqlx::query(query).bind(root).execute(&mut *connection).await;
        self.changed(connection, outcome.map(drop).map_err(Error::from))
    }

    async fn sweep(&self, now: Time) -> Result<(), Error> {
        let mut connection = self.writer.acquire().await?;
        let outcome = async {
            for query in
                ["DELETE FROM tokens WHERE expires <= ?", "DELETE FROM certificates WHERE expires <= ?"]
            {
                sqlx::query(query).bind(now.0).execute(&mut *connection).await?;
            }
            Ok(())
        };
        let outcome = outcome.await;
        self.changed(connection, outcome)
    }
}

impl SqliteStore {
    /// A page of the rows of a table that have not expired.
    async fn newest_first(
        &self,
        table: &str,
        key: &str,
        also: &str,
        page: &NewestFirst,
    ) -> Result<Vec<SqliteRow>, Error> {
        let behind = "AND (created < ?2 OR (created = ?2 AND KEY < ?3))".replace("KEY", key);
        let query = format!(
            "SELECT * FROM {table} WHERE expires > ?1 {behind} {also} ORDER BY created DESC, {key} DESC LIMIT ?4"
        );
        let (time, name) = match &page.after {
            Some((time, name)) => (time.0, name.as_str()),
            // Nothing was made then.
            None => (i64::MAX, ""),
        };
        let query = sqlx::query(AssertSqlSafe(query)).bind(page.now.0).bind(time).bind(name).bind(page.limit);
        Ok(query.fetch_all(&self.readers).await?)
    }
}

async fn add_token(connection: &mut SqliteConnection, token: &TokenRecord, most: u32) -> Result<bool, Error> {
    let query = "INSERT INTO tokens (token_id, kind, role, name, creator, created, expires, uses_left, secret_sha256) \
                 SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 \
                 WHERE (SELECT COUNT(*) FROM tokens WHERE expires > ?6 AND uses_left > 0) < ?10";
    let added = sqlx::query(query)
        .bind(token.id.to_string())
        .bind(token.kind.as_str())
        .bind(token.role.as_str())
        .bind(token.name.as_str())
        .bind(token.creator.as_str())
        .bind(token.created.0)
        .bind(token.expires.0)
        .bind(token.uses_left)
        .bind(token.secret.0.to_vec())
        .bind(most)
        .execute(connection)
        .await?;
    Ok(added.rows_affected() > 0)
}

async fn join(
    connection: &mut SqliteConnection,
    id: TokenId,
    new: &CertificateRecord,
) -> Result<Joined, Error> {
    let mut transaction = connection.begin().await?;
    let now = new.created;
    // 1. Is the token good?
    let query = "SELECT * FROM tokens WHERE token_id = ? AND kind = 'join'";
    let row = sqlx::query(query).bind(id.to_string()).fetch_optional(&mut *transaction).await?;
    let Some(token) = row.as_ref().map(token).transpose()?.filter(|token| token.expires > now) else {
        return Ok(Joined::NoToken);
    };
    // 2. Is it asked for again, as the answer was lost?
    let query = "UPDATE certificates SET replaced = COALESCE(replaced, ?1) \
                 WHERE role = ?2 AND name = ?3 AND token_id = ?4 AND key_sha256 = ?5 AND revoked IS NULL AND expires > ?1";
    let query = sqlx::query(query).bind(now.0).bind(new.role.as_str()).bind(new.name.as_str());
    let query = query.bind(id.to_string()).bind(new.key_sha256.to_vec());
    let given = query.execute(&mut *transaction).await?.rows_affected();
    let again = (1..u64::from(MOST_REPEATS)).contains(&given);
    if !again && token.uses_left == 0 {
        return Ok(Joined::NoToken);
    }
    // 3. Is the member free to have a certificate?
    if new.role == Role::Worker && !again {
        let query = "SELECT MAX(expires) FROM certificates \
                     WHERE role = 'worker' AND name = ? AND revoked IS NULL AND expires > ?";
        let query = sqlx::query(query).bind(new.name.as_str()).bind(now.0);
        if let Some(until) = query.fetch_one(&mut *transaction).await?.try_get::<Option<i64>, _>(0)? {
            return Ok(Joined::Held(Time(until)));
        }
    }
    let query = "SELECT revoked FROM revoked_members WHERE role = ? AND name = ?";
    let query = sqlx::query(query).bind(new.role.as_str()).bind(new.name.as_str());
    if let Some(row) = query.fetch_optional(&mut *transaction).await? {
        let since = Time(row.try_get(0)?);
        if token.created <= since {
            return Ok(Joined::Revoked(since));
        }
        let query = "DELETE FROM revoked_members WHERE role = ? AND name = ?";
        let query = sqlx::query(query).bind(new.role.as_str()).bind(new.name.as_str());
        query.execute(&mut *transaction).await?;
    }
    // 4. Both or nothing.
    if !again {
        let query = "UPDATE tokens SET uses_left = uses_left - 1 WHERE token_id = ?";
        sqlx::query(query).bind(id.to_string()).execute(&mut *transaction).await?;
    }
    insert_certificate(&mut transaction, new, Some(id)).await?;
    transaction.commit().await?;
    Ok(Joined::Done)
}

async fn renew(connection: &mut SqliteConnection, old: &str, new: &CertificateRecord) -> Result<bool, Error> {
    let mut transaction = connection.begin().await?;
    let query = "SELECT 1 FROM certificates WHERE serial = ?1 AND revoked IS NOT NULL \
                 UNION ALL SELECT 1 FROM revoked_serials WHERE serial = ?1 \
                 UNION ALL SELECT 1 FROM revoked_members WHERE role = ?2 AND name = ?3";
    let query = sqlx::query(query).bind(old).bind(new.role.as_str()).bind(new.name.as_str());
    if query.fetch_optional(&mut *transaction).await?.is_some() {
        return Ok(false);
    }
    let query = "UPDATE certificates SET replaced = ? WHERE serial = ?";
    sqlx::query(query).bind(new.created.0).bind(old).execute(&mut *transaction).await?;
    insert_certificate(&mut transaction, new, None).await?;
    transaction.commit().await?;
    Ok(true)
}

async fn insert_certificate(
    connection: &mut SqliteConnection,
    new: &CertificateRecord,
    token: Option<TokenId>,
) -> Result<(), Error> {
    let query = "INSERT INTO certificates (serial, role, name, created, expires, root, revoked, key_sha256, token_id) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)";
    sqlx::query(query)
        .bind(new.serial.as_str())
        .bind(new.role.as_str())
        .bind(new.name.as_str())
        .bind(new.created.0)
        .bind(new.expires.0)
        .bind(new.root)
        .bind(new.revoked.map(|time| time.0))
        .bind(new.key_sha256.to_vec())
        .bind(token.map(|token| token.to_string()))
        .execute(connection)
        .await?;
    Ok(())
}

async fn revoke_serial(
    connection: &mut SqliteConnection,
    serial: &str,
    now: Time,
    most: u32,
) -> Result<bool, Error> {
    let query = "UPDATE certificates SET revoked = COALESCE(revoked, ?) WHERE serial = ?";
    let ours = sqlx::query(query).bind(now.0).bind(serial).execute(&mut *connection).await?;
    if ours.rows_affected() > 0 {
        return Ok(true);
    }
    let query = "INSERT OR IGNORE INTO revoked_serials (serial, revoked) \
                 SELECT ?1, ?2 WHERE (SELECT COUNT(*) FROM revoked_serials) < ?3";
    sqlx::query(query).bind(serial).bind(now.0).bind(most).execute(&mut *connection).await?;
    let query = sqlx::query("SELECT 1 FROM revoked_serials WHERE serial = ?").bind(serial);
    Ok(query.fetch_optional(connection).await?.is_some())
}

async fn revoke_member(
    connection: &mut SqliteConnection,
    of: Role,
    name: &str,
    now: Time,
    most: u32,
) -> Result<Option<MemberRevoked>, Error> {
    let mut transaction = connection.begin().await?;
    let query = "INSERT INTO revoked_members (role, name, revoked) \
                 SELECT ?1, ?2, ?3 WHERE (SELECT COUNT(*) FROM revoked_members) < ?4 \
                 OR EXISTS (SELECT 1 FROM revoked_members WHERE role = ?1 AND name = ?2) \
                 ON CONFLICT (role, name) DO UPDATE SET revoked = excluded.revoked";
    let query = sqlx::query(query).bind(of.as_str()).bind(name).bind(now.0).bind(most);
    if query.execute(&mut *transaction).await?.rows_affected() == 0 {
        return Ok(None);
    }
    // They stay revoked when the member joins again.
    let query = "UPDATE certificates SET revoked = ? WHERE role = ? AND name = ? AND revoked IS NULL";
    sqlx::query(query).bind(now.0).bind(of.as_str()).bind(name).execute(&mut *transaction).await?;
    let query = "DELETE FROM tokens WHERE kind = 'access' AND role = ? AND name = ? RETURNING token_id";
    let gone = sqlx::query(query).bind(of.as_str()).bind(name).fetch_all(&mut *transaction).await?;
    let tokens =
        gone.iter().map(|row| parsed("tokens.token_id", row.try_get(0)?)).collect::<Result<_, _>>()?;
    let query = "SELECT COUNT(*) FROM certificates WHERE role = ? AND name = ? AND expires > ?";
    let query = sqlx::query(query).bind(of.as_str()).bind(name).bind(now.0);
    let certificates = query.fetch_one(&mut *transaction).await?.try_get::<i64, _>(0)?.unsigned_abs();
    transaction.commit().await?;
    Ok(Some(MemberRevoked { certificates, tokens }))
}

fn token(row: &SqliteRow) -> Result<TokenRecord, Error> {
    let kind: &str = row.try_get("kind")?;
    let uses_left = counter(row, "uses_left")?;
    Ok(TokenRecord {
        id: parsed("tokens.token_id", row.try_get("token_id")?)?,
        kind: TokenKind::from_name(kind)
            .ok_or_else(|| damaged("tokens.kind", format!("{kind:?} is not a kind")))?,
        role: role("tokens.role", row)?,
        name: row.try_get("name")?,
        creator: row.try_get("creator")?,
        created: Time(row.try_get("created")?),
        expires: Time(row.try_get("expires")?),
        uses_left: u32::try_from(uses_left).unwrap_or(u32::MAX),
        secret: SecretHash(sha256("tokens.secret_sha256", row.try_get("secret_sha256")?)?),
    })
}

fn certificate(row: &SqliteRow) -> Result<CertificateRecord, Error> {
    Ok(CertificateRecord {
        serial: row.try_get("serial")?,
        role: role("certificates.role", row)?,
        name: row.try_get("name")?,
        created: Time(row.try_get("created")?),
        expires: Time(row.try_get("expires")?),
        root: row.try_get("root")?,
        revoked: row.try_get::<Option<i64>, _>("revoked")?.map(Time),
        key_sha256: sha256("certificates.key_sha256", row.try_get("key_sha256")?)?,
    })
}

fn sha256(what: &str, bytes: &[u8]) -> Result<[u8; 32], Error> {
    bytes.try_into().map_err(|_| damaged(what, "it has not 32 bytes"))
}

fn role(what: &str, row: &SqliteRow) -> Result<Role, Error> {
    parsed(what, row.try_get("role")?)
}
