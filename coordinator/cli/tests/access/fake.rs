//! A coordinator with TLS that keeps its tokens in memory, and a home for the command.

use std::{
    collections::HashMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use ringtune_proto::v1::{
    self, access_service_server::AccessService, access_service_server::AccessServiceServer,
    create_token_request::Kind,
};
use ringtune_security::{
    AccessToken, Authority, Caller, Clients, Credentials, Csr, Holder, Identity, JoinToken, Leaf, Limits,
    Listener, Peer, Protection, Protocols, Refusals, Role, Secret, Trust,
};
use tempfile::TempDir;
use tokio::{io::AsyncWriteExt as _, net::TcpListener, process::Command};
use tonic::{Request, Response, Status, transport::Server};

const HOUR: Duration = Duration::from_secs(3600);

/// What the coordinator knows.
pub(crate) struct State {
    pub(crate) authority: Authority,
    /// Join tokens, with the name that they are for; who used one took it away.
    pub(crate) tokens: HashMap<[u8; 8], (JoinToken, String)>,
    pub(crate) access_token: AccessToken,
    /// What was asked for, in words, by whom.
    pub(crate) calls: Vec<String>,
    /// Whether renewals are refused.
    pub(crate) renews: bool,
}

/// A coordinator that listens, with TLS or without.
pub(crate) struct Coordinator {
    pub(crate) state: Arc<Mutex<State>>,
    address: SocketAddr,
    place: TempDir,
}

#[derive(Clone)]
struct Service(Arc<Mutex<State>>);

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Coordinator {
    pub(crate) async fn start() -> Self {
        Self::listen(true).await
    }

    pub(crate) async fn plain() -> Self {
        Self::listen(false).await
    }

    async fn listen(with_tls: bool) -> Self {
        let place = tempfile::tempdir().expect("folder");
        let authority =
            Authority::open_or_make(&place.path().join("authority"), SystemTime::now()).expect("a CA");
        let own = credentials(&authority, Holder::Coordinator { names: Vec::new() }, SystemTime::now());
        let trust = Trust::of(own).expect("of this cluster");
        let protection = match with_tls {
            true => Protection::Tls { trust, clients: Clients::Optional, protocols: Protocols::Http2 },
            false => Protection::Plain,
        };
        let state = State {
            authority,
            tokens: HashMap::new(),
            access_token: AccessToken::new().expect("random bytes"),
            calls: Vec::new(),
            renews: true,
        };
        let state = Arc::new(Mutex::new(state));
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = tcp.local_addr().expect("an address");
        let limits = Limits::default().for_loopback();
        let listener = Listener::start(tcp, protection, limits, Refusals::default()).expect("listening");
        let server = Server::builder().add_service(AccessServiceServer::new(Service(state.clone())));
        tokio::spawn(server.serve_with_incoming(listener));
        Self { state, address, place }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub(crate) fn http(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A token for somebody.
    pub(crate) fn token(&self, role: Role, name: &str) -> String {
        let mut state = self.state();
        let token = JoinToken::new(role, state.authority.hash(), state.authority.cluster());
        let token = token.expect("random bytes");
        let line = token.reveal();
        state.tokens.insert(token.id.bytes(), (token, name.to_owned()));
        line
    }

    /// Credentials that somebody got at that time, good for an hour from then.
    pub(crate) fn credentials_at(&self, role: Role, name: &str, at: SystemTime) -> Credentials {
        credentials(&self.state().authority, Holder::Member { role, name: name.to_owned() }, at)
    }

    /// A home where nothing is known.
    pub(crate) fn home(&self, name: &str) -> Home {
        let folder = self.place.path().join(name);
        fs::create_dir(&folder).expect("made");
        Home { folder, url: self.url(), login: format!("127.0.0.1_{}", self.address.port()) }
    }
}

fn credentials(authority: &Authority, holder: Holder, at: SystemTime) -> Credentials {
    let (key, csr) = Csr::make().expect("a key");
    let issued = authority.issue(csr.der(), &Leaf { holder, valid_for: HOUR }, at).expect("issued");
    Credentials::new(key, &issued.chain_pem(), authority.roots().clone()).expect("they fit")
}

/// A user's home folder, and the command in it.
pub(crate) struct Home {
    pub(crate) folder: PathBuf,
    url: String,
    login: String,
}

/// What a command did.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    /// It failed with this code, and said all of this.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, code, "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is missing in: {}", self.stderr);
        }
    }

    /// The lines of JSON that it printed.
    #[track_caller]
    pub(crate) fn json(&self) -> Vec<serde_json::Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }
}

impl Home {
    /// Where `ringtune login` keeps what it got.
    pub(crate) fn login_folder(&self) -> PathBuf {
        self.credentials_folder().join(&self.login)
    }

    pub(crate) fn credentials_folder(&self) -> PathBuf {
        self.folder.join("config/ringtune/credentials")
    }

