//! Connections that only cost a place, on ports without TLS.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{Bystander, Launch, Sandbox, Visitor, http2, visitor};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinSet,
};

use crate::{
    Memory, from,
    others::{Others, newcomer},
    raise_open_files, refused_each,
};

const IDLE: u32 = 10_000;
/// What the coordinator lets a connection take until its first call.
const OPENING_SECONDS: &str = "2";
/// All of them are closed within this time, on a busy machine too; a worker's have ten seconds.
const CLOSED: Duration = Duration::from_secs(60);
/// So many come at a time, and then there is a pause: a kernel lets some thousands wait to be accepted.
pub(crate) const AT_ONCE: u32 = 100;
pub(crate) const PAUSE: Duration = Duration::from_millis(10);
/// Reasons for which an idle connection is refused or closed.
const REASONS: [&str; 5] = ["full", "openings", "silent", "slow", "unused"];

/// One that says nothing, the beginning of something, or no more than that it speaks HTTP/2, until it is closed.
async fn stay(to: SocketAddr, number: u32) -> Result<()> {
    let mut stream = visitor::tcp(to, from(number)).await?;
    let settings = http2::frame(http2::SETTINGS, 0, 0, &[]);
    let said = match number % 3 {
        0 => Vec::new(),
        1 => http2::PREFACE[..5].to_vec(),
        _ => [http2::PREFACE, &settings].concat(),
    };
    // Refused ones are closed already.
    let _ = stream.write_all(&said).await;
    let mut buffer = [0; 256];
    while let Ok(1..) = stream.read(&mut buffer).await {}
    Ok(())
}

/// Opens all of them, and waits until the daemon has closed them.
async fn idle(to: SocketAddr) -> Result<()> {
    let mut all = JoinSet::new();
    for number in 0..IDLE {
        all.spawn(stay(to, number));
        if number % AT_ONCE == 0 {
            tokio::time::sleep(PAUSE).await;
        }
    }
    let begun = Instant::now();
    while !all.is_empty() {
        let one = tokio::time::timeout(CLOSED.saturating_sub(begun.elapsed()), all.join_next()).await;
        if let Some(one) = one.with_context(|| format!("{} are open still", all.len()))? {
            one??;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_connections_are_closed_and_nobody_notices() -> Result<()> {
    raise_open_files(IDLE)?;
    let sandbox = Sandbox::new()?;
    let coordinator = Launch::coordinator().variable("RINGTUNE__LIMITS__OPENING_SECONDS", OPENING_SECONDS);
    let bystander = Bystander::start(&sandbox, coordinator, 18).await?;
    let door = bystander.cluster.coordinator.door();
    let others = Box::pin(Others::start(&bystander)).await?;
    for worker in [None, Some(0)] {
        let cluster = &bystander.cluster;
        let daemon = worker.map_or(&cluster.coordinator, |place: usize| &cluster.workers[place]);
        let memory = Memory::of(bystander.process(worker)?);
        let refused = refused_each(&Visitor::plain(), daemon, REASONS).await?;
        let begun = Instant::now();
        let (idle, new) = tokio::join!(idle(daemon.grpc.parse()?), newcomer(&door));
        idle.with_context(|| daemon.label.clone())?;
        memory.is_bounded(&format!(
            "{IDLE} connections to {}, closed after {:?}, a newcomer after {:?}",
            daemon.label,
            begun.elapsed(),
            new?
        ))?;
        let counted = refused_each(&Visitor::plain(), daemon, REASONS).await?;
        let counted = counted.iter().sum::<u64>() - refused.iter().sum::<u64>();
        ensure!(counted >= u64::from(IDLE) * 9 / 10, "{} counted {counted}", daemon.label);
    }
    others.were_served(bystander).await
}
