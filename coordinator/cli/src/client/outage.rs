//! A stream that breaks, and the time until it is there again.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use backon::{BackoffBuilder as _, ExponentialBackoff};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::{
    Client, ClientError,
    retry::{backoff, is_late, is_transient},
    transport_problem,
};

/// How long a coordinator may be away before a watcher gives up.
const PATIENCE: Duration = Duration::from_secs(120);
const LONGEST_DELAY: Duration = Duration::from_secs(2);
/// A coordinator that lives says so every ten seconds.
const SILENCE: Duration = Duration::from_secs(30);

/// Waits for an answer of a stream, but not for one that is broken without anybody having noticed.
pub(super) async fn unless_silent<T>(answer: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    let silent = |_| Err(Status::unavailable(format!("nothing was heard for {} s", SILENCE.as_secs())));
    tokio::time::timeout(SILENCE, answer).await.unwrap_or_else(silent)
}

/// The outages of one watcher.
#[derive(Debug, Default)]
pub(super) struct Outages {
    now: Option<Outage>,
}

/// The time since the last answer that came before the connection broke.
#[derive(Debug)]
struct Outage {
    since: Instant,
    delays: ExponentialBackoff,
    /// The user knows that the coordinator is away.
    announced: bool,
}

impl Outages {
    /// An answer came.
    pub(super) fn over(&mut self) {
        self.now = None;
    }

    /// A stream was opened; whether that is news.
    pub(super) fn back(&mut self) -> bool {
        self.now.as_mut().is_some_and(|outage| std::mem::take(&mut outage.announced))
    }

    /// The stream broke, or could not be opened. Waits until it is to be opened again; what it returns is to be told
    /// to the user first.
    ///
    /// # Errors
    /// The coordinator's refusal, or the end of patience.
    pub(super) async fn after(
        &mut self,
        client: &Client,
        doing: &'static str,
        status: Status,
    ) -> Result<Option<String>, ClientError> {
        let asked_again = status.code() == Code::Aborted && status.get_details_retry_info().is_some();
        if !is_transient(&status) && !is_late(&status) && !asked_again {
            return Err(client.failure(doing, status));
        }
        let problem = transport_problem(&status);
        let outage = self.now.get_or_insert_with(|| Outage {
            since: Instant::now(),
            delays: backoff().without_max_times().build(),
            announced: false,
        });
        if outage.since.elapsed() > PATIENCE {
            return Err(ClientError::Unreachable { url: client.url.clone(), problem });
        }
        if !outage.announced {
            outage.announced = true;
            return Ok(Some(problem));
        }
        tokio::time::sleep(outage.delays.next().unwrap_or(LONGEST_DELAY)).await;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silent_stream_counts_as_broken() {
        let began = tokio::time::Instant::now();
        let silent = unless_silent(std::future::pending::<Result<(), Status>>()).await.expect_err("broken");
        assert_eq!(began.elapsed(), SILENCE);
        assert!(is_transient(&silent), "{silent:?}");
        let late = async {
            tokio::time::sleep(SILENCE - Duration::from_secs(1)).await;
            Ok(7)
        };
        assert_eq!(unless_silent(late).await.expect("in time"), 7);
    }
}