    pub(crate) fn stored(&self) -> Credentials {
        Credentials::load(&self.login_folder()).expect("loaded").expect("there")
    }

    /// The command with nothing but a home.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringtune"));
        command
            .args(arguments)
            .current_dir(&self.folder)
            .env_clear()
            .env("HOME", &self.folder)
            .env("XDG_CONFIG_HOME", self.folder.join("config"))
            .env("RINGTUNE__STORAGE__STATE_DIR", self.folder.join("state"))
            .kill_on_drop(true);
        command
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(&[], arguments).await
    }

    pub(crate) async fn run_with(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Ran {
        let mut command = self.command(arguments);
        let output = command.envs(environment.iter().copied()).stdin(Stdio::null()).output();
        ran(output.await.expect("it ends"))
    }

    /// With this on its stdin.
    pub(crate) async fn fed(&self, input: &str, arguments: &[&str]) -> Ran {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let mut stdin = child.stdin.take().expect("a pipe");
        // A command that refuses its arguments reads nothing.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        ran(child.wait_with_output().await.expect("it ends"))
    }

    /// Logs somebody in.
    pub(crate) async fn log_in(&self, token: &str) {
        self.fed(token, &["login", &self.url]).await.ok();
    }
}

fn ran(output: Output) -> Ran {
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let code = output.status.code().expect("an exit code");
    Ran { code, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// All files below a folder.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

impl Service {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Who calls, by certificate or token; a line of what they want is kept.
    fn caller<T>(&self, request: &Request<T>, wants: &str) -> Result<(Role, String), Status> {
        let mut state = self.state();
        let peer = request.extensions().get::<Peer>().expect("a peer");
        let bearer = request.metadata().get("authorization").map(|header| header.to_str().expect("text"));
        let line = format!("Bearer {}", state.access_token.reveal());
        let (role, name) = match (&peer.caller, bearer) {
            (Caller::Known(Identity { role, name, .. }), _) => (*role, name.clone()),
            (_, Some(given)) if given == line => (Role::Observer, "a program".to_owned()),
            (_, Some(_)) => return Err(Status::unauthenticated("this token opens nothing")),
            (_, None) => return Err(Status::unauthenticated("who are you? log in with `ringtune login`")),
        };
        state.calls.push(format!("{role} {name}: {wants}"));
        Ok((role, name))
    }
}

fn certified(authority: &Authority, csr: &[u8], role: Role, name: &str) -> v1::Certified {
    let leaf = Leaf { holder: Holder::Member { role, name: name.to_owned() }, valid_for: HOUR };
    let issued = authority.issue(csr, &leaf, SystemTime::now()).expect("issued");
    v1::Certified {
        chain_pem: issued.chain_pem(),
        roots_pem: authority.roots().pem(),
        expire_time: Some(issued.valid.until.into()),
    }
}

fn wire(role: Role) -> i32 {
    ringtune_cli::access_objects::wire_role(role) as i32
}

fn a_token(kind: Kind, role: i32, name: &str) -> v1::Token {
    v1::Token {
        token_id: "0123456789abcdef".into(),
        kind: kind as i32,
        role,
        name: name.into(),
        creator: "ada".into(),
        uses_left: 1,
        ..v1::Token::default()
    }
}

fn certificate(name: &str, root: i32) -> v1::Certificate {
    let member = Some(v1::Member { role: wire(Role::Submitter), name: name.to_owned() });
    v1::Certificate { serial: format!("8f0{root}"), member, root, ..v1::Certificate::default() }
}

fn authority_of(state: &State) -> v1::Authority {
    let hashes = state.authority.roots().hashes();
    let roots = state.authority.numbers().into_iter().zip(hashes).map(|(number, hash)| v1::Root {
        number: i32::try_from(number).expect("small"),
        sha256: hex::encode(hash),
        certificates: 1,
        ..v1::Root::default()
    });
    v1::Authority { cluster: state.authority.cluster().to_string(), roots: roots.collect() }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl AccessService for Service {
    async fn join(&self, request: Request<v1::JoinRequest>) -> Answer<v1::JoinResponse> {
        let request = request.into_inner();
        let mut state = self.state();
        let id: [u8; 8] = request.token_id.try_into().expect("8 bytes");
        let secret = Secret::from_bytes(request.secret.try_into().expect("32 bytes"));
        let used = || Status::permission_denied("this token was used already, or has ended");
        let (token, name) = state.tokens.remove(&id).ok_or_else(used)?;
        if !secret.matches(&token.secret.hash()) || !request.name.is_empty() {
            return Err(Status::permission_denied("the secret is wrong"));
        }
        let certified = Some(certified(&state.authority, &request.csr, token.role, &name));
        Ok(Response::new(v1::JoinResponse { certified }))
    }

    async fn renew_certificate(
        &self,
        request: Request<v1::RenewCertificateRequest>,
    ) -> Answer<v1::RenewCertificateResponse> {
        let (role, name) = self.caller(&request, "renew")?;
        let state = self.state();
        if !state.renews {
            return Err(Status::resource_exhausted("the disk is full"));
        }
        let certified = Some(certified(&state.authority, &request.get_ref().csr, role, &name));
        Ok(Response::new(v1::RenewCertificateResponse { certified }))
    }

    async fn who_am_i(&self, request: Request<v1::WhoAmIRequest>) -> Answer<v1::WhoAmIResponse> {
        if matches!(request.extensions().get::<Peer>().expect("a peer").caller, Caller::Open) {
            let named = request.metadata().get("authorization").is_some();
            let name = if named { "a token in the clear" } else { "" }.to_owned();
            return Ok(Response::new(v1::WhoAmIResponse { name, ..v1::WhoAmIResponse::default() }));
        }
        let (role, name) = self.caller(&request, "who")?;
        let state = self.state();
        Ok(Response::new(v1::WhoAmIResponse {
            role: wire(role),
            name,
            cluster: state.authority.cluster().to_string(),
            roots_pem: state.authority.roots().pem(),
            expire_time: Some((SystemTime::now() + HOUR).into()),
            usage: Some(v1::OwnerUsage { bytes: 3 << 29, max_bytes: 1 << 40, files: 12, max_files: 1000 }),
            time: Some(SystemTime::now().into()),
        }))
    }

    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Answer<v1::CreateTokenResponse> {
        let asked = request.get_ref();
        let ttl = asked.ttl.map_or(0, |ttl| ttl.seconds);
        self.caller(&request, &format!("token {} for {ttl} s, {} uses", asked.name, asked.uses))?;
        let token = Some(a_token(asked.kind(), asked.role, &asked.name));
        Ok(Response::new(v1::CreateTokenResponse { token, secret: "rtj1.secret".into() }))
    }

    async fn list_tokens(&self, request: Request<v1::ListTokensRequest>) -> Answer<v1::ListTokensResponse> {
        self.caller(&request, "tokens")?;
        // Two pages.
        let (kind, next) = match request.get_ref().page_token.as_str() {
            "" => (Kind::Join, "more".to_owned()),
            _ => (Kind::Access, String::new()),
        };
        let tokens = vec![a_token(kind, wire(Role::Observer), "prometheus")];
        Ok(Response::new(v1::ListTokensResponse { tokens, next_page_token: next }))
    }

    async fn revoke_token(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> Answer<v1::RevokeTokenResponse> {
        self.caller(&request, &format!("revoke token {}", request.get_ref().token_id))?;
        Ok(Response::new(v1::RevokeTokenResponse {
            found: Some(request.get_ref().token_id.starts_with('0')),
        }))
    }

    async fn list_certificates(
        &self,
        request: Request<v1::ListCertificatesRequest>,
    ) -> Answer<v1::ListCertificatesResponse> {
        self.caller(&request, "certificates")?;
        let certificates = vec![certificate("bob", 2), certificate("ada", 1)];
        Ok(Response::new(v1::ListCertificatesResponse { certificates, next_page_token: String::new() }))
    }

    async fn revoke_certificate(
        &self,
        request: Request<v1::RevokeCertificateRequest>,
    ) -> Answer<v1::RevokeCertificateResponse> {
        self.caller(&request, &format!("revoke {:?}", request.get_ref().which))?;
        let unknown = ["dead", "nobody"].iter().any(|text| format!("{:?}", request.get_ref()).contains(text));
        Ok(Response::new(v1::RevokeCertificateResponse { found: Some(i32::from(!unknown)) }))
    }

    async fn get_authority(
        &self,
        request: Request<v1::GetAuthorityRequest>,
    ) -> Answer<v1::GetAuthorityResponse> {
        self.caller(&request, "authority")?;
        let authority = Some(authority_of(&self.state()));
        Ok(Response::new(v1::GetAuthorityResponse { authority }))
    }

    async fn rotate_authority(
        &self,
        request: Request<v1::RotateAuthorityRequest>,
    ) -> Answer<v1::RotateAuthorityResponse> {
        self.caller(&request, "rotate")?;
        let mut state = self.state();
        state.authority.rotate(SystemTime::now()).expect("rotated");
        let authority = Some(authority_of(&state));
        Ok(Response::new(v1::RotateAuthorityResponse { authority }))
    }

    async fn retire_authority(
        &self,
        request: Request<v1::RetireAuthorityRequest>,
    ) -> Answer<v1::RetireAuthorityResponse> {
        self.caller(&request, "retire")?;
        if !request.get_ref().force {
            return Err(Status::failed_precondition("a certificate of root 1 is in use"));
        }
        let mut state = self.state();
        state.authority.retire().expect("retired");
        let authority = Some(authority_of(&state));
        Ok(Response::new(v1::RetireAuthorityResponse { authority }))
    }
}
