//! Texts of others are texts: none becomes markup, runs, or breaks the page; and everybody can use it.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1;
use ringtune_tests::{Cluster, Launch, Sandbox};
use serde_json::{Value, json};

use crate::{
    address,
    browser::{Browser, DESK, PHONE},
    create,
};

const NAMES: [&str; 6] = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"quotes' & </a><b onmouseover='alert(3)'>",
    "javascript:alert(4)",
    "😀👩‍🔬 emoji",
    "{{constructor.constructor('alert(5)')()}}",
];
/// WebDriver's Tab.
const TAB: &str = "\u{e004}";

fn queue(text: &str) -> v1::QueueSpec {
    let value: String = text.chars().take(60).collect();
    let labels = BTreeMap::from([("project".to_owned(), value.trim().to_owned())]);
    v1::QueueSpec { owner: text.trim().to_owned(), labels, ..v1::QueueSpec::default() }
}

#[tokio::test]
async fn texts_stay_texts_and_everything_has_a_name() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(browser) = Browser::open(&sandbox, DESK).await? else { return Ok(()) };
    let cluster = Cluster::start_coordinator(&sandbox, Launch::coordinator()).await?;
    let mut jobs = cluster.jobs().await?;
    let long = "W".repeat(200);
    let mut ids = Vec::new();
    for (number, name) in NAMES.iter().copied().chain([long.as_str()]).enumerate() {
        let owner: String = name.chars().take(128).collect();
        ids.push(create(&mut jobs, number, name, queue(&owner)).await.with_context(|| format!("{name:?}"))?);
    }

    // 1. The table, at a desk and on a phone; then each job's view.
    browser.go(&address(&cluster)).await?;
    browser
        .wait("all jobs", &format!("document.querySelectorAll('[data-job]').length === {}", ids.len()))
        .await?;
    for name in &NAMES[..3] {
        ensure!(browser.text().await?.contains(name), "{name} is not shown as it is");
    }
    named(&browser, "the table").await?;
    for (window, what) in [(PHONE, "a phone"), (DESK, "a desk")] {
        browser.is(window).await?;
        browser.fits(&format!("the table at {what}")).await?;
        browser.picture(&format!("jobs-{}", window.width)).await?;
    }
    for id in &ids {
        browser.run(&format!("location.hash = '#/jobs/{id}'")).await?;
        let shown = format!("document.querySelector('.facts')?.innerText.includes('{id}')");
        browser.wait("the job", &shown).await?;
        browser.is(PHONE).await?;
        browser.fits(&format!("job {id} on a phone")).await?;
        browser.is(DESK).await?;
    }
    // What happened to a job comes a moment after the job.
    browser.wait("its events", "document.querySelector('.log')?.checkVisibility()").await?;
    named(&browser, "a job").await?;

    // 2. Malformed addresses.
    for hash in [
        "#/jobs/<script>alert(6)</script>",
        "#/jobs/%00",
        "#/jobs?q=%3Cimg%20src%3Dx%20onerror%3Dalert(7)%3E&sort=constructor",
        "#/else",
    ] {
        browser.run(&format!("location.hash = {}", json!(hash))).await?;
        browser.wait("an answer", "document.querySelector('main h1, main .problem:not([hidden])')").await?;
    }
    browser.wait("a way back", "document.querySelector('main a[href=\"#/jobs\"]')").await?;

    // 3. Nothing of theirs became an element, and nothing ran: a dialog would make each command fail.
    browser.run("location.hash = '#/jobs'").await?;
    browser.wait("the table", "document.querySelector('[data-job]')").await?;
    let theirs = browser.run("return document.querySelectorAll('main script, main img[src=x], [onmouseover], [onerror]').length").await?;
    ensure!(theirs == 0, "{theirs} elements of others");

    // 4. The keyboard reaches all: the link past the head first, then everything that can be used, and what has the
    // focus can be seen to have it.
    browser.go(&address(&cluster)).await?;
    browser.wait("the table", "document.querySelectorAll('[data-job]').length > 3").await?;
    let mut reached = Vec::new();
    for _ in 0..60 {
        browser.press(TAB).await?;
        let here = "const one = document.activeElement; return [one.id || one.name || one.dataset.view || one.textContent.slice(0, 40), getComputedStyle(one).outlineStyle, one.tagName]";
        let here = browser.run(here).await?;
        if here[2] == "BODY" {
            break;
        }
        ensure!(here[1] != "none", "the focus on {here} is not seen");
        reached.push(here[0].as_str().unwrap_or_default().to_owned());
    }
    ensure!(reached.first().is_some_and(|first| first == "skip"), "{reached:?}");
    let wanted = ["jobs", "workers", "q", "state", "owner"];
    ensure!(wanted.iter().all(|one| reached.iter().any(|name| name == one)), "{reached:?}");
    let links = browser.run("return document.querySelectorAll('[data-job] a, th button').length").await?;
    ensure!(
        reached.len() as u64 >= links.as_u64().unwrap_or(u64::MAX),
        "{} of {links}: {reached:?}",
        reached.len()
    );
    browser.is_clean(&["status of 404", "status of 400"]).await
}

/// What is used has a name for those who do not see it, headings go down one by one, and no id is there twice. The
/// names are those that Chromium itself computes.
async fn named(browser: &Browser<'_>, what: &str) -> Result<()> {
    let tree = browser.devtools("Accessibility.getFullAXTree", json!({})).await?;
    let nodes = tree["nodes"].as_array().context("nodes")?;
    let used = "button link textbox searchbox combobox slider checkbox progressbar image dialog table region";
    let used: Vec<&str> = used.split(' ').collect();
    let mut count = 0;
    for node in nodes.iter().filter(|node| node["ignored"] != true) {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        if used.contains(&role) {
            count += 1;
            let name = node["name"]["value"].as_str().unwrap_or_default();
            ensure!(!name.trim().is_empty(), "{what}: a {role} has no name: {node}");
        }
    }
    ensure!(count > 8, "{what}: only {count} nodes");
    let roles = |wanted: &str| nodes.iter().filter(|node| node["role"]["value"] == wanted).count();
    ensure!(roles("main") == 1 && roles("banner") == 1 && roles("navigation") >= 1, "{what}: landmarks");
    let headings = browser.run("return [...document.querySelectorAll('h1, h2, h3, h4')].filter((one) => one.offsetParent).map((one) => Number(one.tagName[1]))").await?;
    let levels: Vec<u64> =
        headings.as_array().context("headings")?.iter().filter_map(Value::as_u64).collect();
    ensure!(
        levels.first() == Some(&1) && levels.windows(2).all(|pair| pair[1] <= pair[0] + 1),
        "{what}: {levels:?}"
    );
    let twice = browser.run("const ids = [...document.querySelectorAll('[id]')].map((one) => one.id); return ids.filter((id, at) => ids.indexOf(id) !== at)").await?;
    ensure!(twice == json!([]), "{what}: ids are there twice: {twice}");
    Ok(())
}
