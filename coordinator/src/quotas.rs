//! What owners have on the coordinator's disk, and what they may have.
//!
//! Invariant: contents are on the account of whoever has them brought here, or makes a job of them, before the first byte
//! of them comes, and until the last one is gone. Whoever puts one there holds its claim (see [`Claims`]); whoever takes
//! one off holds it alone.
//!
//! [`Claims`]: crate::contents::Claims

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use ringtune_shared::ids::ContentHash;

use crate::core::{OverQuota, OwnerLimits, Usage};
use crate::metrics::Metrics;
use crate::store;
use crate::store::quota::{QuotaStore, Sized};

/// Contents that go on an account in one transaction: commits of the loop wait no longer than for that.
const PORTION: usize = 256;

/// What owners have and may have. Cheap to clone.
#[derive(Clone)]
pub struct Quotas(Option<Arc<Limited>>);

struct Limited {
    store: Arc<dyn QuotaStore>,
    limits: RwLock<OwnerLimits>,
    metrics: Metrics,
}

/// Why something does not go on an account.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It would be too much.
    #[error("{field}: {over}")]
    Over {
        /// The field of the request that asks for it.
        field: &'static str,
        /// How much it is.
        over: OverQuota,
    },
    /// The store's.
    #[error(transparent)]
    Store(#[from] store::Error),
}

impl Quotas {
    /// For a port that asks nobody who they are: an owner is what a job file says, so that limits would limit nobody.
    pub fn none() -> Self {
        Self(None)
    }

    /// Each owner may have so much.
    pub fn new(store: Arc<dyn QuotaStore>, limits: OwnerLimits, metrics: Metrics) -> Self {
        Self(Some(Arc::new(Limited { store, limits: RwLock::new(limits), metrics })))
    }

    /// Each owner may have so much from now on. Nothing is taken from those who have more.
    pub fn set_limits(&self, limits: OwnerLimits) {
        if let Some(limited) = &self.0 {
            *limited.limits.write().unwrap_or_else(PoisonError::into_inner) = limits;
        }
    }

    /// Jobs without an owner are from before anybody was asked who they are: they are nobody's.
    fn of(&self, owner: &str) -> Option<&Limited> {
        self.0.as_deref().filter(|_| !owner.is_empty())
    }

    /// Whether anybody counts what an owner has.
    pub fn counts(&self, owner: &str) -> bool {
        self.of(owner).is_some()
    }

    /// What an owner has and may have; none: nobody counts that.
    ///
    /// # Errors
    /// The store's.
    pub async fn usage(&self, owner: &str) -> Result<Option<(Usage, OwnerLimits)>, store::Error> {
        let Some(limited) = self.of(owner) else { return Ok(None) };
        Ok(Some((limited.store.usage(owner).await?, limited.limits())))
    }

    /// Whether an owner may bring a content here, which is not done yet.
    ///
    /// # Errors
    /// It would be too much; the store's.
    pub async fn check_upload(&self, owner: &str, content: Sized) -> Result<(), Error> {
        let Some(limited) = self.of(owner) else { return Ok(()) };
        let more = limited.store.more(owner, &[content]).await?;
        if more == Usage::default() {
            return Ok(());
        }
        let used = limited.store.usage(owner).await?;
        limited.limits().check(owner, used, more).map_err(|over| limited.refuse("header.size", over))
    }

    /// Puts a content on the account of an owner who brings it here.
    ///
    /// # Errors
    /// It would be too much; the store's.
    pub async fn upload(&self, owner: &str, content: Sized) -> Result<(), Error> {
        let Some(limited) = self.of(owner) else { return Ok(()) };
        limited.own(owner, &[content], "header.size").await
    }

    /// Puts contents on the account of an owner who makes a job of them.
    ///
    /// # Errors
    /// It would be too much, or there is too much already; the store's.
    pub async fn make_job(&self, owner: &str, contents: &[Sized]) -> Result<(), Error> {
        let Some(limited) = self.of(owner) else { return Ok(()) };
        let used = limited.store.usage(owner).await?;
        let field = "queue.owner";
        limited.limits().check(owner, used, Usage::default()).map_err(|over| limited.refuse(field, over))?;
        let contents: BTreeMap<ContentHash, u64> = contents.iter().copied().collect();
        let contents: Vec<Sized> = contents.into_iter().collect();
        for portion in contents.chunks(PORTION) {
            limited.own(owner, portion, field).await?;
        }
        Ok(())
    }

    /// Contents that somebody has, in their order, from behind `after`, at most `limit`.
    ///
    /// # Errors
    /// The store's.
    pub async fn owned(
        &self,
        after: Option<ContentHash>,
        limit: u32,
    ) -> Result<Vec<ContentHash>, store::Error> {
        match &self.0 {
            Some(limited) => limited.store.owned(after, limit).await,
            None => Ok(Vec::new()),
        }
    }

    /// Takes contents that are gone from the disk off all accounts.
    ///
    /// # Errors
    /// The store's.
    pub async fn disown(&self, gone: &[ContentHash]) -> Result<(), store::Error> {
        match &self.0 {
            Some(limited) if !gone.is_empty() => limited.store.disown(gone).await,
            _ => Ok(()),
        }
    }

    /// Takes contents off the accounts of owners whose jobs do not want them.
    ///
    /// # Errors
    /// The store's.
    pub async fn disown_unwanted(&self, contents: &[ContentHash]) -> Result<(), store::Error> {
        match &self.0 {
            Some(limited) if !contents.is_empty() => limited.store.disown_unwanted(contents).await,
            _ => Ok(()),
        }
    }
}

impl Limited {
    fn limits(&self) -> OwnerLimits {
        *self.limits.read().unwrap_or_else(PoisonError::into_inner)
    }

    async fn own(&self, owner: &str, contents: &[Sized], field: &'static str) -> Result<(), Error> {
        // What is theirs already, as mostly, costs no commit. It stays theirs: whoever asks holds it.
        if self.store.more(owner, contents).await? == Usage::default() {
            return Ok(());
        }
        let owned = self.store.own(owner, contents, self.limits()).await?;
        owned.map_err(|over| self.refuse(field, over))
    }

    fn refuse(&self, field: &'static str, over: OverQuota) -> Error {
        self.metrics.over_quota(over.what);
        Error::Over { field, over }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::conformance::temporary;

    #[tokio::test]
    async fn limits_change_for_all_clones() {
        let limits = OwnerLimits { bytes: 10, files: 1 };
        let (_folder, store) = temporary().await;
        let quotas = Quotas::new(Arc::new(store), limits, Metrics::new().unwrap());
        let content = (ContentHash::of(b"a"), 20);
        assert!(quotas.upload("ada", content).await.is_err());
        quotas.clone().set_limits(OwnerLimits { bytes: 20, files: 1 });
        quotas.upload("ada", content).await.unwrap();
        // What is there stays, and there is no more of it.
        quotas.set_limits(limits);
        let (used, now) = quotas.usage("ada").await.unwrap().unwrap();
        assert_eq!((used.bytes, now), (20, limits));
        assert!(quotas.make_job("ada", &[]).await.is_err());
    }
}
