//! When a call is worth another try, and when.
//!
//! The coordinator says so itself, with RetryInfo (google.rpc): its queue is full, another client sends the same file.
//! What it cannot say is that it is not there.

use std::time::{Duration, Instant};

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tonic::{Code, Status, TimeoutExpired};
use tonic_types::StatusExt as _;

use super::link::misunderstanding;

/// How often a call is repeated when the coordinator cannot be reached.
const REPEATS: usize = 4;
/// How long a call is repeated because the coordinator asks for it.
const PATIENCE: Duration = Duration::from_secs(60);
/// No wait is shorter.
const SHORTEST: Duration = Duration::from_millis(100);

/// The waits of one call.
#[derive(Debug)]
pub(super) struct Retries {
    began: Instant,
    delays: ExponentialBackoff,
    announced: bool,
}

impl Retries {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), delays: backoff().with_max_times(REPEATS).build(), announced: false }
    }

    /// Waits as long as this failure asks for, and returns nothing; or returns the failure if it is final, or if there
    /// was enough patience. `doing` is said to the user once if the coordinator wants him to wait.
    pub(super) async fn after(&mut self, status: Status, doing: &str) -> Result<(), Box<Status>> {
        let verdict = judge(&status);
        let delay = match verdict {
            Verdict::Final => None,
            Verdict::Broken => self.delays.next(),
            Verdict::After(told) => patient(told, self.began.elapsed()),
        };
        let Some(delay) = delay else { return Err(Box::new(status)) };
        if matches!(verdict, Verdict::After(_)) && !std::mem::replace(&mut self.announced, true) {
            let most = PATIENCE.as_secs();
            crate::output::remark(&format!("waiting {most} s at most to {doing}: {}", status.message()));
        }
        tokio::time::sleep(delay).await;
        Ok(())
    }
}

/// What a failure says about another try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The coordinator's judgement, or no answer in time: another try would be no better.
    Final,
    /// The connection failed.
    Broken,
    /// The coordinator wants to be asked again, not before that time.
    After(Duration),
}

fn judge(status: &Status) -> Verdict {
    let asks = matches!(status.code(), Code::Aborted | Code::Unavailable | Code::ResourceExhausted);
    let told = status.get_details_retry_info().and_then(|info| info.retry_delay);
    match told {
        Some(delay) if asks => Verdict::After(delay),
        _ if is_transient(status) => Verdict::Broken,
        _ => Verdict::Final,
    }
}

/// How long to wait when the coordinator asks for `told`, after having `spent` so long already; none to give up. A little
/// longer than told: those who were told the same are not to come back at the same moment.
fn patient(told: Duration, spent: Duration) -> Option<Duration> {
    let spread = backoff().build().next().unwrap_or(SHORTEST);
    let delay = told.saturating_add(spread);
    (delay.saturating_add(spent) <= PATIENCE).then_some(delay)
}

/// The waits after a broken connection: short at first, then some seconds, with jitter.
pub(super) fn backoff() -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_jitter()
        .with_min_delay(SHORTEST)
        .with_max_delay(Duration::from_secs(2))
}

/// Whether the transport failed, not the coordinator's judgement.
pub(super) fn is_transient(status: &Status) -> bool {
    use std::error::Error as _;
    !is_late(status)
        && misunderstanding(status).is_none()
        && (status.code() == Code::Unavailable
            // A connection that breaks in mid-call: tonic makes the status from the transport's error.
            || (matches!(status.code(), Code::Unknown | Code::Internal | Code::Cancelled)
                && status.source().is_some()))
}

/// Whether the coordinator was reached, for all that is known, but did not answer in time.
pub(super) fn is_late(status: &Status) -> bool {
    if status.code() == Code::DeadlineExceeded {
        return true;
    }
    // tonic's own time limit, which it tells as CANCELLED.
    let mut cause: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(status);
    while let Some(inner) = cause {
        if inner.is::<TimeoutExpired>() {
            return true;
        }
        cause = inner.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use tonic_types::ErrorDetails;

    use super::*;

    fn asks(code: Code, seconds: u64) -> Status {
        let details = ErrorDetails::with_retry_info(Some(Duration::from_secs(seconds)));
        Status::with_error_details(code, "busy", details)
    }

    #[test]
    fn a_judgement_is_final_and_a_broken_connection_is_not() {
        assert!(is_transient(&Status::unavailable("shutting down")));
        assert!(!is_transient(&Status::internal("the database is corrupt")));
        let broken = Status::from_error(Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionReset)));
        assert!(is_transient(&broken), "{broken:?}");
        assert_eq!(judge(&broken), Verdict::Broken);
    }

    #[test]
    fn a_late_answer_is_no_broken_connection() {
        let late = Status::from_error(Box::new(TimeoutExpired(())));
        assert!(is_late(&late) && !is_transient(&late), "{late:?}");
        assert_eq!(judge(&late), Verdict::Final);
        assert_eq!(judge(&Status::deadline_exceeded("30 s")), Verdict::Final);
    }

    #[test]
    fn the_coordinator_says_when_another_try_is_worth_it() {
        for code in [Code::Aborted, Code::Unavailable, Code::ResourceExhausted] {
            assert_eq!(judge(&asks(code, 5)), Verdict::After(Duration::from_secs(5)), "{code:?}");
        }
        // A file that is too large stays so; and no code but these is repeated, whatever it says.
        assert_eq!(judge(&Status::resource_exhausted("too large")), Verdict::Final);
        assert_eq!(judge(&Status::aborted("the session was replaced")), Verdict::Final);
        assert_eq!(judge(&asks(Code::FailedPrecondition, 5)), Verdict::Final);
    }

    #[test]
    fn what_the_coordinator_asks_for_is_waited_for_but_not_for_ever() {
        let seconds = Duration::from_secs;
        let wait = patient(seconds(5), seconds(10)).expect("worth it");
        assert!(wait >= seconds(5) + SHORTEST && wait < seconds(6), "{wait:?}");
        assert!(patient(seconds(0), seconds(0)).expect("worth it") >= SHORTEST, "no busy loop");
        assert_eq!(patient(seconds(5), seconds(56)), None);
        assert_eq!(patient(Duration::MAX, seconds(0)), None);
    }
}
