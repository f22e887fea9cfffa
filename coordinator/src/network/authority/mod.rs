//! Who signs the cluster's certificates, and whom the coordinator believes.
//!
//! Either the coordinator has its own CA, or its certificate comes from elsewhere, by path: then it signs nothing. Its
//! own certificate is in memory alone. Those of the machine's admin are in the state folder, for `ringtune` on the same
//! machine.
//!
//! Invariant: whatever changes whom the coordinator believes goes through `Pki`. The ports, the sessions and the
//! workers follow by themselves.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use ringtune_security::{
    Authority, AuthorityError, Cluster, CredentialPaths, Credentials, CredentialsError, Csr, Holder,
    IssueError, Issued, Leaf, Revoked, Role, Roots, Trust, TrustError, Validity,
};
use tokio::sync::watch;
use tokio::task::JoinError;
use tracing::{info, warn};

/// The name in the certificate of the machine's own admin.
pub const LOCAL_ADMIN: &str = "local";

/// What cannot be signed, changed or believed.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// There is no CA here.
    #[error(
        "this cluster's certificates come from elsewhere (security.certificate, security.key and security.ca of the \
         coordinator): ask whoever makes them"
    )]
    FromElsewhere,
    /// The CA.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The CA is gone, and those who have certificates of it believe no other one.
    #[error(
        "{folder}/authority has no root of the cluster's certificate authority, and the database has certificates that it \
         signed. A new one would make them worthless, so none was made. Put the folder back, from where it was moved to or out \
         of a backup (docs/operating.md: When the database is damaged or gone). To begin anew, so that all workers and people \
         have to join again: `ringtune-coordinator adopt-contents --state-dir {folder}`",
        folder = .0.display()
    )]
    Lost(PathBuf),
    /// A certificate that cannot be made.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// Certificates that cannot be read, used or kept.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// Certificates that do not belong together.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The certificate from elsewhere is over, or has not begun.
    #[error("security.certificate: {} is not valid now: look at its dates and at this machine's clock", path.display())]
    NotNow {
        /// The certificate.
        path: PathBuf,
    },
    /// A thread died.
    #[error("making a certificate ended unexpectedly: {0}")]
    Task(#[from] JoinError),
}

impl PkiError {
    /// The user has to change a setting or a file that it names.
    pub(crate) fn is_usage(&self) -> bool {
        match self {
            Self::NotNow { .. } | Self::Trust(_) => true,
            Self::Issue(IssueError::Name { .. } | IssueError::TooManyNames { .. }) => true,
            Self::Credentials(error) => !matches!(error, CredentialsError::Make(_)),
            _ => false,
        }
    }
}

/// Where the coordinator's own CA is, and what it makes for the coordinator itself.
#[derive(Debug, Clone)]
pub struct OwnAuthority {
    /// The folder of the CA.
    pub folder: PathBuf,
    /// The folder of the certificate of the machine's own admin.
    pub admin: PathBuf,
    /// Host names and addresses of the coordinator, besides localhost.
    pub names: Vec<String>,
}

/// A root, as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootView {
    /// From 1 on.
    pub number: u32,
    /// Of its DER: what a join token holds.
    pub sha256: [u8; 32],
    /// From when until when it is valid.
    pub valid: Validity,
}

/// Who signs, and whom the coordinator believes. Cheap to clone. Only where the ports speak TLS.
#[derive(Debug, Clone)]
pub struct Pki {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    trust: Trust,
    source: CertificateSource,
    life: Duration,
    /// The roots, the newest last. Marked as changed by whatever the workers are to hear of.
    told: watch::Sender<Arc<[RootView]>>,
}

/// Where certificates come from.
#[derive(Debug)]
enum CertificateSource {
    /// This coordinator signs. Locked by threads that may block, and never over an await.
    Own(Mutex<Authority>, OwnAuthority),
    /// Somebody else does.
    Elsewhere(CredentialPaths),
}

/// A subscription to changes of roots and revocations: see [`Pki::changes`].
#[derive(Debug)]
pub struct Changes(watch::Receiver<Arc<[RootView]>>);

