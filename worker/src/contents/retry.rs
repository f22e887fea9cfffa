//! Calls to the coordinator that are made again when they fail.
//!
//! One that is away is waited for, and so is one that says that it cannot do it now, as long as it is there to say so. Only an
//! answer that may be final is counted.

use std::{error::Error as _, future::Future, time::Duration};

use backon::{BackoffBuilder as _, ExponentialBackoff};
use ringtune_shared::condition::Condition;
use tokio::time::Instant;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use tracing::warn;

use super::Error;
use crate::{journal::Journal, reconnect};

/// A call whose failure may be the coordinator's considered answer is repeated so often.
const MOST_REPEATS: usize = 5;
/// Time for an owner over quota to make room: a training that has done its steps is worth a while,
/// but not its workers for ever.
const OWNER_PATIENCE: Duration = Duration::from_secs(3600);
/// The coordinator's word for an upload that goes on where its file does not end.
const UPLOAD_OFFSET: &str = "UPLOAD_OFFSET";
/// And for what names another ring than the job has now.
const OTHER_EPOCH: &str = "EPOCH";

/// Whether what failed is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    /// Retrying gives the same answer.
    Never,
    /// It may be otherwise a moment later, or never.
    AFewTimes,
    /// There was no answer: the coordinator is away, and will be back.
    AsLongAsItTakes,
    /// The coordinator says what it waits for itself.
    WhileItIs(Condition),
}

/// Calls until there is an answer or a refusal. Whoever drops it ends it, also in the middle of a wait. `what` is for people,
/// `journal` theirs.
///
/// # Errors
/// What the coordinator refused for good.
pub(crate) async fn until_answered<T, Answer>(
    journal: Option<&Journal>,
    what: &str,
    mut call: impl FnMut() -> Answer,
) -> Result<T, Error>
where
    Answer: Future<Output = Result<T, Status>>,
{
    let mut tries = Tries::of(journal, what);
    loop {
        match call().await {
            Ok(answer) => {
                tries.went_on().await;
                return Ok(answer);
            }
            Err(status) => tries.wait_after(status).await?,
        }
    }
}

/// The tries of what goes on where the try before stopped: of those, not the call but the waits are repeated.
pub(crate) struct Tries<'a> {
    journal: Option<&'a Journal>,
    what: &'a str,
    waits: ExponentialBackoff,
    repeats: usize,
    /// The condition that the coordinator last reported, and since when.
    waiting: Option<(Condition, Instant)>,
}

impl<'a> Tries<'a> {
    /// Before the first. `what` is for people.
    pub(crate) fn of(journal: Option<&'a Journal>, what: &'a str) -> Self {
        Self { journal, what, waits: reconnect::waits().build(), repeats: 0, waiting: None }
    }

