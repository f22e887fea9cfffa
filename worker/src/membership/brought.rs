//! Certificates from elsewhere: others replace the files, and the worker follows.

use std::time::Duration;

use ringtune_security::{CredentialPaths, Credentials, Trust};
use ringtune_shared::ids::WorkerId;
use tokio::{sync::Notify, time::timeout};
use tracing::{error, info};

use super::{
    enter::{read, worker_of},
    text_of,
};

/// Interval of checks of the files.
const LOOK: Duration = Duration::from_secs(60);

/// Looks at the files every minute, and when `reread` asks for it. Never ends.
pub(super) async fn keep(paths: CredentialPaths, trust: Trust, worker: WorkerId, reread: &Notify) {
    let mut said = None;
    loop {
        let _ = timeout(LOOK, reread.notified()).await;
        // Half replaced files do not match, and are read again the next time.
        let problem = match read(&paths).await {
            Ok(found) => take(&trust, worker, found).err(),
            Err(error) => Some(error.to_string()),
        };
        if problem != said
            && let Some(problem) = &problem
        {
            let path = paths.chain.display();
            error!(%path, problem, "security.certificate cannot be used: the worker keeps what it has");
        }
        said = problem;
    }
}

/// Uses what was found, if it is another one.
fn take(trust: &Trust, worker: WorkerId, found: Credentials) -> Result<(), String> {
    let is_new = trust.credentials().is_none_or(|old| old.chain_pem() != found.chain_pem());
    let has_other_roots = *found.roots() != trust.roots();
    if !is_new && !has_other_roots {
        return Ok(());
    }
    let theirs = worker_of(&found)?;
    if theirs != worker {
        return Err(format!("it is that of worker {theirs}, and this is worker {worker}"));
    }
    let (roots, serial) = (found.roots().clone(), found.serial().to_owned());
    let until = text_of(found.validity().until);
    trust.set_credentials(found).map_err(|error| error.to_string())?;
    trust.set_roots(roots).map_err(|error| error.to_string())?;
    info!(serial, until, "the certificate was replaced");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::testing::Cluster;

    #[test]
    fn a_new_certificate_of_the_same_worker_is_taken_and_no_other() {
        let cluster = Cluster::new();
        let ours = cluster.worker();
        let trust = Trust::of(ours.credentials.clone()).unwrap();
        let next = cluster.certify(ours.id);
        take(&trust, ours.id, next.clone()).unwrap();
        assert_eq!(trust.credentials().unwrap().serial(), next.serial());
        let error = take(&trust, ours.id, cluster.worker().credentials).unwrap_err();
        assert!(error.contains("this is worker"), "{error}");
        assert!(take(&trust, ours.id, Cluster::new().certify(ours.id)).is_err());
        assert_eq!(trust.credentials().unwrap().serial(), next.serial());
        // Roots that were added.
        cluster.rotate();
        take(&trust, ours.id, next.clone().with_roots(cluster.roots())).unwrap();
        assert_eq!(trust.roots(), cluster.roots());
    }

    #[tokio::test(start_paused = true)]
    async fn the_files_are_looked_at_when_somebody_asks_for_it() {
        let cluster = Cluster::new();
        let ours = cluster.worker();
        let folder = tempfile::tempdir().unwrap();
        // A folder of our own has the same texts: the key stands beside the chain.
        let own = folder.path().join("own");
        let path = |name: &str| own.join(name);
        let paths =
            CredentialPaths { chain: path("identity.pem"), key: path("identity.pem"), ca: path("trust.pem") };
        let trust = Trust::of(ours.credentials.clone()).unwrap();
        let (next, reread) = (cluster.certify(ours.id), Notify::new());
        next.store(&own).unwrap();
        let began = tokio::time::Instant::now();
        let changed = async {
            while trust.credentials().unwrap().serial() != next.serial() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        reread.notify_one();
        tokio::select! {
            () = keep(paths, trust.clone(), ours.id, &reread) => {}
            () = changed => {}
        }
        assert!(began.elapsed() < LOOK, "{:?}", began.elapsed());
    }
}