impl Changes {
    /// Waits until the roots or the revoked are others than before. Nothing is lost when this is dropped.
    pub async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Pki {
    /// Opens the coordinator's own CA, or makes it, and the certificates of the coordinator and of the machine's admin.
    /// `life`: how long the certificates are valid. Blocks.
    ///
    /// # Errors
    /// The folders cannot be used, are open to everybody, or hold damaged files; a name cannot be in a certificate.
    pub fn own(own: OwnAuthority, life: Duration, now: SystemTime) -> Result<Self, PkiError> {
        let authority = Authority::open_or_make(&own.folder, now)?;
        let credentials = own_credentials(&authority, &own.names, life, now)?;
        let (cluster, roots) = (authority.cluster(), authority.roots().clone());
        let trust = Trust::new(cluster, Some(credentials), roots, Revoked::default())?;
        let told = watch::Sender::new(views(&authority.numbers(), authority.roots()));
        keep_admin(&authority, &own, &Revoked::default(), life, now)?;
        let source = CertificateSource::Own(Mutex::new(authority), own);
        Ok(Self { shared: Arc::new(Shared { trust, source, life, told }) })
    }

    /// Takes certificates from elsewhere. Blocks.
    ///
    /// # Errors
    /// A file cannot be used, the certificate is not valid now, or nothing in it names a cluster.
    pub fn elsewhere(paths: CredentialPaths, life: Duration, now: SystemTime) -> Result<Self, PkiError> {
        let credentials = Credentials::read(&paths)?;
        let valid = credentials.validity();
        if now < valid.from || valid.until < now {
            return Err(PkiError::NotNow { path: paths.chain });
        }
        let told = watch::Sender::new(views(&[], credentials.roots()));
        let trust = Trust::of(credentials)?;
        Ok(Self {
            shared: Arc::new(Shared { trust, source: CertificateSource::Elsewhere(paths), life, told }),
        })
    }

    /// Which cluster this is.
    pub fn cluster(&self) -> Cluster {
        self.shared.trust.cluster()
    }

    /// The trust that all ports follow.
    pub fn trust(&self) -> &Trust {
        &self.shared.trust
    }

    /// Whether this coordinator signs. If not, certificates come from elsewhere.
    pub fn issues(&self) -> bool {
        matches!(self.shared.source, CertificateSource::Own(..))
    }

    /// The hash of the newest root, which join tokens hold. None where certificates come from elsewhere.
    pub fn root_hash(&self) -> Option<[u8; 32]> {
        self.issues().then(|| self.shared.told.borrow().last().map(|root| root.sha256))?
    }

    /// The roots, the oldest first. The last one signs.
    pub fn roots(&self) -> Vec<RootView> {
        self.shared.told.borrow().to_vec()
    }

    /// What the workers are to hear of, from now on.
    pub fn changes(&self) -> Changes {
        Changes(self.shared.told.subscribe())
    }

    /// Signs a certificate for a worker or a person. Of the request nothing but its public key is used.
    ///
    /// # Errors
    /// Certificates come from elsewhere, the request cannot be used, or nobody can have that role and name.
    pub async fn issue(&self, csr_der: Vec<u8>, role: Role, name: String) -> Result<Issued, PkiError> {
        let life = self.shared.life;
        self.with_authority(move |_, authority, _| {
            let leaf = Leaf { holder: Holder::Member { role, name }, valid_for: life };
            Ok(authority.issue(&csr_der, &leaf, SystemTime::now())?)
        })
        .await
    }

    /// Makes the next root, which signs from now on; the one before it is still trusted. The coordinator's own certificate
    /// is of the new one at once, and all workers are told.
    ///
    /// # Errors
    /// Certificates come from elsewhere, there are two roots already, or the new one cannot be kept.
    pub async fn rotate(&self) -> Result<(), PkiError> {
        self.with_authority(|shared, authority, own| {
            let now = SystemTime::now();
            authority.rotate(now)?;
            info!(roots = ?authority.numbers(), "the CA has a new root");
            shared.take_roots(authority, own, now)
        })
        .await
    }

    /// Stops trusting the older root.
    ///
    /// # Errors
    /// Certificates come from elsewhere, there is one root only, or its file cannot be removed.
    pub async fn retire(&self) -> Result<(), PkiError> {
        self.with_authority(|shared, authority, own| {
            authority.retire()?;
            info!(roots = ?authority.numbers(), "the CA's older root is trusted no more");
            shared.take_roots(authority, own, SystemTime::now())
        })
        .await
    }

    /// Replaces the list of those who are revoked. Their connections are closed, and the sessions of workers among them
    /// are ended.
    pub fn set_revoked(&self, revoked: Revoked) {
        if *self.shared.trust.revoked() != revoked {
            self.shared.trust.set_revoked(revoked);
            self.shared.told.send_modify(|_| ());
        }
    }

    /// When the coordinator's certificate from elsewhere ends, if it is time to replace it.
    pub(super) fn to_replace(&self, now: SystemTime) -> Option<SystemTime> {
        let valid = self.trust().credentials()?.validity();
        (!self.issues() && is_due(valid, now)).then_some(valid.until)
    }

    /// Renews the coordinator's own certificate and the admin's, where it is time for it; of certificates from elsewhere,
    /// reads those that were replaced. Says until when nothing is to be done. Blocks.
    pub(super) fn renew(&self, now: SystemTime) -> Result<SystemTime, PkiError> {
        let Shared { trust, source, life, .. } = &*self.shared;
        match source {
            CertificateSource::Elsewhere(paths) => {
                self.shared.read_again(paths)?;
                Ok(now)
            }
            CertificateSource::Own(authority, own) => {
                let authority = lock(authority);
                // What needs no disk comes first: a slow one is not to cost the ports their certificate.
                let valid = trust.credentials().map(|credentials| credentials.validity());
                let until = match valid.filter(|valid| !is_due(*valid, now)) {
                    Some(valid) => valid.renew_at(),
                    None => {
                        let next = own_credentials(&authority, &own.names, *life, now)?;
                        let until = next.renew_at();
                        trust.set_credentials(next)?;
                        until
                    }
                };
                let admin_until = keep_admin(&authority, own, &trust.revoked(), *life, now)?;
                Ok(until.min(admin_until))
            }
        }
    }

    /// Does something with the CA, on a thread that may block.
    async fn with_authority<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared, &mut Authority, &OwnAuthority) -> Result<T, PkiError> + Send + 'static,
    ) -> Result<T, PkiError> {
        let shared = self.shared.clone();
        let done = tokio::task::spawn_blocking(move || match &shared.source {
            CertificateSource::Own(authority, own) => work(&shared, &mut lock(authority), own),
            CertificateSource::Elsewhere(_) => Err(PkiError::FromElsewhere),
        });
        done.await?
    }
}

