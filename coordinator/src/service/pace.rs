//! When the loop may look at the clock.

use crate::core::Time;

/// Milliseconds between two looks at the deadlines.
pub(super) const TICK: i64 = 250;

/// Keeps the loop from ending sessions that spoke while it could not hear.
///
/// Where the loop stands still (a disk that stalls, a machine that sleeps), what workers say piles up in its channel and,
/// once that is full, in their connections. What is in the channel is taken in, as of when it arrived, before the clock is
/// looked at. For the rest nobody's deadline passes until everybody has had the time to be heard again.
#[derive(Debug)]
pub(super) struct Pace {
    session_timeout: i64,
    woke: Time,
    ticked: Time,
    /// No deadline passes before.
    listens_until: Time,
}

impl Pace {
    pub(super) fn new(session_timeout: i64, now: Time) -> Self {
        Self { session_timeout, woke: now, ticked: now, listens_until: now }
    }

    /// The loop runs. Between two of these it was busy or waited, usually for a tick at most.
    pub(super) fn wakes(&mut self, now: Time) {
        // A shorter stall alone loses nobody: workers speak at least twice within the timeout.
        let stall = (self.session_timeout / 4).max(4 * TICK);
        if self.woke.plus(stall) <= now {
            self.listens_until = now.plus(self.session_timeout / 2);
        }
        self.woke = now;
    }

    /// Whether deadlines are to be looked at now.
    pub(super) fn tick_due(&mut self, now: Time) -> bool {
        // Where one stall follows the other, deadlines are late, but they do pass.
        let overdue = self.ticked.plus(4 * self.session_timeout.max(TICK)) <= now;
        let due = self.ticked.plus(TICK) <= now && (self.listens_until <= now || overdue);
        if due {
            self.ticked = now;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_stall_everybody_is_listened_to_before_a_deadline_passes() {
        let mut pace = Pace::new(16_000, Time(0));
        let mut ticks = |wakes: &[i64]| {
            let mut ticks = Vec::new();
            for now in wakes.iter().copied().map(Time) {
                pace.wakes(now);
                if pace.tick_due(now) {
                    ticks.push(now.0);
                }
            }
            ticks
        };
        assert_eq!(ticks(&[100, 250, 300, 500, 750]), [250, 500, 750]);
        // 20 s later.
        let wakes: Vec<i64> = (20_750..30_000).step_by(250).collect();
        assert_eq!(ticks(&wakes)[0], 28_750);
        // Nothing but stalls: there is an end to patience.
        let wakes: Vec<i64> = (1..20).map(|stall| 30_000 + stall * 5000).collect();
        assert_eq!(ticks(&wakes), [95_000]);
    }
}
