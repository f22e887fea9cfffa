//! Floods against every port of real daemons, with TLS and without: connections without calls, slow handshakes, calls
//! without end, everything that HTTP/2 lets a client send without end, and everything that HTTP/1 does. Each is bounded and
//! counted, others are served meanwhile, and a job that runs does not notice.

mod calls;
mod connections;
mod frames;
mod handshakes;
mod languages;
mod others;
mod pages;

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use ringtune_fuzzing::memory;
use ringtune_tests::{Cluster, Daemon, Sandbox, Visitor, visitor::HTTP1};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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

/// Each connection is a file.
fn raise_open_files(connections: u32) -> Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    }
    let enough = maximum.is_none_or(|maximum| maximum > u64::from(connections) + 1000);
    ensure!(enough, "this test needs {connections} open files (ulimit -Hn)");
    Ok(())
}

/// One of many addresses of loopback, so that ports last.
fn from(number: u32) -> Ipv4Addr {
    let [_, _, high, low] = (number / 100).to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

/// The daemons of a cluster: the coordinator, and the first worker.
fn daemons<'a>(cluster: &'a Cluster<'_>) -> Result<[&'a Daemon; 2]> {
    Ok([&cluster.coordinator, cluster.workers.first().context("a worker")?])
}

/// Whoever may read the metrics of a cluster, by the coordinator's sandbox where it speaks TLS.
fn reader(cluster: &Cluster<'_>, sandbox: &Sandbox) -> Result<Visitor> {
    match cluster.coordinator.door().is_locked() {
        true => Visitor::known(HTTP1, &sandbox.path("coordinator/admin")),
        false => Ok(Visitor::plain()),
    }
}

/// How many connections a daemon has refused or closed so far, for each of these reasons.
async fn refused_each<const N: usize>(
    reader: &Visitor,
    daemon: &Daemon,
    reasons: [&str; N],
) -> Result<[u64; N]> {
    let port = daemon.http.parse::<SocketAddr>()?.port();
    let page = reader.get((Ipv4Addr::LOCALHOST, port).into(), Ipv4Addr::LOCALHOST, "/metrics").await?;
    let count = |reason: &str| {
        let mut lines = page.lines().filter(|line| line.contains("refused_connections"));
        let line = lines.find(|line| line.contains(&format!("reason=\"{reason}\"")))?;
        line.rsplit(' ').next()?.parse::<u64>().ok()
    };
    let mut counts = [0; N];
    for (place, reason) in counts.iter_mut().zip(reasons) {
        *place = count(reason).with_context(|| format!("no {reason} in {page}"))?;
    }
    Ok(counts)
}

/// The same for one reason.
async fn refused(reader: &Visitor, daemon: &Daemon, reason: &str) -> Result<u64> {
    Ok(refused_each(reader, daemon, [reason]).await?.into_iter().sum())
}
