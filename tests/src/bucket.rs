//! A server of one bucket, as S3 has them.

use std::{path::Path, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
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

    /// The content of an object.
    ///
    /// # Errors
    /// There is none of that name.
    pub async fn get(&self, name: &str) -> Result<Vec<u8>> {
        let address = self.endpoint.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).await?;
        // Who asks has to have a name; nobody looks at the signature.
        let key = "Credential=someone/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
        let head = format!("Host: {address}\r\nAuthorization: AWS4-HMAC-SHA256 {key}");
        stream.write_all(format!("GET /models/{name} HTTP/1.0\r\n{head}\r\n\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").context("an answer")?;
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.split_whitespace().nth(1);
        ensure!(status == Some("200"), "{name}: {head}");
        Ok(answer.split_off(end + 4))
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
