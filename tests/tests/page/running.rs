//! A job that runs: its progress is seen as it happens, also when its ring or its coordinator is lost.

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::JobState;
use ringtune_tests::{Cluster, Launch, Sandbox};

use crate::{
    address,
    browser::{Browser, DESK},
    endless, job_address,
};

/// The step in a job's head.
const STEP: &str =
    "Number((document.querySelector('.facts dd')?.textContent ?? '0').split(' of ')[0].replace(/\\D/gu, ''))";
/// WebDriver's Enter.
const ENTER: &str = "\u{e007}";

/// Its workers need 25 ms for a gradient.
pub(crate) async fn cluster(sandbox: &Sandbox, workers: usize) -> Result<Cluster<'_>> {
    let worker = |launch: Launch| launch.flags(["--gradient-takes", "25"]);
    Cluster::start_fake_with(sandbox, Launch::coordinator(), workers, worker).await
}

async fn step(browser: &Browser<'_>) -> Result<u64> {
    browser.run(&format!("return {STEP}")).await?.as_u64().context("a step")
}

#[tokio::test]
async fn a_job_is_followed_through_all_that_happens_to_it() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(browser) = Browser::open(&sandbox, DESK).await? else { return Ok(()) };
    let mut cluster = cluster(&sandbox, 4).await?;

    // 1. The table is open as the job comes: it appears, and its steps move.
    browser.go(&address(&cluster)).await?;
    browser.wait("there is no job yet", "document.body.innerText.includes('There are no jobs yet')").await?;
    let job = cluster.submit(&sandbox.write_job("job.toml", &endless(3)?)?).await?;
    let row = format!("document.querySelector('[data-job=\"{job}\"]')");
    browser.wait("the job appears", &format!("{row}?.innerText.includes('endless star')")).await?;
    browser.wait("it runs", &format!("{row}.innerText.includes('running')")).await?;
    browser.wait("its bar moves", &format!("{row}.querySelector('progress').value > 0")).await?;
    browser
        .wait("the cluster is summed up", "/1\\s+idle/u.test(document.getElementById('cluster').innerText)")
        .await?;

    // 2. Its own view: charts with points, the ring with its ranks.
    browser.click(&format!("[data-job=\"{job}\"] a")).await?;
    browser
        .wait(
            "the loss is drawn",
            "document.querySelector('.chart path.raw')?.getAttribute('d')?.split('L').length > 5",
        )
        .await?;
    browser
        .wait("the validation loss is drawn", "document.querySelectorAll('.chart .dot').length > 0")
        .await?;
    browser.wait("three ranks", "document.querySelectorAll('.ring .node').length === 3").await?;
    ensure!(browser.text().await?.contains("epoch 1"), "the ring's epoch");
    let before = step(&browser).await?;
    browser.wait("steps move", &format!("{STEP} > {before}")).await?;

    // 3. A member is lost: the ring is formed anew before one's eyes, with the worker that was free.
    let lost = cluster.job(&job).await?.ring.context("a ring")?.members[1].worker_id.clone();
    let label = cluster.workers.iter().find(|worker| worker.id == lost).context("the worker")?.label.clone();
    cluster.daemon(&label)?.end().await?;
    browser
        .wait("another epoch", "/epoch [2-9]/u.test(document.querySelector('.ring .epoch').textContent)")
        .await?;
    browser
        .wait(
            "the lost one is named",
            &format!("document.querySelector('.node.gone[data-worker=\"{lost}\"]')"),
        )
        .await?;
    browser
        .wait(
            "what happened is told",
            "/epoch \\d+, .* left/u.test(document.querySelector('.changes').innerText)",
        )
        .await?;
    browser
        .wait(
            "it is said aloud",
            "/formed anew: epoch/u.test(document.getElementById('announce').textContent)",
        )
        .await?;
    browser
        .wait("the newcomer is there", "document.querySelectorAll('.ring .node:not(.gone)').length === 3")
        .await?;
    browser.run("document.querySelector('.ring').scrollIntoView({ block: 'center' })").await?;
    browser.picture("ring").await?;

    // 4. The coordinator dies: the page says so, and all comes back by itself, nothing twice.
    let before = step(&browser).await?;
    browser.run("window.same = true").await?;
    cluster.coordinator.end().await?;
    browser.wait("the loss is said", "document.getElementById('lost').getBoundingClientRect().bottom > 0 && !document.getElementById('lost').hidden").await?;
    browser.picture("lost").await?;
    cluster.start_again("coordinator").await?;
    browser.wait("the bar goes", "document.getElementById('lost').hidden").await?;
    browser.wait("steps go on", &format!("{STEP} > {before} + 20")).await?;
    ensure!(browser.run("return window.same").await? == true, "the page was loaded again");
    let lines = "[...document.querySelectorAll('.log li')].map((line) => line.innerText)";
    let twice = browser.run(&format!("const all = {lines}; return all.filter((line, at) => /running|preparing/u.test(line) && all.indexOf(line) !== at)")).await?;
    ensure!(twice == serde_json::json!([]), "lines are there twice: {twice}");

    // 5. It is paused and resumed, and then cancelled by keyboard alone, each after a question.
    for (verb, state) in [("Pause", "paused"), ("Resume", "running")] {
        let button = format!(
            "[...document.querySelectorAll('.jobhead button')].find((button) => button.textContent === '{verb}').click()"
        );
        browser.run(&button).await?;
        browser.click("dialog button[type=submit]").await?;
        let shown = format!("document.querySelector('.jobhead .state').innerText.includes('{state}')");
        browser.wait(&format!("it is {state}"), &shown).await?;
        browser.picture(state).await?;
    }
    browser.run("[...document.querySelectorAll('.jobhead button')].find((button) => button.textContent === 'Cancel').focus()").await?;
    browser.press(ENTER).await?;
    browser
        .wait("a question", "document.querySelector('dialog[open]')?.innerText.includes('Cancel this job?')")
        .await?;
    browser.write("dialog input[name=reason]", "seen enough").await?;
    browser.press(ENTER).await?;
    browser.wait("no question", "!document.querySelector('dialog')").await?;
    browser
        .wait("it is cancelled", "document.querySelector('.jobhead .state').innerText.includes('cancelled')")
        .await?;
    cluster.wait_for_state(&job, JobState::Cancelled).await?;
    browser
        .wait("what it left is listed", "document.querySelector('.files a[href$=\"metrics.csv\"]')")
        .await?;
    browser.wait("the ring is gone", "document.querySelector('.ring').hidden").await?;

    // 6. And deleted.
    browser.run("[...document.querySelectorAll('.jobhead button')].find((button) => button.textContent === 'Delete').click()").await?;
    browser.click("dialog button.danger").await?;
    browser.wait("the table is back, without it", &format!("location.hash === '#/jobs' && !{row}")).await?;
    browser
        .is_clean(&[
            "ERR_CONNECTION_REFUSED",
            "ERR_INCOMPLETE_CHUNKED",
            "ERR_CONNECTION_RESET",
            "ERR_SOCKET_NOT_CONNECTED",
            "ERR_EMPTY_RESPONSE",
            "status of 503",
        ])
        .await?;
    drop(browser);
    Ok(())
}

