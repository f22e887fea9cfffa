//! Every call of every port, by everybody who could make it: allowed and denied exactly as the tables say.

use std::{path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use axum::http::{self, header::AUTHORIZATION};
use ringtune_coordinator::access::table::{self, Who};
use ringtune_proto::v1::{self, access_service_client::AccessServiceClient, create_token_request::Kind};
use ringtune_security::{Connector, Credentials, Csr, JoinToken, Role, Roots, Server, Trust};
use ringtune_tests::{Cluster, Door, Launch, Sandbox, process::finish_child};
use ringtune_worker::callers;
use tokio::{io::AsyncWriteExt as _, process::Command};
use tonic::{
    Code,
    body::Body,
    transport::{Channel, Endpoint},
};
use tower::Service as _;
use uuid::Uuid;

/// Somebody who calls.
struct Somebody {
    /// None: unauthenticated.
    role: Option<Role>,
    credentials: Option<PathBuf>,
    token: Option<String>,
    trust: Trust,
}

impl Somebody {
    fn name(&self) -> String {
        let role = self.role.map_or("nobody", |role| role.as_str());
        let proof = if self.token.is_some() { " with an access token" } else { "" };
        format!("{role}{proof}")
    }

    fn channel(&self, address: &str, server: Server) -> Result<Channel> {
        let endpoint = Endpoint::from_shared(format!("https://{address}"))?;
        let connector = Connector::to(self.trust.clone(), server);
        Ok(endpoint.connect_timeout(Duration::from_secs(20)).connect_with_connector_lazy(connector))
    }
}

/// Somebody of each kind: strangers, and all roles with a certificate, and people's roles with an access token.
async fn everybody(sandbox: &Sandbox, door: &Door) -> Result<Vec<Somebody>> {
    let admin = Credentials::load(&sandbox.path("coordinator/admin"))?.context("an admin's credentials")?;
    let roots = admin.roots().clone();
    let mut all =
        vec![Somebody { role: None, credentials: None, token: None, trust: Trust::of_roots(roots.clone())? }];
    let mut access = AccessServiceClient::new(door.channel()?);
    for role in Role::ALL {
        let name = if role == Role::Worker { String::new() } else { role.as_str().to_owned() };
        let wire = match role {
            Role::Worker => v1::Role::Worker,
            Role::Submitter => v1::Role::Submitter,
            Role::Observer => v1::Role::Observer,
            Role::Admin => v1::Role::Admin,
        };
        for kind in [Kind::Join, Kind::Access] {
            if (role, kind) == (Role::Worker, Kind::Access) {
                continue;
            }
            let request = v1::CreateTokenRequest {
                kind: kind.into(),
                role: wire.into(),
                name: name.clone(),
                ..Default::default()
            };
            let token = access.create_token(request).await?.into_inner().secret;
            let somebody = match kind {
                Kind::Access => Somebody {
                    role: Some(role),
                    credentials: None,
                    token: Some(token),
                    trust: Trust::of_roots(roots.clone())?,
                },
                _ => joined(sandbox, door, role, token.parse()?).await?,
            };
            all.push(somebody);
        }
    }
    Ok(all)
}

async fn joined(sandbox: &Sandbox, door: &Door, role: Role, token: JoinToken) -> Result<Somebody> {
    let (key, csr) = Csr::make()?;
    let request = v1::JoinRequest {
        token_id: token.id.bytes().to_vec(),
        secret: token.secret.reveal().to_vec(),
        csr: csr.der().to_vec(),
        name: if role == Role::Worker { Uuid::now_v7().to_string() } else { String::new() },
    };
    let channel =
        Endpoint::from_shared(door.url())?.connect_with_connector(Connector::joining(&token)).await?;
    let certified = AccessServiceClient::new(channel).join(request).await?.into_inner().certified;
    let certified = certified.context("a certificate")?;
    let credentials = Credentials::new(key, &certified.chain_pem, Roots::from_pem(&certified.roots_pem)?)?;
    let folder = sandbox.path(&format!("credentials-{role}"));
    credentials.store(&folder)?;
    Ok(Somebody { role: Some(role), credentials: Some(folder), token: None, trust: Trust::of(credentials)? })
}

/// The code of the answer to a call with an empty message; none where it began with more than a code.
async fn call(channel: &mut Channel, method: &str, token: Option<&str>) -> Result<Option<Code>> {
    // One message, not compressed, of no bytes.
    let message = Body::new(axum::body::Body::from(vec![0_u8; 5]));
    let mut request =
        http::Request::post(method).header("content-type", "application/grpc").header("te", "trailers");
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    std::future::poll_fn(|context| channel.poll_ready(context)).await?;
    let answering = channel.call(request.body(message)?);
    let response =
        tokio::time::timeout(Duration::from_secs(60), answering).await.context(method.to_owned())??;
    let code = response.headers().get("grpc-status");
    let code = code.map(|code| code.to_str().unwrap_or_default().parse::<i32>()).transpose()?;
    Ok(code.map(Code::from))
}

/// Code of a denied call.
fn denial(caller: &Somebody) -> Code {
    if caller.role.is_some() { Code::PermissionDenied } else { Code::Unauthenticated }
}

fn judge(caller: &Somebody, what: &str, allowed: bool, code: Option<Code>) -> Result<()> {
    let denied = matches!(code, Some(Code::PermissionDenied | Code::Unauthenticated));
    let who = caller.name();
    ensure!(allowed != denied, "{what} by {who}: {code:?}, but the table says {allowed}");
    ensure!(allowed || code == Some(denial(caller)), "{what} by {who}: {code:?}");
    Ok(())
}

fn coordinator_allows(who: Who, caller: &Somebody) -> bool {
    match who {
        Who::Everybody => true,
        Who::Known => caller.role.is_some(),
        Who::Certified => caller.credentials.is_some(),
        Who::Roles(roles) => caller.role.is_some_and(|role| roles.contains(&role)),
        // Of those that are asked for below each stands for one call for people.
        Who::AsCalls => caller.role.is_some_and(|role| role != Role::Worker),
    }
}

/// Requests of routes, and the status for permitted callers.
const ASKED: [(&str, &str, u16); 7] = [
    ("/metrics/workers/{worker}", "/metrics/workers/0193f2a4-5b6c-7d8e-9f00-112233445566", 404),
    ("/assets/{name}", "/assets/page.css", 200),
    ("/api/{service}/{method}", "/api/ringtune.v1.ClusterService/GetCluster", 200),
    ("/api/files/{job}", "/api/files/0193f2a4-5b6c-7d8e-9f00-112233445566", 404),
    ("/api/files/{job}/{name}", "/api/files/0193f2a4-5b6c-7d8e-9f00-112233445566/x", 404),
    (
        "/api/contents/{sha256}",
        "/api/contents/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        404,
    ),
    // A login without a token.
    ("/login", "/login", 400),
];

/// Workers cannot look at tokens: whoever comes with one is a stranger there.
fn worker_allows(who: callers::Who, caller: &Somebody) -> bool {
    let role = caller.role.filter(|_| caller.credentials.is_some());
    match who {
        callers::Who::Everybody => true,
        callers::Who::Known => role.is_some(),
        callers::Who::Roles(roles) => role.is_some_and(|role| roles.contains(&role)),
    }
}

async fn start(sandbox: &Sandbox) -> Result<Cluster<'_>> {
    Cluster::start_fake_with(sandbox, Launch::coordinator().over_tls(), 1, |worker| worker).await
}

