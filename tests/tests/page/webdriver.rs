//! As much of WebDriver (<https://www.w3.org/TR/webdriver2/>) as the tests need: JSON over HTTP/1.1 to chromedriver.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    time::timeout,
};

/// No command takes longer: a page that does not load is an error of its own.
const LONGEST: Duration = Duration::from_secs(90);

/// A running chromedriver.
#[derive(Debug)]
pub(crate) struct WebDriver {
    port: u16,
}

impl WebDriver {
    /// The one at a port of loopback.
    pub(crate) fn at(port: u16) -> Self {
        Self { port }
    }

    /// A command; its value.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
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
        let (head, body) = answer(&mut BufReader::new(stream)).await?;
        let said: Value =
            serde_json::from_slice(&body).with_context(|| format!("{method} {path}: {head}"))?;
        let value = said.get("value").cloned().unwrap_or_default();
        if let Some(error) = value.get("error") {
            bail!("{method} {path}: {error}: {}", value["message"].as_str().unwrap_or_default());
        }
        ensure!(head.starts_with("HTTP/1.1 200"), "{method} {path}: {head}");
        Ok(value)
    }
}

/// The head of an answer, and its body: chromedriver keeps the connection open, whatever it is asked.
async fn answer(stream: &mut BufReader<TcpStream>) -> Result<(String, Vec<u8>)> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        ensure!(stream.read_line(&mut line).await? > 0, "chromedriver ends in the middle of {head:?}");
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().with_context(|| line.clone())?;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok((head, body))
}
