//! Amazon's cloud, without machines: tests/platforms/aws_server.py.

use std::{collections::BTreeMap, process::Stdio};

use anyhow::{Context as _, Result};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::{places, platforms, wait::SOON};

/// The running cloud; it ends when this is dropped.
#[derive(Debug)]
pub struct Aws {
    /// An image for machines.
    pub image: String,
    /// Where it is.
    pub endpoint: String,
    /// The environment of whoever has an account there, and the awscli.
    pub variables: BTreeMap<&'static str, String>,
    _server: Child,
    asked: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Aws {
    /// Starts it.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start() -> Result<Self> {
        let programs = platforms::programs().await?;
        let script = places::repository().join("tests/platforms/aws_server.py");
        let mut server = Command::new(programs.join("python"))
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let asked = server.stdin.take().context("stdin")?;
        let mut said = BufReader::new(server.stdout.take().context("stdout")?).lines();
        let line = timeout(SOON, said.next_line()).await??.context("it ended")?;
        let begin: Value = serde_json::from_str(&line)?;
        let text = |name: &str| begin[name].as_str().map(str::to_owned).context("a text");
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
        let variables = BTreeMap::from([
            ("PATH", path),
            ("AWS_ENDPOINT_URL", text("endpoint")?),
            ("AWS_DEFAULT_REGION", "eu-west-1".to_owned()),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
            ("AWS_ACCESS_KEY_ID", "someone".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "something".to_owned()),
        ]);
        Ok(Self {
            image: text("image")?,
            endpoint: text("endpoint")?,
            variables,
            _server: server,
            asked,
            said,
        })
    }

    /// Has it do one of the things that the script names.
    ///
    /// # Errors
    /// It has ended, or does not answer.
    pub async fn ask(&mut self, line: &str) -> Result<Value> {
        self.asked.write_all(format!("{line}\n").as_bytes()).await?;
        let answer =
            timeout(SOON, self.said.next_line()).await??.with_context(|| format!("no answer to {line}"))?;
        Ok(serde_json::from_str(&answer)?)
    }
}
