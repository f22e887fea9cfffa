//! Connections that do their handshake and no more, or not even that.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Bystander, Launch, Sandbox, Visitor,
    visitor::{self, HTTP1, HTTP2},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};

use crate::{
    Memory, connections, daemons, from,
    others::{Others, newcomer},
    raise_open_files, reader, refused, refused_each,
};

/// How many shake hands in each run. `RINGTUNE_FLOOD_CONNECTIONS=10000` is for longer ones: each costs both sides about
/// a millisecond of their processors.
const CROWD: u32 = 2000;
/// More than a worker lets stand.
const WORKERS_CROWD: u32 = 1300;
/// Handshakes at a time: the others of this machine are to get theirs done in time too.
const AT_ONCE: usize = 32;
/// All are closed within this time after their limit, on a busy machine too.
const LATE: Duration = Duration::from_secs(45);
/// What a worker gives a connection until its first call.
const WORKERS_OPENING: Duration = Duration::from_secs(10);

fn crowd() -> Result<u32> {
    let wanted = std::env::var("RINGTUNE_FLOOD_CONNECTIONS").ok();
    wanted.map_or(Ok(CROWD), |wanted| wanted.parse().context("RINGTUNE_FLOOD_CONNECTIONS"))
}

/// Those that stand now, and the most that ever stood.
#[derive(Debug, Default)]
struct Standing(AtomicUsize, AtomicUsize);

/// Shakes hands, says no more, and waits until it is closed. Says whether it came so far.
async fn stand(
    visitor: Visitor,
    to: SocketAddr,
    number: u32,
    turn: OwnedSemaphorePermit,
    standing: Arc<Standing>,
) -> bool {
    let Ok(mut stream) = visitor.connect(to, from(number)).await else { return false };
    drop(turn);
    let now = standing.0.fetch_add(1, Ordering::Relaxed) + 1;
    standing.1.fetch_max(now, Ordering::Relaxed);
    let mut buffer = [0; 256];
    while let Ok(1..) = stream.read(&mut buffer).await {}
    standing.0.fetch_sub(1, Ordering::Relaxed);
    true
}

/// How a crowd fared: how many shook hands, how many stood at one time, and how long all took.
#[derive(Debug)]
struct Fared {
    stood: u32,
    at_one_time: usize,
    took: Duration,
}

