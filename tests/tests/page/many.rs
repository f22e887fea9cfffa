//! A thousand jobs: the page is there at once.

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1;
use ringtune_tests::{Cluster, Launch, Sandbox};

use crate::{
    address,
    browser::{Browser, DESK},
    create,
};

const JOBS: usize = 1000;
const TRIES: usize = 5;
/// Far above what it takes (the text that is printed), so that a busy machine is no failure.
const LONGEST_MS: f64 = 10_000.0;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[tokio::test]
async fn a_thousand_jobs_are_there_at_once() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(browser) = Browser::open(&sandbox, DESK).await? else { return Ok(()) };
    let cluster = Cluster::start_coordinator(&sandbox, Launch::coordinator()).await?;
    let mut jobs = cluster.jobs().await?;
    for number in 0..JOBS {
        let queue = v1::QueueSpec { owner: format!("owner-{}", number % 7), ..Default::default() };
        create(&mut jobs, number, &format!("job-{number:04}"), queue).await?;
    }

    // 1. From an empty cache: what the browser itself measures, and when the first rows are in the page.
    let (mut painted, mut filled) = (Vec::new(), Vec::new());
    for number in 0..TRIES {
        browser.devtools("Network.clearBrowserCache", serde_json::json!({})).await?;
        browser.go("about:blank").await?;
        browser.go(&format!("{}/?{number}", address(&cluster))).await?;
        let seen = "performance.getEntriesByName('rows-shown')[0]?.startTime";
        let rows = browser.wait("the first rows", seen).await?;
        ensure!(browser.run("return document.querySelectorAll('[data-job]').length").await? == 50);
        let paint = browser
            .wait("a paint", "performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
            .await?;
        painted.push(paint.as_f64().context("a time")?);
        filled.push(rows.as_f64().context("a time")?);
    }
    let (painted, filled) = (median(painted), median(filled));
    eprintln!(
        "with {JOBS} jobs, the median of {TRIES}: first paint after {painted:.0} ms, 50 rows after {filled:.0} ms"
    );
    ensure!(painted < LONGEST_MS && filled < LONGEST_MS);

    // 2. All of them are found, page by page and by owner. The search reads IDs too, many of which have "0007" in them.
    browser
        .wait(
            "all are read",
            "document.querySelector('.pages').innerText.includes('page 1 of 20, 1000 jobs')",
        )
        .await?;
    browser.write("input[name=q]", "job-0007").await?;
    browser.wait("one is found", "document.querySelectorAll('[data-job]').length === 1 && document.body.innerText.includes('job-0007')").await?;
    browser.go(&format!("{}/#/jobs?owner=owner-3&sort=name", address(&cluster))).await?;
    browser.wait("an owner's", "document.querySelector('.pages').innerText.includes('143 jobs')").await?;
    browser.wait("in order", "document.querySelector('[data-job]').innerText.includes('job-0003')").await?;
    // All jobs end while one looks: the table follows.
    browser.go(&format!("{}/?again#/jobs?state=queued", address(&cluster))).await?;
    browser.wait("all wait", "document.querySelector('.pages').innerText.includes('1000 jobs')").await?;
    let newest =
        jobs.list_jobs(v1::ListJobsRequest { page_size: 100, ..Default::default() }).await?.into_inner().jobs;
    let mut newest: Vec<String> = newest.into_iter().map(|job| job.job_id).collect();
    for id in &newest {
        jobs.cancel_job(v1::CancelJobRequest { job_id: id.clone(), reason: String::new() }).await?;
    }
    browser
        .wait("a hundred fewer", "document.querySelector('.pages').innerText.includes('900 jobs')")
        .await?;

    // 3. Somebody else deletes them while one looks: they are gone, also the one whose view is open.
    let last = newest.pop().context("a job")?;
    browser.run("location.hash = '#/jobs'").await?;
    browser.wait("all of them", "document.querySelector('.pages').innerText.includes('1000 jobs')").await?;
    for job_id in newest {
        jobs.delete_job(v1::DeleteJobRequest { job_id }).await?;
    }
    browser.wait("they are gone", "document.querySelector('.pages').innerText.includes('901 jobs')").await?;
    browser.run(&format!("location.hash = '#/jobs/{last}'")).await?;
    browser
        .wait("its view", "document.querySelector('.jobhead .state').innerText.includes('cancelled')")
        .await?;
    jobs.delete_job(v1::DeleteJobRequest { job_id: last }).await?;
    browser.wait("it is gone", "document.body.innerText.includes('This job was deleted.')").await?;
    browser.is_clean(&[]).await
}
