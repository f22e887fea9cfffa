//! A job that makes texts: each is shown as it comes, and none of them is markup.

use anyhow::{Result, ensure};
use ringtune_tests::{Cluster, Job, Sandbox, language_model};

use crate::{
    browser::{Browser, DESK, PHONE, Window},
    job_address,
};

/// A prompt that would like to be more than a text.
const HOSTILE: &str = "<img src=x onerror=alert(1)>\u{202e}";
/// Texts that the job makes: more than the page shows at once.
const TEXTS: usize = 60;

fn job(sandbox: &Sandbox) -> Result<Job> {
    Ok(Job::texts(&sandbox.path("model"))?
        .set("cluster.world_size", 2)
        .set("generate_text.prompts", vec!["The old garden", HOSTILE])
        .set("generate_text.num_samples", i64::try_from(TEXTS / 2)?)
        // Longer than the model's positions, as that is slow enough to be watched.
        .set("generate_text.max_new_tokens", 60))
}

#[tokio::test]
async fn texts_come_while_they_are_made() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(browser) = Browser::open(&sandbox, DESK).await? else { return Ok(()) };
    language_model::make(&sandbox.path("model"))?;
    let cluster = Cluster::start(&sandbox, 2).await?;
    let id = cluster.submit(&sandbox.write_job("job.toml", &job(&sandbox)?)?).await?;
    browser.go(&job_address(&cluster, &id)).await?;
    let shown = "[...document.querySelectorAll('.texts article')].filter((text) => /60 tokens/u.test(text.innerText)).length";
    browser
        .wait(
            "the first texts, as it runs",
            &format!("document.querySelector('.jobhead .running') && {shown} >= 2"),
        )
        .await?;
    cluster.wait_for_end(&id).await?;
    browser.wait("its end", "document.querySelector('.jobhead .succeeded')").await?;
    browser.wait("the newest texts", &format!("{shown} === 50")).await?;
    let said = browser.run("return document.querySelector('.texts').previousSibling.innerText").await?;
    ensure!(said == "The newest 50 of 60", "{said}");

    // The prompt stands before what was made of it, as a text.
    let last = browser
        .run(
            "const text = [...document.querySelectorAll('.texts article')].at(-1); \
              return [text.querySelector('h3').innerText, text.querySelector('b').innerText, text.querySelectorAll('img').length]",
        )
        .await?;
    ensure!(last[0].as_str().is_some_and(|title| title.starts_with("Text 60")), "the last is {last}");
    ensure!(last[1] == "<img src=x onerror=alert(1)>‹U+202E›" && last[2] == 0, "{last}");

    browser.run("document.querySelector('.texts').scrollIntoView({ block: 'center' })").await?;
    browser.is(Window { height: 1500, ..DESK }).await?;
    browser.picture("texts").await?;
    browser.is(PHONE).await?;
    browser.fits("texts on a phone").await?;
    browser.run("document.querySelector('.texts').scrollIntoView({ block: 'center' })").await?;
    browser.picture("texts-phone").await?;
    browser.is_clean(&[]).await
}
