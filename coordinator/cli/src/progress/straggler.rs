//! The rank that the others of its ring wait for, in words.

use ringtune_proto::v1;

/// None where there is none, or nothing to compare it with.
pub(super) fn straggler_text(ranks: &[v1::RankTiming]) -> Option<String> {
    let straggler = ranks.iter().find(|rank| rank.straggler)?;
    let mut others: Vec<f64> = ranks
        .iter()
        .filter(|rank| rank.rank != straggler.rank && rank.compute_seconds.is_finite())
        .map(|rank| rank.compute_seconds)
        .collect();
    others.sort_by(f64::total_cmp);
    let middle = others.get(others.len() / 2).copied().filter(|seconds| *seconds > 0.0)?;
    let (rank, own) = (straggler.rank, straggler.compute_seconds);
    Some(format!(
        "rank {rank} computes {:.1} times as long as the others ({own:.2} s a step, and they {middle:.2} s): they wait \
         for it",
        own / middle
    ))
}
