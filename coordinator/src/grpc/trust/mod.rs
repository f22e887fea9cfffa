//! What a worker's session hears of certificates: whom to trust, and that its own was revoked.

use ringtune_proto::v1;
use ringtune_security::{Caller, Identity, Peer, Role};
use tonic::Status;

use super::access::role_to_wire;
use crate::network::authority::{Changes, Pki};

/// What a worker is told of whom to trust: right after its welcome, and on each change.
pub(super) struct TrustNews {
    pki: Pki,
    changes: Changes,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The worker was not welcomed yet.
    Waiting,
    /// It is to be told now.
    Due,
    /// It knows all.
    Told,
}

impl TrustNews {
    pub(super) fn new(pki: Pki) -> Self {
        let changes = pki.changes();
        Self { pki, changes, stage: Stage::Waiting }
    }

    /// The worker was welcomed.
    pub(super) fn begin(&mut self) {
        self.stage = Stage::Due;
    }

    /// The next news; never, where the port speaks no TLS. Nothing is lost when this is dropped.
    pub(super) async fn next(news: Option<&mut Self>) -> v1::SessionResponse {
        let Some(news) = news else { return std::future::pending().await };
        match news.stage {
            Stage::Waiting => return std::future::pending().await,
            Stage::Due => {}
            Stage::Told => news.changes.next().await,
        }
        news.stage = Stage::Told;
        let trust = v1::session_response::Message::Trust(trust(&news.pki));
        v1::SessionResponse { message: Some(trust) }
    }
}

/// Whom to trust now.
fn trust(pki: &Pki) -> v1::Trust {
    let revoked = pki.trust().revoked();
    let member =
        |(role, name): &(Role, String)| v1::Member { role: role_to_wire(*role).into(), name: name.clone() };
    v1::Trust {
        roots_pem: pki.trust().roots().pem(),
        revoked_serials: revoked.serials.iter().cloned().collect(),
        revoked_members: revoked.members.iter().map(member).collect(),
    }
}

/// Whether a session's certificate is revoked.
pub(super) struct Revocation {
    pki: Pki,
    changes: Changes,
    identity: Identity,
}

impl Revocation {
    /// Of the certificate of a session; none where there is none.
    ///
    /// # Errors
    /// Nothing is done for the holder of this certificate.
    pub(super) fn of(pki: Option<&Pki>, peer: Option<&Peer>) -> Result<Option<Self>, Status> {
        match (pki, peer.map(|peer| &peer.caller)) {
            (_, Some(Caller::Refused(reason))) => Err(Status::unauthenticated(reason.to_string())),
            (Some(pki), Some(Caller::Known(identity))) => {
                let (pki, changes, identity) = (pki.clone(), pki.changes(), identity.clone());
                Ok(Some(Self { pki, changes, identity }))
            }
            _ => Ok(None),
        }
    }

    /// Whether it is revoked now.
    pub(super) fn is_revoked(&self) -> bool {
        self.pki.trust().revoked().has(&self.identity)
    }

    /// Waits until it is revoked.
    pub(super) async fn comes(revocation: Option<&mut Self>) {
        let Some(revocation) = revocation else { return std::future::pending().await };
        while !revocation.is_revoked() {
            revocation.changes.next().await;
        }
    }
}

#[cfg(test)]
mod tests;
