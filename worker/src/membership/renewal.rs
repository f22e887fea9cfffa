//! Keeps the certificate of the cluster's own authority alive: gets the next one in time, or at once when the authority
//! has a new root. What comes is on the disk before it is used.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ringtune_security::{Credentials, Csr, Roots, Trust, Validity};
use ringtune_shared::ids::WorkerId;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tracing::{error, info, warn};

use super::{
    MembershipError,
    call::{self, CallError},
    enter::store,
    text_of,
};
use crate::coordinator::connector;

/// Longest sleep without a look at the clock, which may be set.
const LONGEST_SLEEP: Duration = Duration::from_secs(600);
/// Between two tries, at least and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));
/// All workers of a cluster learn of a new root at the same moment; their renewals are spread over this time.
const SPREAD: Duration = Duration::from_secs(2);

/// A renewed certificate.
#[derive(Debug)]
pub(super) struct Renewal {
    pub(super) trust: Trust,
    pub(super) worker: WorkerId,
    /// Its folder.
    pub(super) folder: PathBuf,
    /// The coordinator's.
    pub(super) url: String,
    pub(super) roots_changed: Arc<Notify>,
}

/// A renewal that did not go well. The certificate stays as it was.
#[derive(Debug, thiserror::Error)]
enum RenewalError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("what the coordinator gave cannot be used: {0}")]
    Useless(String),
    #[error(transparent)]
    Membership(#[from] MembershipError),
}

/// Never ends. `got_at`: when this process got the certificate; none: it was there.
pub(super) async fn keep(renewal: Renewal, mut got_at: Option<SystemTime>) {
    // The stored roots.
    let mut stored_roots = renewal.trust.credentials().map(|credentials| credentials.roots().clone());
    let spread = spread(renewal.worker);
    loop {
        let Some(credentials) = renewal.trust.credentials() else { return std::future::pending().await };
        // 1. Roots that the coordinator named outlast this process.
        let roots = renewal.trust.roots();
        if stored_roots.as_ref() != Some(&roots) {
            match store(Credentials::clone(&credentials).with_roots(roots.clone()), &renewal.folder).await {
                Ok(()) => {
                    info!(roots = roots.ders().len(), "the cluster's authority has other roots: kept");
                    stored_roots = Some(roots.clone());
                }
                Err(error) => error!(%error, "the cluster's new roots cannot be kept"),
            }
        }
        // 2. Wait.
        let now = SystemTime::now();
        let is_of_newest = is_signed_by_newest(&credentials, &roots);
        let due = if is_of_newest { due_at(credentials.validity(), got_at, spread) } else { now };
        if let Ok(left) = due.duration_since(now)
            && !left.is_zero()
        {
            let _ = timeout(left.min(LONGEST_SLEEP), renewal.roots_changed.notified()).await;
            continue;
        }
        if !is_of_newest {
            sleep(SPREAD.mul_f64(spread)).await;
        }
        // 3. Ask.
        match renewal.renew().await {
            Ok(renewed) => {
                got_at = Some(SystemTime::now());
                stored_roots = Some(renewed.roots().clone());
                let until = text_of(renewed.validity().until);
                info!(serial = renewed.serial(), until, "the certificate was renewed");
                if is_signed_by_newest(&renewed, &renewal.trust.roots()) {
                    continue;
                }
            }
            Err(error) => renewal.complain(&error, credentials.validity()),
        }
        sleep(pause(credentials.validity(), SystemTime::now())).await;
    }
}

impl Renewal {
    async fn renew(&self) -> Result<Credentials, RenewalError> {
        let (key, csr) = Csr::make().map_err(MembershipError::from)?;
        let certified = call::renew(&self.url, connector(Some(&self.trust)), &csr).await?;
        let renewed = call::credentials(key, &certified, self.worker).map_err(RenewalError::Useless)?;
        if renewed.cluster() != Some(self.trust.cluster()) {
            return Err(RenewalError::Useless("it is of another cluster".to_owned()));
        }
        store(renewed.clone(), &self.folder).await?;
        self.trust.set_roots(renewed.roots().clone()).map_err(MembershipError::from)?;
        self.trust.set_credentials(renewed.clone()).map_err(MembershipError::from)?;
        Ok(renewed)
    }