/// Sends all of them, every other one with a certificate, and waits until the daemon has closed them.
async fn stand_all(visitors: &[Visitor; 2], to: SocketAddr, crowd: u32, opening: Duration) -> Result<Fared> {
    let (standing, turns) = (Arc::new(Standing::default()), Arc::new(Semaphore::new(AT_ONCE)));
    let (begun, mut all) = (Instant::now(), JoinSet::new());
    for number in 0..crowd {
        let turn = Arc::clone(&turns).acquire_owned().await?;
        let visitor = visitors[usize::from(number % 2 == 0)].clone();
        all.spawn(stand(visitor, to, number, turn, Arc::clone(&standing)));
    }
    let (shaken, mut stood) = (Instant::now(), 0);
    while !all.is_empty() {
        let left = (opening + LATE).saturating_sub(shaken.elapsed());
        let one = tokio::time::timeout(left, all.join_next()).await;
        if let Some(one) = one.with_context(|| format!("{} are open still", all.len()))? {
            stood += u32::from(one?);
        }
    }
    Ok(Fared { stood, at_one_time: standing.1.load(Ordering::Relaxed), took: begun.elapsed() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_only_shakes_hands_is_closed_and_nobody_notices() -> Result<()> {
    let crowd = crowd()?;
    raise_open_files(crowd)?;
    let sandbox = Sandbox::new()?;
    // Long enough that all of them stand at one time, and too few places for all of them.
    let (opening, places) = (5 + u64::from(crowd / 200), crowd / 5 * 4);
    let coordinator = Launch::coordinator()
        .over_tls()
        .variable("RINGTUNE__LIMITS__OPENING_SECONDS", &opening.to_string())
        .variable("RINGTUNE__LIMITS__CONNECTIONS", &places.to_string());
    let bystander = Bystander::start(&sandbox, coordinator, 30 + u64::from(crowd / 100)).await?;
    let door = bystander.cluster.coordinator.door();
    let others = Box::pin(Others::start(&bystander)).await?;
    let reader = reader(&bystander.cluster, &sandbox)?;
    let admin = Visitor::known(HTTP2, &sandbox.path("coordinator/admin"))?;
    let visitors = [Visitor::stranger(HTTP2)?, admin];
    let crowds = [(crowd, Duration::from_secs(opening)), (crowd.min(WORKERS_CROWD), WORKERS_OPENING)];
    for (daemon, (crowd, opening)) in daemons(&bystander.cluster)?.into_iter().zip(crowds) {
        let memory = Memory::of(daemon.process_id().context("it has ended")?);
        let reasons = ["full", "unused", "slow"];
        let counted = refused_each(&reader, daemon, reasons).await?;
        let fared = stand_all(&visitors, daemon.grpc.parse()?, crowd, opening).await;
        let Fared { stood, at_one_time, took } = fared.with_context(|| daemon.label.clone())?;
        let now = refused_each(&reader, daemon, reasons).await?;
        let [full, unused, slow] = [0, 1, 2].map(|place| now[place] - counted[place]);
        memory.is_bounded(&format!(
            "{crowd} to {}: {stood} shook hands, {at_one_time} at one time, all closed after {took:?}; refused: \
             {full} full, {unused} unused, {slow} slow",
            daemon.label,
        ))?;
        ensure!(full + unused + slow >= u64::from(crowd) * 9 / 10, "{} does not count", daemon.label);
        ensure!(unused >= u64::from(stood) * 9 / 10, "{} closed {unused} of {stood} as unused", daemon.label);
        if daemon.label == bystander.cluster.coordinator.label {
            ensure!(at_one_time >= places as usize * 9 / 10, "only {at_one_time} stood at one time");
            ensure!(full > 0, "all had a place");
        }
        Box::pin(newcomer(&door)).await?;
    }
    others.were_served(bystander).await
}

/// How a handshake stays undone.
#[derive(Debug, Clone, Copy)]
enum Slow {
    /// Nothing is said.
    Silent,
    /// Every byte takes a second.
    Dawdling,
    /// The first half of the ClientHello, and then nothing.
    HalfHello,
    /// The whole ClientHello, and no answer to the server's.
    Hello,
}

const SLOW: [Slow; 4] = [Slow::Silent, Slow::Dawdling, Slow::HalfHello, Slow::Hello];

/// Does so until it is closed, and says how long that took.
async fn linger(
    slow: Slow,
    hello: Arc<[u8]>,
    to: SocketAddr,
    number: u32,
    most: Duration,
) -> Result<Duration> {
    let mut stream = visitor::tcp(to, from(number)).await?;
    let begun = Instant::now();
    let (at_once, later) = hello.split_at(match slow {
        Slow::Silent | Slow::Dawdling => 0,
        Slow::HalfHello => hello.len() / 2,
        Slow::Hello => hello.len(),
    });
    let mut ended = stream.write_all(at_once).await.is_err();
    let mut bytes = later.iter();
    while !ended {
        // Either may be the first to see that it was closed.
        if let (Slow::Dawdling, Some(byte)) = (slow, bytes.next()) {
            ended = stream.write_all(&[*byte]).await.is_err();
        }
        let heard = tokio::time::timeout(Duration::from_secs(1), stream.read(&mut [0; 4096])).await;
        ended |= matches!(heard, Ok(Ok(0) | Err(_)));
        ensure!(begun.elapsed() < most, "{slow:?}: it is open still");
    }
    Ok(begun.elapsed())
}

/// What a coordinator gives a connection to open; a worker has ten seconds.
const OPENING: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_handshakes_are_ended_at_every_port_and_others_get_in() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let opening = OPENING.as_secs().to_string();
    let coordinator =
        Launch::coordinator().over_tls().variable("RINGTUNE__LIMITS__OPENING_SECONDS", &opening);
    let bystander = Bystander::start(&sandbox, coordinator, 15).await?;
    let door = bystander.cluster.coordinator.door();
    let others = Box::pin(Others::start(&bystander)).await?;
    let reader = reader(&bystander.cluster, &sandbox)?;
    let hellos = [Visitor::stranger(HTTP2)?.hello()?, Visitor::stranger(HTTP1)?.hello()?];
    let hellos: [Arc<[u8]>; 2] = hellos.map(Into::into);
    for (daemon, opening) in daemons(&bystander.cluster)?.into_iter().zip([OPENING, WORKERS_OPENING]) {
        let memory = Memory::of(daemon.process_id().context("it has ended")?);
        let counted = refused(&reader, daemon, "slow").await?;
        let (mut all, most) = (JoinSet::new(), opening + LATE);
        // Of the pages' port they leave some places to others.
        for ((address, crowd), hello) in [(&daemon.grpc, 400), (&daemon.http, 160)].into_iter().zip(&hellos) {
            let to: SocketAddr = address.parse()?;
            for (number, slow) in (0..crowd).zip(SLOW.into_iter().cycle()) {
                // As many as a kernel lets wait to be accepted, and then a pause.
                if number % connections::AT_ONCE == 0 {
                    tokio::time::sleep(connections::PAUSE).await;
                }
                all.spawn(linger(slow, Arc::clone(hello), to, number, most));
            }
        }
        let crowd = all.len() as u64;
        // While all of them are there.
        Box::pin(newcomer(&door)).await?;
        let (mut soonest, mut latest) = (Duration::MAX, Duration::ZERO);
        while let Some(one) = all.join_next().await {
            let took = one?.with_context(|| daemon.label.clone())?;
            (soonest, latest) = (soonest.min(took), latest.max(took));
        }
        memory.is_bounded(&format!(
            "{crowd} slow handshakes with {}, closed after {soonest:?} to {latest:?}",
            daemon.label
        ))?;
        ensure!(
            soonest >= opening.min(Duration::from_secs(5)).mul_f64(0.9),
            "{} closed one after {soonest:?}",
            daemon.label
        );
        let counted = refused(&reader, daemon, "slow").await? - counted;
        // The kernel may forget one or two.
        ensure!(counted >= crowd * 9 / 10, "{} counted {counted}", daemon.label);
    }
    Box::pin(newcomer(&door)).await?;
    others.were_served(bystander).await
}
