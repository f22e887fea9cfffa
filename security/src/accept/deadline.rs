//! When a connection is closed for having no calls.

use std::time::Duration;

use super::limits::Limits;
use super::refusals::Refusal;
use crate::peer::Standing;

/// What becomes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It stays; look again after this long.
    Wait(Duration),
    /// It is closed.
    Close(Refusal),
}

/// Longer than any connection lives, and short enough to be added to any time.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Decides by the calls that it has and had.
pub(super) fn verdict(standing: Standing, limits: &Limits) -> Verdict {
    let (allowed, quiet, refusal) = match standing {
        Standing::Busy => (limits.idle, Duration::ZERO, Refusal::Idle),
        Standing::Unused(quiet) => (limits.first_call, quiet, Refusal::Unused),
        Standing::Idle(quiet) => (limits.idle, quiet, Refusal::Idle),
    };
    let left = allowed.saturating_sub(quiet);
    let is_over = left.is_zero() && standing != Standing::Busy;
    // A limit of 0 is not to spin while there are calls; timers have whole milliseconds.
    let wait = left.clamp(Duration::from_millis(1), LONGEST_WAIT);
    if is_over { Verdict::Close(refusal) } else { Verdict::Wait(wait) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_keep_a_connection_open() {
        let second = Duration::from_secs;
        let limits = Limits { first_call: second(10), idle: second(600), ..Limits::default() };
        for (standing, expected) in [
            (Standing::Unused(second(0)), Verdict::Wait(second(10))),
            (Standing::Unused(second(4)), Verdict::Wait(second(6))),
            (Standing::Unused(second(10)), Verdict::Close(Refusal::Unused)),
            (Standing::Busy, Verdict::Wait(second(600))),
            (Standing::Idle(second(10)), Verdict::Wait(second(590))),
            (Standing::Idle(second(600)), Verdict::Close(Refusal::Idle)),
            (Standing::Idle(second(9999)), Verdict::Close(Refusal::Idle)),
        ] {
            assert_eq!(verdict(standing, &limits), expected, "{standing:?}");
        }
        let forever = Limits { first_call: Duration::MAX, idle: Duration::ZERO, ..limits };
        assert_eq!(verdict(Standing::Unused(second(5)), &forever), Verdict::Wait(LONGEST_WAIT));
        assert_eq!(verdict(Standing::Busy, &forever), Verdict::Wait(Duration::from_millis(1)));
        assert_eq!(verdict(Standing::Idle(second(0)), &forever), Verdict::Close(Refusal::Idle));
    }
}
