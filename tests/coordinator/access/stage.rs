//! A coordinator that speaks TLS, and those who call it.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ringtune_coordinator::{
    access::Access,
    contents::{Contents, Limits as ContentLimits},
    core::{Options, OwnerLimits},
    grpc,
    metrics::Metrics,
    network::authority::{OwnAuthority, Pki},
    quotas::Quotas,
    service,
    settings::LimitSettings,
    store::{SqliteStore, Store},
};
use ringtune_proto::v1::{
    self, access_service_client::AccessServiceClient, job_service_client::JobServiceClient,
};
use ringtune_security::{
    Authority, Clients, Connector, Credentials, Csr, Holder, Leaf, Limits, Listener, Protection, Protocols,
    Refusals, Role, Server, Trust,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Status,
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

use crate::{STUCK, soon};

/// A worker's UUID.
pub(crate) const NODE: &str = "0193f2a4-5b6c-7d8e-9f00-112233445566";

/// A coordinator on a folder of its own.
pub(crate) struct Stage {
    pub(crate) pki: Pki,
    pub(crate) metrics: Metrics,
    address: SocketAddr,
    shutdown: CancellationToken,
    server: JoinHandle<Result<(), grpc::Error>>,
    pub(crate) folder: tempfile::TempDir,
}

/// More than any test needs.
const PLENTY: OwnerLimits = OwnerLimits { bytes: 0, files: 1_000_000 };

/// Calls with a certificate, or with a token, or with nothing.
pub(crate) type Client = InterceptedService<Channel, Bearer>;

/// Puts an access token on each call.
#[derive(Clone, Default)]
pub(crate) struct Bearer(pub(crate) Option<String>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        Ok(request)
    }
}

/// A coordinator without TLS, and a client of its.
pub(crate) async fn plain() -> (AccessServiceClient<Channel>, Stage) {
    let folder = tempfile::tempdir().unwrap();
    let stage = Stage::on(folder, false, &LimitSettings::default(), PLENTY).await;
    let channel =
        Endpoint::from_shared(format!("http://{}", stage.address)).unwrap().connect().await.unwrap();
    (AccessServiceClient::new(channel), stage)
}

impl Stage {
    pub(crate) async fn new() -> Self {
        Self::limited(PLENTY).await
    }

    /// A stage with other limits on calls.
    pub(crate) async fn within(limits: &LimitSettings) -> Self {
        Self::on(tempfile::tempdir().unwrap(), true, limits, PLENTY).await
    }

    /// A stage with quotas.
    pub(crate) async fn limited(owners: OwnerLimits) -> Self {
        Self::on(tempfile::tempdir().unwrap(), true, &LimitSettings::default(), owners).await
    }

    /// Another one on what this one kept.
    pub(crate) async fn restarted(self, owners: OwnerLimits) -> Self {
        self.shutdown.cancel();
        soon("the end of the server", self.server).await.unwrap().unwrap();
        Self::on(self.folder, true, &LimitSettings::default(), owners).await
    }

    async fn on(folder: tempfile::TempDir, tls: bool, limits: &LimitSettings, owners: OwnerLimits) -> Self {
        let at = |name: &str| folder.path().join(name);
        let own = OwnAuthority { folder: at("authority"), admin: at("admin"), names: Vec::new() };
        let pki = Pki::own(own, Duration::from_secs(3600), SystemTime::now()).unwrap();
        let store = Arc::new(SqliteStore::open(&at("ringtune.sqlite")).await.unwrap());
        let metrics = Metrics::new().unwrap();
        let access = match tls {
            true => Access::secured(pki.clone(), store.clone(), metrics.clone(), limits).await.unwrap(),
            false => Access::plain(metrics.clone(), limits),
        };
        let quotas = match tls {
            true => Quotas::new(store.clone(), owners, metrics.clone()),
            false => Quotas::none(),
        };
        let store: Arc<dyn Store> = store;
        let settings = service::Settings {
            options: Options::default(),
            store,
            metrics: metrics.clone(),
            notifier: Default::default(),
            tracer: Default::default(),
        };
        let (handle, _) = service::start(settings).await.unwrap();
        let contents = Contents::open(&at("contents"), ContentLimits::default()).unwrap();
        let shutdown = CancellationToken::new();
        let options = grpc::Options {
            handle,
            contents,
            metrics: metrics.clone(),
            tracer: Default::default(),
            access,
            quotas,
            submitter_priority: 99,
            welcome: v1::Welcome::default(),
            call_limit: STUCK,
            calls_per_connection: 256,
            pki: tls.then(|| pki.clone()),
            idle_limit: STUCK,
            shutdown: shutdown.clone(),
        };
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (clients, protocols) = (Clients::Optional, Protocols::Http2);
        let protection = match tls {
            true => Protection::Tls { trust: pki.trust().clone(), clients, protocols },
            false => Protection::Plain,
        };
        let limits = Limits { first_call: STUCK, ..Limits::default().for_loopback() };
        let listener = Listener::start(tcp, protection, limits, Refusals::default()).unwrap();
        let address = listener.local_addr();
        let server = tokio::spawn(grpc::serve(listener, options));
        Self { pki, metrics, address, shutdown, server, folder }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it as the daemon does.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        soon("the end of the server", self.server).await.unwrap().unwrap();
    }

