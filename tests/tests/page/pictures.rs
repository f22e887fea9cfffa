//! A job that really learns: its previews come while it trains, beside its training pictures.

use anyhow::{Result, ensure};
use ringtune_tests::{Cluster, Job, Sandbox};
use serde_json::json;

use crate::{
    browser::{Browser, DESK, PHONE, Window},
    job_address,
};

/// WebDriver's Escape and right arrow.
const ESCAPE: &str = "\u{e00c}";
const RIGHT: &str = "\u{e014}";

fn job() -> Result<Job> {
    Ok(Job::toy()?
        .set("name", "green star")
        .set("queue.owner", "ada")
        .set("cluster.world_size", 2)
        .set("train.max_train_steps", 60)
        .set("train.learning_rate", 0.01)
        .set("train.validation_prompt", "a photo of a <green-star>")
        .set("train.num_validation_images", 3)
        .set("train.validation_steps", 10)
        .set("train.validation_loss_steps", 5)
        .set("train.validation_loss_samples", 8))
}

#[tokio::test]
async fn previews_come_while_it_trains() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(browser) = Browser::open(&sandbox, DESK).await? else { return Ok(()) };
    let cluster = Cluster::start(&sandbox, 2).await?;
    let id = cluster.submit(&sandbox.write_job("job.toml", &job()?)?).await?;
    browser.go(&job_address(&cluster, &id)).await?;
    // Each is there: not only its frame.
    let seen =
        "[...document.querySelectorAll('.strip img')].filter((image) => image.naturalWidth === 64).length";
    browser
        .wait(
            "the first previews, as it runs",
            &format!("document.querySelector('.jobhead .running') && {seen} >= 3"),
        )
        .await?;
    let sources =
        "[...document.querySelectorAll('.sources img')].filter((image) => image.naturalWidth > 0).length";
    browser.wait("the training pictures", &format!("{sources} >= 6")).await?;
    browser.wait("most previews", &format!("{seen} >= 15")).await?;
    browser
        .wait(
            "what steps take",
            "document.querySelectorAll('[data-rank] .compute').length === 2 && \
             [...document.querySelectorAll('[data-rank]')].every((row) => /compute .* exchange .* wait/u.test(row.innerText))",
        )
        .await?;
    browser.is(Window { height: 1500, ..DESK }).await?;
    browser.picture("training").await?;
    cluster.wait_for_end(&id).await?;
    browser.wait("all previews", "document.querySelectorAll('.strip img').length === 18").await?;
    browser.wait("its end", "document.querySelector('.jobhead .succeeded')").await?;

    // One in its full size, and the next; Escape closes it, and the focus is where it was.
    browser.run("document.querySelector('.strip button').focus(); document.activeElement.click()").await?;
    browser.wait("a picture", "document.querySelector('dialog img')?.naturalWidth === 64").await?;
    browser.press(RIGHT).await?;
    browser.wait("the next", "document.querySelector('dialog').innerText.includes('(2 of 18)')").await?;
    browser.picture("picture").await?;
    browser.press(ESCAPE).await?;
    browser.wait("no dialog", "!document.querySelector('dialog')").await?;
    ensure!(browser.run("return document.activeElement.className").await? == "thumb", "the focus is lost");

    // A chart is read by keyboard; the values are there as a table as well.
    browser.run("document.querySelector('.chart .field').focus()").await?;
    browser.press("\u{e011}").await?;
    let read = browser.run("return document.activeElement.getAttribute('aria-valuetext')").await?;
    ensure!(read.as_str().is_some_and(|text| text.starts_with("step 1: loss 0.")), "{read}");
    browser.run("document.querySelector('details').open = true").await?;
    browser
        .wait("the table", "document.querySelector('details').querySelectorAll('tbody tr').length === 60")
        .await?;

    // What it left comes whole.
    let script = "const done = arguments[0]; const link = document.querySelector('.files a[href$=\"learned_embeds.safetensors\"]');\
                  const size = [...link.closest('tr').children].at(1).innerText; return fetch(link.href).then((answer) => answer.blob()).then((blob) => [blob.size, size])";
    let size = browser.run(script).await?;
    ensure!(size[0].as_u64().is_some_and(|bytes| bytes > 100), "{size}");
    let job_file = browser.run("return document.querySelector('pre.file').textContent").await?;
    ensure!(
        job_file.as_str().is_some_and(|text| text.contains("placeholder_token = \"<green-star>\"")),
        "{job_file}"
    );

    // Dark, and on a phone.
    browser.run("document.querySelector('details').open = false; scrollTo(0, 0)").await?;
    browser.is(Window { dark: true, ..DESK }).await?;
    let paper = browser.run("return getComputedStyle(document.body).backgroundColor").await?;
    ensure!(paper == json!("rgb(17, 22, 27)"), "{paper}");
    browser.picture("dark").await?;
    browser.is(PHONE).await?;
    browser.fits("a job on a phone").await?;
    browser.picture("phone").await?;
    browser.is_clean(&[]).await
}
