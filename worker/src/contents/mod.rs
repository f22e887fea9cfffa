//! Downloads from and uploads to the coordinator, by content. Calls that fail because the coordinator is away are
//! made again; a transfer goes on where it broke off.

mod cache;
mod client;
mod downloads;
mod error;
mod large_files;
mod retry;
mod uploads;

pub use cache::ContentCache;
pub use client::ArtifactClient;
pub(crate) use client::{hash_file_blocking, hash_opened};
pub use error::Error;
pub(crate) use large_files::one_file_on_disk;
pub(crate) use uploads::{OutputBucket, UploadQueue, Uploads};

use ringtune_shared::ids::ContentHash;

/// A content of at most `limit` bytes, from the cache or else from the coordinator.
pub(crate) async fn one_file(
    hash: ContentHash,
    limit: u64,
    client: &ArtifactClient,
    cache: &ContentCache,
) -> Result<Vec<u8>, Error> {
    let there = cache.clone();
    if let Some(content) = ringtune_shared::tasks::spawn_blocking(move || there.read(hash)).await? {
        return Ok(content);
    }
    let content = client.download(hash, limit).await?;
    let there = cache.clone();
    ringtune_shared::tasks::spawn_blocking(move || there.write(hash, &content).map(|()| content)).await?
}
