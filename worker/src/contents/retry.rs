//! Calls to the coordinator that are made again when they fail.

use std::{error::Error as _, future::Future, time::Duration};

use backon::{BackoffBuilder as _, ExponentialBackoff, Retryable as _};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use tracing::warn;

use super::Error;
use crate::reconnect;

/// A call whose failure may be the coordinator's considered answer is repeated so often.
const MOST_REPEATS: usize = 5;
/// The coordinator's word for an upload that goes on where its file does not end.
const UPLOAD_OFFSET: &str = "UPLOAD_OFFSET";
/// And for what names another ring than the job has now.
const OTHER_EPOCH: &str = "EPOCH";

/// Whether what failed is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    /// The same call gets the same answer.
    Never,
    /// It may be otherwise a moment later, or never.
    AFewTimes,
    /// There was no answer: the coordinator is away, and will be back.
    AsLongAsItTakes,
}

/// Calls until there is an answer or a refusal. Whoever drops it ends it, also in the middle of a wait. `what` is for
/// people.
///
/// # Errors
/// What the coordinator refused for good.
pub(crate) async fn until_answered<T, Answer>(what: &str, call: impl FnMut() -> Answer) -> Result<T, Error>
where
    Answer: Future<Output = Result<T, Status>>,
{
    let mut repeats = 0;
    let again = |status: &Status| is_worth_another_try(status, &mut repeats);
    let say = |status: &Status, wait: Duration| say(what, status, wait);
    let answer = call.retry(reconnect::waits()).when(again).notify(say).await;
    answer.map_err(|status| Error::refused(what, &status))
}

/// The tries of what goes on where the try before stopped: of those, not the call but the waits are repeated.
pub(crate) struct Tries<'a> {
    what: &'a str,
    waits: ExponentialBackoff,
    repeats: usize,
}

impl<'a> Tries<'a> {
    /// Before the first. `what` is for people.
    pub(crate) fn of(what: &'a str) -> Self {
        Self { what, waits: reconnect::waits().build(), repeats: 0 }
    }

    /// Waits before the next one.
    ///
    /// # Errors
    /// The coordinator refused for good.
    pub(crate) async fn wait_after(&mut self, status: Status) -> Result<(), Error> {
        let wait = self.waits.next().filter(|_| is_worth_another_try(&status, &mut self.repeats));
        let Some(wait) = wait else { return Err(Error::refused(self.what, &status)) };
        say(self.what, &status, wait);
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

fn is_worth_another_try(status: &Status, repeats: &mut usize) -> bool {
    match again(status) {
        Again::Never => false,
        Again::AFewTimes => {
            *repeats += 1;
            *repeats <= MOST_REPEATS
        }
        Again::AsLongAsItTakes => true,
    }
}

fn say(what: &str, status: &Status, wait: Duration) {
    warn!(what, code = %status.code(), reason = status.message(), "failed; again in {wait:?}");
}

fn again(status: &Status) -> Again {
    // Only the transport's own errors have a cause here: the connection broke, whatever the code says.
    if status.source().is_some() {
        return Again::AsLongAsItTakes;
    }
    match status.code() {
        Code::Ok | Code::Cancelled | Code::DeadlineExceeded | Code::Aborted | Code::Unavailable => {
            Again::AsLongAsItTakes
        }
        Code::Unknown | Code::ResourceExhausted | Code::Internal => Again::AFewTimes,
        // An earlier try whose connection broke was still being written down when this one asked where to go on.
        Code::FailedPrecondition if is_upload_offset(status) => Again::AFewTimes,
        // The rank hears of the newer ring in a moment, or that it is not wanted any more.
        Code::FailedPrecondition if is_other_epoch(status) => Again::AsLongAsItTakes,
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => Again::Never,
    }
}

fn is_upload_offset(status: &Status) -> bool {
    status.get_details_error_info().is_some_and(|info| info.reason == UPLOAD_OFFSET)
}

fn is_other_epoch(status: &Status) -> bool {
    let failure = status.get_details_precondition_failure();
    failure.is_some_and(|failure| failure.violations.iter().any(|violation| violation.r#type == OTHER_EPOCH))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tonic_types::ErrorDetails;

    use super::*;

    /// The answers to all calls, how many there were, and how it ended.
    async fn calls(mut answer: impl FnMut(usize) -> Result<(), Status>) -> (usize, Result<(), Error>) {
        let made = AtomicUsize::new(0);
        let outcome = until_answered("an upload", || {
            let answer = answer(made.fetch_add(1, Ordering::Relaxed));
            async move { answer }
        })
        .await;
        (made.into_inner(), outcome)
    }

    #[tokio::test(start_paused = true)]
    async fn a_coordinator_that_is_away_is_waited_for_and_a_refusal_is_not_repeated_for_ever() {
        // 1. Away for an hour of waits.
        let (made, outcome) = calls(|call| match call {
            0..1000 => Err(Status::unavailable("tcp connect error")),
            _ => Ok(()),
        })
        .await;
        assert!(outcome.is_ok() && made == 1001);
        // 2. What may be a considered answer.
        for code in [Code::ResourceExhausted, Code::Internal, Code::Unknown] {
            let (made, outcome) = calls(|_| Err(Status::new(code, "too many artifacts"))).await;
            assert_eq!(made, 1 + MOST_REPEATS);
            assert!(
                matches!(&outcome, Err(Error::Refused { message, code: found, .. })
                    if message == "too many artifacts" && *found == code),
                "{outcome:?}"
            );
        }
        // 3. What is one.
        for code in [Code::NotFound, Code::FailedPrecondition, Code::InvalidArgument] {
            let (made, outcome) = calls(|_| Err(Status::new(code, "no"))).await;
            assert!(made == 1 && outcome.is_err(), "{code:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_offset_that_has_moved_is_asked_for_again() {
        let moved = || {
            let details =
                ErrorDetails::with_error_info(UPLOAD_OFFSET, "ringtune", <[(String, String); 0]>::default());
            Status::with_error_details(Code::FailedPrecondition, "offset is 4, 8 bytes are there", details)
        };
        let (made, outcome) = calls(|call| if call < 2 { Err(moved()) } else { Ok(()) }).await;
        assert!(outcome.is_ok() && made == 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_of_another_ring_waits_until_its_rank_knows_that_ring() {
        let other_epoch = |_| {
            let details =
                ErrorDetails::with_precondition_failure_violation(OTHER_EPOCH, "job", "epoch 1, not 2");
            Status::with_error_details(Code::FailedPrecondition, "epoch 1, not 2", details)
        };
        let most = 10 * MOST_REPEATS;
        let (made, outcome) = calls(|call| if call < most { Err(other_epoch(call)) } else { Ok(()) }).await;
        assert!(outcome.is_ok() && made == most + 1);
    }

    /// What tonic makes of a connection that breaks in the middle of a call has the codes of a considered answer.
    #[test]
    fn a_broken_connection_is_no_answer() {
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let status = Status::from_error(Box::new(broken));
        assert_eq!((status.code(), again(&status)), (Code::Unknown, Again::AsLongAsItTakes));
    }
}
