//! Who may do what: callers, roles, tokens, certificates.
//!
//! [`table`] says who may make which call, [`decide`] whether this caller may make this one, and [`Access`] knows the
//! tokens and certificates. The ports ask and answer.
//!
//! Invariant: what is revoked is stored before anybody is told so.
//!
//! Invariant: each method of both ports has a row in the table, or the coordinator does not start. A layer
//! (`grpc/access/layer.rs`) decides each call by its row before any handler sees it; a handler only narrows down which
//! jobs the call reaches (`grpc/reach.rs`). For a submitter another one's job does not exist.
//!
//! Invariant: what several callers may want at once, the last use of a token or the id of a worker, is decided in one
//! transaction of the store.

mod attempts;
mod audit;
mod bearer;
mod caller;
mod calls;
mod certificates;
mod error;
mod good_tokens;
mod http;
pub mod table;
mod tokens;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringtune_security::CallRates;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

pub use audit::Audit;
pub use bearer::{Identified, TokenWatch};
pub use caller::{Call, Caller, Denied, Known, Proof, Reach, Reason, decide};
pub use certificates::{AuthorityView, Certified, Joining, Which, WhoIsIt};
pub use error::Error;
pub use http::NotAnswered;
pub use tokens::{Made, NewToken};

use crate::core::Time;
use crate::metrics::Metrics;
use crate::network::authority::Pki;
use crate::settings::LimitSettings;
use crate::store::{self, access::AccessStore};
use attempts::Attempts;
use good_tokens::GoodTokens;

/// Who may do what. Cheap to clone.
#[derive(Clone)]
pub struct Access(Arc<Shared>);

struct Shared {
    /// None: nothing is authenticated here.
    secured: Option<Secured>,
    metrics: Metrics,
    /// Of both ports together.
    calls: CallRates,
    /// Never locked over anything that waits.
    attempts: Mutex<Attempts>,
}

/// What there is where the ports speak TLS.
struct Secured {
    pki: Pki,
    store: Arc<dyn AccessStore>,
    /// Never locked over anything that waits.
    good_tokens: Mutex<GoodTokens>,
    /// Told when a token is revoked.
    tokens: watch::Sender<()>,
    /// Certificates are given and revoked, and roots changed, one after the other: each knows which root signed it, and
    /// whom the ports turn away is always what was stored last.
    turns: Semaphore,
}

impl Access {
    /// As the ports are protected: `pki` is there where they speak TLS.
    ///
    /// # Errors
    /// The store's.
    pub async fn start(
        pki: Option<&Pki>,
        store: Arc<dyn AccessStore>,
        metrics: Metrics,
        limits: &LimitSettings,
    ) -> Result<Self, store::Error> {
        match pki {
            Some(pki) => Self::secured(pki.clone(), store, metrics, limits).await,
            None => Ok(Self::plain(metrics, limits)),
        }
    }

    /// Where nothing is authenticated: everybody may do everything.
    pub fn plain(metrics: Metrics, limits: &LimitSettings) -> Self {
        Self::new(None, metrics, limits)
    }

    /// Where the ports speak TLS. They know from here on who is revoked.
    ///
    /// # Errors
    /// The store's.
    pub async fn secured(
        pki: Pki,
        store: Arc<dyn AccessStore>,
        metrics: Metrics,
        limits: &LimitSettings,
    ) -> Result<Self, store::Error> {
        if let Some(oldest) = pki.roots().first().filter(|_| pki.issues()) {
            store.forget_before(oldest.number).await?;
        }
        pki.set_revoked(store.revoked(now()).await?);
        let secured = Secured {
            pki,
            store,
            good_tokens: Mutex::default(),
            tokens: watch::Sender::default(),
            turns: Semaphore::new(1),
        };
        Ok(Self::new(Some(secured), metrics, limits))
    }

    fn new(secured: Option<Secured>, metrics: Metrics, limits: &LimitSettings) -> Self {
        let calls = CallRates::per_second(limits.calls_per_second);
        Self(Arc::new(Shared { secured, metrics, calls, attempts: Mutex::default() }))
    }

    /// Whether callers are asked who they are.
    pub fn is_secured(&self) -> bool {
        self.0.secured.is_some()
    }

    /// Changes how many calls a second each caller may make.
    pub fn set_calls_per_second(&self, calls: usize) {
        self.0.calls.set_per_second(calls);
    }

    /// Counts a call that was not made.
    pub fn count(&self, denied: &Denied) {
        self.0.metrics.call_denied(denied.reason.as_str());
    }

    /// Removes tokens and certificates that have expired.
    ///
    /// # Errors
    /// The store's.
    pub async fn sweep(&self) -> Result<(), store::Error> {
        match &self.0.secured {
            Some(secured) => secured.store.sweep(now()).await,
            None => Ok(()),
        }
    }

    fn part(&self) -> Result<&Secured, Error> {
        self.0.secured.as_ref().ok_or(Error::NothingAuthenticated)
    }

    fn attempts(&self) -> MutexGuard<'_, Attempts> {
        self.0.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses to look at a token from where too many wrong ones came.
    fn check_attempts(&self, address: IpAddr) -> Result<(), Denied> {
        match self.attempts().blocked(address, Instant::now()) {
            None => Ok(()),
            Some(left) => {
                let seconds = left.as_secs() + 1;
                let text = format!("too many wrong tokens came from {address}: try again in {seconds} s");
                Err(Denied::until_later(Reason::TooManyTokens, text, Duration::from_secs(seconds)))
            }
        }
    }

    /// Notes a wrong token.
    fn wrong(&self, address: IpAddr, text: impl Into<String>) -> Denied {
        self.attempts().wrong(address, Instant::now());
        Denied::new(Reason::Token, text)
    }
}

/// Does a change to its end, also where the call that asked for it is given up.
async fn to_its_end<T: Send + 'static>(
    change: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    tokio::spawn(change).await.unwrap_or(Err(Error::Interrupted))
}

/// The time by the wall clock, which is what certificates go by.
fn now() -> Time {
    time_of(SystemTime::now())
}

fn time_of(time: SystemTime) -> Time {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Time(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// A time for people: 2026-11-22T23:42:11Z.
fn shown(time: Time) -> String {
    prost_types::Timestamp { seconds: time.0.div_euclid(1000), nanos: 0 }.to_string()
}

#[cfg(test)]
pub(crate) mod tests;
