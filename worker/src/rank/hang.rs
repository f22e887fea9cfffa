//! When a computation that does not end is taken for one that never will.
//!
//! The service manager's watchdog is the last resort behind it, for what nobody times: it waits for [`SAY`] longer than the
//! limit that is found here, so that a worker that can still say why it ends does.

use std::{
    collections::VecDeque,
    future::Future,
    time::{Duration, Instant},
};

use tokio::time::timeout;

use super::Error;
use crate::engine::{EngineError, EngineHandle};

/// Multiple of the usual duration that counts as a hang on a machine under any load.
const TIMES_THE_USUAL: u32 = 20;
/// And nothing shorter is.
const AT_LEAST: Duration = Duration::from_secs(60);
/// A worker that hangs says so to its coordinator and ends within this time.
const SAY: Duration = Duration::from_secs(60);
/// Number of newest durations that define the usual one.
const MOST_KNOWN: usize = 101;
/// And from so many at least: the first of a job asks for memory.
const FEWEST_KNOWN: usize = 3;

/// Durations of computations of one size.
#[derive(Clone, Debug, Default)]
pub(crate) struct Durations {
    newest: VecDeque<Duration>,
}

impl Durations {
    /// Waits for one on the engine. One that takes far longer than the others will never come.
    ///
    /// # Errors
    /// The engine's; [`Error::Hung`].
    pub(crate) async fn timed<T>(
        &mut self,
        engine: &EngineHandle,
        computing: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, Error> {
        let started = Instant::now();
        engine.activity().allow_silence(self.patience());
        let computed = match self.limit() {
            None => computing.await,
            Some(limit) => timeout(limit, computing).await.map_err(|_| Error::Hung { limit })?,
        };
        let computed = computed.map_err(Error::of_engine)?;
        self.add(started.elapsed());
        Ok(computed)
    }

    /// Takes one in.
    fn add(&mut self, duration: Duration) {
        if self.newest.len() >= MOST_KNOWN {
            self.newest.pop_front();
        }
        self.newest.push_back(duration);
    }

    /// How long the next one may be silent before others than its rank take it for dead.
    fn patience(&self) -> Duration {
        self.limit().map_or(Duration::ZERO, |limit| limit + SAY)
    }

    /// After what time the next one hangs. None: it is not known how long one takes.
    fn limit(&self) -> Option<Duration> {
        hangs_after(self.newest.iter().copied().collect())
    }
}

/// Twenty times the median, and a minute at least.
fn hangs_after(mut known: Vec<Duration>) -> Option<Duration> {
    if known.len() < FEWEST_KNOWN {
        return None;
    }
    known.sort_unstable();
    let median = known.get(known.len() / 2).copied()?;
    Some(median.saturating_mul(TIMES_THE_USUAL).max(AT_LEAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_twenty_times_the_median_hangs_but_nothing_within_a_minute() {
        let after = |seconds: &[u64]| {
            hangs_after(seconds.iter().map(|seconds| Duration::from_secs(*seconds)).collect())
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        // Of two nobody knows which is the usual one.
        assert_eq!([after(&[]), after(&[1, 900])], [None, None]);
        assert_eq!([after(&[1, 1, 1]), after(&[0, 0, 0])], [seconds(60); 2]);
        // A single slow one changes nothing.
        assert_eq!(after(&[5, 400, 4]), seconds(100));
        assert_eq!(after(&[5, 5, 5, 400, 5]), seconds(100));
    }

    #[test]
    fn only_the_newest_count() {
        let mut durations = Durations::default();
        for seconds in [100; 200].into_iter().chain([10; MOST_KNOWN]) {
            durations.add(Duration::from_secs(seconds));
        }
        assert_eq!(durations.limit(), Some(Duration::from_secs(200)));
        assert_eq!(durations.newest.len(), MOST_KNOWN);
    }
}
