//! Servers, callers and certificates that are right, and those of a CA from elsewhere that are whatever a test needs.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{Request, Response, Uri};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use ringtune_security::{
    Authority, Clients, Cluster, Connections, Connector, Credentials, Csr, Holder, Leaf, Limits, Listener,
    LocalDoor, Peer, PrivateKey, Protection, Protocols, Refusal, Refusals, Revoked, Role, Roots, Server,
    Trust,
};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};
use tower::{Service as _, ServiceExt as _};
use uuid::Uuid;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// What a test waits at most for something that comes soon.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A server that says who calls; it ends with this.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) connections: Connections,
    pub(crate) refusals: Refusals,
    _serving: AbortOnDropHandle<()>,
}

impl Served {
    pub(crate) fn https(&self) -> String {
        format!("https://{}", self.address)
    }

    pub(crate) fn http(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits until so many were refused for this reason.
    pub(crate) async fn refused(&self, refusal: Refusal, count: u64) {
        until(&format!("{count} refused as {refusal:?}"), || self.refusals.count(refusal) >= count).await;
        assert_eq!(self.refusals.count(refusal), count, "{:?}", self.refusals.counts());
    }
}

/// Waits until something is true.
pub(crate) async fn until(what: &str, is_true: impl Fn() -> bool) {
    let wait = async {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

pub(crate) fn limits() -> Limits {
    Limits::default().for_loopback()
}

pub(crate) fn secure(trust: &Trust, clients: Clients) -> Protection {
    Protection::Tls { trust: trust.clone(), clients, protocols: Protocols::Http2 }
}

/// Serves every path: `/hold` never answers, and every other answers with the caller.
pub(crate) async fn serve(protection: Protection, limits: Limits) -> Served {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refusals = Refusals::default();
    let listener = Listener::start(tcp, protection, limits, refusals.clone()).unwrap();
    serve_on(listener, refusals, None)
}

/// The same; whoever asks for `/invite` gets the secret of an invitation to this door as the caller.
pub(crate) fn serve_on(listener: Listener, refusals: Refusals, door: Option<Arc<LocalDoor>>) -> Served {
    let (address, connections) = (listener.local_addr(), listener.connections());
    let service = tower::service_fn(move |request: Request<Body>| {
        let door = door.clone();
        async move {
            let peer = request.extensions().get::<Peer>().unwrap().clone();
            let _call = peer.activity.begin();
            let caller = match (request.uri().path(), door) {
                ("/hold", _) => std::future::pending().await,
                ("/invite", Some(door)) => hex::encode(door.invite(&peer).unwrap().secret),
                _ => peer.caller.to_string(),
            };
            let answer = Response::builder().header("caller", caller);
            Ok::<_, Infallible>(answer.body(Body::empty()).unwrap())
        }
    });
    let served = tonic::transport::Server::builder().serve_with_incoming(service, listener);
    let serving = tokio::spawn(async move { served.await.unwrap() });
    Served { address, connections, refusals, _serving: AbortOnDropHandle::new(serving) }
}

/// A channel, or why there is none with all causes.
pub(crate) async fn channel(url: &str, connector: Connector) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(url.to_owned()).unwrap();
    endpoint.connect_with_connector(connector).await.map_err(|error| causes(&error))
}

/// Makes a call, and gives what the server says of the caller.
pub(crate) async fn call(channel: &mut Channel, path: &'static str) -> Result<String, String> {
    let request = Request::builder().uri(path).body(Body::empty()).unwrap();
    let ready = channel.ready().await.map_err(|error| causes(&error))?;
    let answer = ready.call(request).await.map_err(|error| causes(&error))?;
    Ok(answer.headers()["caller"].to_str().unwrap().to_owned())
}

/// Who the server says that this connector is.
pub(crate) async fn caller(url: &str, connector: Connector) -> Result<String, String> {
    call(&mut channel(url, connector).await?, "/who").await
}

pub(crate) fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

pub(crate) fn uri(text: &str) -> Uri {
    text.parse().unwrap()
}

/// A CA whose folder is gone.
pub(crate) fn authority() -> Authority {
    let folder = tempfile::tempdir().unwrap();
    Authority::open_or_make(&folder.path().join("pki"), SystemTime::now()).unwrap()
}

pub(crate) fn coordinator() -> Holder {
    Holder::Coordinator { names: Vec::new() }
}

pub(crate) fn worker(id: Uuid) -> Holder {
    Holder::Member { role: Role::Worker, name: id.to_string() }
}

pub(crate) fn person(name: &str) -> Holder {
    Holder::Member { role: Role::Submitter, name: name.to_owned() }
}

/// Credentials for an hour from then on.
pub(crate) fn credentials_at(authority: &Authority, holder: Holder, now: SystemTime) -> Credentials {
    let (key, csr) = Csr::make().unwrap();
    let issued = authority.issue(csr.der(), &Leaf { holder, valid_for: HOUR }, now).unwrap();
    Credentials::new(key, &issued.chain_pem(), authority.roots().clone()).unwrap()
}

pub(crate) fn credentials(authority: &Authority, holder: Holder) -> Credentials {
    credentials_at(authority, holder, SystemTime::now())
}

/// What somebody with these credentials believes.
pub(crate) fn trust(credentials: Credentials) -> Trust {
    Trust::of(credentials).unwrap()
}

pub(crate) fn to_coordinator(credentials: Credentials) -> Connector {
    Connector::to(trust(credentials), Server::Coordinator)
}

/// Somebody who believes a CA and has no certificate.
pub(crate) fn anonymous(authority: &Authority) -> Connector {
    Connector::to(Trust::of_roots(authority.roots().clone()).unwrap(), Server::Coordinator)
}

/// A CA from elsewhere, with an intermediate one.
pub(crate) struct Elsewhere {
    root: (CertificateParams, KeyPair, String),
    middle: (CertificateParams, KeyPair, String),
}

/// What a certificate from elsewhere says.
#[derive(Clone)]
pub(crate) struct Says {
    pub(crate) uris: Vec<String>,
    pub(crate) names: Vec<String>,
    pub(crate) purposes: Vec<ExtendedKeyUsagePurpose>,
}

impl Says {
    /// That it is for somebody in a cluster, who may call and serve.
    pub(crate) fn member(cluster: Cluster, path: &str) -> Self {
        let purposes = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        Self { uris: vec![format!("ringtune://{cluster}/{path}")], names: Vec::new(), purposes }
    }
}

impl Elsewhere {
    pub(crate) fn new() -> Self {
        let params = |name: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            (params, KeyPair::generate().unwrap())
        };
        let ((root, root_key), (middle, middle_key)) = (params("An office"), params("A department"));
        let root_der = root.self_signed(&root_key).unwrap();
        let middle_der = middle.signed_by(&middle_key, &Issuer::from_params(&root, &root_key)).unwrap();
        let pem = |der: &[u8]| pem::encode(&pem::Pem::new("CERTIFICATE", der));
        Self {
            root: (root, root_key, pem(root_der.der())),
            middle: (middle, middle_key, pem(middle_der.der())),
        }
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots::from_pem(&self.root.2).unwrap()
    }

    /// A key, its certificate, and the one above it.
    pub(crate) fn parts(&self, says: &Says) -> (PrivateKey, String, String) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "somebody");
        let uris = says.uris.iter().map(|uri| SanType::URI(uri.as_str().try_into().unwrap()));
        let names = says.names.iter().map(|name| match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(name.as_str().try_into().unwrap()),
        });
        params.subject_alt_names = uris.chain(names).collect();
        params.extended_key_usages = says.purposes.clone();
        let key = KeyPair::generate().unwrap();
        let leaf = params.signed_by(&key, &Issuer::from_params(&self.middle.0, &self.middle.1)).unwrap();
        let key = pem::encode(&pem::Pem::new("PRIVATE KEY", key.serialize_der()));
        let leaf = pem::encode(&pem::Pem::new("CERTIFICATE", leaf.der().to_vec()));
        (PrivateKey::from_pem(&key).unwrap(), leaf, self.middle.2.clone())
    }

    /// Credentials with the whole chain, of somebody who believes `roots`.
    pub(crate) fn credentials(&self, says: &Says, roots: &Roots) -> Credentials {
        let (key, leaf, middle) = self.parts(says);
        Credentials::new(key, &format!("{leaf}{middle}"), roots.clone()).unwrap()
    }
}

/// Roots of both.
pub(crate) fn both(one: &Roots, two: &Roots) -> Roots {
    Roots::new([one.ders(), two.ders()].concat()).unwrap()
}

/// Somebody who believes `roots`, with credentials from wherever.
pub(crate) fn believer(cluster: Cluster, credentials: Credentials, roots: &Roots) -> Trust {
    Trust::new(cluster, Some(credentials), roots.clone(), Revoked::default()).unwrap()
}
