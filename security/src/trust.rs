//! What a process believes just now: its credentials, the roots, who is revoked.
//!
//! Listeners and connectors look at it with each new connection, so that a renewal, a rotation or a revocation needs no
//! restart. Open connections of whoever is revoked end, those that came and those that were made.
//!
//! A revocation ends open connections on both sides, and so does the end of a certificate; a rotation ends none.
//! Whoever wants a connection for longer asks when its certificates end (`Connector::valid`, `Peer`) and opens another
//! one before: a worker its session (`worker/src/session/link.rs`), a ring all its connections (`News`).

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls::RootCertStore;
use tokio::sync::watch;

use crate::credentials::Credentials;
use crate::identity::{Cluster, Identity, Role};
use crate::roots::Roots;

/// Something that cannot be believed together with the rest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// Nothing says which cluster it is.
    #[error(
        "neither the certificate nor the CA names a cluster: name one as ringtune://CLUSTER/ROLE/NAME in the certificate"
    )]
    NoCluster,
    /// It is another cluster's.
    #[error("the {what} is that of the cluster {theirs}, and this is the cluster {ours}")]
    OtherCluster {
        /// "certificate" or "CA".
        what: &'static str,
        /// What it names.
        theirs: Cluster,
        /// What was expected.
        ours: Cluster,
    },
}

/// Whose certificates are no longer good, though their time is not over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revoked {
    /// Serial numbers of certificates, in lower-case hex.
    pub serials: BTreeSet<String>,
    /// Workers and people of whom no certificate is good, by role and name.
    pub members: BTreeSet<(Role, String)>,
}

impl Revoked {
    /// Whether it was this one's certificate, or all of them.
    pub fn has(&self, identity: &Identity) -> bool {
        self.has_serial(&identity.serial) || self.members.contains(&(identity.role, identity.name.clone()))
    }

    /// Whether it was the certificate with that serial number.
    pub fn has_serial(&self, serial: &str) -> bool {
        self.serials.contains(serial)
    }
}

/// The trust at one moment.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) cluster: Cluster,
    pub(crate) credentials: Option<Arc<Credentials>>,
    pub(crate) roots: Roots,
    /// The roots, as rustls wants them.
    pub(crate) store: Arc<RootCertStore>,
    pub(crate) revoked: Arc<Revoked>,
}

/// A handle on a process's trust; all clones are one.
#[derive(Debug, Clone)]
pub struct Trust {
    state: Arc<watch::Sender<Arc<State>>>,
}

impl Trust {
    /// From its parts. Without credentials nothing can be served, and calls go out without a certificate.
    ///
    /// # Errors
    /// The credentials or the roots are another cluster's.
    pub fn new(
        cluster: Cluster,
        credentials: Option<Credentials>,
        roots: Roots,
        revoked: Revoked,
    ) -> Result<Self, TrustError> {
        if let Some(credentials) = &credentials {
            check("certificate", credentials.cluster(), cluster)?;
        }
        check("CA", roots.cluster(), cluster)?;
        let (store, revoked) = (Arc::new(roots.store()), Arc::new(revoked));
        let state = State { cluster, credentials: credentials.map(Arc::new), roots, store, revoked };
        Ok(Self { state: Arc::new(watch::Sender::new(Arc::new(state))) })
    }

    /// All that a worker or a person has: credentials, and the roots that came with them.
    ///
    /// # Errors
    /// They name no cluster.
    pub fn of(credentials: Credentials) -> Result<Self, TrustError> {
        let cluster = credentials.cluster().ok_or(TrustError::NoCluster)?;
        let roots = credentials.roots().clone();
        Self::new(cluster, Some(credentials), roots, Revoked::default())
    }

    /// The roots of a cluster's own CA alone, for whoever calls with a bearer token.
    ///
    /// # Errors
    /// They name no cluster.
    pub fn of_roots(roots: Roots) -> Result<Self, TrustError> {
        let cluster = roots.cluster().ok_or(TrustError::NoCluster)?;
        Self::new(cluster, None, roots, Revoked::default())
    }

    /// After a renewal: new connections use these, open ones stay. The roots stay as they are.
    ///
    /// # Errors
    /// They are another cluster's: nothing changes.
    pub fn set_credentials(&self, credentials: Credentials) -> Result<(), TrustError> {
        check("certificate", credentials.cluster(), self.cluster())?;
        let credentials = Some(Arc::new(credentials));
        self.change(|old| State { credentials, ..copy(old) });
        Ok(())
    }

