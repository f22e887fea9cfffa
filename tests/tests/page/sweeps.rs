//! The queue, and a sweep whose worse half ends early, as they are seen.

use anyhow::{Result, ensure};
use ringtune_tests::Sandbox;

use crate::{
    address,
    browser::{Browser, DESK},
    endless, running,
};

#[tokio::test]
async fn a_sweep_is_seen_in_the_queue_and_by_its_jobs_until_the_best_goes_on() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(browser) = Browser::open(&sandbox, DESK).await? else { return Ok(()) };
    let cluster = running::cluster(&sandbox, 3).await?;
    let job = endless(1)?
        .set("train.max_train_steps", 400)
        .set("queue.owner", "ada")
        .set("sweep.train.seed", "1..4")
        .set("sweep.halving", true);
    let sweep = cluster.submit(&sandbox.write_job("sweep.toml", &job)?).await?;

    // 1. The queue: who has ranks, and what waits for which.
    browser.go(&format!("{}/#/queue", address(&cluster))).await?;
    browser.wait("four jobs", "document.querySelectorAll('table.queue [data-job]').length === 4").await?;
    browser.wait("ada has three", "document.querySelector('ul.shares')?.innerText.includes('ada 3')").await?;
    browser.wait("one waits", "document.body.innerText.includes('first in the queue')").await?;
    browser.picture("queue").await?;

    // 2. From the list of jobs to the sweep.
    browser.go(&format!("{}/#/jobs", address(&cluster))).await?;
    browser.wait("its place", "document.body.innerText.includes('4 of 4 in sweep')").await?;
    browser.click("td.kind a").await?;
    browser.wait("the sweep", "document.querySelectorAll('table.points [data-job]').length === 4").await?;
    let text = browser.text().await?;
    ensure!(text.contains("train.seed") && text.contains("the best 2 after step 100"), "{text}");
    ensure!(browser.run("return location.hash").await? == format!("#/sweeps/{sweep}"), "another address");
    browser
        .wait("two rungs", "document.querySelectorAll('.ladder')[0].querySelectorAll('.rung').length === 2")
        .await?;

    // 3. The worse ones end before one's eyes, and the best is marked.
    browser.wait("two are out", "document.querySelectorAll('tr.out').length >= 2").await?;
    browser.picture("sweep").await?;
    browser.wait("one is left", "document.querySelectorAll('tr.out').length === 3").await?;
    browser.wait("the best", "document.querySelector('tr.best')?.innerText.includes('best')").await?;

    // 4. The others are cancelled at once.
    browser.click(".jobhead .actions button").await?;
    browser.click("dialog[open] .danger").await?;
    browser.wait("nothing goes on", "document.body.innerText.includes('0 of them not ended')").await?;
    Ok(())
}
