//! The tries of a request, each of which is reported: no user watches a silent screen.

use std::{future::Future, time::Duration};

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::time::{Instant, sleep, timeout};

use crate::{Error, ProgressSender};

/// Silence of a request that is reported.
const SILENCE: Duration = Duration::from_secs(3);
/// Maximal tries at an unreachable server. A network that comes back takes a moment.
const MOST_NOT_REACHED: usize = 5;
/// And the maximal time.
const NOT_REACHED: Duration = Duration::from_secs(10);

/// Timeouts and retries.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Without a byte for so long a connection counts as lost.
    pub stall: Duration,
    /// Tries without any progress before giving up.
    pub tries: usize,
    /// The first wait between two tries; it doubles, up to 30 seconds.
    pub first_wait: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { stall: Duration::from_secs(30), tries: 6, first_wait: Duration::from_millis(500) }
    }
}

impl Patience {
    pub(crate) fn waits(&self) -> ExponentialBackoff {
        ExponentialBuilder::default()
            .with_jitter()
            .with_min_delay(self.first_wait)
            .with_max_delay(Duration::from_secs(30))
            .with_max_times(self.tries)
            .build()
    }
}

/// Tries so far without any progress.
#[derive(Debug)]
pub(crate) struct Tries {
    patience: Patience,
    waits: ExponentialBackoff,
    done: usize,
    began: Instant,
}

impl Tries {
    /// Before the first.
    pub(crate) fn new(patience: &Patience) -> Self {
        Self { patience: *patience, waits: patience.waits(), done: 0, began: Instant::now() }
    }

    /// Something came: the next failure is the first again.
    pub(crate) fn went_on(&mut self) {
        *self = Self::new(&self.patience);
    }

    /// Waits for an answer, and says so where that takes long.
    pub(crate) async fn while_silent<T>(
        &self,
        asking: impl Future<Output = T>,
        what: &str,
        progress: &ProgressSender,
    ) -> T {
        let mut asking = std::pin::pin!(asking);
        if let Ok(answer) = timeout(SILENCE, &mut asking).await {
            return answer;
        }
        progress.remark(format!("{what}: no answer yet (try {})", self.done + 1));
        asking.await
    }

    /// Says what went wrong, and waits before the next try.
    ///
    /// # Errors
    /// The error itself, if another try is useless or patience is over.
    pub(crate) async fn wait_after(&mut self, error: Error, progress: &ProgressSender) -> Result<(), Error> {
        if !error.is_transient() {
            return Err(error);
        }
        self.done += 1;
        let most = match error.is_not_reached() {
            true if self.began.elapsed() >= NOT_REACHED => return Err(self.ended(error)),
            true => MOST_NOT_REACHED.min(self.patience.tries + 1),
            false => self.patience.tries + 1,
        };
        let Some(wait) = self.waits.next().filter(|_| self.done < most) else {
            return Err(self.ended(error));
        };
        let brief = error.brief();
        progress.remark(format!(
            "{brief} (try {} of {most}, the next in {:.1} s)",
            self.done,
            wait.as_secs_f64()
        ));
        tracing::info!(%error, tries = self.done, "trying again");
        sleep(wait).await;
        Ok(())
    }

    /// The last error, with how often and long it was tried.
    fn ended(&self, error: Error) -> Error {
        let seconds = self.began.elapsed().as_secs_f64();
        let tried = |problem: String| format!("{problem} (tried {} times in {seconds:.0} s)", self.done);
        match error {
            Error::NotReached { what, problem } => Error::NotReached { what, problem: tried(problem) },
            Error::Unreachable { what, problem } => Error::Unreachable { what, problem: tried(problem) },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{progress_channel, web::with_retries};

    /// Remarks, error and duration of a request that always fails so.
    async fn told(error: impl Fn() -> Error) -> (Vec<String>, Error, Duration) {
        let (sender, _receiver) = progress_channel();
        let mut remarks = sender.remarks();
        let began = Instant::now();
        let mut said = Vec::new();
        let patience = Patience::default();
        let mut asking = Box::pin(with_retries(&patience, "hf://a/b", &sender, || {
            std::future::ready(Err::<(), _>(error()))
        }));
        let error = loop {
            tokio::select! {
                biased;
                answer = &mut asking => break answer.unwrap_err(),
                Ok(()) = remarks.changed() => said.extend(remarks.borrow_and_update().clone()),
            }
        };
        (said, error, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn whom_nobody_reaches_is_given_up_soon_and_each_try_is_told() {
        let not_reached =
            || Error::NotReached { what: "hf://a/b".to_owned(), problem: "https://hub: no name".to_owned() };
        let (said, error, took) = told(not_reached).await;
        assert!(took < Duration::from_secs(25), "{took:?}");
        assert!(
            said.len() >= 2 && said[0].contains("https://hub: no name (try 1 of 5, the next in "),
            "{said:?}"
        );
        let text = error.to_string();
        assert!(text.contains("tried ") && text.contains("HTTPS_PROXY"), "{text}");
        // A server that answers now and then gets more time.
        let busy = || Error::Unreachable { what: "hf://a/b".to_owned(), problem: "answered 503".to_owned() };
        let (said, _, took) = told(busy).await;
        assert!(took > Duration::from_secs(25), "{took:?}");
        assert!(said.iter().any(|line| line.contains("answered 503 (try 6 of 7, ")), "{said:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_told_after_three_seconds() {
        let (sender, _receiver) = progress_channel();
        let mut remarks = sender.remarks();
        let patience = Patience::default();
        let asking = with_retries(&patience, "hf://a/b", &sender, std::future::pending::<Result<(), Error>>);
        let began = Instant::now();
        tokio::select! {
            _ = asking => panic!("it never answers"),
            Ok(()) = remarks.changed() => {}
        }
        assert_eq!(began.elapsed(), SILENCE);
        assert_eq!(remarks.borrow().as_deref(), Some("hf://a/b: no answer yet (try 1)"));
    }
}
