//! Whose the contents on the disk are.

#[cfg(test)]
pub(crate) mod conformance;

use async_trait::async_trait;
use ringtune_shared::ids::ContentHash;

use super::Error;
use crate::core::{OverQuota, OwnerLimits, Usage};

/// A content and its bytes.
pub type Sized = (ContentHash, u64);

/// Which contents are whose, and how much that is for each owner. A content may be of several owners, and counts for each;
/// for one owner it counts once. Whatever a call returned from is on disk, and what failed left nothing.
#[async_trait]
pub trait QuotaStore: Send + Sync + 'static {
    /// What an owner has.
    async fn usage(&self, owner: &str) -> Result<Usage, Error>;

    /// What an owner would have more if these contents, each named once, were theirs too.
    async fn more(&self, owner: &str, contents: &[Sized]) -> Result<Usage, Error>;

    /// Makes contents, each named once, an owner's: all of them, or none where that would be over the limits. What is
    /// theirs already keeps the larger size, and costs nothing.
    async fn own(
        &self,
        owner: &str,
        contents: &[Sized],
        limits: OwnerLimits,
    ) -> Result<Result<(), OverQuota>, Error>;

    /// Contents that somebody has, in their order, from behind `after`, at most `limit`.
    async fn owned(&self, after: Option<ContentHash>, limit: u32) -> Result<Vec<ContentHash>, Error>;

    /// Takes contents that are gone off all accounts.
    async fn disown(&self, gone: &[ContentHash]) -> Result<(), Error>;

    /// Takes contents from those owners whose jobs do not want them: see [`Store::unwanted`](super::Store::unwanted).
    async fn disown_unwanted(&self, contents: &[ContentHash]) -> Result<(), Error>;
}
