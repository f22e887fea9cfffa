//! Connections by hand, from any address of loopback, in plain text or over TLS, for clients that break rules. A visitor
//! believes every server, as those who flood do not care.

use std::{
    fmt::Debug,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme,
        client::{
            Resumption,
            danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        },
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    },
};

/// What is spoken within TLS: gRPC.
pub const HTTP2: &[u8] = b"h2";
/// What is spoken within TLS: pages.
pub const HTTP1: &[u8] = b"http/1.1";

/// Bytes there and back.
pub trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// Somebody who connects.
#[derive(Clone)]
pub struct Visitor(Option<Arc<ClientConfig>>);

impl Debug for Visitor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(if self.0.is_some() { "somebody with TLS" } else { "somebody without TLS" })
    }
}

/// Connects from an address of loopback. Where too many wait to be accepted, the kernel may forget one that its client
/// thinks is open: a client that says nothing sees that within some seconds, as an error.
pub async fn tcp(to: SocketAddr, from: Ipv4Addr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    let stream = socket.connect(to).await?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, Duration::from_secs(5))?;
    Ok(stream)
}

impl Visitor {
    /// Without TLS.
    pub fn plain() -> Self {
        Self(None)
    }

    /// With TLS and no certificate.
    pub fn stranger(speaks: &[u8]) -> Result<Self> {
        Self::with_tls(speaks, None)
    }

    /// With TLS and the credentials in a folder.
    pub fn known(speaks: &[u8], credentials: &Path) -> Result<Self> {
        let pem = std::fs::read(credentials.join("identity.pem")).context("credentials")?;
        let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>()?;
        Self::with_tls(speaks, Some((chain, PrivateKeyDer::from_pem_slice(&pem)?)))
    }

    fn with_tls(
        speaks: &[u8],
        identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    ) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Everybody));
        let mut config = match identity {
            Some((chain, key)) => config.with_client_auth_cert(chain, key)?,
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![speaks.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Self(Some(Arc::new(config))))
    }

    /// Whether it comes with TLS.
    pub fn is_secure(&self) -> bool {
        self.0.is_some()
    }

    /// Connects from an address of loopback; with TLS up to the end of the handshake.
    pub async fn connect(&self, to: SocketAddr, from: Ipv4Addr) -> Result<Box<dyn Bytes>> {
        let stream = tcp(to, from).await?;
        let Some(config) = &self.0 else { return Ok(Box::new(stream)) };
        let stream = TlsConnector::from(Arc::clone(config)).connect(to.ip().into(), stream).await?;
        Ok(Box::new(stream))
    }

    /// The first bytes that it says with TLS: a whole ClientHello.
    pub fn hello(&self) -> Result<Vec<u8>> {
        let config = self.0.clone().context("without TLS there is none")?;
        let mut connection = ClientConnection::new(config, ServerName::try_from("localhost")?)?;
        let mut hello = Vec::new();
        connection.write_tls(&mut hello)?;
        Ok(hello)
    }

    /// The answer to GET of a page, its head included.
    pub async fn get(&self, to: SocketAddr, from: Ipv4Addr, path: &str) -> Result<String> {
        let mut stream = self.connect(to, from).await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

/// Believes them.
#[derive(Debug)]
struct Everybody;

impl ServerCertVerifier for Everybody {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