impl Shared {
    /// After the CA's roots changed: they are trusted, told, and sign the coordinator's own certificates.
    fn take_roots(&self, authority: &Authority, own: &OwnAuthority, now: SystemTime) -> Result<(), PkiError> {
        // First of all: what is made below must be believed.
        self.trust.set_roots(authority.roots().clone())?;
        self.told.send_replace(views(&authority.numbers(), authority.roots()));
        self.trust.set_credentials(own_credentials(authority, &own.names, self.life, now)?)?;
        keep_admin(authority, own, &self.trust.revoked(), self.life, now)?;
        Ok(())
    }

    /// Takes certificates from elsewhere that were replaced.
    fn read_again(&self, paths: &CredentialPaths) -> Result<(), PkiError> {
        let read = Credentials::read(paths)?;
        if *read.roots() != self.trust.roots() {
            self.trust.set_roots(read.roots().clone())?;
            self.told.send_replace(views(&[], read.roots()));
            info!(ca = %paths.ca.display(), "took the new roots");
        }
        let known = self.trust.credentials();
        if known.is_none_or(|known| known.chain_pem() != read.chain_pem()) {
            self.trust.set_credentials(read)?;
            info!(certificate = %paths.chain.display(), "took the new certificate");
        }
        Ok(())
    }
}

fn lock(authority: &Mutex<Authority>) -> MutexGuard<'_, Authority> {
    authority.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether it is time for the next certificate: also where the clock was set back to before this one.
fn is_due(valid: Validity, now: SystemTime) -> bool {
    now < valid.from || valid.renew_at() <= now
}

fn make(
    authority: &Authority,
    holder: Holder,
    life: Duration,
    now: SystemTime,
) -> Result<Credentials, PkiError> {
    let (key, csr) = Csr::make()?;
    let issued = authority.issue(csr.der(), &Leaf { holder, valid_for: life }, now)?;
    Ok(Credentials::new(key, &issued.chain_pem(), authority.roots().clone())?)
}

/// A certificate for the coordinator's ports.
fn own_credentials(
    authority: &Authority,
    names: &[String],
    life: Duration,
    now: SystemTime,
) -> Result<Credentials, PkiError> {
    make(authority, Holder::Coordinator { names: names.to_vec() }, life, now)
}

/// Makes the certificate of the machine's admin, if there is none that is good for longer. Until when it is. One that was
/// revoked, as it got into wrong hands, is replaced: whoever reads the folder is the admin.
fn keep_admin(
    authority: &Authority,
    own: &OwnAuthority,
    revoked: &Revoked,
    life: Duration,
    now: SystemTime,
) -> Result<SystemTime, PkiError> {
    let kept = match Credentials::load(&own.admin) {
        Ok(kept) => kept,
        // The folder cannot be used: what would be written there is lost.
        Err(error @ CredentialsError::File(_)) => return Err(error.into()),
        Err(error) => {
            warn!(%error, "the certificate of this machine's admin is damaged: making another one");
            None
        }
    };
    let is_good = |kept: &Credentials| {
        kept.roots() == authority.roots()
            && !is_due(kept.validity(), now)
            && !revoked.has_serial(kept.serial())
    };
    if let Some(good) = kept.filter(is_good) {
        return Ok(good.renew_at());
    }
    let holder = Holder::Member { role: Role::Admin, name: LOCAL_ADMIN.to_owned() };
    let next = make(authority, holder, life, now)?;
    next.store(&own.admin)?;
    Ok(next.renew_at())
}

/// `numbers`: the roots' numbers. Empty for certificates from elsewhere, whose roots are numbered from 1.
fn views(numbers: &[u32], roots: &Roots) -> Arc<[RootView]> {
    let numbers = numbers.iter().copied().map(Some).chain(std::iter::repeat(None));
    let all = roots.hashes().into_iter().zip(roots.validities()).zip(numbers).zip(1..);
    all.filter_map(|(((sha256, valid), number), count)| {
        Some(RootView { number: number.unwrap_or(count), sha256, valid: valid? })
    })
    .collect()
}

#[cfg(test)]
mod tests;
