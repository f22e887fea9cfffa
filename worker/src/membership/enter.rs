//! A worker gets its certificate at its start: it has one, one from elsewhere is given, or a token is exchanged for
//! one.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use backon::BackoffBuilder as _;
use ringtune_security::{
    Cluster, CredentialPaths, Credentials, CredentialsError, Csr, JoinToken, Role, Trust,
};
use ringtune_shared::{daemon::settings::Protection, ids::WorkerId};
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use super::{
    CertificateSource, Membership, MembershipError,
    call::{self, Asking, CallError},
    text_of,
};
use crate::{coordinator::connector, reconnect, settings::Settings, state_folder::CREDENTIALS};

/// A worker that wants to join.
#[derive(Debug)]
pub struct Entering<'a> {
    /// Of the worker.
    pub settings: &'a Settings,
    /// The worker.
    pub worker: WorkerId,
    /// Its token from the command line.
    pub token: Option<JoinToken>,
    /// The certificate from elsewhere that the settings name.
    pub brought: Option<Credentials>,
}

/// The certificate from elsewhere that the settings name, and its worker; None if there is none.
///
/// # Errors
/// It is invalid, or not a worker's.
pub async fn brought_worker(settings: &Settings) -> Result<Option<(Credentials, WorkerId)>, MembershipError> {
    let Some(paths) = settings.brought_credentials() else { return Ok(None) };
    let path = paths.chain.clone();
    let credentials = spawn_blocking(move || Credentials::read(&paths)).await??;
    let worker = worker_of(&credentials).map_err(|problem| MembershipError::Brought { path, problem })?;
    Ok(Some((credentials, worker)))
}

/// The worker of a certificate from elsewhere, if it is usable now.
pub(crate) fn worker_of(credentials: &Credentials) -> Result<WorkerId, String> {
    let identity = credentials.identity().map_err(|error| {
        format!("{error}. A worker's certificate has the URI SAN ringtune://CLUSTER/worker/ID with the cluster's and the worker's UUIDs")
    })?;
    let until = credentials.validity().until;
    if until <= SystemTime::now() {
        return Err(format!("it ended at {}", text_of(until)));
    }
    identity.worker().map(WorkerId).ok_or_else(|| format!("it is that of {identity}, and no worker's"))
}

/// Gets the worker its certificate, if its network is secured; waits for a coordinator that cannot be reached. None: the
/// network is not secured.
///
/// # Errors
/// There is no way in; see [`MembershipError`].
pub async fn enter(entering: Entering<'_>) -> Result<Option<Membership>, MembershipError> {
    let Entering { settings, worker, token, brought } = entering;
    let url = settings.coordinator_address().map(|address| address.to_string()).unwrap_or_default();
    if settings.protection() != Ok(Protection::Tls) {
        return if token.is_some() { Err(MembershipError::NoTls { url }) } else { Ok(None) };
    }
    let (credentials, got_at, source) = match (brought, settings.brought_credentials()) {
        (Some(credentials), Some(paths)) => {
            if token.is_some() {
                info!("security.certificate is given: the join token is not used");
            }
            (credentials, None, CertificateSource::Brought(paths))
        }
        _ => {
            let folder = settings.storage.state_dir.join(CREDENTIALS);
            let door = Door { settings, worker, url: url.clone(), folder: folder.clone() };
            let (credentials, got_at) = door.pass(token).await?;
            (credentials, got_at, CertificateSource::Joined { folder, url })
        }
    };
    info!(
        serial = credentials.serial(),
        until = text_of(credentials.validity().until),
        cluster = credentials.cluster().map(|cluster| cluster.to_string()),
        "this worker has a certificate"
    );
    let trust = Trust::of(credentials)?;
    Ok(Some(Membership { trust, worker, source, got_at, roots_changed: Arc::default() }))
}

/// Facts of the stored certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    cluster: Option<Cluster>,
    /// None: not a worker's.
    worker: Option<WorkerId>,
    until: SystemTime,
}

