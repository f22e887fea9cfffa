//! A cluster's authority for tests.

use std::{
    sync::Mutex,
    time::{Duration, SystemTime},
};

use ringtune_security::{Authority, Credentials, Csr, Holder, Identity, Leaf, Role, Roots, Trust};
use ringtune_shared::ids::WorkerId;

/// An authority in a folder that goes with it.
pub(crate) struct Cluster {
    authority: Mutex<Authority>,
    _folder: tempfile::TempDir,
}

/// Somebody who has a certificate.
pub(crate) struct Certified {
    pub(crate) id: WorkerId,
    pub(crate) credentials: Credentials,
}

impl Certified {
    pub(crate) fn trust(&self) -> Trust {
        Trust::of(self.credentials.clone()).unwrap()
    }

    pub(crate) fn identity(&self) -> Identity {
        self.credentials.identity().unwrap().clone()
    }
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open_or_make(&folder.path().join("pki"), SystemTime::now()).unwrap();
        Self { authority: Mutex::new(authority), _folder: folder }
    }

    pub(crate) fn roots(&self) -> Roots {
        self.authority.lock().unwrap().roots().clone()
    }

    pub(crate) fn roots_pem(&self) -> String {
        self.roots().pem()
    }

    pub(crate) fn rotate(&self) {
        self.authority.lock().unwrap().rotate(SystemTime::now()).unwrap();
    }

    /// A new worker.
    pub(crate) fn worker(&self) -> Certified {
        let id = WorkerId::new();
        Certified { id, credentials: self.certify(id) }
    }

    /// Another certificate of a worker.
    pub(crate) fn certify(&self, worker: WorkerId) -> Credentials {
        let holder = Holder::Member { role: Role::Worker, name: worker.to_string() };
        self.give(holder, Duration::from_secs(3600))
    }

    /// A person's.
    pub(crate) fn person(&self, role: Role) -> Credentials {
        self.give(Holder::Member { role, name: "ada".to_owned() }, Duration::from_secs(3600))
    }

    pub(crate) fn give(&self, holder: Holder, valid_for: Duration) -> Credentials {
        let (key, csr) = Csr::make().unwrap();
        let chain = self.sign(csr.der(), holder, valid_for);
        Credentials::new(key, &chain, self.roots()).unwrap()
    }

    pub(crate) fn sign(&self, csr: &[u8], holder: Holder, valid_for: Duration) -> String {
        let leaf = Leaf { holder, valid_for };
        self.authority.lock().unwrap().issue(csr, &leaf, SystemTime::now()).unwrap().chain_pem()
    }
}
