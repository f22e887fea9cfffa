//! One exchange before the work, to make sure that all ranks work on the same thing: a folder that holds another
//! model on one machine would spoil the result without anybody noticing.

use ringtune_shared::ids::ContentHash;

use super::Error;
use crate::ring::RankRing;

/// Compares what all ranks must have in common, besides what the coordinator hands them: names for people, and hashes.
///
/// # Errors
/// The first rank that has something else than rank 0, and what; or the ring's.
pub(super) async fn check(ring: &mut RankRing, common: &[(&'static str, ContentHash)]) -> Result<(), Error> {
    // Hashes travel as bytes, one float each.
    let row: Vec<f32> = common.iter().flat_map(|(_, hash)| hash.0).map(f32::from).collect();
    let rows = ring.gather_one_each(row).await?;
    let first = rows.first().cloned().unwrap_or_default();
    for (rank, other) in rows.iter().enumerate() {
        let (ours, theirs) = (first.chunks(32), other.chunks(32));
        if let Some((_, (what, _))) = ours.zip(theirs).zip(common).find(|((one, other), _)| one != other) {
            return Err(Error::Disagreement { rank, what });
        }
    }
    Ok(())
}
