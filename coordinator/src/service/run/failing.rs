//! The loop while the store fails: it retries, and does nothing else.
//!
//! What it would decide could not be kept, and what workers say is lost. So nothing is taken in, the state stands still, and
//! its deadlines with it. A full disk is waited for, however long; any other failure only for so long (`STORE_PATIENCE`).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, error, info};

use super::{Loop, STORE_PATIENCE};
use crate::core::Cluster;
use crate::service::batch::Batch;
use crate::service::error::Error;
use crate::service::handle::{Arrived, Refused};
use crate::service::pace::Pace;
use crate::store;

/// After a longer failure the state is recovered as after a restart, so that no worker is lost that could not be heard. A
/// shorter one leaves it as it was.
const MOMENT: Duration = Duration::from_secs(1);

/// Nothing can be stored.
#[derive(Debug)]
pub(super) struct Failing {
    since: Instant,
    /// Since when it fails by something else than a full disk.
    broken_since: Option<Instant>,
}

/// State of the store after a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tried {
    /// It stores.
    Works,
    /// It does not, yet.
    Fails,
    /// It did not for too long.
    IsGivenUp,
}

impl Loop {
    /// Something could not be stored.
    pub(super) fn fails(&mut self, error: Arc<store::Error>) {
        let now = Instant::now();
        self.stale_since.get_or_insert(now);
        let failing = self.failing.get_or_insert(Failing { since: now, broken_since: None });
        failing.broken_since = match &*error {
            store::Error::Full => None,
            _ => Some(failing.broken_since.unwrap_or(now)),
        };
        self.metrics.set_store_failing(true);
        self.waits.store_fails(Some(format!("the coordinator stores nothing: {error}")));
    }

    /// Tries whether something can be stored now, and refuses `waiting` where not.
    pub(super) async fn try_again(&mut self, waiting: &mut Vec<Arrived>) -> Tried {
        let tried = match self.store.probe().await {
            Ok(()) => self.works_again().await,
            Err(error) => Err(error),
        };
        let Err(error) = tried else { return Tried::Works };
        debug!(%error, "still cannot store");
        let error = Arc::new(error);
        self.fails(Arc::clone(&error));
        self.refuse(waiting, &Error::Store(error));
        match self.failing.as_ref().and_then(|failing| failing.broken_since) {
            // The loop is not stuck: it waits for room.
            None => self.notifier.progressed(),
            Some(since) if since.elapsed() > STORE_PATIENCE => {
                error!("nothing could be stored for {} s: ending", STORE_PATIENCE.as_secs());
                return Tried::IsGivenUp;
            }
            Some(_) => {}
        }
        Tried::Fails
    }

    async fn works_again(&mut self) -> Result<(), store::Error> {
        if self.stale_since.is_some_and(|since| since.elapsed() > MOMENT) {
            self.begin_anew().await?;
        }
        if let Some(failing) = self.failing.take() {
            info!(seconds = failing.since.elapsed().as_secs(), "what changes is stored again");
        }
        self.metrics.set_store_failing(false);
        self.waits.store_fails(None);
        Ok(())
    }

    /// Takes the state as it is stored, as after a restart: rings wait for their members, which say hello again.
    async fn begin_anew(&mut self) -> Result<(), store::Error> {
        let recovered = self.store.recover().await?;
        let now = self.clock.now();
        for session in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.end_session(session, "the coordinator could not store anything for a while".to_owned());
        }
        self.unheard.clear();
        let options = self.state.options().clone();
        self.pace = Pace::new(options.session_timeout, now);
        self.state = Arc::new(Cluster::recover(options, recovered, now));
        self.snapshot.send_replace(self.state.clone());
        self.stale_since = None;
        self.show_counts();
        Ok(())
    }

    fn refuse(&mut self, waiting: &mut Vec<Arrived>, error: &Error) {
        let mut batch = Batch::new(&self.state);
        for Arrived { at, command } in waiting.drain(..) {
            match command.refuse(error) {
                Refused::Answered => {}
                Refused::Unheard(sender) => {
                    self.end_session(
                        sender.session,
                        "the coordinator could not store what you said".to_owned(),
                    );
                    self.unheard.push(sender);
                }
                Refused::Goes(command) => self.take(&mut batch, Arrived { at, command: *command }),
            }
        }
        self.state = Arc::new(batch.next);
    }
}