/// The way to a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    /// The certificate that is there does.
    Use,
    /// It does, unless it was revoked: the coordinator knows.
    UseUnlessRevoked,
    /// The token is exchanged for one, and why.
    Join(&'static str),
    /// There is no certificate, and no token.
    NoCredentials,
    /// The certificate is over, and there is no token.
    Expired,
    /// It is another worker's, and there is no token.
    OtherWorker,
}

fn way(stored: Option<&Stored>, token: Option<Cluster>, worker: WorkerId, now: SystemTime) -> Way {
    let Some(stored) = stored else {
        return token.map_or(Way::NoCredentials, |_| Way::Join("there is no certificate yet"));
    };
    let is_ours = stored.worker == Some(worker);
    let is_over = stored.until <= now;
    match token {
        None if !is_ours => Way::OtherWorker,
        None if is_over => Way::Expired,
        None => Way::Use,
        Some(_) if !is_ours => Way::Join("the certificate that is there is another worker's"),
        Some(_) if is_over => Way::Join("the certificate that is there has ended"),
        Some(cluster) if stored.cluster != Some(cluster) => {
            Way::Join("the certificate that is there is of another cluster")
        }
        Some(_) => Way::UseUnlessRevoked,
    }
}

/// State of a worker's entry.
struct Door<'a> {
    settings: &'a Settings,
    worker: WorkerId,
    url: String,
    folder: PathBuf,
}

impl Door<'_> {
    /// The certificate, and when it was given, if that was now.
    async fn pass(
        &self,
        token: Option<JoinToken>,
    ) -> Result<(Credentials, Option<SystemTime>), MembershipError> {
        let now_given = |credentials| (credentials, Some(SystemTime::now()));
        let stored = load(&self.folder).await?;
        let facts = stored.as_ref().map(|stored| Stored {
            cluster: stored.cluster(),
            worker: stored.identity().ok().and_then(|identity| identity.worker()).map(WorkerId),
            until: stored.validity().until,
        });
        let cluster = token.as_ref().map(|token| token.cluster);
        let folder = self.folder.clone();
        match (way(facts.as_ref(), cluster, self.worker, SystemTime::now()), stored, token) {
            (Way::Use, Some(stored), _) => Ok((stored, None)),
            (Way::UseUnlessRevoked, Some(stored), Some(token)) => match self.is_disowned(&stored).await? {
                None => Ok((stored, None)),
                Some(reason) => {
                    warn!(reason, "the coordinator refuses the certificate that is there: joining again");
                    self.join(&token).await.map(now_given)
                }
            },
            (Way::Join(why), _, Some(token)) => {
                info!(coordinator = self.url, worker = %self.worker, why, "joining the cluster");
                self.join(&token).await.map(now_given)
            }
            (Way::Expired, Some(stored), _) => {
                Err(MembershipError::Expired { folder, until: text_of(stored.validity().until) })
            }
            (Way::OtherWorker, Some(stored), _) => {
                let theirs = stored.identity().map_or_else(ToString::to_string, ToString::to_string);
                Err(MembershipError::OtherWorker { folder, theirs, ours: self.worker })
            }
            _ => Err(self.no_credentials()),
        }
    }

    fn no_credentials(&self) -> MembershipError {
        let secure = self.settings.coordinator_address().map(|address| (address.secure, address.authority()));
        let (is_secure, authority) = secure.unwrap_or_default();
        let because = match is_secure {
            true => format!("the coordinator's address is {}", self.url),
            false if self.settings.is_exposed() => {
                format!("grpc.listen (--listen) is {}, beyond this machine", self.settings.grpc.listen)
            }
            false => "this worker's settings ask for TLS".to_owned(),
        };
        let (url, state) = (format!("https://{authority}"), self.settings.storage.state_dir.clone());
        MembershipError::NoCredentials { because, url, state }
    }

    /// Why the coordinator does not take the certificate that is there. None: it takes it, or cannot be asked.
    async fn is_disowned(&self, stored: &Credentials) -> Result<Option<String>, MembershipError> {
        let trust = Trust::of(stored.clone())?;
        match call::who_am_i(&self.url, connector(Some(&trust))).await {
            Err(CallError::Disowned(reason)) => Ok(Some(reason)),
            Ok(_) => {
                info!("this worker has joined already: the token is not used, and need not be given again");
                Ok(None)
            }
            Err(CallError::Later(reason) | CallError::Refused(reason)) => {
                info!(reason, "this worker has joined already: the token is not used");
                Ok(None)
            }
        }
    }

    /// Exchanges the token, however long the coordinator is away.
    async fn join(&self, token: &JoinToken) -> Result<Credentials, MembershipError> {
        let refused = |reason| MembershipError::Refused { url: self.url.clone(), reason };
        // One key for all tries, those after a restart too: if an answer is lost, the coordinator recognises that it is
        // the same one who asks.
        let folder = self.folder.clone();
        let (key, csr) = spawn_blocking(move || Csr::kept(&folder)).await??;
        let asking = Asking { key, csr };
        let mut waits = reconnect::waits().build();
        let certified = loop {
            match call::join(&self.url, token, self.worker, &asking.csr).await {
                Ok(certified) => break certified,
                Err(CallError::Later(reason)) => {
                    let wait = waits.next().unwrap_or(reconnect::LONGEST);
                    let seconds = wait.as_secs_f64();
                    warn!(coordinator = self.url, reason, "cannot join yet; next try in {seconds:.1} s");
                    tokio::time::sleep(wait).await;
                }
                Err(CallError::Refused(reason) | CallError::Disowned(reason)) => return Err(refused(reason)),
            }
        };
        let given = call::credentials(asking.key, &certified, self.worker).map_err(refused)?;
        if given.cluster() != Some(token.cluster) {
            return Err(refused("it gave a certificate of another cluster than the token's".to_owned()));
        }
        store(given.clone(), &self.folder).await?;
        info!(coordinator = self.url, role = %Role::Worker, "joined: the token is not needed again");
        Ok(given)
    }
}

