//! An exchange before the work checks that all ranks agree on their inputs: a folder that holds another
//! model on one machine would spoil the result without anybody noticing.

use ringtune_shared::ids::ContentHash;

use super::Error;
use crate::ring::RankRing;

/// Inputs on which all ranks must agree, besides the coordinator's: names for people, and hashes.
type Common = [(&'static str, ContentHash)];

/// Compares it over the ring. Nothing to compare is agreed.
///
/// # Errors
/// The first rank that has something else than rank 0, and what; or the ring's.
pub(super) async fn check(ring: &mut RankRing, common: &Common) -> Result<(), Error> {
    if common.is_empty() {
        return Ok(());
    }
    let rows = ring.gather_one_each(row_of(common)).await?;
    compare(common, &rows)
}

/// Hashes travel as bytes, one float each.
fn row_of(common: &Common) -> Vec<f32> {
    common.iter().flat_map(|(_, hash)| hash.0).map(f32::from).collect()
}

fn compare(common: &Common, rows: &[Vec<f32>]) -> Result<(), Error> {
    let Some(first) = rows.first() else { return Ok(()) };
    for (rank, other) in rows.iter().enumerate() {
        let (ours, theirs) = (first.chunks(32), other.chunks(32));
        if let Some((_, (what, _))) = ours.zip(theirs).zip(common).find(|((one, other), _)| one != other) {
            return Err(Error::Disagreement { rank, what });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rank_that_differs_is_named_with_what() {
        let of = |model: &[u8], data: &[u8]| {
            [("model", ContentHash::of(model)), ("pictures", ContentHash::of(data))]
        };
        let common = of(b"m", b"d");
        let rows =
            |all: &[[(&'static str, ContentHash); 2]]| all.iter().map(|one| row_of(one)).collect::<Vec<_>>();
        assert!(compare(&common, &rows(&[common, common, common])).is_ok());
        let outcome = compare(&common, &rows(&[common, common, of(b"m", b"e"), of(b"x", b"d")]));
        assert!(matches!(outcome, Err(Error::Disagreement { rank: 2, what: "pictures" })), "{outcome:?}");
        assert!(compare(&[], &[]).is_ok());
    }
}
