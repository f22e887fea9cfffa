//! Whose contents are, in memory.

use async_trait::async_trait;
use ringtune_shared::ids::ContentHash;
use ringtune_shared::job::ContentUse;

use super::{MemoryStore, Tables, limited};
use crate::core::{OverQuota, OwnerLimits, Usage};
use crate::store::Error;
use crate::store::quota::{QuotaStore, Sized};

impl Tables {
    fn usage(&self, owner: &str) -> Usage {
        let sizes = self.owned.iter().filter(|((_, whose), _)| whose == owner).map(|(_, size)| *size);
        sizes.fold(Usage::default(), |all, size| Usage { files: all.files + 1, bytes: all.bytes + size })
    }

    fn size_of(&self, owner: &str, hash: ContentHash) -> Option<u64> {
        self.owned.get(&(hash, owner.to_owned())).copied()
    }

    fn more(&self, owner: &str, contents: &[Sized]) -> Usage {
        contents.iter().fold(Usage::default(), |all, (hash, size)| match self.size_of(owner, *hash) {
            None => Usage { files: all.files + 1, bytes: all.bytes.saturating_add(*size) },
            Some(before) => Usage { bytes: all.bytes.saturating_add(size.saturating_sub(before)), ..all },
        })
    }

    fn wants_as(&self, owner: &str, content: ContentHash) -> bool {
        let mut jobs = self.jobs.values().filter(|job| job.queue.owner == owner);
        jobs.any(|job| {
            let mut files = self.artifacts.values().filter(|file| file.job == job.id);
            files.any(|file| file.hash == content)
                || job.spec.contents().into_iter().any(|(used, named)| {
                    named == content || (used == ContentUse::Images && self.names(named, content))
                })
        })
    }
}

#[async_trait]
impl QuotaStore for MemoryStore {
    async fn usage(&self, owner: &str) -> Result<Usage, Error> {
        Ok(self.tables().usage(owner))
    }

    async fn more(&self, owner: &str, contents: &[Sized]) -> Result<Usage, Error> {
        Ok(self.tables().more(owner, contents))
    }

    async fn own(
        &self,
        owner: &str,
        contents: &[Sized],
        limits: OwnerLimits,
    ) -> Result<Result<(), OverQuota>, Error> {
        let mut tables = self.tables();
        let more = tables.more(owner, contents);
        if more == Usage::default() {
            return Ok(Ok(()));
        }
        if let Err(over) = limits.check(owner, tables.usage(owner), more) {
            return Ok(Err(over));
        }
        for (hash, size) in contents {
            let largest = tables.owned.entry((*hash, owner.to_owned())).or_default();
            *largest = (*largest).max(*size);
        }
        Ok(Ok(()))
    }

    async fn owned(&self, after: Option<ContentHash>, limit: u32) -> Result<Vec<ContentHash>, Error> {
        let tables = self.tables();
        let mut hashes: Vec<ContentHash> = tables.owned.keys().map(|(hash, _)| *hash).collect();
        hashes.dedup();
        Ok(limited(hashes.into_iter().filter(|hash| after.is_none_or(|after| *hash > after)), limit))
    }

    async fn disown(&self, gone: &[ContentHash]) -> Result<(), Error> {
        self.tables().owned.retain(|(hash, _), _| !gone.contains(hash));
        Ok(())
    }

    async fn disown_unwanted(&self, contents: &[ContentHash]) -> Result<(), Error> {
        let mut tables = self.tables();
        if tables.unread().next().is_some() {
            return Ok(());
        }
        let unwanted =
            |(hash, owner): &(ContentHash, String)| contents.contains(hash) && !tables.wants_as(owner, *hash);
        let unwanted: Vec<_> = tables.owned.keys().filter(|key| unwanted(key)).cloned().collect();
        tables.owned.retain(|key, _| !unwanted.contains(key));
        Ok(())
    }
}
