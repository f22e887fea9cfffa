//! A collector of spans for tests, of the official messages. Other crates' tests take this file in by its path.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use ringtune_security::{
    Authority, Clients, Credentials, Csr, Holder, Leaf, Limits, Listener, Protection, Protocols, Refusals,
    Trust,
};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// A span, and the service that sent it.
#[derive(Debug, Clone)]
pub(crate) struct Got {
    pub(crate) service: String,
    pub(crate) span: Span,
}

impl Got {
    /// An attribute as text.
    pub(crate) fn attribute(&self, key: &str) -> Option<String> {
        text(&self.span.attributes, key)
    }
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    Some(match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        Value::BoolValue(flag) => flag.to_string(),
        Value::DoubleValue(fraction) => fraction.to_string(),
        other => format!("{other:?}"),
    })
}

#[derive(Clone, Default)]
struct Taking {
    got: Arc<Mutex<Vec<Got>>>,
    answers: Arc<Mutex<Answers>>,
}

/// A collector's answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Answers {
    /// Takes them.
    #[default]
    Well,
    /// Takes them, and says so a second later: whoever ends meanwhile sends them again.
    Late,
    /// Refuses them all.
    Refuses,
    /// Never answers.
    Never,
}

impl Taking {
    fn take(&self, request: ExportTraceServiceRequest) {
        let mut got = self.got.lock().unwrap_or_else(PoisonError::into_inner);
        for resource in request.resource_spans {
            let about = resource.resource.unwrap_or_default();
            let service = text(&about.attributes, "service.name").unwrap_or_default();
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            got.extend(spans.map(|span| Got { service: service.clone(), span }));
        }
    }
}

#[tonic::async_trait]
impl TraceService for Taking {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let answers = *self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        match answers {
            Answers::Well | Answers::Late => {}
            Answers::Refuses => return Err(Status::unavailable("no room")),
            Answers::Never => std::future::pending().await,
        }
        self.take(request.into_inner());
        if answers == Answers::Late {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// A collector that runs until it is dropped.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    /// Over TLS.
    secure: bool,
    taking: Taking,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Collector {
    pub(crate) async fn start(answers: Answers) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let taking = Taking { answers: Arc::new(Mutex::new(answers)), ..Taking::default() };
        let service = TraceServiceServer::new(taking.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        let server = tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Ok(Self { address, secure: false, taking, server })
    }

    /// With a certificate for these names, and the root that signs it.
    pub(crate) async fn start_over_tls(
        answers: Answers,
        names: &[&str],
    ) -> Result<(Self, String), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let (now, names) = (SystemTime::now(), names.iter().map(|name| (*name).to_owned()).collect());
        let authority = Authority::open_or_make(&folder.path().join("pki"), now)?;
        let (key, csr) = Csr::make()?;
        let leaf = Leaf { holder: Holder::Coordinator { names }, valid_for: Duration::from_secs(3600) };
        let issued = authority.issue(csr.der(), &leaf, now)?;
        let credentials = Credentials::new(key, &issued.chain_pem(), authority.roots().clone())?;
        let trust = Trust::of(credentials)?;
        let protection = Protection::Tls { trust, clients: Clients::Optional, protocols: Protocols::Http2 };
        // An address that a certificate does not have by itself, as 127.0.0.1.
        let tcp = TcpListener::bind("127.0.0.2:0").await?;
        let address = tcp.local_addr()?;
        let limits = Limits::default().for_loopback();
        let listener = Listener::start(tcp, protection, limits, Refusals::default())?;
        let taking = Taking { answers: Arc::new(Mutex::new(answers)), ..Taking::default() };
        let service = TraceServiceServer::new(taking.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        let server = tokio::spawn(server.serve_with_incoming(listener));
        Ok((Self { address, secure: true, taking, server }, authority.roots().pem()))
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("{}://{}", if self.secure { "https" } else { "http" }, self.address)
    }

    /// The spans received so far.
    pub(crate) fn got(&self) -> Vec<Got> {
        self.taking.got.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until what came is enough; None: it was not in a minute.
    pub(crate) async fn wait_for(&self, enough: impl Fn(&[Got]) -> bool) -> Option<Vec<Got>> {
        for _ in 0..600 {
            let got = self.got();
            if enough(&got) {
                return Some(got);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        None
    }
}
