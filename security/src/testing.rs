//! What tests of several modules make: CAs and certificates.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::authority::{Authority, Holder, Leaf};
use crate::credentials::{Credentials, Csr};
use crate::identity::Role;

/// A new CA; its folder is gone, what it holds in memory is not.
pub(crate) fn authority() -> Authority {
    let folder = tempfile::tempdir().unwrap();
    Authority::open_or_make(&folder.path().join("pki"), SystemTime::now()).unwrap()
}

/// Credentials that a CA gives for an hour from `now` on.
pub(crate) fn credentials_at(authority: &Authority, holder: Holder, now: SystemTime) -> Credentials {
    let (key, csr) = Csr::make().unwrap();
    let leaf = Leaf { holder, valid_for: Duration::from_secs(3600) };
    let issued = authority.issue(csr.der(), &leaf, now).unwrap();
    Credentials::new(key, &issued.chain_pem(), authority.roots().clone()).unwrap()
}

/// As above, from now on.
pub(crate) fn credentials(authority: &Authority, holder: Holder) -> Credentials {
    credentials_at(authority, holder, SystemTime::now())
}

/// The coordinator, without names of its own.
pub(crate) fn coordinator() -> Holder {
    Holder::Coordinator { names: Vec::new() }
}

/// A worker.
pub(crate) fn worker(id: Uuid) -> Holder {
    Holder::Member { role: Role::Worker, name: id.to_string() }
}

/// A person.
pub(crate) fn person(role: Role, name: &str) -> Holder {
    Holder::Member { role, name: name.to_owned() }
}
