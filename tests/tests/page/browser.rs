//! A headless Chromium with a profile of its own.

use std::{path::Path, process::Stdio, sync::Mutex};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Sandbox,
    process::signal_process,
    tools,
    wait::{SOON, until},
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::webdriver::WebDriver;

/// Size and user agent of its window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) dark: bool,
}

/// A desk.
pub(crate) const DESK: Window = Window { width: 1360, height: 900, dark: false };
/// A small phone.
pub(crate) const PHONE: Window = Window { width: 360, height: 740, dark: false };

/// A running browser; ended, with all its processes, when dropped.
pub(crate) struct Browser<'a> {
    sandbox: &'a Sandbox,
    driver: WebDriver,
    session: String,
    _driver: Child,
}

impl<'a> Browser<'a> {
    /// Starts one. None, which is said: there is no Chromium here.
    pub(crate) async fn open(sandbox: &'a Sandbox, window: Window) -> Result<Option<Self>> {
        let driver = tools::find("chromedriver", "chromium-driver")?;
        let (Some(driver), Some(_)) = (driver, tools::find("chromium", "chromium")?) else { return Ok(None) };
        let mut child = Command::new(driver)
            .args(["--port=0", &format!("--log-path={}", sandbox.path("chromedriver.log").display())])
            .current_dir(sandbox.folder())
            .env("HOME", sandbox.folder())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("start chromedriver")?;
        let said = child.stdout.take().context("stdout is a pipe")?;
        let port = timeout(SOON, port(BufReader::new(said))).await.context("chromedriver says no port")??;
        let driver = WebDriver::at(port);
        let wanted = capabilities(sandbox, window);
        let session = driver.ask("POST", "/session", Some(&wanted)).await.context("start Chromium")?;
        let session = session["sessionId"].as_str().context("a session")?.to_owned();
        let browser = Self { sandbox, driver, session, _driver: child };
        browser.is(window).await?;
        Ok(Some(browser))
    }

    /// Makes it another window.
    pub(crate) async fn is(&self, window: Window) -> Result<()> {
        let scheme = if window.dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", media).await?;
        let size = json!({"width": window.width, "height": window.height, "deviceScaleFactor": 1, "mobile": window.width < 500});
        self.devtools("Emulation.setDeviceMetricsOverride", size).await.map(drop)
    }

    async fn ask(&self, path: &str, body: Value) -> Result<Value> {
        self.driver.ask("POST", &format!("/session/{}{path}", self.session), Some(&body)).await
    }

    /// A command of Chromium's own.
    pub(crate) async fn devtools(&self, command: &str, parameters: Value) -> Result<Value> {
        self.ask("/goog/cdp/execute", json!({"cmd": command, "params": parameters})).await
    }

    /// Loads an address.
    pub(crate) async fn go(&self, address: &str) -> Result<()> {
        self.ask("/url", json!({"url": address})).await.map(drop)
    }

    /// The tab that is asked now.
    pub(crate) async fn tab(&self) -> Result<String> {
        let tab = self.driver.ask("GET", &format!("/session/{}/window", self.session), None).await?;
        Ok(tab.as_str().context("a tab")?.to_owned())
    }

    /// Opens an address in another tab, behind the one that is seen.
    pub(crate) async fn new_tab(&self, address: &str) -> Result<String> {
        let opened =
            self.devtools("Target.createTarget", json!({"url": address, "background": true})).await?;
        Ok(opened["targetId"].as_str().context("a tab")?.to_owned())
    }

    /// Has this tab seen, and asked from now on. The others are hidden.
    pub(crate) async fn shows(&self, tab: &str) -> Result<()> {
        self.ask("/window", json!({"handle": tab})).await?;
        self.devtools("Target.activateTarget", json!({"targetId": tab})).await.map(drop)
    }

    /// Runs a script; returns its result.
    pub(crate) async fn run(&self, script: &str) -> Result<Value> {
        self.ask("/execute/sync", json!({"script": script, "args": []})).await
    }

    /// Waits until an expression is true, and returns it. One that asks an element that is not there yet is not true; what
    /// it failed with last is said in the end.
    pub(crate) async fn wait(&self, what: &str, expression: &str) -> Result<Value> {
        let script = format!(
            "try {{ return [{expression}, '']; }} catch (error) {{ return [false, String(error)]; }}"
        );
        let failed = Mutex::new(String::new());
        let asked = || async {
            let mut answer = self.run(&script).await?;
            if let (Some(error), Ok(mut failed)) = (answer[1].as_str(), failed.lock()) {
                error.clone_into(&mut failed);
            }
            let value = answer[0].take();
            let is_false = matches!(&value, Value::Null | Value::Bool(false));
            Ok((!is_false).then_some(value))
        };
        let waited = until(what, SOON, asked).await;
        match waited {
            Ok(value) => Ok(value),
            Err(error) => {
                let failed = failed.into_inner().unwrap_or_default();
                let said = self.ask("/se/log", json!({"type": "browser"})).await?;
                Err(error.context(format!(
                    "{failed}\nthe page shows: {}\nits console: {said:#}",
                    self.text().await?
                )))
            }
        }
    }

