//! Backoff of connections to a coordinator that cannot be reached.

use std::time::Duration;

use backon::ExponentialBuilder;

/// Waits that grow from a fifth of a second to five, for ever. Chance makes each of them up to twice as long as it would
/// be, so that workers which lost their coordinator together do not come back together.
pub(crate) const fn waits() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_jitter()
        .with_min_delay(Duration::from_millis(200))
        .with_max_delay(LONGEST.saturating_sub(Duration::from_millis(2_500)))
        .without_max_times()
}

/// No wait is longer.
pub(crate) const LONGEST: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use backon::BackoffBuilder as _;

    use super::*;

    #[test]
    fn waits_grow_to_five_seconds_and_never_end() {
        let waits: Vec<Duration> = waits().build().take(10_000).collect();
        assert_eq!(waits.len(), 10_000);
        assert!(waits[0] >= Duration::from_millis(200) && waits[0] <= Duration::from_millis(400));
        assert!(waits.iter().all(|wait| *wait <= LONGEST), "{:?}", waits.iter().max());
        assert!(waits[9_999] >= LONGEST / 2);
    }
}
