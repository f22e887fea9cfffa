//! Floods against real daemons, with TLS and without: connections without calls, slow handshakes, calls without end, and everything that
//! HTTP/2 lets a client send without end. Each is bounded, others are served meanwhile, and a job that runs does not notice.

mod calls;
mod connections;
mod frames;
mod others;

use anyhow::{Context as _, Result};
use ringtune_fuzzing::memory;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// What a daemon may take more, whatever comes: for 8192 connections, and for a dozen floods.
const MOST_BYTES: u64 = 256 << 20;

/// The memory of a daemon from now on.
struct Memory {
    process: u32,
    before: u64,
}

impl Memory {
    fn of(process: u32) -> Self {
        memory::forget(process);
        Self { process, before: memory::most_bytes(process) }
    }

    #[allow(clippy::print_stderr)]
    fn is_bounded(&self, what: &str) -> Result<()> {
        let more = memory::most_bytes(self.process).saturating_sub(self.before);
        eprintln!("{what}: at most {} MiB more than {} MiB", more >> 20, self.before >> 20);
        anyhow::ensure!(more <= MOST_BYTES, "{what}: {} MiB more", more >> 20);
        Ok(())
    }
}

/// How many connections a daemon has refused or closed so far, for the reasons that are wanted.
async fn refused(http: &str, reasons: &[&str]) -> Result<u64> {
    let mut stream = TcpStream::connect(http).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    let count = |reason: &str| {
        let mut lines = page.lines().filter(|line| line.contains("refused_connections"));
        let line = lines.find(|line| line.contains(&format!("reason=\"{reason}\"")))?;
        line.rsplit(' ').next()?.parse::<u64>().ok()
    };
    reasons.iter().map(|reason| count(reason).with_context(|| format!("no {reason} in {page}"))).sum()
}
