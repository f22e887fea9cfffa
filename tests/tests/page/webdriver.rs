//! As much of WebDriver (<https://www.w3.org/TR/webdriver2/>) as the tests need: JSON over HTTP/1.1 to chromedriver.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// No command takes longer: a page that does not load is an error of its own.
const LONGEST: Duration = Duration::from_secs(90);

/// A running chromedriver.
#[derive(Debug)]
pub struct WebDriver {
    port: u16,
}

impl WebDriver {
    /// The one at a port of loopback.
    pub fn at(port: u16) -> Self {
        Self { port }
    }

    /// A command; its value.
    pub async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let answer = timeout(LONGEST, self.exchange(method, path, body));
        answer.await.with_context(|| format!("no answer to {method} {path}"))?
    }

    async fn exchange(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.context("chromedriver")?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n",
            self.port,
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let (head, body) = split(&answer)?;
        let said: Value = serde_json::from_slice(body).with_context(|| format!("{method} {path}: {head}"))?;
        let value = said.get("value").cloned().unwrap_or_default();
        if let Some(error) = value.get("error") {
            bail!("{method} {path}: {error}: {}", value["message"].as_str().unwrap_or_default());
        }
        ensure!(head.starts_with("HTTP/1.1 200"), "{method} {path}: {head}");
        Ok(value)
    }
}

/// The head of an answer, and what follows it.
fn split(answer: &[u8]) -> Result<(&str, &[u8])> {
    let end = answer
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .context("an answer without an end of its head")?;
    let (head, rest) = answer.split_at(end);
    Ok((std::str::from_utf8(head)?, rest.get(4..).unwrap_or_default()))
}
