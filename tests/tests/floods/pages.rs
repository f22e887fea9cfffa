//! What HTTP/1 lets a client send without end, to the ports of pages.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use ringtune_tests::{
    Bystander, Launch, Sandbox, Visitor,
    visitor::{Bytes, HTTP1},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use crate::{Memory, daemons, others::Others, reader, refused_each};

/// Somebody who reads his answers waits for the server no longer than this, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(60);
/// An answer of `/healthz` takes no longer.
const MOST_TIME: Duration = Duration::from_secs(10);
/// Who reads none is not read himself: that shows soon.
const DEAF: Duration = Duration::from_secs(2);
/// What a coordinator gives a connection until its first request; a worker gives ten seconds.
const OPENING_SECONDS: &str = "2";
/// Half of what a coordinator gives somebody deaf; a worker gives a minute.
const IDLE_SECONDS: &str = "1.5";
/// Those who flood come from these, and who asks for `/healthz` from another one.
const FLOODERS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(127, 2, 0, 1), Ipv4Addr::new(127, 2, 0, 2), Ipv4Addr::new(127, 2, 0, 3)];
const PROBE: Ipv4Addr = Ipv4Addr::new(127, 3, 0, 1);
/// Connections of each flood at the same time. A port that only this machine reaches does not tell its addresses apart:
/// of its 256 places some are left.
const FEW: usize = 20;
/// More than there are places, from three addresses: each has 64 of them at most.
const MANY: usize = 90;

/// How a flood ends, where it gets a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// The server ends the connection; what it says begins so.
    End(&'static str),
    /// Every request is answered with 200.
    Answered,
    /// It is read no more once its answers are not taken, and ended in the end.
    Waits,
}

/// A flood: its name, how it ends, how often something is sent at most, with which pause, and what the how-manieth time.
struct Flood {
    name: &'static str,
    expected: Expected,
    most: u32,
    pause: Duration,
    next: fn(u32) -> Vec<u8>,
}

impl Flood {
    const fn new(name: &'static str, expected: Expected, most: u32, next: fn(u32) -> Vec<u8>) -> Self {
        Self { name, expected, most, pause: Duration::ZERO, next }
    }
}

const GET: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
/// After this one the server closes.
const CLOSE: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
/// Where it comes among those that are sent together.
const LAST: u32 = 9;
/// Requests that are sent at a time.
const PIPELINED: usize = 100;

fn bulk() -> Vec<u8> {
    vec![b'y'; 16 << 10]
}

const FLOODS: [Flood; 8] = [
    Flood::new("headers without end", Expected::End("HTTP/1.1 431 "), 10_000, |number| match number {
        0 => b"GET /healthz HTTP/1.1\r\n".to_vec(),
        _ => b"x-header: a value\r\n".repeat(500),
    }),
    Flood::new("one header without end", Expected::End("HTTP/1.1 431 "), 10_000, |number| {
        if number == 0 { b"GET /healthz HTTP/1.1\r\nx: ".to_vec() } else { bulk() }
    }),
    Flood::new("a path without end", Expected::End("HTTP/1.1 4"), 10_000, |number| {
        if number == 0 { b"GET /".to_vec() } else { bulk() }
    }),
    Flood::new("a body without end", Expected::End("HTTP/1.1 "), 10_000, |number| match number {
        0 => b"POST /healthz HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".to_vec(),
        _ => [b"4000\r\n", bulk().as_slice(), b"\r\n"].concat(),
    }),
    Flood {
        pause: Duration::from_millis(100),
        ..Flood::new("a request of a byte a moment", Expected::End(""), 600, |number| {
            if number == 0 { b"GET /healthz HTTP/1.1\r\nx: ".to_vec() } else { b"y".to_vec() }
        })
    },
    Flood::new("no HTTP at all", Expected::End("HTTP/1.1 400 "), 10_000, |_| {
        b"\x01\x02\x03\r\n".repeat(1000)
    }),
    Flood::new("requests one after the other", Expected::Answered, LAST + 1, |number| match number {
        LAST => [GET.repeat(PIPELINED - 1).as_slice(), CLOSE].concat(),
        _ => GET.repeat(PIPELINED),
    }),
    Flood::new("requests of somebody deaf", Expected::Waits, 100_000, |_| GET.repeat(PIPELINED)),
];

