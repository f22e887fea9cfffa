//! Tokens and certificates in memory: for tests.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use ringtune_security::{Revoked, Role, TokenId};

use super::{
    AccessStore, CertificateRecord, Joined, MOST_REPEATS, MemberRevoked, NewestFirst, TokenKind, TokenRecord,
};
use crate::core::Time;
use crate::store::Error;

/// Forgets everything when dropped.
#[derive(Debug, Default)]
pub(crate) struct MemoryAccessStore {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    tokens: BTreeMap<TokenId, TokenRecord>,
    certificates: BTreeMap<String, CertificateRecord>,
    /// Serial numbers of those that were renewed.
    replaced: BTreeSet<String>,
    /// For which token each was given.
    given_for: BTreeMap<String, TokenId>,
    members: BTreeMap<(Role, String), Time>,
    serials: BTreeSet<String>,
}

impl Tables {
    fn in_use(&self, now: Time) -> impl Iterator<Item = &CertificateRecord> {
        self.certificates
            .values()
            .filter(move |one| one.expires > now && one.revoked.is_none())
            .filter(|one| !self.replaced.contains(&one.serial))
    }
}

impl MemoryAccessStore {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The page of what `place` says when it was made and what it is called.
fn newest_first<'a, T: Clone + 'a>(
    all: impl Iterator<Item = &'a T>,
    page: &NewestFirst,
    place: impl Fn(&T) -> (Time, String),
) -> Vec<T> {
    let behind = |one: &&T| page.after.as_ref().is_none_or(|after| place(one) < *after);
    let mut found: Vec<&T> = all.filter(behind).collect();
    found.sort_by_key(|one| Reverse(place(one)));
    found.into_iter().take(page.limit as usize).cloned().collect()
}

#[async_trait]
impl AccessStore for MemoryAccessStore {
    async fn add_token(&self, token: &TokenRecord, most: u32) -> Result<bool, Error> {
        let mut tables = self.tables();
        let good = tables.tokens.values().filter(|one| one.is_good(token.created)).count();
        let room = good < most as usize;
        if room {
            tables.tokens.insert(token.id, token.clone());
        }
        Ok(room)
    }

    async fn token(&self, id: TokenId) -> Result<Option<TokenRecord>, Error> {
        Ok(self.tables().tokens.get(&id).cloned())
    }

    async fn list_tokens(&self, page: &NewestFirst) -> Result<Vec<TokenRecord>, Error> {
        let tables = self.tables();
        let good = tables.tokens.values().filter(|one| one.is_good(page.now));
        Ok(newest_first(good, page, |one| (one.created, one.id.to_string())))
    }

    async fn remove_token(&self, id: TokenId) -> Result<bool, Error> {
        Ok(self.tables().tokens.remove(&id).is_some())
    }

    async fn join(&self, token: TokenId, new: &CertificateRecord) -> Result<Joined, Error> {
        let mut tables = self.tables();
        let token = tables.tokens.get(&token).filter(|one| one.kind == TokenKind::Join);
        let Some(token) = token.filter(|one| one.expires > new.created).cloned() else {
            return Ok(Joined::NoToken);
        };
        let before = tables.certificates.values().filter(|one| {
            (one.role, &one.name, one.key_sha256) == (new.role, &new.name, new.key_sha256)
                && tables.given_for.get(&one.serial) == Some(&token.id)
                && one.revoked.is_none()
                && one.expires > new.created
        });
        let before: Vec<String> = before.map(|one| one.serial.clone()).collect();
        let again = (1..MOST_REPEATS as usize).contains(&before.len());
        if !again && token.uses_left == 0 {
            return Ok(Joined::NoToken);
        }
        let held = tables.certificates.values().filter(|one| {
            one.role == Role::Worker
                && one.name == new.name
                && one.revoked.is_none()
                && one.expires > new.created
        });
        let until = held.map(|one| one.expires).max();
        if let Some(until) = until.filter(|_| new.role == Role::Worker && !again) {
            return Ok(Joined::Held(until));
        }
        let member = (new.role, new.name.clone());
        if let Some(since) = tables.members.get(&member).filter(|since| token.created <= **since) {
            return Ok(Joined::Revoked(*since));
        }
        tables.members.remove(&member);
        tables.replaced.extend(before);
        tables.given_for.insert(new.serial.clone(), token.id);
        let uses_left = token.uses_left - u32::from(!again);
        tables.tokens.insert(token.id, TokenRecord { uses_left, ..token });
        tables.certificates.insert(new.serial.clone(), new.clone());
        Ok(Joined::Done)
    }