#[tokio::test]
async fn every_call_is_allowed_and_denied_as_the_tables_say() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cluster = start(&sandbox).await?;
    let everybody = everybody(&sandbox, &cluster.coordinator.door()).await?;
    let worker = &cluster.workers[0];
    let mut denied = 0;
    for caller in &everybody {
        // 1. The coordinator's calls.
        let mut channel = caller.channel(&cluster.coordinator.grpc, Server::Coordinator)?;
        for row in &table::GRPC {
            let allowed = coordinator_allows(row.who, caller);
            judge(
                caller,
                row.method,
                allowed,
                call(&mut channel, row.method, caller.token.as_deref()).await?,
            )?;
            denied += usize::from(!allowed);
        }
        // 2. The worker's.
        let mut channel = caller.channel(&worker.grpc, Server::Worker(worker.id.parse()?))?;
        let stranger = Somebody { role: None, ..strip(caller)? };
        let seen = if caller.token.is_some() { &stranger } else { caller };
        for (method, who) in callers::CALLS {
            let allowed = worker_allows(who, caller);
            let code = call(&mut channel, &format!("/{method}"), caller.token.as_deref()).await?;
            // One that may speak is told that its stream does not belong there, by the ring and not by the table.
            let ring = allowed && caller.role == Some(Role::Worker) && method.contains("RingService");
            judge(seen, method, allowed, code.filter(|_| !ring))?;
            denied += usize::from(!allowed);
        }
    }
    ensure!(denied > 100, "only {denied} calls were denied");
    Ok(())
}

