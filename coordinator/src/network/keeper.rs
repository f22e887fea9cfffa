//! Renews certificates, for as long as the coordinator runs.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::authority::{Pki, PkiError};

/// How often is looked: certificates from elsewhere may be replaced, and clocks be set, at any time.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// After a failure.
const AGAIN: Duration = Duration::from_secs(2);
/// How often is said that a certificate from elsewhere ends.
const SAY_EVERY: Duration = Duration::from_secs(3600);
/// Between two looks at least.
const PAUSE: Duration = Duration::from_secs(1);

/// Renews what is due until `shutdown`; looks at once when `reread` asks for it.
pub(crate) async fn keep(pki: Pki, reread: Arc<Notify>, shutdown: CancellationToken) {
    let mut wait = PAUSE;
    let mut said: Option<Instant> = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = reread.notified() => {}
            () = shutdown.cancelled() => return,
        }
        wait = match look(&pki).await {
            Ok(due) => wait_until(due, SystemTime::now()),
            Err(error) => {
                warn!(%error, "cannot renew the coordinator's certificates: trying again");
                // With the shortest life, 10 seconds, a third of it is little more.
                AGAIN
            }
        };
        let is_unsaid = said.is_none_or(|said| said.elapsed() >= SAY_EVERY);
        if let Some(until) = pki.to_replace(SystemTime::now()).filter(|_| is_unsaid) {
            said = Some(Instant::now());
            let days = until.duration_since(SystemTime::now()).unwrap_or_default().as_secs() / 86_400;
            warn!(
                days_left = days,
                "the coordinator's certificate ends: replace the file of security.certificate"
            );
        }
        debug!(?wait, "the next look at the coordinator's certificates");
    }
}

async fn look(pki: &Pki) -> Result<SystemTime, PkiError> {
    let pki = pki.clone();
    tokio::task::spawn_blocking(move || pki.renew(SystemTime::now())).await?
}

fn wait_until(due: SystemTime, now: SystemTime) -> Duration {
    let left = due.duration_since(now).unwrap_or_default();
    left.clamp(PAUSE, LOOK_EVERY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_when_something_is_due_and_once_in_a_minute() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let after = |seconds| wait_until(now + Duration::from_secs(seconds), now).as_secs();
        assert_eq!((after(0), after(1), after(40), after(600)), (1, 1, 40, 60));
        assert_eq!(wait_until(now - Duration::from_secs(9), now), PAUSE);
    }
}
