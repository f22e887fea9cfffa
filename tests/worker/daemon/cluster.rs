//! A cluster's authority, and the service that gives certificates.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use ringtune_proto::v1::{self, access_service_server::AccessService};
use ringtune_security::{
    Authority, Caller, Clients, Credentials, Csr, Holder, JoinToken, Leaf, Peer, Protection, Protocols, Role,
    Secret, SecretHash, Trust,
};
use tonic::{Request, Response, Status};

use crate::support::not_needed;

pub struct Cluster {
    authority: Mutex<Authority>,
    /// Each lets one worker join.
    tokens: Mutex<Vec<([u8; 8], SecretHash)>>,
    /// What the coordinator serves with, and whom it believes.
    pub trust: Trust,
    /// How long certificates last, in milliseconds.
    valid_for: AtomicU64,
    pub joins: AtomicU64,
    pub renewals: AtomicU64,
    /// Answers nobody for the time being.
    pub is_away: AtomicBool,
    _folder: tempfile::TempDir,
}

fn issue(authority: &Authority, csr: &[u8], holder: Holder, valid_for: Duration) -> v1::Certified {
    let issued = authority.issue(csr, &Leaf { holder, valid_for }, SystemTime::now()).unwrap();
    v1::Certified {
        chain_pem: issued.chain_pem(),
        roots_pem: authority.roots().pem(),
        expire_time: Some(issued.valid.until.into()),
    }
}

fn credentials(authority: &Authority, holder: Holder, valid_for: Duration) -> Credentials {
    let (key, csr) = Csr::make().unwrap();
    let given = issue(authority, csr.der(), holder, valid_for);
    Credentials::new(key, &given.chain_pem, authority.roots().clone()).unwrap()
}

const HOUR: Duration = Duration::from_secs(3600);

impl Cluster {
    /// Whose certificates last so long.
    pub fn whose_certificates_last(valid_for: Duration) -> std::sync::Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open_or_make(&folder.path().join("pki"), SystemTime::now()).unwrap();
        let leaf = credentials(&authority, Holder::Coordinator { names: Vec::new() }, HOUR);
        std::sync::Arc::new(Self {
            authority: Mutex::new(authority),
            tokens: Mutex::default(),
            trust: Trust::of(leaf).unwrap(),
            valid_for: AtomicU64::new(valid_for.as_millis() as u64),
            joins: AtomicU64::new(0),
            renewals: AtomicU64::new(0),
            is_away: AtomicBool::new(false),
            _folder: folder,
        })
    }

    pub fn new() -> std::sync::Arc<Self> {
        Self::whose_certificates_last(HOUR)
    }

    /// A token of one worker.
    pub fn token(&self) -> JoinToken {
        let authority = self.authority.lock().unwrap();
        let token = JoinToken::new(Role::Worker, authority.hash(), authority.cluster()).unwrap();
        self.tokens.lock().unwrap().push((token.id.bytes(), token.secret.hash()));
        token
    }

    /// A certificate from nobody's join, for whoever brings its own.
    pub fn certify(&self, role: Role, name: &str) -> Credentials {
        let holder = Holder::Member { role, name: name.to_owned() };
        credentials(&self.authority.lock().unwrap(), holder, HOUR)
    }

    /// Makes a new root. What the coordinator says of it.
    pub fn rotate(&self) -> v1::Trust {
        let mut authority = self.authority.lock().unwrap();
        authority.rotate(SystemTime::now()).unwrap();
        self.trust.set_roots(authority.roots().clone()).unwrap();
        v1::Trust { roots_pem: authority.roots().pem(), ..v1::Trust::default() }
    }

    pub fn protection(&self) -> Protection {
        Protection::Tls { trust: self.trust.clone(), clients: Clients::Optional, protocols: Protocols::Http2 }
    }

    pub fn count(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::SeqCst)
    }

    fn valid_for(&self) -> Duration {
        Duration::from_millis(self.valid_for.load(Ordering::SeqCst))
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl AccessService for Cluster {
    async fn join(&self, request: Request<v1::JoinRequest>) -> Answer<v1::JoinResponse> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err(Status::unavailable("in a moment"));
        }
        let asked = request.into_inner();
        let secret = Secret::from_bytes(asked.secret.try_into().unwrap());
        let mut tokens = self.tokens.lock().unwrap();
        let found =
            tokens.iter().position(|(id, hash)| id.as_slice() == asked.token_id && secret.matches(hash));
        let Some(index) = found else {
            return Err(Status::permission_denied("the token was used, or never given"));
        };
        tokens.remove(index);
        self.joins.fetch_add(1, Ordering::SeqCst);
        let holder = Holder::Member { role: Role::Worker, name: asked.name };
        let certified = issue(&self.authority.lock().unwrap(), &asked.csr, holder, self.valid_for());
        Ok(Response::new(v1::JoinResponse { certified: Some(certified) }))
    }

    async fn renew_certificate(
        &self,
        request: Request<v1::RenewCertificateRequest>,
    ) -> Answer<v1::RenewCertificateResponse> {
        let peer = request.extensions().get::<Peer>().unwrap();
        let Caller::Known(identity) = peer.caller.clone() else {
            return Err(Status::unauthenticated(peer.caller.to_string()));
        };
        self.renewals.fetch_add(1, Ordering::SeqCst);
        let holder = Holder::Member { role: identity.role, name: identity.name };
        let csr = request.into_inner().csr;
        let certified = issue(&self.authority.lock().unwrap(), &csr, holder, self.valid_for());
        Ok(Response::new(v1::RenewCertificateResponse { certified: Some(certified) }))
    }

    async fn who_am_i(&self, request: Request<v1::WhoAmIRequest>) -> Answer<v1::WhoAmIResponse> {
        match &request.extensions().get::<Peer>().unwrap().caller {
            Caller::Known(identity) => Ok(Response::new(v1::WhoAmIResponse {
                name: identity.name.clone(),
                cluster: identity.cluster.to_string(),
                time: Some(std::time::SystemTime::now().into()),
                ..v1::WhoAmIResponse::default()
            })),
            other => Err(Status::unauthenticated(other.to_string())),
        }
    }

    not_needed! {
        create_token(v1::CreateTokenRequest) -> v1::CreateTokenResponse;
        list_tokens(v1::ListTokensRequest) -> v1::ListTokensResponse;
        revoke_token(v1::RevokeTokenRequest) -> v1::RevokeTokenResponse;
        list_certificates(v1::ListCertificatesRequest) -> v1::ListCertificatesResponse;
        revoke_certificate(v1::RevokeCertificateRequest) -> v1::RevokeCertificateResponse;
        get_authority(v1::GetAuthorityRequest) -> v1::GetAuthorityResponse;
        rotate_authority(v1::RotateAuthorityRequest) -> v1::RotateAuthorityResponse;
        retire_authority(v1::RetireAuthorityRequest) -> v1::RetireAuthorityResponse;
    }
}