    fn complain(&self, reason: &RenewalError, valid: Validity) {
        let until = text_of(valid.until);
        if valid.until <= SystemTime::now() {
            error!(%reason, until, "the certificate has ended and cannot be renewed: {ADVICE}");
        } else if matches!(reason, RenewalError::Call(CallError::Disowned(_))) {
            error!(%reason, until, "the certificate is refused: {ADVICE}");
        } else {
            warn!(%reason, until, coordinator = self.url, "the certificate is not renewed yet");
        }
    }
}

/// What to do about a certificate that is not taken any more.
pub(crate) const ADVICE: &str = "run `ringtune token create --role worker` where the coordinator runs, and start this \
    worker once with --join TOKEN";

/// Whether the newest root signed a certificate. Each comes with the roots that there were when it was made, and the
/// newest of them is the one that signs.
fn is_signed_by_newest(credentials: &Credentials, roots: &Roots) -> bool {
    let newest = roots.ders().last().map(|der| Roots::new(vec![der.clone()]).map(|root| root.pem()));
    match newest {
        Some(Ok(pem)) => credentials.chain_pem().contains(&pem),
        _ => true,
    }
}

/// When the next one is due: after two thirds of a certificate's time, and up to a twelfth later, so that workers that
/// joined together do not renew together. `got_at`: certificates begin before they are given, and two thirds of a short
/// one may be over by then; so they count from there.
fn due_at(valid: Validity, got_at: Option<SystemTime>, spread: f64) -> SystemTime {
    let begin = got_at.map_or(valid.from, |got_at| got_at.max(valid.from));
    let length = valid.until.duration_since(begin).unwrap_or_default();
    begin + length.mul_f64(2.0 / 3.0 + spread / 12.0)
}

/// Wait before the next try: the nearer the end, the shorter.
fn pause(valid: Validity, now: SystemTime) -> Duration {
    match valid.until.duration_since(now) {
        Ok(left) => (left / 8).clamp(PAUSES.0, PAUSES.1),
        Err(_) => PAUSES.1,
    }
}

/// From 0 to 1, for each worker another: ids are random.
fn spread(worker: WorkerId) -> f64 {
    let [.., high, low] = *worker.0.as_bytes();
    f64::from(u16::from_be_bytes([high, low])) / f64::from(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::testing::Cluster;

    fn valid(from: u64, until: u64) -> Validity {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        Validity { from: at(from), until: at(until) }
    }

    #[test]
    fn the_next_one_is_due_after_two_thirds_and_not_for_all_at_once() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let rounded =
            |due: SystemTime| due.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64().round();
        assert_eq!(rounded(due_at(valid(0, 1200), None, 0.0)), 800.0);
        assert_eq!(rounded(due_at(valid(0, 1200), None, 1.0)), 900.0);
        // A certificate for a minute, backdated by an hour.
        assert_eq!(rounded(due_at(valid(0, 3660), Some(at(3600)), 0.0)), 3640.0);
        assert_eq!(rounded(due_at(valid(0, 60), Some(at(100)), 0.0)), 100.0);
    }

    #[test]
    fn tries_are_more_frequent_towards_the_end() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(pause(valid(0, 100_000), at(0)), PAUSES.1);
        assert_eq!(pause(valid(0, 100_000), at(99_920)), Duration::from_secs(10));
        assert_eq!(pause(valid(0, 100_000), at(99_999)), PAUSES.0);
        assert_eq!(pause(valid(0, 100_000), at(200_000)), PAUSES.1);
    }

    #[test]
    fn a_certificate_shows_which_root_signed_it() {
        let cluster = Cluster::new();
        let before = cluster.worker().credentials;
        assert!(is_signed_by_newest(&before, &cluster.roots()));
        cluster.rotate();
        assert!(!is_signed_by_newest(&before, &cluster.roots()));
        assert!(is_signed_by_newest(&cluster.worker().credentials, &cluster.roots()));
    }

    #[test]
    fn workers_are_spread() {
        let found: Vec<f64> = (0..200).map(|_| spread(WorkerId::new())).collect();
        assert!(found.iter().all(|spread| (0.0..=1.0).contains(spread)));
        assert!(found.iter().any(|spread| *spread < 0.3) && found.iter().any(|spread| *spread > 0.7));
    }
}
