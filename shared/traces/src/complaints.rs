//! Limits log lines about lost spans: an absent collector must not fill a log.

use std::time::{Duration, Instant};

/// Between two complaints.
const QUIET: Duration = Duration::from_secs(60);

/// Lost spans that were not logged yet.
#[derive(Debug, Default)]
pub(crate) struct Complaints {
    lost: u64,
    said: Option<Instant>,
}

impl Complaints {
    /// Counts lost spans; returns the number to log, if it is time.
    pub(crate) fn add(&mut self, lost: u64, now: Instant) -> Option<u64> {
        self.lost += lost;
        let quiet = self.said.is_some_and(|said| now.saturating_duration_since(said) < QUIET);
        if self.lost == 0 || quiet {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_told_once_a_minute_with_all_since() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut complaints = Complaints::default();
        assert_eq!(complaints.add(0, at(0)), None);
        assert_eq!(complaints.add(3, at(1)), Some(3));
        assert_eq!(complaints.add(4, at(30)), None);
        assert_eq!(complaints.add(5, at(60)), None);
        assert_eq!(complaints.add(1, at(61)), Some(10));
        assert_eq!(complaints.add(0, at(200)), None);
    }
}