/// How one connection ended.
#[derive(Debug)]
struct Ended {
    sent: u32,
    by_server: bool,
    answer: String,
}

/// Sends all of it, or until the server ends the connection. Who is deaf goes on for `deaf` after the server reads no more.
async fn pour(stream: Box<dyn Bytes>, flood: &Flood, deaf: Duration) -> Result<Ended> {
    let (mut read, mut write) = tokio::io::split(stream);
    let listens = flood.expected != Expected::Waits;
    let reading: JoinHandle<String> = tokio::spawn(async move {
        if !listens {
            // It holds its half, so that the connection stays, and reads nothing until it is aborted.
            std::future::pending::<()>().await;
        }
        let (mut answer, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
        while let Ok(more @ 1..) = read.read(&mut buffer).await {
            answer.extend_from_slice(buffer.get(..more).unwrap_or_default());
        }
        String::from_utf8_lossy(&answer).into_owned()
    });
    let mut ended = Ended { sent: 0, by_server: false, answer: String::new() };
    let patience = if listens { PATIENCE } else { deaf };
    while ended.sent < flood.most && !ended.by_server {
        match tokio::time::timeout(patience, write.write_all(&(flood.next)(ended.sent))).await {
            Ok(Ok(())) => ended.sent += 1,
            Ok(Err(_)) => ended.by_server = true,
            Err(_) if listens => bail!("the server reads no more, after {} times", ended.sent),
            Err(_) => break,
        }
        tokio::time::sleep(flood.pause).await;
        ended.by_server |= reading.is_finished();
    }
    if !listens {
        reading.abort();
        return Ok(ended);
    }
    // Nothing more comes: the server answers what it has to, and closes.
    ended.answer = tokio::time::timeout(PATIENCE, reading).await.context("it is open still")??;
    Ok(ended)
}

/// Whether it ended as it should.
fn check(flood: &Flood, ended: &Ended) -> Result<()> {
    let Flood { name, expected, most, .. } = flood;
    let Ended { sent, by_server, answer } = ended;
    let start: String = answer.chars().take(200).collect();
    match expected {
        Expected::End(beginning) => {
            ensure!(*by_server && sent < most, "{name}: all {sent} were taken; {start}");
            // The connection may be gone before its last word is read.
            ensure!(answer.is_empty() || answer.starts_with(beginning), "{name}: {start}");
        }
        Expected::Waits => ensure!(sent < most, "{name}: all {sent} were read"),
        Expected::Answered => {
            let answers = answer.matches("HTTP/1.1 200 OK").count();
            let requests = *most as usize * PIPELINED;
            ensure!(answers == requests, "{name}: {answers} of {requests}; {start}");
        }
    }
    Ok(())
}

/// Asks for `/healthz` again and again while others flood; at the end says how often, and how long it took at most.
async fn probe(visitor: Visitor, to: SocketAddr, mut over: watch::Receiver<bool>) -> Result<(u32, Duration)> {
    let (mut answers, mut longest) = (0, Duration::ZERO);
    while !*over.borrow_and_update() {
        let begun = Instant::now();
        let answer = tokio::time::timeout(MOST_TIME, visitor.get(to, PROBE, "/healthz")).await;
        let answer = answer.context("/healthz takes too long")?.context("/healthz")?;
        ensure!(answer.starts_with("HTTP/1.1 200 OK"), "/healthz answers {answer}");
        (answers, longest) = (answers + 1, longest.max(begun.elapsed()));
        let _ = tokio::time::timeout(Duration::from_millis(100), over.changed()).await;
    }
    Ok((answers, longest))
}

/// How a port of pages is flooded.
#[derive(Clone)]
struct Attack {
    visitor: Visitor,
    to: SocketAddr,
    /// Connections of each flood.
    each: usize,
    /// Whether each of them has a place.
    all_have_places: bool,
    /// How long somebody deaf waits.
    deaf: Duration,
}

impl Attack {
    async fn one(self, flood: &'static Flood, from: Ipv4Addr) -> Result<()> {
        let stream = match self.visitor.connect(self.to, from).await {
            Err(_) if !self.all_have_places => return Ok(()),
            stream => stream?,
        };
        let ended = pour(stream, flood, self.deaf).await.context(flood.name)?;
        match check(flood, &ended) {
            // It was not let in: nothing was said to it.
            Err(_) if !self.all_have_places && ended.by_server && ended.answer.is_empty() => Ok(()),
            checked => checked,
        }
    }

    /// Sends all floods at the same time, beside connections that stand idle after one request.
    async fn run(&self) -> Result<(u32, Duration)> {
        let mut standing = Vec::new();
        for from in FLOODERS {
            let mut stream = self.visitor.connect(self.to, from).await?;
            stream.write_all(GET).await?;
            let mut answer = [0; 15];
            stream.read_exact(&mut answer).await?;
            ensure!(answer == *b"HTTP/1.1 200 OK", "{:?}", String::from_utf8_lossy(&answer));
            standing.push(stream);
        }
        let (over, is_over) = watch::channel(false);
        let probing = tokio::spawn(probe(self.visitor.clone(), self.to, is_over));
        let mut all = JoinSet::new();
        // One of each after the other: where not all have places, some of each do.
        for (number, from) in (0..self.each).zip(FLOODERS.into_iter().cycle()) {
            for flood in &FLOODS {
                // The sockets' own buffers hold thousands of answers of each that is deaf.
                if flood.expected != Expected::Waits || number % 4 == 0 {
                    all.spawn(self.clone().one(flood, from));
                }
            }
        }
        while let Some(one) = all.join_next().await {
            one??;
        }
        over.send_replace(true);
        probing.await?
    }
}

/// Floods the pages of the coordinator and of a worker beside a job. `from_beyond`: the coordinator's are for other
/// machines too, so that no address has all of their places.
async fn beside_a_job(sandbox: &Sandbox, coordinator: Launch, from_beyond: bool) -> Result<()> {
    let coordinator = coordinator
        // At the usual rate the answers that somebody deaf does not take would come for minutes before they fill the buffers.
        .variable("RINGTUNE__LIMITS__CALLS_PER_SECOND", "1000000")
        .variable("RINGTUNE__LIMITS__OPENING_SECONDS", OPENING_SECONDS)
        .variable("RINGTUNE__LIMITS__IDLE_SECONDS", IDLE_SECONDS);
    let bystander = Bystander::start(sandbox, coordinator, 20).await?;
    let door = bystander.cluster.coordinator.door();
    let others = Box::pin(Others::start(&bystander)).await?;
    let reader = reader(&bystander.cluster, sandbox)?;
    let visitor = if door.is_locked() { Visitor::stranger(HTTP1)? } else { Visitor::plain() };
    for daemon in daemons(&bystander.cluster)? {
        let is_coordinator = daemon.label == bystander.cluster.coordinator.label;
        let many = is_coordinator && from_beyond;
        let attack = Attack {
            visitor: visitor.clone(),
            to: (Ipv4Addr::LOCALHOST, daemon.http.parse::<SocketAddr>()?.port()).into(),
            each: if many { MANY } else { FEW },
            all_have_places: !many,
            deaf: if is_coordinator { PATIENCE } else { DEAF },
        };
        let memory = Memory::of(daemon.process_id().context("it has ended")?);
        let reasons = ["unused", "unread", "full_for_address"];
        let before = refused_each(&reader, daemon, reasons).await?;
        let begun = Instant::now();
        let (answers, longest) = attack.run().await.with_context(|| daemon.label.clone())?;
        let after = refused_each(&reader, daemon, reasons).await?;
        let [unused, unread, full] = [0, 1, 2].map(|place| after[place] - before[place]);
        memory.is_bounded(&format!(
            "floods of the pages of {}, for {:?}; refused: {unused} unused, {unread} unread, {full} full for their \
             address; {answers} probes, the longest {longest:?}",
            daemon.label,
            begun.elapsed()
        ))?;
        ensure!(unused > 0, "{} counted no slow requests", daemon.label);
        ensure!(unread > 0 || !is_coordinator, "{} counted nobody deaf", daemon.label);
        ensure!((full > 0) == many, "{} refused {full}", daemon.label);
    }
    others.were_served(bystander).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_pages_are_bounded_and_healthz_answers() -> Result<()> {
    beside_a_job(&Sandbox::new()?, Launch::coordinator(), false).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_over_tls_from_more_than_have_places() -> Result<()> {
    beside_a_job(&Sandbox::new()?, Launch::coordinator().over_tls().pages_at("0.0.0.0:0"), true).await
}