    async fn renew(&self, old: &str, new: &CertificateRecord) -> Result<bool, Error> {
        let mut tables = self.tables();
        let revoked = tables.certificates.get(old).is_some_and(|one| one.revoked.is_some())
            || tables.serials.contains(old)
            || tables.members.contains_key(&(new.role, new.name.clone()));
        if !revoked {
            tables.replaced.insert(old.to_owned());
            tables.certificates.insert(new.serial.clone(), new.clone());
        }
        Ok(!revoked)
    }

    async fn certificate(&self, serial: &str) -> Result<Option<CertificateRecord>, Error> {
        Ok(self.tables().certificates.get(serial).cloned())
    }

    async fn list_certificates(&self, page: &NewestFirst) -> Result<Vec<CertificateRecord>, Error> {
        let tables = self.tables();
        let lasting = tables.certificates.values().filter(|one| one.expires > page.now);
        Ok(newest_first(lasting, page, |one| (one.created, one.serial.clone())))
    }

    async fn revoke_serial(&self, serial: &str, now: Time, most: u32) -> Result<bool, Error> {
        let mut tables = self.tables();
        if let Some(ours) = tables.certificates.get_mut(serial) {
            ours.revoked.get_or_insert(now);
            return Ok(true);
        }
        if tables.serials.len() < most as usize {
            tables.serials.insert(serial.to_owned());
        }
        Ok(tables.serials.contains(serial))
    }

    async fn revoke_member(
        &self,
        role: Role,
        name: &str,
        now: Time,
        most: u32,
    ) -> Result<Option<MemberRevoked>, Error> {
        let mut tables = self.tables();
        let member = (role, name.to_owned());
        if tables.members.len() >= most as usize && !tables.members.contains_key(&member) {
            return Ok(None);
        }
        tables.members.insert(member, now);
        for one in tables.certificates.values_mut().filter(|one| one.role == role && one.name == name) {
            one.revoked.get_or_insert(now);
        }
        let is_lasting = |one: &&CertificateRecord| one.role == role && one.name == name && one.expires > now;
        let certificates = tables.certificates.values().filter(is_lasting).count() as u64;
        let is_theirs =
            |one: &TokenRecord| one.kind == TokenKind::Access && one.role == role && one.name == name;
        let tokens: Vec<TokenId> =
            tables.tokens.values().filter(|one| is_theirs(one)).map(|one| one.id).collect();
        tables.tokens.retain(|id, _| !tokens.contains(id));
        Ok(Some(MemberRevoked { certificates, tokens }))
    }

    async fn revoked(&self, now: Time) -> Result<Revoked, Error> {
        let tables = self.tables();
        let revoked = tables.certificates.values().filter(|one| one.revoked.is_some() && one.expires > now);
        let serials = revoked.map(|one| one.serial.clone()).chain(tables.serials.iter().cloned()).collect();
        Ok(Revoked { serials, members: tables.members.keys().cloned().collect() })
    }

    async fn in_use(&self, now: Time) -> Result<BTreeMap<u32, u64>, Error> {
        let mut counts = BTreeMap::new();
        for one in self.tables().in_use(now) {
            *counts.entry(one.root).or_default() += 1;
        }
        Ok(counts)
    }

    async fn holders_before(&self, root: u32, now: Time, limit: u32) -> Result<Vec<(Role, String)>, Error> {
        let tables = self.tables();
        let older = tables.in_use(now).filter(|one| one.root < root);
        let mut holders: Vec<(Role, String)> = older.map(|one| (one.role, one.name.clone())).collect();
        holders.sort_by(|one, other| (one.0.as_str(), &one.1).cmp(&(other.0.as_str(), &other.1)));
        holders.dedup();
        holders.truncate(limit as usize);
        Ok(holders)
    }

    async fn forget_before(&self, root: u32) -> Result<(), Error> {
        self.tables().certificates.retain(|_, one| one.root >= root || one.revoked.is_some());
        Ok(())
    }

    async fn sweep(&self, now: Time) -> Result<(), Error> {
        let mut tables = self.tables();
        tables.tokens.retain(|_, one| one.expires > now);
        tables.certificates.retain(|_, one| one.expires > now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn conforms() {
        super::super::conformance::run(&MemoryAccessStore::default()).await;
    }
}