    /// Waits before the next one.
    ///
    /// # Errors
    /// The coordinator refused for good.
    pub(crate) async fn wait_after(&mut self, status: Status) -> Result<(), Error> {
        let again = again(&status);
        if let Again::WhileItIs(condition) = again {
            self.say_waiting(condition, &status).await;
        }
        let is_worth_it = match again {
            Again::Never => false,
            Again::AFewTimes => {
                self.repeats += 1;
                self.repeats <= MOST_REPEATS
            }
            Again::WhileItIs(Condition::OverQuota) => {
                self.waiting.is_none_or(|(_, since)| since.elapsed() < OWNER_PATIENCE)
            }
            Again::AsLongAsItTakes | Again::WhileItIs(_) => true,
        };
        let wait = self.waits.next().filter(|_| is_worth_it);
        let Some(wait) = wait else { return Err(Error::refused(self.what, &status)) };
        warn!(
            what = self.what,
            code = %status.code(),
            reason = status.message(),
            "failed; again in {wait:?}"
        );
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// It is getting on: waits and tries begin anew.
    pub(crate) async fn went_on(&mut self) {
        if let (Some((_, since)), Some(journal)) = (self.waiting, self.journal) {
            let seconds = since.elapsed().as_secs();
            journal.info(format!("{}: going on after {seconds} s", self.what)).await;
        }
        *self = Self::of(self.journal, self.what);
    }

    /// Tells whoever watches the job what it waits for, when that begins and when it is something else.
    async fn say_waiting(&mut self, condition: Condition, status: &Status) {
        let known = self.waiting;
        let since = known.map_or_else(Instant::now, |(_, since)| since);
        self.waiting = Some((condition, since));
        let Some(journal) = self.journal.filter(|_| known.is_none_or(|(before, _)| before != condition))
        else {
            return;
        };
        let (what, message) = (self.what, status.message());
        let until = match condition {
            Condition::OverQuota => {
                format!("it goes on once there is room, for {} min at most", OWNER_PATIENCE.as_secs() / 60)
            }
            _ => "everything goes on by itself".to_owned(),
        };
        journal.warn(format!("waiting: {what}: {message}; {until}")).await;
    }
}

fn again(status: &Status) -> Again {
    // Only the transport's own errors have a cause here: the connection broke, whatever the code says.
    if status.source().is_some() {
        return Again::AsLongAsItTakes;
    }
    if let Some(condition) = condition(status) {
        return Again::WhileItIs(condition);
    }
    match status.code() {
        Code::Ok | Code::Cancelled | Code::DeadlineExceeded | Code::Aborted | Code::Unavailable => {
            Again::AsLongAsItTakes
        }
        // A coordinator of an earlier release does not say whether a full disk or a full list is meant.
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

fn condition(status: &Status) -> Option<Condition> {
    let info = status.get_details_error_info()?;
    Condition::of(&info.domain, &info.reason)
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

    use ringtune_shared::{
        condition::DOMAIN,
        ids::{Epoch, JobId},
    };
    use tokio::sync::mpsc;
    use tonic_types::ErrorDetails;

    use super::*;
    use crate::session::{Level, RankEvent, RankKey};

    /// The answers to all calls, how many there were, and how it ended.
    async fn calls(mut answer: impl FnMut(usize) -> Result<(), Status>) -> (usize, Result<(), Error>) {
        let made = AtomicUsize::new(0);
        let outcome = until_answered(None, "an upload", || {
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

    fn passing(condition: Condition) -> Status {
        let details =
            ErrorDetails::with_error_info(condition.as_str(), DOMAIN, <[(String, String); 0]>::default());
        Status::with_error_details(Code::ResourceExhausted, "the coordinator's disk is full", details)
    }

    #[tokio::test(start_paused = true)]
    async fn what_passes_by_itself_is_waited_for_as_long_as_it_is_told_and_told_once() {
        let (events, mut told) = mpsc::channel(64);
        let journal = Journal::new(RankKey { job: JobId::new(), epoch: Epoch::FIRST }, Some(0), events);
        for condition in Condition::ALL.into_iter().filter(|one| *one != Condition::OverQuota) {
            // Hours.
            let mut left = 3000;
            let call = || {
                left -= 1;
                std::future::ready(if left > 0 { Err(passing(condition)) } else { Ok(()) })
            };
            until_answered(Some(&journal), "metrics.csv", call).await.unwrap();
            let mut lines = Vec::new();
            while let Ok((_, RankEvent::Log(level, line))) = told.try_recv() {
                lines.push((level, line));
            }
            assert_eq!(lines.len(), 2, "{lines:?}");
            let expected =
                "waiting: metrics.csv: the coordinator's disk is full; everything goes on by itself";
            assert_eq!(lines[0], (Level::Warn, expected.to_owned()));
            assert!(lines[1].1.starts_with("metrics.csv: going on after "), "{lines:?}");
        }
        // An owner who makes no room is not waited for for ever: workers are held meanwhile.
        let began = Instant::now();
        let (_, outcome) = calls(|_| Err(passing(Condition::OverQuota))).await;
        assert!(outcome.is_err() && began.elapsed() >= OWNER_PATIENCE, "{outcome:?}");
        assert!(began.elapsed() < OWNER_PATIENCE + 2 * reconnect::LONGEST);
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

    /// tonic gives a broken connection the same codes as a real answer.
    #[test]
    fn a_broken_connection_is_no_answer() {
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let status = Status::from_error(Box::new(broken));
        assert_eq!((status.code(), again(&status)), (Code::Unknown, Again::AsLongAsItTakes));
    }
}
