//! What machines of a cloud run when they start, on clean Debian systems: `make clouds-test`.
//!
//! Three things are not the cloud's: its services' addresses are stubs', systemd is played by [`Service`], and both machines have
//! this machine's network, so that their packages come from Debian.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context as _, Result, ensure};
use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{Response, StatusCode},
};
use ringtune_tests::{Sandbox, aws::Aws, metadata::Metadata, places, process::finish, wait::until};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{COORDINATOR, LONG, WORKER, debian, made, packages, root::Root, service::Service};

/// Where both clouds have their metadata.
const METADATA: &str = "http://169.254.169.254";
/// Takes note of what a script asks systemd for.
const SYSTEMCTL: &str = "#!/bin/sh\necho \"$*\" >>/root/systemctl.log\n";

/// A new machine.
async fn machine() -> Result<Root> {
    let root = Root::new(&debian()?, Vec::new()).await?;
    program(&root, "systemctl", SYSTEMCTL)?;
    Ok(root)
}

/// Puts a program before those of the system.
fn program(root: &Root, name: &str, text: &str) -> Result<()> {
    let inside = format!("/usr/local/bin/{name}");
    root.write(&inside, text)?;
    Ok(fs::set_permissions(root.path(&inside), fs::Permissions::from_mode(0o755))?)
}

/// Runs a machine's script, and what it asks systemd to start of ours.
async fn boot(root: &Root, script: &str) -> Result<Service> {
    root.write("/root/user-data", script)?;
    root.run(&["bash", "/root/user-data"]).await?.expect_code(0)?;
    let asked = fs::read_to_string(root.path("/root/systemctl.log"))?;
    let name = [COORDINATOR, WORKER].into_iter().find(|name| {
        let short = name.trim_end_matches(".service");
        asked
            .lines()
            .any(|line| line == format!("restart {short}") || line == format!("enable --now {short}"))
    });
    let service = Service::start(root, name.with_context(|| asked.clone())?).await?;
    if asked.lines().any(|line| line == "start ringtune-tokens") {
        root.run(&["/usr/local/sbin/ringtune-tokens"]).await?.expect_code(0)?;
    }
    Ok(service)
}

/// The worker is there, and the owner's token lets its owner in.
async fn expect_joined(coordinator: &Root, login: &str, own: &str) -> Result<()> {
    let idle = || async {
        let listed = coordinator.run(&["ringtune", "workers", "--output", "json"]).await?;
        Ok((listed.stdout.matches("IDLE").count() == 1).then_some(()))
    };
    until("the worker joins", LONG, idle).await?;
    coordinator.write("/root/login", login)?;
    let url = format!("https://{own}:7070");
    let login = ["env", "HOME=/tmp", "ringtune", "login", &url, "--token-file", "/root/login"];
    coordinator.run(&login).await?.expect_code(0)?;
    let who = coordinator.run(&["env", "HOME=/tmp", "ringtune", "whoami"]).await?.expect_code(0)?;
    ensure!(who.stdout.contains("owner"), "{}", who.stdout);
    Ok(())
}

/// This machine's first address, as its scripts see it.
async fn own_address() -> Result<String> {
    let said = finish(tokio::process::Command::new("hostname").arg("-I")).await?.expect_code(0)?.stdout;
    Ok(said.split_whitespace().next().context("an address")?.to_owned())
}

#[tokio::test]
#[ignore = "make clouds-test"]
async fn machines_on_aws_install_themselves_and_join() -> Result<()> {
    let (mut aws, metadata, own) = (Aws::start().await?, Metadata::start().await?, own_address().await?);
    aws.ask(&format!("upload {}", made().display())).await?;
    // 1. The cluster, for its machines' scripts.
    let sandbox = Sandbox::new()?;
    let up = ["cloud", "aws", "up", "toy", "--bucket", "acme-ringtune/ringtune", "--image", &aws.image];
    finish(sandbox.ringtune(&up)?.envs(&aws.variables)).await?.expect_code(0)?;
    let facts = aws.ask("facts").await?;
    let script = |name: &str| -> Result<String> {
        let text = facts["templates"][name]["user_data"].as_str().context("user data")?;
        let (before, rest) = text.split_once("COORDINATOR__URL=https://").unwrap_or((text, ""));
        let text = match rest.split_once(':') {
            Some((_, after)) => format!("{before}COORDINATOR__URL=https://{own}:{after}"),
            None => text.to_owned(),
        };
        Ok(text.replace(METADATA, &metadata.endpoint))
    };
    // 2. Both machines. Debian's awscli knows no variable for its cloud's address.
    let here = format!(
        "#!/bin/sh\nexport AWS_ACCESS_KEY_ID=someone AWS_SECRET_ACCESS_KEY=something\nexec /usr/bin/aws --endpoint-url {} \"$@\"\n",
        aws.endpoint
    );
    let (coordinator, worker) = (machine().await?, machine().await?);
    for root in [&coordinator, &worker] {
        program(root, "aws", &here)?;
    }
    let _first = boot(&coordinator, &script("CoordinatorTemplate")?).await?;
    let second = boot(&worker, &script("WorkerTemplate")?).await?;
    let names = fs::read_to_string(
        coordinator.path("/etc/systemd/system/ringtune-coordinator.service.d/cloud.conf"),
    )?;
    ensure!(names.contains(&format!("AUTHORITY__NAMES={own},203.0.113.9")), "{names}");
    // 3. They know each other, and their owner.
    let login = aws.ask("parameter /ringtune/toy/login").await?;
    let login = login.as_str().context("a token")?;
    expect_joined(&coordinator, login, &own).await?;
    // 4. So does a machine of an image that has the packages.
    second.stop().await?;
    let baked = machine().await?;
    for package in
        packages(&made(), &["ringtune", "ringtune-coordinator", "ringtune-libtorch", "ringtune-worker"])?
    {
        let name = package.file_name().context("a name")?.to_string_lossy().into_owned();
        fs::create_dir_all(baked.path("/tmp/packages"))?;
        fs::copy(&package, baked.path(&format!("/tmp/packages/{name}")))?;
    }
    fs::copy(places::repository().join("deploy/aws/install.sh"), baked.path("/root/install.sh"))?;
    baked.run(&["bash", "/root/install.sh", "/tmp/packages"]).await?.expect_code(0)?;
    program(&baked, "aws", &here)?;
    let third = boot(&baked, &script("WorkerTemplate")?).await?;
    ensure!(!baked.path("/var/cache/ringtune").exists(), "it fetched packages");
    expect_joined(&coordinator, login, &own).await?;
    third.stop().await
}