    /// A certificate that the store does not know.
    pub(crate) async fn credentials(&self, role: Role, name: &str) -> Credentials {
        let (key, csr) = Csr::make().unwrap();
        let issued = self.pki.issue(csr.der().to_vec(), role, name.to_owned()).await.unwrap();
        Credentials::new(key, &issued.chain_pem(), self.pki.trust().roots()).unwrap()
    }

    /// As above, with a certificate that ends in two seconds.
    pub(crate) async fn ending(&self, role: Role, name: &str) -> Client {
        let authority = Authority::open_or_make(&self.folder.path().join("authority"), SystemTime::now());
        let (key, csr) = Csr::make().unwrap();
        let holder = Holder::Member { role, name: name.to_owned() };
        let leaf = Leaf { holder, valid_for: Duration::from_secs(2) };
        let issued = authority.unwrap().issue(csr.der(), &leaf, SystemTime::now()).unwrap();
        let credentials = Credentials::new(key, &issued.chain_pem(), self.pki.trust().roots()).unwrap();
        let channel = self.connect(Trust::of(credentials).unwrap()).await;
        InterceptedService::new(channel, Bearer::default())
    }

    pub(crate) async fn connect(&self, trust: Trust) -> Channel {
        let connector = Connector::to(trust, Server::Coordinator);
        let endpoint = Endpoint::from_shared(format!("https://{}", self.address)).unwrap();
        soon("a connection", endpoint.connect_with_connector(connector)).await.unwrap()
    }

    /// Somebody with a certificate.
    pub(crate) async fn known(&self, role: Role, name: &str) -> Client {
        let trust = Trust::of(self.credentials(role, name).await).unwrap();
        InterceptedService::new(self.connect(trust).await, Bearer::default())
    }

    /// Somebody without one, who may have a token.
    pub(crate) async fn anybody(&self, token: Option<&str>) -> Client {
        let trust = Trust::of_roots(self.pki.trust().roots()).unwrap();
        InterceptedService::new(self.connect(trust).await, Bearer(token.map(str::to_owned)))
    }

    pub(crate) async fn jobs(&self, role: Role, name: &str) -> JobServiceClient<Client> {
        JobServiceClient::new(self.known(role, name).await)
    }

    pub(crate) async fn access(&self, role: Role, name: &str) -> AccessServiceClient<Client> {
        AccessServiceClient::new(self.known(role, name).await)
    }

    /// Makes a token.
    pub(crate) async fn token(&self, request: v1::CreateTokenRequest) -> v1::CreateTokenResponse {
        self.access(Role::Admin, "root").await.create_token(request).await.unwrap().into_inner()
    }

    /// An access token.
    pub(crate) async fn bearer(&self, role: v1::Role, name: &str) -> v1::CreateTokenResponse {
        let kind = v1::create_token_request::Kind::Access.into();
        let name = name.to_owned();
        self.token(v1::CreateTokenRequest { kind, role: role.into(), name, ..Default::default() }).await
    }

    /// Number of calls denied for this reason.
    pub(crate) fn denied(&self, reason: &str) -> u64 {
        self.counted(&format!("ringtune_denied_calls_total{{reason=\"{reason}\"}} "))
    }

    /// Number of refusals over this quota.
    pub(crate) fn over_quota(&self, what: &str) -> u64 {
        self.counted(&format!("ringtune_over_quota_total{{what=\"{what}\"}} "))
    }

    fn counted(&self, start: &str) -> u64 {
        let text = self.metrics.text().unwrap();
        text.lines().find_map(|line| line.strip_prefix(start)?.parse().ok()).unwrap_or(0)
    }
}

/// A small job.
pub(crate) fn spec() -> v1::JobSpec {
    crate::samples::spec(1)
}