    /// All visible text.
    pub(crate) async fn text(&self) -> Result<String> {
        let text = self.run("return document.body.innerText").await?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// Clicks as a pointer does: what is covered or hidden cannot be.
    pub(crate) async fn click(&self, css: &str) -> Result<()> {
        let id = self.find(css).await?;
        self.ask(&format!("/element/{id}/click"), json!({})).await.map(drop)
    }

    /// Types into a field.
    pub(crate) async fn write(&self, css: &str, text: &str) -> Result<()> {
        let id = self.find(css).await?;
        self.ask(&format!("/element/{id}/value"), json!({"text": text})).await.map(drop)
    }

    /// The first such element, once there is one.
    async fn find(&self, css: &str) -> Result<String> {
        self.wait(css, &format!("document.querySelector({}) !== null", json!(css))).await?;
        let found = self.ask("/element", json!({"using": "css selector", "value": css})).await?;
        let id = found.as_object().and_then(|found| found.values().next()).and_then(Value::as_str);
        Ok(id.with_context(|| format!("no {css}"))?.to_owned())
    }

    /// Presses keys, one after the other, wherever the focus is: WebDriver's own characters for special ones.
    pub(crate) async fn press(&self, keys: &str) -> Result<()> {
        let strokes: Vec<Value> = keys
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|stroke| json!({"type": stroke, "value": key})))
            .collect();
        self.ask("/actions", json!({"actions": [{"type": "key", "id": "keys", "actions": strokes}]}))
            .await
            .map(drop)
    }

    /// Drags the pointer over an element, between two shares of its width, half-way down.
    pub(crate) async fn drag(&self, css: &str, from: f64, to: f64) -> Result<()> {
        self.run(&format!("document.querySelector({}).scrollIntoView({{ block: 'center' }})", json!(css)))
            .await?;
        let place = |share: f64| format!("Math.round(box.left + box.width * {share})");
        let script = format!(
            "const box = document.querySelector({}).getBoundingClientRect(); return [{}, {}, Math.round(box.top + box.height / 2)]",
            json!(css),
            place(from),
            place(to)
        );
        let at = self.run(&script).await?;
        let move_to = |x: &Value| json!({"type": "pointerMove", "duration": 0, "x": x, "y": at[2]});
        let strokes = json!([
            move_to(&at[0]),
            {"type": "pointerDown", "button": 0},
            move_to(&at[1]),
            {"type": "pointerUp", "button": 0},
        ]);
        let pointer = json!({"type": "pointer", "id": "mouse", "actions": strokes});
        self.ask("/actions", json!({"actions": [pointer]})).await.map(drop)
    }

    /// Fails if anything went wrong on the page: errors of scripts, what the policy refused, files that are not there.
    /// `but` is a part of what may be there.
    pub(crate) async fn is_clean(&self, but: &[&str]) -> Result<()> {
        let said = self.ask("/se/log", json!({"type": "browser"})).await?;
        let said = said.as_array().context("a log")?.iter().map(|line| line["message"].to_string());
        let wrong: Vec<String> = said.filter(|line| !but.iter().any(|part| line.contains(part))).collect();
        ensure!(wrong.is_empty(), "the console says {wrong:#?}");
        Ok(())
    }

    /// Fails if the page is wider than the window.
    pub(crate) async fn fits(&self, what: &str) -> Result<()> {
        let widths = self.run("return [document.documentElement.scrollWidth, innerWidth]").await?;
        ensure!(widths[0].as_u64() <= widths[1].as_u64(), "{what} scrolls sideways: {widths}");
        Ok(())
    }

    /// Keeps what is seen, for people, where `RINGTUNE_SCREENSHOTS` names a folder.
    pub(crate) async fn picture(&self, name: &str) -> Result<()> {
        let Some(folder) = std::env::var_os("RINGTUNE_SCREENSHOTS") else { return Ok(()) };
        let shot = self.devtools("Page.captureScreenshot", json!({"format": "png"})).await?;
        let path = self.sandbox.path("shot.base64");
        std::fs::write(&path, shot["data"].as_str().context("a picture")?)?;
        let bytes = Command::new("base64").arg("-d").arg(&path).output().await?.stdout;
        Ok(std::fs::write(Path::new(&folder).join(format!("{name}.png")), bytes)?)
    }
}

impl Drop for Browser<'_> {
    fn drop(&mut self) {
        // Chromium outlives its driver: all its processes name the profile, which is in the sandbox.
        let profile = self.sandbox.path("profile").to_string_lossy().into_owned();
        for process in self.sandbox.processes().unwrap_or_default() {
            if process.command.contains(&profile) {
                let _ = signal_process(process.id, Signal::KILL);
            }
        }
    }
}

fn capabilities(sandbox: &Sandbox, window: Window) -> Value {
    let profile = format!("--user-data-dir={}", sandbox.path("profile").display());
    let size = format!("--window-size={},{}", window.width, window.height);
    let flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--no-first-run",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        &profile,
        &size,
    ];
    // Whoever has a certificate shows it here without being asked which. Only a test that imports one has one.
    let shown = json!({"https://127.0.0.1,*": {"setting": {"filters": [{}]}}});
    let preferences = json!({"profile.content_settings.exceptions.auto_select_certificate": shown});
    json!({"capabilities": {"alwaysMatch": {
        "browserName": "chrome",
        "acceptInsecureCerts": true,
        // A dialog of a script would be one that somebody's text has opened: it stays, and every command fails.
        "unhandledPromptBehavior": "ignore",
        "goog:loggingPrefs": {"browser": "ALL"},
        "goog:chromeOptions": {"args": flags, "prefs": preferences},
    }}})
}

/// "ChromeDriver was started successfully on port 40123."
async fn port(mut said: BufReader<tokio::process::ChildStdout>) -> Result<u16> {
    let mut line = String::new();
    while said.read_line(&mut line).await? > 0 {
        if let Some((_, rest)) = line.split_once("successfully on port ") {
            let port = rest.trim().trim_end_matches('.').parse()?;
            // Whatever else it says is read, so that it never waits for a reader.
            tokio::spawn(async move {
                let mut rest = String::new();
                while said.read_line(&mut rest).await.is_ok_and(|bytes| bytes > 0) {
                    rest.clear();
                }
            });
            return Ok(port);
        }
        line.clear();
    }
    anyhow::bail!("chromedriver ended")
}
