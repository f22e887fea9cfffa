//! Certificates that are broken where the other side reads them, in real handshakes. Each is signed by a CA that is
//! believed, so that nothing but what it says is wrong with it; and each is tried with a false signature too, which must
//! never do.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use ringtune_fuzzing::Path;
use ringtune_security::{
    Clients, Cluster, Connector, Credentials, JoinToken, Limits, Listener, PrivateKey, Protection, Protocols,
    Refusals, Revoked, Role, Roots, Server, Trust, names,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use uuid::Uuid;

use crate::{FOLDER, MOST_BYTES, der};

/// For one handshake.
const SOON: Duration = Duration::from_secs(15);
/// An empty SETTINGS frame: what every HTTP/2 server says first.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// A CA from elsewhere, and the key of whoever it signs for.
struct Elsewhere {
    cluster: Cluster,
    root: CertifiedIssuer<'static, KeyPair>,
    key: KeyPair,
}

static ELSEWHERE: LazyLock<Elsewhere> = LazyLock::new(|| {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let root = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    Elsewhere { cluster: Cluster::from(Uuid::new_v4()), root, key: KeyPair::generate().unwrap() }
});

/// What a certificate says is signed by the CA again.
fn mend(bytes: Vec<u8>) -> Vec<u8> {
    der::sign(&bytes, ELSEWHERE.root.key())
}

impl Elsewhere {
    /// What a certificate with these names says.
    fn certificate(
        &self,
        uris: &[String],
        hosts: &[String],
        purposes: &[ExtendedKeyUsagePurpose],
    ) -> Vec<u8> {
        let mut params = CertificateParams::new(hosts.to_vec()).unwrap();
        let uris = uris.iter().map(|uri| SanType::URI(uri.as_str().try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        params.extended_key_usages = purposes.to_vec();
        der::signed_part(params.signed_by(&self.key, &self.root).unwrap().der()).unwrap()
    }

    fn coordinator(&self) -> Vec<u8> {
        let hosts = [names::coordinator(self.cluster), "127.0.0.1".to_owned(), "localhost".to_owned()];
        self.certificate(&[], &hosts, &[ExtendedKeyUsagePurpose::ServerAuth])
    }

    fn member(&self, path: &str) -> Vec<u8> {
        let both = [ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        self.certificate(&[format!("ringtune://{}/{path}", self.cluster)], &[], &both)
    }

    fn root_der(&self) -> CertificateDer<'static> {
        self.root.der().clone()
    }

    fn roots(&self) -> Roots {
        Roots::new(vec![self.root_der()]).unwrap()
    }

    /// Somebody who believes the CA, with a certificate that says this.
    fn trust(&self, part: &[u8]) -> Trust {
        let leaf = pem::encode(&pem::Pem::new("CERTIFICATE", der::sign(part, self.root.key())));
        let key = PrivateKey::from_pem(&der::key_pem(&self.key)).unwrap();
        let credentials = Credentials::new(key, &leaf, self.roots()).unwrap();
        Trust::new(self.cluster, Some(credentials), self.roots(), Revoked::default()).unwrap()
    }

    /// As rustls presents it, whatever it is.
    fn pair(&self, leaf: Vec<u8>) -> Arc<SingleCertAndKey> {
        let key = PrivateKeyDer::try_from(self.key.serialize_der()).unwrap();
        let key = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
        Arc::new(SingleCertAndKey::from(CertifiedKey::new(vec![leaf.into(), self.root_der()], key)))
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn words() -> Vec<String> {
    let cluster = ELSEWHERE.cluster;
    let mut words = [
        "ringtune://",
        "/admin/",
        "/worker/",
        "%2f",
        "%00",
        "\u{6}\u{3}U\u{1d}\u{11}",
        "0\u{0}",
        "\u{3}\u{2}",
        "*.",
    ]
    .map(str::to_owned)
    .to_vec();
    words.extend([
        cluster.to_string(),
        names::coordinator(cluster),
        Cluster::from(Uuid::new_v4()).to_string(),
    ]);
    words
}

/// Tries what is signed, and the same with a false signature.
fn with_and_without_signature(bytes: &[u8], mut is_taken: impl FnMut(Vec<u8>) -> bool) -> bool {
    if let Some(part) = der::signed_part(bytes) {
        assert!(!is_taken(der::sign_falsely(&part, ELSEWHERE.root.key())), "a false signature was believed");
    }
    is_taken(bytes.to_vec())
}

/// Says to each client who it is.
async fn tell_callers(mut listener: Listener) {
    loop {
        let mut connection = listener.accept().await;
        tokio::spawn(async move {
            let who = format!("{}\n", connection.peer().caller);
            let _ = connection.write_all(who.as_bytes()).await;
            let _ = connection.shutdown().await;
            // The client has heard it when it closes.
            let _ = tokio::time::timeout(SOON, connection.read(&mut [0; 64])).await;
        });
    }
}

/// What a client with this certificate is told; none where the server ends the connection.
async fn told(server: SocketAddr, leaf: Vec<u8>) -> Option<String> {
    let mut store = RootCertStore::empty();
    store.add(ELSEWHERE.root_der()).unwrap();
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store)
        .with_client_cert_resolver(ELSEWHERE.pair(leaf));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tcp = TcpStream::connect(server).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.ok()?;
    let mut who = String::new();
    stream.read_to_string(&mut who).await.ok()?;
    who.ends_with('\n').then_some(who)
}

#[test]
fn client_certificate() {
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(async {
        let trust = ELSEWHERE.trust(&ELSEWHERE.coordinator());
        let protection = Protection::Tls { trust, clients: Clients::Required, protocols: Protocols::Http2 };
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let limits = Limits::default().for_loopback();
        let listener = Listener::start(tcp, protection, limits, Refusals::default()).unwrap();
        let address = listener.local_addr();
        tokio::spawn(tell_callers(listener));
        address
    });
    let worker = "worker/7c0b2f2e-58f3-4d1c-9a55-1f6f6d6f8a11";
    Path {
        name: "client-certificate",
        words: words(),
        valid: [worker, "admin/anna", "submitter/b%20c"].map(|path| ELSEWHERE.member(path)).to_vec(),
        mend,
        most_bytes: MOST_BYTES,
        read: Box::new(|bytes| {
            with_and_without_signature(bytes, |leaf| {
                let told = async { tokio::time::timeout(SOON, told(server, leaf)).await };
                let told = runtime.block_on(told).unwrap();
                // Everybody gets to hear who they are, or why they are nobody.
                assert_ne!(told.as_deref(), Some("\n"));
                told.is_some()
            })
        }),
    }
    .fuzz(FOLDER);
}

/// Presents to each client the certificate that is there just then.
async fn present(tcp: TcpListener, leaf: Arc<Mutex<Vec<u8>>>) {
    loop {
        let (stream, _) = tcp.accept().await.unwrap();
        let leaf = leaf.lock().unwrap().clone();
        tokio::spawn(async move {
            let mut config = ServerConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_cert_resolver(ELSEWHERE.pair(leaf));
            config.alpn_protocols = vec![b"h2".to_vec()];
            let Ok(mut stream) = TlsAcceptor::from(Arc::new(config)).accept(stream).await else { return };
            let _ = stream.write_all(&SETTINGS).await;
            let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut Vec::new())).await;
        });
    }
}

#[test]
fn server_certificate() {
    let runtime = Runtime::new().unwrap();
    let presented = Arc::new(Mutex::new(Vec::new()));
    let address = runtime.block_on(async {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        tokio::spawn(present(tcp, presented.clone()));
        address
    });
    let uri = format!("https://{address}").parse().unwrap();
    let root_hash = ELSEWHERE.roots().hashes()[0];
    let token = JoinToken::new(Role::Worker, root_hash, ELSEWHERE.cluster).unwrap();
    let believer = ELSEWHERE.trust(&ELSEWHERE.member("admin/anna"));
    let connectors = [Connector::to(believer, Server::Coordinator), Connector::joining(&token)];
    Path {
        name: "server-certificate",
        words: words(),
        valid: vec![ELSEWHERE.coordinator()],
        mend,
        most_bytes: MOST_BYTES,
        read: Box::new(|bytes| {
            with_and_without_signature(bytes, |leaf| {
                *presented.lock().unwrap() = leaf;
                let mut taken = false;
                for connector in &connectors {
                    match runtime.block_on(connector.connect(&uri)) {
                        Ok(_) => taken = true,
                        Err(error) => assert!(!error.to_string().is_empty()),
                    }
                }
                taken
            })
        }),
    }
    .fuzz(FOLDER);
}
