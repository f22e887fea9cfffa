//! How many calls a second one caller may make.
//!
//! Each caller has a rate of its own, so that none can make the others wait. Calls over it wait for their turns, in the
//! order in which they came: an honest burst only becomes slower. Where so many wait that a turn would be long in coming,
//! a call is refused.
//!
//! Invariant: each call to a daemon's ports waits for its caller's turn before anything is looked up for it. Only
//! callers of the same machine on a port without TLS are not counted.

mod counted;

use std::fmt::{self, Debug};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock, Reference};
use governor::middleware::StateInformationMiddleware;
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};

pub use counted::CountedAs;

/// Burst, in seconds of the rate.
const BURST: u32 = 10;
/// Longest wait for a turn, in seconds.
const PATIENCE: u32 = 5;
/// A refusal takes so long: whoever asks again at once is not to keep the daemon busy with refusals. And the request has come
/// by then; HTTP/2 resets the stream of a call that is answered before, and ends a connection that has many of those.
const REFUSAL: Duration = Duration::from_secs(1);
/// The highest rate.
const MOST: u32 = 1_000_000;
/// Callers that are told apart; beyond that all strangers are one. Members of the cluster are as many as its authority made.
const CALLERS: usize = 1 << 16;
/// How often callers with a full budget are forgotten.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// A caller makes more calls than it may.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "too many calls of {whose}: {per_second} a second are allowed in the long run, {burst} at once, and {waiting} more wait \
     for their turn; make fewer, and try again in {PATIENCE} s"
)]
pub struct TooManyCalls {
    whose: CountedAs,
    per_second: u32,
    burst: u32,
    waiting: u32,
}

impl TooManyCalls {
    /// After this time all calls that wait have had their turn.
    pub fn retry_after(&self) -> Duration {
        Duration::from_secs(PATIENCE.into())
    }
}

/// The rates of all callers; clones are one.
#[derive(Debug, Clone)]
pub struct CallRates(Arc<RwLock<Arc<Rates<DefaultClock>>>>);

impl CallRates {
    /// A rate in calls a second for each caller, from 1 to a million.
    pub fn per_second(calls: usize) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(Rates::new(calls, DefaultClock::default())))))
    }

    /// Changes the rate. Every caller begins anew with a full budget.
    pub fn set_per_second(&self, calls: usize) {
        let mut rates = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if rates.given != calls {
            *rates = Arc::new(Rates::new(calls, DefaultClock::default()));
        }
    }

    fn rates(&self) -> Arc<Rates<DefaultClock>> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for the turn of a call. There is no queue of those that wait: they are as many as there are connections, and
    /// calls under way on each, at most.
    ///
    /// # Errors
    /// Its turn would come too late.
    pub async fn turn(&self, whose: &CountedAs) -> Result<(), TooManyCalls> {
        let turn = self.rates().wait(whose);
        let wait = turn.as_ref().map_or(REFUSAL, |wait| *wait);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        turn.map(drop)
    }
}

type Limiter<C> = RateLimiter<CountedAs, HashMapStateStore<CountedAs>, C, StateInformationMiddleware>;

struct Rates<C: Clock> {
    given: usize,
    per_second: u32,
    interval: Duration,
    /// Its burst is what may come at once and what may wait, so that a call that waits has its turn already.
    limiter: Limiter<C>,
    clock: C,
    began: C::Instant,
    /// Nanoseconds after `began`.
    swept: AtomicU64,
}

impl<C: Clock + Clone> Rates<C> {
    fn new(calls: usize, clock: C) -> Self {
        let per_second = u32::try_from(calls).unwrap_or(MOST).clamp(1, MOST);
        let at_least_one = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let all = at_least_one(per_second * (BURST + PATIENCE));
        let quota = Quota::per_second(at_least_one(per_second)).allow_burst(all);
        Self {
            given: calls,
            per_second,
            interval: quota.replenish_interval(),
            limiter: RateLimiter::hashmap_with_clock(quota, clock.clone()).with_middleware(),
            began: clock.now(),
            clock,
            swept: AtomicU64::new(0),
        }
    }

    /// How long a call has to wait. It counts even if it is given up meanwhile.
    fn wait(&self, whose: &CountedAs) -> Result<Duration, TooManyCalls> {
        self.sweep();
        let is_one_too_many = whose.is_stranger() && self.limiter.len() >= CALLERS;
        let whose = if is_one_too_many { &CountedAs::STRANGERS } else { whose };
        match self.limiter.check_key(whose) {
            Ok(left) => Ok(self.interval * self.waiting().saturating_sub(left.remaining_burst_capacity())),
            Err(_) => Err(TooManyCalls {
                whose: whose.clone(),
                per_second: self.per_second,
                burst: self.per_second * BURST,
                waiting: self.waiting(),
            }),
        }
    }

    /// Calls that may wait.
    fn waiting(&self) -> u32 {
        self.per_second * PATIENCE
    }

    /// Forgets callers whose budget is full again, from time to time.
    fn sweep(&self) {
        let now: u64 = self.clock.now().duration_since(self.began).into();
        let swept = self.swept.load(Ordering::Relaxed);
        let is_due = u128::from(now.saturating_sub(swept)) >= SWEEP_EVERY.as_nanos();
        // One of several at a time does it.
        if is_due && self.swept.compare_exchange(swept, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.limiter.retain_recent();
        }
    }
}

impl<C: Clock> Debug for Rates<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Rates").field("per_second", &self.per_second).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
