//! Login by certificate: the browser of somebody who has one of the cluster shows it, and is asked for nothing.

use std::{fs, path::Path, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1;
use ringtune_tests::{
    Cluster, Launch, Sandbox,
    process::{finish, finish_child},
    tools,
};
use tokio::{io::AsyncWriteExt as _, process::Command};

use crate::{
    address,
    browser::{Browser, DESK},
    create,
};

/// Chromium's database of certificates, below its home.
const DATABASE: &str = ".pki/nssdb";

/// Logs somebody in as a submitter of that name; the file with the key and the certificate.
async fn login(cluster: &Cluster<'_>, sandbox: &Sandbox, name: &str) -> Result<std::path::PathBuf> {
    let made = cluster.finish(&["token", "create", "--role", "submitter", "--name", name]).await?;
    let token = made.expect_code(0)?.stdout;
    let mut login = sandbox.ringtune(&["login", &cluster.coordinator.door().url()])?;
    login.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut login = login.spawn()?;
    login.stdin.take().context("stdin")?.write_all(token.as_bytes()).await?;
    finish_child(login).await?.expect_code(0)?;
    let folder = sandbox.path("config/ringtune/credentials");
    Ok(folder.join(cluster.coordinator.grpc.replace(':', "_")).join("identity.pem"))
}

async fn run(sandbox: &Sandbox, program: &str, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(sandbox.folder());
    finish(&mut command).await?.expect_code(0).with_context(|| program.to_owned()).map(drop)
}

/// As docs/page.md says it: into the database of certificates of the browser that will be started in this sandbox.
async fn import(sandbox: &Sandbox, identity: &Path) -> Result<()> {
    fs::create_dir_all(sandbox.path(DATABASE))?;
    let (identity, database) = (identity.to_string_lossy(), format!("sql:{DATABASE}"));
    run(sandbox, "certutil", &["-N", "-d", &database, "--empty-password"]).await?;
    let export = ["pkcs12", "-export", "-in", &identity, "-out", "ada.p12", "-passout", "pass:"];
    run(sandbox, "openssl", &export).await?;
    run(sandbox, "pk12util", &["-i", "ada.p12", "-d", &database, "-W", ""]).await
}

#[tokio::test]
async fn a_certificate_of_the_cluster_opens_the_page() -> Result<()> {
    if !tools::has(&["certutil", "pk12util"], "libnss3-tools")? || !tools::has(&["openssl"], "openssl")? {
        return Ok(());
    }
    let sandbox = Sandbox::new()?;
    let cluster = Cluster::start_coordinator(&sandbox, Launch::coordinator().over_tls()).await?;
    let identity = login(&cluster, &sandbox, "ada").await?;
    import(&sandbox, &identity).await?;
    let Some(browser) = Browser::open(&sandbox, DESK).await? else { return Ok(()) };
    let mut jobs = cluster.jobs().await?;
    create(&mut jobs, 1, "a secret star", v1::QueueSpec::default()).await?;
    let own = v1::QueueSpec { owner: "ada".to_owned(), ..Default::default() };
    let job = create(&mut jobs, 2, "a star of ada's", own).await?;

    // 1. Nothing is asked, and there is nothing to log out of. It is her own jobs that she sees, as they change.
    browser.go(&address(&cluster)).await?;
    browser.wait("who looks", "document.getElementById('who').innerText.includes('ada (submitter)')").await?;
    browser
        .wait(
            "her job",
            &format!("document.querySelector('[data-job=\"{job}\"]').innerText.includes('queued')"),
        )
        .await?;
    ensure!(browser.run("return document.querySelectorAll('[data-job]').length").await? == 1);
    ensure!(!browser.text().await?.contains("secret"), "a submitter sees another one's job");
    ensure!(browser.run("return document.querySelector('#logout, .login')").await?.is_null());
    browser.picture("certificate").await?;

    // 2. She may do by it what her role may.
    browser.click(&format!("[data-job=\"{job}\"] a")).await?;
    browser.run("[...document.querySelectorAll('.jobhead button')].find((button) => button.textContent === 'Cancel').click()").await?;
    browser.click("dialog button.danger").await?;
    browser
        .wait("it is cancelled", "document.querySelector('.jobhead .state').innerText.includes('cancelled')")
        .await?;

    // 3. Once it is revoked, it opens nothing, and the page says why. What she saw is gone.
    cluster.finish(&["cert", "revoke", "--role", "submitter", "--name", "ada"]).await?.expect_code(0)?;
    let why = "/certificate is refused\\s.*was revoked/su.test(document.getElementById('main').innerText) && \
               document.getElementById('lost').hidden";
    browser.wait("why it is refused", why).await?;
    ensure!(!browser.text().await?.contains("star"), "what she saw is there still");
    browser.picture("refused").await?;
    // Whoever begins with it gets the reason alone.
    browser.go(&address(&cluster)).await?;
    browser.wait("why, from the beginning", "document.body.innerText.includes('was revoked')").await?;
    browser.is_clean(&["status of 401", "ERR_"]).await
}
