//! Over TLS: who has no token sees nothing, and who has one sees what it is for.

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::{self, access_service_client::AccessServiceClient, create_token_request::Kind};
use ringtune_tests::{Cluster, Launch, Sandbox};

use crate::{
    address,
    browser::{Browser, DESK},
    create,
};

async fn token(cluster: &Cluster<'_>, role: v1::Role, name: &str) -> Result<v1::CreateTokenResponse> {
    let request = v1::CreateTokenRequest {
        kind: Kind::Access.into(),
        role: role.into(),
        name: name.to_owned(),
        ..Default::default()
    };
    let mut access = AccessServiceClient::new(cluster.coordinator.door().channel()?);
    Ok(access.create_token(request).await?.into_inner())
}

async fn log_in(browser: &Browser<'_>, token: &str) -> Result<()> {
    browser.wait("the login", "document.querySelector('.login input[type=password]')").await?;
    browser.write(".login input", token).await?;
    browser.click(".login button").await
}

#[tokio::test]
async fn opens_what_a_token_is_for() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(browser) = Browser::open(&sandbox, DESK).await? else { return Ok(()) };
    let cluster = Cluster::start_coordinator(&sandbox, Launch::coordinator().over_tls()).await?;
    let mut jobs = cluster.jobs().await?;
    let job = create(&mut jobs, 1, "a secret star", v1::QueueSpec::default()).await?;
    let admin = token(&cluster, v1::Role::Admin, "grace").await?;
    let observer = token(&cluster, v1::Role::Observer, "olga").await?;
    let submitter = token(&cluster, v1::Role::Submitter, "sam").await?;

    // 1. Nobody: the login, and not a word of what there is. A wrong token is refused with its reason.
    browser.go(&format!("{}/#/jobs/{job}", address(&cluster))).await?;
    browser.wait("the login", "document.querySelector('.login')").await?;
    ensure!(!browser.text().await?.contains("secret"), "a stranger sees a job");
    browser.picture("login").await?;
    log_in(&browser, "rta1.wrong").await?;
    browser.wait("why not", "document.getElementById('login-problem').textContent.length > 10").await?;
    browser.run("document.querySelector('.login input').value = ''").await?;

    // 2. An admin sees the job that was asked for, and may cancel it. No script can read the login.
    log_in(&browser, &admin.secret).await?;
    browser.wait("the job", "document.querySelector('h1')?.textContent === 'a secret star'").await?;
    browser.wait("who looks", "document.getElementById('who').innerText.includes('grace (admin)')").await?;
    let buttons = "[...document.querySelectorAll('.jobhead button')].filter((button) => !button.hidden).map((button) => button.textContent).join()";
    ensure!(
        browser.run(&format!("return {buttons}")).await? == "Pause,Order,Cancel,Run again",
        "an admin's buttons"
    );
    ensure!(browser.run("return document.cookie").await? == "", "a script reads the cookie");
    // The login outlives the page.
    browser.go(&address(&cluster)).await?;
    browser.wait("the table", "document.querySelectorAll('[data-job]').length === 1").await?;
    browser.click("#logout").await?;

    // 3. An observer reads, and has no buttons.
    log_in(&browser, &observer.secret).await?;
    browser.wait("who looks", "document.getElementById('who').innerText.includes('olga (observer)')").await?;
    browser.click(&format!("[data-job=\"{job}\"] a")).await?;
    browser.wait("the job", "document.querySelector('h1')?.textContent === 'a secret star'").await?;
    ensure!(browser.run(&format!("return {buttons}")).await? == "", "an observer's buttons");

    // 4. A token that is revoked ends what it opened, while one looks.
    let token_id = observer.token.context("a token")?.token_id;
    let mut access = AccessServiceClient::new(cluster.coordinator.door().channel()?);
    access.revoke_token(v1::RevokeTokenRequest { token_id }).await?;
    browser.go(&address(&cluster)).await?;
    browser.wait("the login again", "document.querySelector('.login')").await?;

    // 5. A submitter does not see another one's job.
    log_in(&browser, &submitter.secret).await?;
    browser.wait("an empty table", "document.body.innerText.includes('There are no jobs yet')").await?;
    browser.run(&format!("location.hash = '#/jobs/{job}'")).await?;
    browser.wait("no such job", "document.body.innerText.includes('There is no such job')").await?;
    ensure!(!browser.text().await?.contains("secret"), "a submitter sees another one's job");

    // 6. From where too many wrong tokens come, nobody is looked at for a while: the page says so, and for how long.
    let wrong = "return (async () => {
                 const headers = {'content-type': 'application/json', authorization: 'Bearer rta1.wrong'};
                 for (let number = 0; number < 30; number += 1) {
                   const answer = await fetch('/api/ringtune.v1.JobService/ListJobs', {method: 'POST', headers, body: '{}'});
                   if (answer.status === 429) return Number(answer.headers.get('retry-after'));
                 }
                 return 0;
                 })()";
    let seconds = browser.run(wrong).await?;
    ensure!((1..=60).contains(&seconds.as_u64().context("Retry-After")?), "Retry-After: {seconds}");
    browser.go("about:blank").await?;
    browser.go(&address(&cluster)).await?;
    let told = "/Refused for now: too many wrong tokens .* again in \\d+ s/u.test(document.getElementById('lost').innerText)";
    browser.wait("how long", told).await?;
    // What is refused is an answer with a status, which Chromium's console tells.
    browser.is_clean(&["status of 401", "status of 404", "status of 403", "status of 429"]).await
}
