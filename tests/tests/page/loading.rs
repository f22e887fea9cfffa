//! A module that does not come.

use anyhow::Result;
use ringtune_tests::{Cluster, Launch, Sandbox};
use serde_json::json;

use crate::{
    address,
    browser::{Browser, DESK},
};

#[tokio::test]
async fn the_page_loads_again_until_it_comes_whole() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let Some(browser) = Browser::open(&sandbox, DESK).await? else { return Ok(()) };
    let cluster = Cluster::start_coordinator(&sandbox, Launch::coordinator()).await?;
    browser.devtools("Network.enable", json!({})).await?;
    browser.devtools("Network.setBlockedURLs", json!({"urls": ["*/assets/words.js"]})).await?;
    browser.go(&address(&cluster)).await?;
    browser
        .wait("what is wrong", "document.getElementById('lost').textContent.includes('did not come whole')")
        .await?;
    browser.wait("a second time", "sessionStorage.getItem('ringtune.loaded-again') === '2'").await?;
    browser.devtools("Network.setBlockedURLs", json!({"urls": []})).await?;
    browser.wait("the page", "document.body.innerText.includes('There are no jobs yet')").await?;
    browser.wait("no word of it", "sessionStorage.getItem('ringtune.loaded-again') === null").await?;
    browser.wait("nothing lost", "document.getElementById('lost').hidden").await.map(drop)
}
