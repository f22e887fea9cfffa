//! Follows the coordinator's changes of trust.

use std::{str::FromStr as _, sync::Arc};

use ringtune_proto::v1;
use ringtune_security::{Revoked, Role, Roots, RootsError, Trust, TrustError};
use tokio::sync::Notify;

/// The change is malformed. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// Its roots are none.
    #[error(transparent)]
    Roots(#[from] RootsError),
    /// It is another cluster's.
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// Believes what the coordinator says in a session. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Following {
    pub(super) trust: Trust,
    /// The coordinator's own authority gave the certificate; otherwise the roots are those of a file.
    pub(super) is_joined: bool,
    /// The roots are others now.
    pub(super) roots_changed: Arc<Notify>,
}

impl Following {
    /// The current trust.
    pub fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Believes it from now on. Connections of whoever is revoked end at once.
    ///
    /// # Errors
    /// It makes no sense: nothing changes.
    pub fn follow(&self, said: &v1::Trust) -> Result<(), FollowError> {
        if self.is_joined {
            let roots = Roots::from_pem(&said.roots_pem)?;
            if roots != self.trust.roots() {
                self.trust.set_roots(roots)?;
                self.roots_changed.notify_one();
            }
        }
        let revoked = revoked(said);
        if revoked != *self.trust.revoked() {
            self.trust.set_revoked(revoked);
        }
        Ok(())
    }
}

fn revoked(said: &v1::Trust) -> Revoked {
    let member = |member: &v1::Member| Some((role(member.role())?, member.name.clone()));
    Revoked {
        serials: said.revoked_serials.iter().map(|serial| serial.to_ascii_lowercase()).collect(),
        members: said.revoked_members.iter().filter_map(member).collect(),
    }
}

/// None: a role of a later release, which may do nothing here.
fn role(role: v1::Role) -> Option<Role> {
    let name = role.as_str_name().strip_prefix("ROLE_")?.to_ascii_lowercase();
    Role::from_str(&name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::membership::testing::Cluster;

    #[test]
    fn roots_and_revocations_are_believed_and_nonsense_changes_nothing() {
        let cluster = Cluster::new();
        let (ours, theirs) = (cluster.worker(), Cluster::new());
        let trust = Trust::of(ours.credentials.clone()).unwrap();
        let following =
            |is_joined| Following { trust: trust.clone(), is_joined, roots_changed: Arc::default() };
        cluster.rotate();
        let said = v1::Trust {
            roots_pem: cluster.roots_pem(),
            revoked_serials: vec!["0AFF".to_owned()],
            revoked_members: vec![
                v1::Member { role: v1::Role::Worker.into(), name: "some".to_owned() },
                v1::Member { role: 77, name: "later".to_owned() },
            ],
        };
        // Roots from a file stay.
        let before = trust.roots();
        following(false).follow(&said).unwrap();
        assert_eq!((trust.roots(), trust.revoked().serials.len()), (before, 1));
        following(true).follow(&said).unwrap();
        assert_eq!(trust.roots().ders().len(), 2);
        assert!(trust.revoked().has_serial("0aff"));
        assert_eq!(trust.revoked().members.len(), 1);
        for roots_pem in [String::new(), "nothing".to_owned(), theirs.roots_pem()] {
            let nonsense = v1::Trust { roots_pem, ..v1::Trust::default() };
            assert!(following(true).follow(&nonsense).is_err());
            assert_eq!((trust.roots().ders().len(), trust.revoked().serials.len()), (2, 1));
        }
    }
}
