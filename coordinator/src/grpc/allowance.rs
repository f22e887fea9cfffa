//! How much a worker may say. A ring of honest workers stays far below it; one that floods is told so and loses its
//! session, before its words fill the coordinator's queue and disk.

use std::num::NonZeroU32;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use ringtune_proto::v1::{SessionRequest, session_request::Message};

/// Step reports: those of a coordinator's absence come all at once.
const STEPS: Rate = Rate { burst: 1_000_000, per_second: 10_000 };
/// Everything else: a rank with 10,000 pictures speaks of each one twice.
const OTHERS: Rate = Rate { burst: 25_000, per_second: 1_000 };

/// Burst, and messages a second in the long run.
#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u32,
    per_second: u32,
}

impl Rate {
    fn quota(self) -> Quota {
        let at_least_one = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        Quota::per_second(at_least_one(self.per_second)).allow_burst(at_least_one(self.burst))
    }
}

type Limiter<C> = RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<<C as Clock>::Instant>>;

/// What one session may still say.
#[derive(Debug)]
pub(super) struct Allowance<C: Clock = DefaultClock> {
    steps: Limiter<C>,
    others: Limiter<C>,
}

/// A worker that says more than it may.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what}: more than {burst} at once, or {per_second} per second in the long run; allowed on one session: fewer"
)]
pub(super) struct Flood {
    what: &'static str,
    burst: u32,
    per_second: u32,
}

impl Allowance {
    /// All of it.
    pub(super) fn new() -> Self {
        Self::by(&DefaultClock::default())
    }
}

impl<C: Clock + Clone> Allowance<C> {
    fn by(clock: &C) -> Self {
        let limiter = |rate: Rate| Limiter::direct_with_clock(rate.quota(), clock.clone());
        Self { steps: limiter(STEPS), others: limiter(OTHERS) }
    }

    /// Counts a message.
    ///
    /// # Errors
    /// [`Flood`]: it is one too many.
    pub(super) fn count(&self, message: &SessionRequest) -> Result<(), Flood> {
        let (limiter, Rate { burst, per_second }, what) = match message.message {
            Some(Message::RankStep(_)) => (&self.steps, STEPS, "rank_step"),
            _ => (&self.others, OTHERS, "heartbeat, rank_report, rank_log and others"),
        };
        limiter.check().map_err(|_| Flood { what, burst, per_second })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use governor::clock::FakeRelativeClock;
    use ringtune_proto::v1;

    use super::*;

    #[test]
    fn a_burst_and_a_steady_rate_are_allowed_and_no_more() {
        let beat = SessionRequest { message: Some(Message::Heartbeat(v1::Heartbeat::default())) };
        let step = SessionRequest { message: Some(Message::RankStep(v1::RankStep::default())) };
        let clock = FakeRelativeClock::default();
        let allowance = Allowance::by(&clock);
        for _ in 0..OTHERS.burst {
            allowance.count(&beat).expect("within the burst");
        }
        let flood = allowance.count(&beat).expect_err("one too many");
        assert!(flood.to_string().contains("25000 at once"), "{flood}");
        allowance.count(&step).expect("steps are counted apart");

        // A second gives a second's worth back, however it is cut.
        for _ in 0..OTHERS.per_second {
            clock.advance(Duration::from_micros(1001));
            allowance.count(&beat).expect("at the steady rate");
        }
        clock.advance(Duration::from_micros(1));
        assert!(allowance.count(&beat).is_ok(), "the rest of the fractions");
        clock.advance(Duration::from_micros(1));
        assert!(allowance.count(&beat).is_err());

        // A long silence gives no more than the burst.
        clock.advance(Duration::from_secs(86_400));
        let allowed = (0..2 * OTHERS.burst).filter(|_| allowance.count(&beat).is_ok()).count();
        assert_eq!(allowed, OTHERS.burst as usize);
    }
}
