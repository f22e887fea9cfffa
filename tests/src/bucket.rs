//! A server of one bucket, as S3 has them.

use std::{path::Path, process::Stdio};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use crate::{places, reference};

/// The server; it ends when this is dropped.
#[derive(Debug)]
pub struct Bucket {
    endpoint: String,
    _server: Child,
}

impl Bucket {
    /// A secret that no log may contain.
    pub const SECRET: &str = "a-secret-key";

    /// Starts a server whose bucket, "models", has the files of a folder below a prefix.
    ///
    /// # Errors
    /// It does not start.
    pub async fn serve(folder: &Path, prefix: &str) -> Result<Self> {
        let script = places::repository().join("tests/reference/s3_server.py");
        let mut server = Command::new(reference::python().await?)
            .arg(script)
            .arg(folder)
            .arg(prefix)
            .env_remove("PYTHONDONTWRITEBYTECODE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // It says every request there.
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().context("a pipe")?).read_line(&mut line).await?;
        let said: serde_json::Value =
            serde_json::from_str(&line).with_context(|| format!("said {line:?}"))?;
        let endpoint = said["endpoint"].as_str().context("an endpoint")?.to_owned();
        Ok(Self { endpoint, _server: server })
    }

    /// The environment of whoever reads it or writes there.
    pub fn variables(&self) -> [(&str, &str); 5] {
        [
            ("AWS_ENDPOINT_URL", &self.endpoint),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "someone"),
            ("AWS_SECRET_ACCESS_KEY", Self::SECRET),
            ("AWS_ALLOW_HTTP", "true"),
        ]
    }
}