    /// After a rotation: new connections are checked by these, open ones stay.
    ///
    /// # Errors
    /// They are another cluster's: nothing changes.
    pub fn set_roots(&self, roots: Roots) -> Result<(), TrustError> {
        check("CA", roots.cluster(), self.cluster())?;
        let store = Arc::new(roots.store());
        self.change(|old| State { roots, store, ..copy(old) });
        Ok(())
    }

    /// Replaces the list of those revoked. Their open connections are closed.
    pub fn set_revoked(&self, revoked: Revoked) {
        self.change(|old| State { revoked: Arc::new(revoked), ..copy(old) });
    }

    /// Adds to the list of those revoked. Their open connections are closed.
    pub fn revoke(&self, add: impl FnOnce(&mut Revoked)) {
        self.change(|old| {
            let mut revoked = Revoked::clone(&old.revoked);
            add(&mut revoked);
            State { revoked: Arc::new(revoked), ..copy(old) }
        });
    }

    /// Which cluster this is.
    pub fn cluster(&self) -> Cluster {
        self.state.borrow().cluster
    }

    /// Its own credentials, if it has any.
    pub fn credentials(&self) -> Option<Arc<Credentials>> {
        self.state.borrow().credentials.clone()
    }

    /// Whom it believes.
    pub fn roots(&self) -> Roots {
        self.state.borrow().roots.clone()
    }

    /// Who is revoked.
    pub fn revoked(&self) -> Arc<Revoked> {
        self.state.borrow().revoked.clone()
    }

    pub(crate) fn state(&self) -> Arc<State> {
        self.state.borrow().clone()
    }

    pub(crate) fn follow(&self) -> watch::Receiver<Arc<State>> {
        self.state.subscribe()
    }

    fn change(&self, next: impl FnOnce(&State) -> State) {
        self.state.send_modify(|state| *state = Arc::new(next(state)));
    }
}

fn copy(state: &State) -> State {
    State {
        cluster: state.cluster,
        credentials: state.credentials.clone(),
        roots: state.roots.clone(),
        store: state.store.clone(),
        revoked: state.revoked.clone(),
    }
}

/// What names no cluster may be anybody's: certificates and CAs from elsewhere.
fn check(what: &'static str, theirs: Option<Cluster>, ours: Cluster) -> Result<(), TrustError> {
    match theirs {
        Some(theirs) if theirs != ours => Err(TrustError::OtherCluster { what, theirs, ours }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn all_clones_follow_each_change() {
        let authority = testing::authority();
        let first = testing::credentials(&authority, testing::person(Role::Admin, "anna"));
        let trust = Trust::of(first.clone()).unwrap();
        let (other, mut follow) = (trust.clone(), trust.follow());
        let second = testing::credentials(&authority, testing::person(Role::Admin, "anna"));
        trust.set_credentials(second.clone()).unwrap();
        assert_eq!(other.credentials().unwrap().serial(), second.serial());
        assert!(follow.has_changed().unwrap());
        follow.mark_unchanged();
        trust.revoke(|revoked| revoked.serials.extend([first.serial().to_owned()]));
        trust.revoke(|revoked| revoked.members.extend([(Role::Observer, "bob".to_owned())]));
        assert!(follow.has_changed().unwrap());
        assert!(other.revoked().has(first.identity().unwrap()));
        assert!(!other.revoked().has(second.identity().unwrap()));
        let bob = Identity { role: Role::Observer, name: "bob".into(), ..second.identity().unwrap().clone() };
        assert!(other.revoked().has(&bob));
        other.set_revoked(Revoked::default());
        assert!(!trust.revoked().has(&bob));
    }

    #[test]
    fn another_clusters_things_are_refused_and_nothing_changes() {
        let (ours, theirs) = (testing::authority(), testing::authority());
        let anna = testing::credentials(&ours, testing::person(Role::Admin, "anna"));
        let trust = Trust::of(anna.clone()).unwrap();
        let other = testing::credentials(&theirs, testing::person(Role::Admin, "anna"));
        assert!(matches!(trust.set_credentials(other.clone()), Err(TrustError::OtherCluster { .. })));
        assert!(matches!(
            trust.set_roots(theirs.roots().clone()),
            Err(TrustError::OtherCluster { what: "CA", .. })
        ));
        assert_eq!((trust.cluster(), trust.roots()), (ours.cluster(), ours.roots().clone()));
        assert_eq!(trust.credentials().unwrap().serial(), anna.serial());
        let mixed = Trust::of(other.with_roots(ours.roots().clone()));
        assert!(matches!(mixed, Err(TrustError::OtherCluster { .. })));
        assert_eq!(Trust::of_roots(ours.roots().clone()).unwrap().cluster(), ours.cluster());
    }
}
