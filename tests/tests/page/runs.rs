//! Several runs: one is run again with another option, they are laid over each other, a verification is told apart, and
//! several are chosen at once.

use anyhow::{Result, ensure};
use ringtune_proto::v1::{self, JobState};
use ringtune_tests::{Cluster, Job, Sandbox};
use serde_json::json;

use crate::{
    address,
    browser::{Browser, DESK, PHONE, Window},
    job_address,
};

/// WebDriver's Escape.
const ESCAPE: &str = "\u{e00c}";
const WIDE: Window = Window { width: 1400, height: 1100, dark: false };

fn job() -> Result<Job> {
    Ok(Job::toy()?
        .set("name", "first star")
        .set("queue.labels", toml::Table::from_iter([("project".to_owned(), "stars".into())]))
        .set("train.max_train_steps", 60)
        .set("train.checkpointing_steps", 20)
        .set("train.validation_loss_steps", 7)
        .set("train.validation_loss_samples", 2))
}

/// Keeps how a view looks at a desk and on a phone, light and dark; it fits everywhere.
async fn pictures(browser: &Browser<'_>, name: &str) -> Result<()> {
    for (width, height, dark) in
        [(1400, 1100, false), (1400, 1100, true), (390, 844, false), (390, 844, true)]
    {
        browser.is(Window { width, height, dark }).await?;
        browser.fits(&format!("{name} at {width}")).await?;
        let shade = if dark { "dark" } else { "light" };
        browser.picture(&format!("{name}-{width}-{shade}")).await?;
    }
    browser.is(WIDE).await
}