/// Azure's services: identities, blobs and secrets.
#[derive(Clone, Default)]
struct Azure {
    secrets: Arc<Mutex<BTreeMap<String, Value>>>,
}

impl Azure {
    async fn start(&self) -> Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let router = Router::new().fallback(answer).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(endpoint)
    }
}

async fn answer(State(azure): State<Azure>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let header =
        |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let query = parts.uri.query().unwrap_or_default();
    let with = |status: StatusCode, body: Body| {
        let mut answer = Response::new(body);
        *answer.status_mut() = status;
        answer
    };
    let refused = || with(StatusCode::UNAUTHORIZED, Body::empty());
    let is_of = |resource: &str| header("authorization") == format!("Bearer of {resource}");
    let path = parts.uri.path();
    // 1. Who is on the machine gets a token of its identity.
    if path == "/metadata/identity/oauth2/token" {
        let resource = query.split('&').find_map(|part| part.strip_prefix("resource=")).unwrap_or_default();
        let client = query.contains("client_id=the-identity");
        let token = json!({ "access_token": format!("of {resource}") });
        return if header("metadata") == "true" && client {
            with(StatusCode::OK, Body::from(token.to_string()))
        } else {
            refused()
        };
    }
    // 2. Packages.
    if let Some(name) = path.strip_prefix("/packages/") {
        let right = is_of("https://storage.azure.com/") && !header("x-ms-version").is_empty();
        return match tokio::fs::read(made().join(name)).await {
            Ok(bytes) if right => with(StatusCode::OK, Body::from(bytes)),
            Ok(_) => refused(),
            Err(_) => with(StatusCode::NOT_FOUND, Body::empty()),
        };
    }
    // 3. Secrets.
    if !is_of("https://vault.azure.net") || query != "api-version=7.4" {
        return refused();
    }
    let given = to_bytes(body, 1 << 20).await.unwrap_or_default();
    let mut secrets = azure.secrets.lock().unwrap_or_else(PoisonError::into_inner);
    if parts.method == "PUT" {
        let Ok(value) = serde_json::from_slice(&given) else {
            return with(StatusCode::BAD_REQUEST, Body::empty());
        };
        secrets.insert(path.to_owned(), value);
    }
    match secrets.get(path) {
        Some(value) => with(StatusCode::OK, Body::from(value.to_string())),
        None => with(StatusCode::NOT_FOUND, Body::empty()),
    }
}

#[tokio::test]
#[ignore = "make clouds-test"]
async fn machines_on_azure_install_themselves_and_join() -> Result<()> {
    let (azure, own) = (Azure::default(), own_address().await?);
    let endpoint = azure.start().await?;
    let template = fs::read_to_string(places::repository().join("deploy/azure/machine.sh"))?;
    // As cluster.bicep does it.
    let script = |role: &str| -> Result<String> {
        let [packages, join, login] =
            ["packages", "join", "login"].map(|place| format!("{endpoint}/{place}"));
        let mut text = template.replace(METADATA, &endpoint);
        for (name, value) in [
            ("@ROLE@", role),
            ("@IDENTITY@", "the-identity"),
            ("@PACKAGES@", &packages),
            ("@JOIN@", &join),
            ("@LOGIN@", &login),
            ("@COORDINATOR@", &own),
            ("@ADDRESS@", "203.0.113.9"),
        ] {
            text = text.replace(name, value);
        }
        let left = text
            .split('@')
            .skip(1)
            .step_by(2)
            .any(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase()));
        ensure!(!left, "{text}");
        Ok(text)
    };
    let (coordinator, worker) = (machine().await?, machine().await?);
    let _first = boot(&coordinator, &script("coordinator")?).await?;
    let _second = boot(&worker, &script("worker")?).await?;
    let login =
        azure.secrets.lock().unwrap_or_else(PoisonError::into_inner)["/login/secrets/token"]["value"].clone();
    expect_joined(&coordinator, login.as_str().context("a token")?, &own).await
}
