//! Ports that speak TLS: who gets in, what of a rotation and of a revocation is noticed, and when.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use ringtune_coordinator::{
    contents::Limits, network::authority::Pki, opening::adopt, settings::Settings, state_folder::StateFolder,
};
use ringtune_proto::v1::{self, JobState, session_response::Message as Down};
use ringtune_security::{ConnectError, Connector, Credentials, Csr, Revoked, Role, Roots, Server, Trust};
use ringtune_shared::{daemon::settings::TlsMode, ids::WorkerId, version::RE_FORM};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::{Code, transport::Channel};

use crate::{
    coordinator::{Coordinator, secure_channel},
    soon,
    tls::connector,
    worker::{Worker, hello},
};

fn with_tls(settings: &mut Settings) {
    settings.security.tls = TlsMode::On;
}

impl Coordinator {
    fn pki(&self) -> &Pki {
        self.pki.as_ref().unwrap()
    }

    async fn credentials(&self, role: Role, name: &str) -> Credentials {
        let (key, csr) = Csr::make().unwrap();
        let issued = self.pki().issue(csr.der().to_vec(), role, name.to_owned()).await.unwrap();
        Credentials::new(key, &issued.chain_pem(), self.pki().trust().roots()).unwrap()
    }

    /// A worker with a certificate of its own, which was welcomed and heard whom to trust.
    async fn secure_worker(&self, hello: v1::Hello) -> (Worker, Credentials, v1::Trust) {
        let credentials = self.credentials(Role::Worker, &hello.worker_id).await;
        let channel = secure_channel(self.address, Trust::of(credentials.clone()).unwrap());
        let mut worker = Worker::open_on(channel, hello).await.unwrap();
        let Down::Trust(trust) = worker.hear().await.unwrap() else { panic!("no trust after the welcome") };
        (worker, credentials, trust)
    }

    async fn worker_state(&self, id: &str) -> v1::WorkerState {
        let request = v1::GetWorkerRequest { worker_id: id.to_owned() };
        self.cluster().get_worker(request).await.unwrap().into_inner().worker.unwrap().state()
    }
}

async fn cluster_of(channel: Channel) -> Result<v1::GetClusterResponse, tonic::Status> {
    let mut client = v1::cluster_service_client::ClusterServiceClient::new(channel);
    let answer = soon("an answer", client.get_cluster(v1::GetClusterRequest::default()));
    answer.await.map(tonic::Response::into_inner)
}

/// A call for everybody with a certificate.
async fn known(channel: Channel) -> Result<(), tonic::Status> {
    let mut client = v1::access_service_client::AccessServiceClient::new(channel);
    soon("an answer", client.who_am_i(v1::WhoAmIRequest {})).await.map(|_| ())
}

