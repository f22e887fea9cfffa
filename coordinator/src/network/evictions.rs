//! Workers all of whose certificates are revoked lose their places, also those that are not connected just now.

use std::collections::BTreeSet;

use ringtune_security::{Revoked, Role};
use ringtune_shared::ids::WorkerId;
use tokio_util::sync::CancellationToken;

use super::authority::Pki;
use crate::service::Handle;

/// Evicts each worker as it comes among the revoked, until `shutdown`.
pub(crate) async fn watch(pki: Pki, handle: Handle, shutdown: CancellationToken) {
    let mut changes = pki.changes();
    let mut known = BTreeSet::new();
    let follow = async {
        loop {
            let revoked = workers(&pki.trust().revoked());
            for worker in revoked.difference(&known) {
                handle.evict(*worker, None).await;
            }
            known = revoked;
            changes.next().await;
        }
    };
    tokio::select! {
        () = follow => {}
        () = shutdown.cancelled() => {}
    }
}

/// Those of the revoked members that are workers.
fn workers(revoked: &Revoked) -> BTreeSet<WorkerId> {
    let members = revoked.members.iter().filter(|(role, _)| *role == Role::Worker);
    members.filter_map(|(_, name)| name.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_workers_are_evicted() {
        let worker = WorkerId::new();
        let members = [(Role::Worker, worker.to_string()), (Role::Admin, WorkerId::new().to_string())];
        let revoked = Revoked { members: members.into(), ..Revoked::default() };
        assert_eq!(workers(&revoked), BTreeSet::from([worker]));
    }
}