#[tokio::test]
async fn a_worker_is_drained_and_takes_jobs_again() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(browser) = Browser::open(&sandbox, DESK).await? else { return Ok(()) };
    let cluster = cluster(&sandbox, 2).await?;
    browser.go(&format!("{}/#/workers", address(&cluster))).await?;
    browser.wait("two workers", "document.querySelectorAll('[data-worker]').length === 2").await?;
    let row = format!("[data-worker=\"{}\"]", cluster.workers[0].id);
    for (button, shown) in [("Drain", "draining"), ("Undrain", "idle")] {
        browser.click(&format!("{row} button")).await?;
        browser
            .wait(
                "a question",
                &format!("document.querySelector('dialog button[type=submit]')?.textContent === '{button}'"),
            )
            .await?;
        browser.click("dialog button[type=submit]").await?;
        browser
            .wait(shown, &format!("document.querySelector('{row} .state').innerText.includes('{shown}')"))
            .await?;
    }
    browser.picture("workers").await?;
    // A job's view from here, and back.
    let job = cluster.submit(&sandbox.write_job("job.toml", &endless(2)?)?).await?;
    browser.wait("both work", "document.querySelectorAll('[data-worker] .busy').length === 2").await?;
    browser.click(&format!("{row} a")).await?;
    browser
        .wait(
            "its view",
            &format!("location.hash.endsWith('{job}') && document.querySelector('.ring .node')"),
        )
        .await?;
    ensure!(job_address(&cluster, &job).ends_with(&job));
    browser.is_clean(&[]).await
}