#[tokio::test]
async fn runs_are_compared_and_run_again() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(browser) = Browser::open(&sandbox, DESK).await? else { return Ok(()) };
    // Two workers on one machine: of one name.
    let cluster = Cluster::start_fake(&sandbox, 2).await?;
    let first = cluster.submit(&sandbox.write_job("job.toml", &job()?)?).await?;
    cluster.wait_for_end(&first).await?;
    browser.is(WIDE).await?;
    browser.go(&job_address(&cluster, &first)).await?;
    browser.wait("its end", "document.querySelector('.jobhead .succeeded')").await?;

    // 1. The validation loss has an axis of its own, and all its values.
    let titles = "[...document.querySelectorAll('.chart')].filter((one) => one.checkVisibility()).map((one) => one.querySelector('h3').firstChild.data)";
    browser.wait("charts", &format!("{titles}.length === 4")).await?;
    let titles = browser.run(&format!("return {titles}")).await?;
    ensure!(titles == json!(["Loss", "Validation loss", "Learning rate", "Steps a second"]), "{titles}");
    let dots = browser.run("return [...document.querySelectorAll('.chart')].map((one) => one.querySelectorAll('.dot').length)").await?;
    // Every 7 steps, and after the last.
    ensure!(dots == json!([0, 9, 0, 0]), "{dots}");

    // 2. Dragging shows a part of the steps, and Escape all of them.
    let shown = "document.querySelector('.part-of').checkVisibility() && document.querySelector('.part-of').innerText";
    browser.drag(".chart .field", 0.3, 0.6).await?;
    let part = browser.wait("a part of the steps", shown).await?;
    let steps = browser.run("const [field] = document.querySelectorAll('.chart .field'); return [field.ariaValueMin, field.ariaValueMax].map(Number)").await?;
    let (low, high) = (steps[0].as_u64().unwrap_or(0), steps[1].as_u64().unwrap_or(0));
    ensure!((8..25).contains(&low) && (30..45).contains(&high), "{part}: {steps}");
    browser.click("input[name=log]").await?;
    pictures(&browser, "zoomed").await?;
    browser.run("document.querySelector('.chart .field').focus()").await?;
    browser.press(ESCAPE).await?;
    browser.wait("all steps", "!document.querySelector('.part-of').checkVisibility()").await?;
    browser.click("input[name=log]").await?;

    // 3. The result stands out, and all files come at once.
    let result = browser.run("return document.querySelector('.groups .result').innerText").await?;
    let result = result.as_str().unwrap_or_default();
    ensure!(result.contains("learned_embeds.safetensors") && !result.contains("checkpoint-"), "{result}");
    let all = "const [link] = [...document.querySelectorAll('.files a')].filter((one) => one.textContent === 'Download all'); \
               return fetch(link.href).then((answer) => answer.blob().then((blob) => [answer.headers.get('content-type'), blob.size > 4096]))";
    let all = browser.run(all).await?;
    ensure!(all == json!(["application/x-tar", true]), "{all}");
    // Above its lines the log says the day and the zone.
    let day = browser.run("return document.querySelector('.log .day').innerText").await?;
    ensure!(day.as_str().is_some_and(|day| day.contains(", times in UTC")), "{day}");
    pictures(&browser, "ended").await?;

    // 4. Its file as it was, with another option; what is wrong with it is said.
    browser.run("[...document.querySelectorAll('.jobhead button')].find((one) => one.textContent === 'Run again').click()").await?;
    let write = |from: &str, to: &str| {
        format!(
            "const text = document.querySelector('dialog textarea'); text.value = text.value.replace({}, {})",
            json!(from),
            json!(to)
        )
    };
    browser
        .wait("its file", "document.querySelector('dialog textarea').value.includes('artifact://')")
        .await?;
    browser.run(&write("learning_rate = 0.02", "learning_rate = 0.01\nlearning_rat = 1")).await?;
    pictures(&browser, "again").await?;
    browser.click("dialog button[type=submit]").await?;
    browser
        .wait(
            "what is wrong",
            "document.querySelector('dialog .problem').innerText.includes('train.learning_rat:')",
        )
        .await?;
    browser.run(&write("\nlearning_rat = 1", "")).await?;
    browser.run(&write("first star", "second star")).await?;
    browser.click("dialog button[type=submit]").await?;
    browser
        .wait(
            "the second job",
            &format!("!document.querySelector('dialog') && !location.hash.includes('{first}')"),
        )
        .await?;
    browser.wait("its end", "document.querySelector('.jobhead .succeeded') && document.querySelector('h1').innerText === 'second star'").await?;

    // 5. In the list: a verification is no training, and a job that waits says for what.
    let mut jobs = cluster.jobs().await?;
    let request =
        v1::VerifyJobRequest { job_id: first.clone(), request_id: "v".to_owned(), ..Default::default() };
    let verification = jobs.verify_job(request).await?.into_inner().job.unwrap_or_default().job_id;
    cluster.wait_for_end(&verification).await?;
    let large = Job::toy()?.set("name", "a job that waits").set("cluster.world_size", 5);
    let waits = cluster.submit(&sandbox.write_job("large.toml", &large)?).await?;
    let wrong = Job::toy()?.set("name", "a job that fails").set("train.initializer_token", "no word of it");
    let fails = cluster.submit(&sandbox.write_job("wrong.toml", &wrong)?).await?;
    cluster.wait_for_state(&fails, JobState::Failed).await?;
    browser.go(&format!("{}/#/jobs", address(&cluster))).await?;
    let row = |id: &str| format!("document.querySelector('[data-job=\"{id}\"]')");
    browser.wait("all jobs", "document.querySelectorAll('[data-job]').length === 5").await?;
    browser
        .wait(
            "what it verifies",
            &format!("/verification of …/u.test({}.querySelector('.kind').innerText)", row(&verification)),
        )
        .await?;
    browser
        .wait(
            "its kind",
            &format!("{}.querySelector('.kind').innerText === 'textual inversion'", row(&first)),
        )
        .await?;
    browser
        .wait("its label", &format!("{}.querySelector('.label').innerText === 'project=stars'", row(&first)))
        .await?;
    browser
        .wait("for what it waits", &format!("/5/u.test({}.querySelector('.why').innerText)", row(&waits)))
        .await?;
    browser
        .wait(
            "why it failed",
            &format!("{}.querySelector('.why.problem').innerText.length > 10", row(&fails)),
        )
        .await?;
    pictures(&browser, "jobs").await?;

    // 6. Two are chosen and laid over each other.
    browser.click(".label").await?;
    browser.wait("those with the label", "document.querySelectorAll('[data-job]').length === 3").await?;
    browser.run("const kind = document.querySelector('select[name=kind]'); kind.value = 'textual inversion'; kind.dispatchEvent(new Event('change'))").await?;
    browser.wait("trainings", "document.querySelectorAll('[data-job]').length === 2").await?;
    browser.click("thead input[type=checkbox]").await?;
    browser
        .wait("both are chosen", "/2 jobs chosen/u.test(document.querySelector('.chosen').innerText)")
        .await?;
    pictures(&browser, "chosen").await?;
    browser.run("[...document.querySelectorAll('.chosen button')].find((one) => /Compare 2/u.test(one.textContent)).click()").await?;
    browser.wait("two lines", "document.querySelectorAll('.chart.large path.run').length === 2 && [...document.querySelectorAll('.chart.large path.run')].every((one) => one.getAttribute('d')?.split('L').length > 50)").await?;
    let options = "[...document.querySelectorAll('.compared tbody:last-child tr')].map((row) => [...row.children].map((one) => one.innerText))";
    let options = browser.wait("the options", &format!("{options}.length > 0 && {options}")).await?;
    ensure!(options.as_array().is_some_and(|rows| rows.len() == 1), "{options}");
    let mut values = [options[0][1].clone(), options[0][2].clone()].map(|value| value.to_string());
    values.sort();
    ensure!(options[0][0] == "train.learning_rate" && values == ["\"0.01\"", "\"0.02\""], "{options}");
    pictures(&browser, "compared").await?;

    // 7. Several are deleted at once.
    browser.run("location.hash = '#/jobs'").await?;
    browser.wait("all jobs", "document.querySelectorAll('[data-job]').length === 5").await?;
    for id in [&first, &verification] {
        browser.click(&format!("[data-job=\"{id}\"] input")).await?;
    }
    browser.run("[...document.querySelectorAll('.chosen button')].find((one) => /Delete 2/u.test(one.textContent)).click()").await?;
    browser.click("dialog button.danger").await?;
    browser
        .wait(
            "they are gone",
            &format!("!{} && !{} && !document.querySelector('dialog')", row(&first), row(&verification)),
        )
        .await?;

    // 8. Workers of one name are told apart, and say where they are and what they run.
    browser.run("location.hash = '#/workers'").await?;
    browser.wait("two workers", "document.querySelectorAll('[data-worker]').length === 2").await?;
    let names = browser
        .run("return [...document.querySelectorAll('[data-worker] th > .quiet')].map((one) => one.innerText)")
        .await?;
    ensure!(names[0] != names[1] && names[0].as_str().is_some_and(|name| name.contains(":")), "{names}");
    let versions = browser.run("return [...document.querySelectorAll('[data-worker] [data-label=version]')].every((one) => /\\d+\\.\\d+/u.test(one.innerText))").await?;
    ensure!(versions == json!(true), "the versions");
    pictures(&browser, "workers").await?;
    browser.is(PHONE).await?;
    browser.is_clean(&["status of 400"]).await
}
