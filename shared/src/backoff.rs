//! How long to wait before trying again: exponential, with jitter, and without state.

use std::time::Duration;

/// How waits grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The longest wait after the first failure.
    pub first: Duration,
    /// The longest wait after any failure.
    pub longest: Duration,
}

impl Backoff {
    /// For a lost connection: quick at first, then about twice a minute.
    pub const RECONNECT: Backoff =
        Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(30) };

    /// How long to wait after failure `attempt` (from 0).
    ///
    /// The bound doubles with every attempt up to `longest`; the wait is spread evenly over its
    /// upper half, so that many clients that failed together do not come back together and none
    /// comes back at once. `random`: any number, each equally likely.
    pub fn delay(&self, attempt: u32, random: u64) -> Duration {
        let doubled = self.first.checked_mul(1_u32.checked_shl(attempt).unwrap_or(u32::MAX));
        let bound = doubled.unwrap_or(self.longest).min(self.longest);
        let half = bound / 2;
        // The upper 32 bits: a fraction of [0, 1).
        let fraction = (random >> 32) as f64 / (1_u64 << 32) as f64;
        bound - half.mul_f64(fraction)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(10) };

    #[test]
    fn waits_double_up_to_the_longest() {
        let longest: Vec<u128> = (0..9).map(|attempt| BACKOFF.delay(attempt, 0).as_millis()).collect();
        assert_eq!(longest, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(BACKOFF.delay(u32::MAX, 0), BACKOFF.longest);
    }

    proptest! {
        #[test]
        fn a_wait_is_in_the_upper_half_of_its_bound(attempt in 0..100_u32, random: u64) {
            let bound = BACKOFF.delay(attempt, 0);
            let wait = BACKOFF.delay(attempt, random);
            prop_assert!(wait <= bound && wait >= bound / 2);
        }
    }
}
