//! A tab that nobody looks at: it has no stream, and once it is shown again nothing is lost and nothing there twice.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use ringtune_tests::{
    Cluster, Sandbox, Visitor,
    wait::{SOON, until},
};
use serde_json::json;

use crate::{
    address,
    browser::{Browser, DESK},
    endless, job_address,
};

/// A counter of the coordinator; 0 if absent.
async fn counted(cluster: &Cluster<'_>, metric: &str) -> Result<u64> {
    let http = cluster.coordinator.http.parse()?;
    let page = Visitor::plain().get(http, Ipv4Addr::LOCALHOST, "/metrics").await?;
    let number = page.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
    Ok(number.unwrap_or("0").parse()?)
}

/// The streams of news that are open.
async fn watches(cluster: &Cluster<'_>) -> Result<u64> {
    counted(cluster, "ringtune_watches").await
}

async fn has_watches(cluster: &Cluster<'_>, wanted: impl Fn(u64) -> bool, what: &str) -> Result<()> {
    until(what, SOON, || async { Ok(wanted(watches(cluster).await?).then_some(())) }).await
}

#[tokio::test]
async fn a_hidden_tab_has_no_stream_and_comes_back_with_everything() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(browser) = Browser::open(&sandbox, DESK).await? else { return Ok(()) };
    let cluster = crate::running::cluster(&sandbox, 1).await?;
    let job = cluster.submit(&sandbox.write_job("job.toml", &endless(1)?)?).await?;

    // 1. A job is followed, by two watches: of all jobs, and of this one.
    browser.go(&job_address(&cluster, &job)).await?;
    browser
        .wait("losses", "document.querySelector('.chart path.raw')?.getAttribute('d')?.split('L').length > 5")
        .await?;
    has_watches(&cluster, |open| open >= 2, "the page's watches are counted").await?;

    // 2. Another tab comes before it: its stream ends. What happens then, it does not hear.
    let page = browser.tab().await?;
    let other = browser.new_tab("about:blank").await?;
    browser.shows(&other).await?;
    has_watches(&cluster, |open| open == 0, "the hidden tab's stream ends").await?;
    // One that is opened behind it reads what there is, and waits until somebody looks.
    let lists = r#"ringtune_rpcs_total{code="OK",method="JobService/ListJobs"}"#;
    let before = counted(&cluster, lists).await?;
    let behind = browser.new_tab(&address(&cluster)).await?;
    let read = || async { Ok((counted(&cluster, lists).await? > before).then_some(())) };
    until("the tab behind is there", SOON, read).await?;
    let before = cluster.job(&job).await?.step;
    cluster.wait_for_step(&job, before + 40).await?;
    cluster.finish(&["cancel", &job]).await?.expect_code(0)?;
    let next = cluster.submit(&sandbox.write_job("next.toml", &endless(1)?.set("name", "the next"))?).await?;
    cluster.wait_for_step(&next, 1).await?;
    ensure!(watches(&cluster).await? == 0, "a hidden tab listens");

    // 3. It is shown again: it knows everything, and each thing once.
    browser.shows(&page).await?;
    has_watches(&cluster, |open| open > 0, "the stream is back").await?;
    browser
        .wait("its end", "document.querySelector('.jobhead .state').innerText.includes('cancelled')")
        .await?;
    let twice = "const all = [...document.querySelectorAll('.log li')].map((line) => line.innerText); \
                 return all.filter((line, at) => /running|preparing|cancelled/u.test(line) && all.indexOf(line) !== at)";
    browser.wait("the log tells it", "/cancelled/u.test(document.querySelector('.log').innerText)").await?;
    ensure!(browser.run(twice).await? == json!([]), "lines are there twice");
    let steps = cluster.job(&job).await?.step;
    browser
        .wait(
            "all steps",
            &format!(
                "Number(document.querySelector('.facts dd').textContent.split(' of ')[0].replace(/\\D/gu, '')) === {steps}"
            ),
        )
        .await?;
    browser.run("location.hash = '#/jobs'").await?;
    let runs = format!("document.querySelector('[data-job=\"{next}\"]').innerText.includes('running')");
    let both = "document.querySelectorAll('[data-job]').length === 2";
    browser.wait("the next one runs", &format!("{runs} && {both}")).await?;
    browser.shows(&behind).await?;
    browser.wait("the tab behind has both", &format!("{runs} && {both}")).await?;
    browser
        .wait("its bar moves", &format!("document.querySelector('[data-job=\"{next}\"] progress').value > 0"))
        .await?;
    has_watches(&cluster, |open| open == 1, "one tab is seen, one stream is open").await?;
    browser.is_clean(&[]).await
}