pub(super) async fn load(folder: &Path) -> Result<Option<Credentials>, MembershipError> {
    let folder = folder.to_owned();
    Ok(spawn_blocking(move || Credentials::load(&folder)).await??)
}

pub(super) async fn store(credentials: Credentials, folder: &Path) -> Result<(), MembershipError> {
    let folder = folder.to_owned();
    let stored: Result<(), CredentialsError> = spawn_blocking(move || credentials.store(&folder)).await?;
    Ok(stored?)
}

/// Reads certificates from elsewhere.
pub(super) async fn read(paths: &CredentialPaths) -> Result<Credentials, MembershipError> {
    let paths = paths.clone();
    Ok(spawn_blocking(move || Credentials::read(&paths)).await??)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_token_is_used_only_where_the_certificate_does_not_do() {
        let (cluster, other, worker) =
            (Cluster::from(uuid::Uuid::new_v4()), Cluster::from(uuid::Uuid::new_v4()), WorkerId::new());
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let good =
            Stored { cluster: Some(cluster), worker: Some(worker), until: now + Duration::from_secs(1) };
        let over = Stored { until: now, ..good.clone() };
        let others = Stored { worker: Some(WorkerId::new()), ..good.clone() };
        let of = |stored: Option<&Stored>, token| way(stored, token, worker, now);
        assert_eq!(of(None, None), Way::NoCredentials);
        assert!(matches!(of(None, Some(cluster)), Way::Join(_)));
        assert_eq!(of(Some(&good), None), Way::Use);
        assert_eq!(of(Some(&good), Some(cluster)), Way::UseUnlessRevoked);
        assert!(matches!(of(Some(&good), Some(other)), Way::Join(_)));
        assert_eq!(of(Some(&over), None), Way::Expired);
        assert!(matches!(of(Some(&over), Some(cluster)), Way::Join(_)));
        assert_eq!(of(Some(&others), None), Way::OtherWorker);
        assert!(matches!(of(Some(&others), Some(cluster)), Way::Join(_)));
    }
}