/// The caller without its credentials.
fn strip(caller: &Somebody) -> Result<Somebody> {
    Ok(Somebody { role: caller.role, credentials: None, token: None, trust: caller.trust.clone() })
}

#[tokio::test]
async fn every_page_is_allowed_and_denied_as_the_tables_say() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cluster = start(&sandbox).await?;
    let everybody = everybody(&sandbox, &cluster.coordinator.door()).await?;
    let (mut wanted, mut expected) = (Vec::new(), Vec::new());
    for caller in &everybody {
        let identity = caller.credentials.as_ref().map(|folder| folder.join("identity.pem"));
        let proofs = (identity.unwrap_or_default(), caller.token.clone().unwrap_or_default());
        let denial = |allowed: bool, known: bool| match (allowed, known) {
            (true, _) => 200,
            (false, true) => 403,
            (false, false) => 401,
        };
        for row in &table::HTTP {
            let (method, route) = row.method.split_once(' ').context("a method and a path")?;
            let asked = ASKED.iter().find(|asked| asked.0 == route);
            let (path, answer) = asked.map_or((route, 200), |asked| (asked.1, asked.2));
            wanted.push((cluster.coordinator.http.clone(), (method, path), proofs.clone(), true));
            // Single files are for workers, too; an archive begins with a question about the job.
            let of_files = route.ends_with("/{name}") || route.contains("contents");
            let allowed = coordinator_allows(row.who, caller) || (of_files && caller.role.is_some());
            let done = if path == "/logout" { 204 } else { answer };
            expected.push(if allowed { done } else { denial(false, caller.role.is_some()) });
        }
        for (path, who) in callers::PAGES {
            wanted.push((cluster.workers[0].http.clone(), ("GET", path), proofs.clone(), false));
            expected.push(denial(worker_allows(who, caller), caller.credentials.is_some()));
        }
    }
    let asked: Vec<_> = wanted
        .iter()
        .map(|(address, (method, path), (identity, token), names)| {
            (address, method, path, identity, token, names)
        })
        .collect();
    let roots = sandbox.path("coordinator/admin/trust.pem");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/roles/pages.py");
    let mut python = Command::new("python3");
    python.arg(script).arg(roots).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = python.kill_on_drop(true).spawn()?;
    let mut stdin = child.stdin.take().context("stdin")?;
    stdin.write_all(&serde_json::to_vec(&asked)?).await?;
    drop(stdin);
    let answered = finish_child(child).await?.expect_code(0)?;
    let statuses: Vec<u16> = serde_json::from_str(&answered.stdout)?;
    for ((asked, status), expected) in asked.iter().zip(&statuses).zip(&expected) {
        ensure!(status == expected, "{asked:?}: {status}, but the table says {expected}");
    }
    ensure!(
        statuses.len() == expected.len() && statuses.contains(&401) && statuses.contains(&403),
        "{statuses:?}"
    );
    Ok(())
}
