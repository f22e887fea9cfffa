//! How much a worker may say. A ring of honest workers stays far below it; one that floods is told so and loses its
//! session, before its words fill the coordinator's queue and disk.

use std::time::{Duration, Instant};

use ringtune_proto::v1::{SessionRequest, session_request::Message};

/// Step reports: those of a coordinator's absence come all at once.
const STEPS: Rate = Rate { burst: 1_000_000, per_second: 10_000 };
/// Everything else: a rank with 10,000 pictures speaks of each one twice.
const OTHERS: Rate = Rate { burst: 25_000, per_second: 1_000 };

/// So many at once, and so many a second in the long run.
#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u32,
    per_second: u32,
}

/// What is left of a rate.
#[derive(Debug)]
struct Bucket {
    rate: Rate,
    left: f64,
    filled: Instant,
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        Self { rate, left: f64::from(rate.burst), filled: now }
    }

    fn take(&mut self, now: Instant) -> bool {
        let since: Duration = now.saturating_duration_since(self.filled);
        let filled = self.left + since.as_secs_f64() * f64::from(self.rate.per_second);
        self.left = filled.min(f64::from(self.rate.burst));
        self.filled = now;
        let enough = self.left >= 1.0;
        if enough {
            self.left -= 1.0;
        }
        enough
    }
}

/// What one session may still say.
#[derive(Debug)]
pub(super) struct Allowance {
    steps: Bucket,
    others: Bucket,
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
    pub(super) fn new(now: Instant) -> Self {
        Self { steps: Bucket::full(STEPS, now), others: Bucket::full(OTHERS, now) }
    }

    /// Counts a message.
    ///
    /// # Errors
    /// [`Flood`]: it is one too many.
    pub(super) fn count(&mut self, message: &SessionRequest, now: Instant) -> Result<(), Flood> {
        let (bucket, what) = match message.message {
            Some(Message::RankStep(_)) => (&mut self.steps, "rank_step"),
            _ => (&mut self.others, "heartbeat, rank_report, rank_log and others"),
        };
        if bucket.take(now) {
            return Ok(());
        }
        let Rate { burst, per_second } = bucket.rate;
        Err(Flood { what, burst, per_second })
    }
}

#[cfg(test)]
mod tests {
    use ringtune_proto::v1;

    use super::*;

    #[test]
    fn a_burst_and_a_steady_rate_are_allowed_and_no_more() {
        let beat = SessionRequest { message: Some(Message::Heartbeat(v1::Heartbeat::default())) };
        let step = SessionRequest { message: Some(Message::RankStep(v1::RankStep::default())) };
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        for _ in 0..OTHERS.burst {
            allowance.count(&beat, start).expect("within the burst");
        }
        let flood = allowance.count(&beat, start).expect_err("one too many");
        assert!(flood.to_string().contains("25000 at once"), "{flood}");
        allowance.count(&step, start).expect("steps are counted apart");

        // A second gives a second's worth back, however it is cut.
        let mut now = start;
        for _ in 0..OTHERS.per_second {
            now += Duration::from_micros(1001);
            allowance.count(&beat, now).expect("at the steady rate");
        }
        assert!(allowance.count(&beat, now + Duration::from_micros(1)).is_ok(), "the rest of the fractions");
        assert!(allowance.count(&beat, now + Duration::from_micros(2)).is_err());

        // A long silence gives no more than the burst.
        let later = now + Duration::from_secs(86_400);
        let allowed = (0..2 * OTHERS.burst).filter(|_| allowance.count(&beat, later).is_ok()).count();
        assert_eq!(allowed, OTHERS.burst as usize);
    }
}