/// Answer of a page over TLS. `identity`: key and certificates, PEM; empty: none.
async fn https_get(address: SocketAddr, roots: &Roots, path: &str, identity: &str) -> String {
    let tcp = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = connector(roots, identity).connect(name, tcp).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon("an answer over TLS", stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn the_first_start_makes_an_authority_and_lets_this_machines_admin_in() {
    let state = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start_with(state.path(), with_tls).await;
    for folder in ["authority", "admin"] {
        assert_eq!(mode(&state.path().join(folder)), 0o700, "{folder}");
    }
    for file in ["authority/root-0001.pem", "admin/identity.pem", "admin/trust.pem"] {
        assert_eq!(mode(&state.path().join(file)), 0o600, "{file}");
    }
    cluster_of(coordinator.channel.clone()).await.unwrap();
    let (cluster, roots) = (coordinator.pki().cluster(), coordinator.pki().roots());
    coordinator.stop().await;
    // The same cluster after a restart.
    let coordinator = Coordinator::start_with(state.path(), with_tls).await;
    assert_eq!((coordinator.pki().cluster(), coordinator.pki().roots()), (cluster, roots));
    cluster_of(coordinator.channel.clone()).await.unwrap();
    coordinator.stop().await;
}

#[tokio::test]
async fn an_authority_that_is_lost_is_not_replaced_before_somebody_says_so() {
    let state = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start_with(state.path(), with_tls).await;
    let csr = Csr::make().unwrap().1.der().to_vec();
    let mut access = v1::access_service_client::AccessServiceClient::new(coordinator.channel.clone());
    access.renew_certificate(v1::RenewCertificateRequest { csr }).await.unwrap();
    coordinator.stop().await;
    let root = state.path().join("authority/root-0001.pem");
    std::fs::remove_file(&root).unwrap();
    let error = Coordinator::try_start_with(state.path(), with_tls).await.err().unwrap();
    let text = error.to_string();
    assert!(error.needs_repair() && text.contains(&*root.parent().unwrap().to_string_lossy()), "{text}");
    assert!(text.contains("adopt-contents --state-dir") && !root.exists(), "{text}");
    let folder = StateFolder::open(state.path()).unwrap();
    adopt(&folder, Limits::default()).await.unwrap().store.close().await;
    drop(folder);
    Coordinator::start_with(state.path(), with_tls).await.stop().await;
    assert!(root.exists());
}

#[tokio::test]
async fn loopback_and_insecure_ports_are_plain() {
    let state = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(state.path()).await;
    coordinator.create(1).await;
    assert!(coordinator.pki.is_none() && !state.path().join("authority").exists());
    coordinator.stop().await;
    let state = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start_with(state.path(), |settings| {
        settings.grpc.listen = ([0, 0, 0, 0], 0).into();
        settings.security.insecure = true;
    })
    .await;
    coordinator.create(1).await;
    let mut worker = Worker::start(&coordinator, "host-a").await;
    assert!(matches!(worker.hear().await.unwrap(), Down::Assignment(_)), "trust is for TLS alone");
    assert!(!state.path().join("authority").exists());
    coordinator.stop().await;
}

#[tokio::test]
async fn plain_text_is_told_that_the_ports_speak_tls() {
    let state = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start_with(state.path(), with_tls).await;
    let uri = format!("http://{}", coordinator.address).parse().unwrap();
    let error = Connector::plain().connect(&uri).await.unwrap_err();
    assert!(error.to_string().contains("https://"), "{error}");
    let answer = coordinator.http_get("/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("https://"), "{answer}");
    // Probes are for all, and metrics for who is known.
    let roots = coordinator.pki().trust().roots();
    assert!(https_get(coordinator.http, &roots, "/readyz", "").await.starts_with("HTTP/1.1 200"));
    assert!(https_get(coordinator.http, &roots, "/metrics", "").await.starts_with("HTTP/1.1 401"));
    let admin = std::fs::read_to_string(state.path().join("admin/identity.pem")).unwrap();
    let metrics = https_get(coordinator.http, &roots, "/metrics", &admin).await;
    assert!(metrics.contains(r#"ringtune_refused_connections_total{reason="plaintext"} 2"#), "{metrics}");
    coordinator.stop().await;
}

#[tokio::test]
async fn a_rotation_ends_nothing_and_is_told() {
    let coordinator = Coordinator::fresh_with(with_tls).await;
    let (mut worker, credentials, told) = coordinator.secure_worker(hello("host-a")).await;
    let old = coordinator.pki().trust().roots();
    assert_eq!((told.roots_pem, told.revoked_serials.len()), (old.pem(), 0));
    coordinator.pki().rotate().await.unwrap();
    let Down::Trust(told) = worker.hear().await.unwrap() else { panic!("no trust after the rotation") };
    let both = Roots::from_pem(&told.roots_pem).unwrap();
    assert_eq!(both, coordinator.pki().trust().roots());
    assert_eq!((both.ders().len(), &both.ders()[0]), (2, &old.ders()[0]));
    // The session goes on.
    coordinator.create(1).await;
    worker.prepare().await;
    // Clients with the old root alone are let in, and those with the new one.
    let before = secure_channel(coordinator.address, Trust::of(credentials.clone()).unwrap());
    known(before).await.unwrap();
    let newer = coordinator.credentials(Role::Admin, "ada").await;
    let newest = Roots::new(vec![both.ders()[1].clone()]).unwrap();
    let newer = Trust::of(newer.with_roots(newest)).unwrap();
    cluster_of(secure_channel(coordinator.address, newer.clone())).await.unwrap();
    // Once the old root is retired its certificates are nobody's.
    coordinator.pki().retire().await.unwrap();
    cluster_of(secure_channel(coordinator.address, newer)).await.unwrap();
    let late = secure_channel(coordinator.address, Trust::of(credentials).unwrap());
    assert_eq!(known(late).await.unwrap_err().code(), Code::Unavailable);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_revoked_worker_is_out_within_a_second() {
    let coordinator = Coordinator::fresh_with(with_tls).await;
    let id = WorkerId::new().to_string();
    for by_serial in [true, false] {
        let features = vec![RE_FORM.to_owned()];
        let hello = v1::Hello { worker_id: id.clone(), features, ..hello("host-a") };
        let (mut worker, credentials, _) = coordinator.secure_worker(hello.clone()).await;
        let job = coordinator.create(1).await;
        worker.prepare().await;
        let serials = if by_serial { [credentials.serial().to_owned()].into() } else { [].into() };
        let members = if by_serial { [].into() } else { [(Role::Worker, id.clone())].into() };
        let begun = Instant::now();
        coordinator.pki().set_revoked(Revoked { serials, members });
        worker.end().await;
        while coordinator.worker_state(&id).await != v1::WorkerState::Lost
            || coordinator.job(&job.job_id).await.state() != JobState::Queued
        {
            assert!(begun.elapsed() < Duration::from_secs(1), "it is still there");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let mut watch = coordinator.watch(&job.job_id, 0).await;
        let why = "rank 0 on host-a: its certificate was revoked";
        soon("the reason", watch.until_log(why)).await;
        // It does not come back with that certificate.
        let channel = secure_channel(coordinator.address, Trust::of(credentials).unwrap());
        let refused = Worker::open_on(channel, hello).await.err().unwrap();
        assert_eq!(refused.code(), Code::Unauthenticated);
        assert!(refused.message().contains("was revoked"), "{refused}");
        coordinator.cancel(&job.job_id).await.unwrap();
        coordinator.pki().set_revoked(Revoked::default());
    }
    coordinator.stop().await;
}

#[tokio::test]
async fn connections_that_are_slow_or_have_no_calls_are_closed_and_sessions_are_not() {
    let coordinator = Coordinator::fresh_with(|settings| {
        with_tls(settings);
        settings.limits.opening_seconds = 0.5;
    })
    .await;
    let (mut worker, ..) = coordinator.secure_worker(hello("host-a")).await;
    let mut slow = TcpStream::connect(coordinator.address).await.unwrap();
    // The head of a TLS record whose rest does not come.
    slow.write_all(&[22, 3, 1, 2, 0]).await.unwrap();
    let mut silent = TcpStream::connect(coordinator.address).await.unwrap();
    for stream in [&mut slow, &mut silent] {
        let mut rest = Vec::new();
        soon("the end of a slow handshake", stream.read_to_end(&mut rest)).await.ok();
    }
    // Open, and then nothing.
    let trust = coordinator.pki().trust().roots();
    let uri = format!("https://{}", coordinator.address).parse().unwrap();
    let connector = Connector::to(Trust::of_roots(trust).unwrap(), Server::Coordinator);
    let mut unused = connector.connect(&uri).await.unwrap();
    let mut rest = Vec::new();
    soon("the end of an unused connection", unused.read_to_end(&mut rest)).await.ok();
    // The session's only call is as old, and goes on.
    coordinator.create(1).await;
    worker.prepare().await;
    coordinator.stop().await;
}

#[tokio::test]
async fn another_clusters_certificates_are_refused_on_both_sides() {
    let (ours, theirs) = (Coordinator::fresh_with(with_tls).await, Coordinator::fresh_with(with_tls).await);
    let stranger = theirs.credentials(Role::Admin, "ada").await;
    let uri = format!("https://{}", ours.address).parse().unwrap();
    // It believes its own coordinator only, and ours believes none of its.
    let error = connect(Trust::of(stranger.clone()).unwrap(), &uri).await;
    assert!(!matches!(error, ConnectError::Unreachable { .. }), "{error}");
    let told = ours.pki().trust().roots();
    let mixed = Trust::new(ours.pki().cluster(), Some(stranger), told, Revoked::default());
    assert!(mixed.is_err(), "its own crate refuses to mix them");
    ours.stop().await;
    theirs.stop().await;
}

async fn connect(trust: Trust, uri: &http::Uri) -> ConnectError {
    Connector::to(trust, Server::Coordinator).connect(uri).await.unwrap_err()
}
