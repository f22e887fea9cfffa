//! What HTTP/2 lets a client send without end.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Bystander, Launch, Sandbox, Visitor,
    http2::{
        ACK, CALM, CONTINUATION, DATA, END_HEADERS, END_STREAM, Ended, HEADERS, PING, PRIORITY, RST_STREAM,
        SETTINGS, WINDOW_UPDATE, flood, frame, head, header,
    },
    visitor::HTTP2,
};
use tokio::task::JoinSet;

use crate::{Memory, daemons, others::Others};

/// Frames that are sent at a time.
const AT_ONCE: u32 = 100;
/// How often, at most: 100,000 frames, and far more where nobody reads the answers: the sockets' own buffers hold some
/// megabytes of them.
const MOST: u32 = 1000;
const MOST_OF_DEAF: u32 = 100 * MOST;
/// For a server that reads what it is sent, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(60);
/// Who reads no answers is not read himself: that shows soon.
const DEAF: Duration = Duration::from_secs(2);
/// What a daemon may write into its log for all of them.
const MOST_LOG: u64 = 1 << 20;

/// How a flood has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// The server ends the connection, with this error where it is told.
    End(Option<u32>),
    /// It is answered, and costs no more than its answers.
    Answered,
    /// It is read no more once its answers are not taken.
    Waits,
    /// Any of the first two: it is bounded.
    Any,
}

/// A flood: its name, how it ends, and what is sent the how-manieth time.
struct Flood(&'static str, Expected, fn(u32, &'static str) -> Vec<u8>);

/// So many frames, whose streams go on from time to time.
fn many(number: u32, frame: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    (number * AT_ONCE..(number + 1) * AT_ONCE).flat_map(|place| frame(place * 2 + 1)).collect()
}

const FLOODS: [Flood; 12] = [
    Flood("calls that are taken back at once", Expected::End(Some(CALM)), |number, path| {
        many(number, |stream| {
            let call = frame(HEADERS, END_HEADERS | END_STREAM, stream, &head(path));
            [call, frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())].concat()
        })
    }),
    Flood("calls that do not end", Expected::End(Some(CALM)), |number, path| {
        many(number, |stream| frame(HEADERS, END_HEADERS, stream, &head(path)))
    }),
    Flood("a head that goes on for ever", Expected::End(None), |number, path| match number {
        0 => frame(HEADERS, END_STREAM, 1, &head(path)),
        _ => frame(CONTINUATION, 0, 1, &header("x", &"y".repeat(1000)).repeat(16)),
    }),
    Flood("heads over the limit", Expected::Any, |number, path| {
        let long = [head(path), header("x-long", &"y".repeat(1000)).repeat(20)].concat();
        // A frame has 16 KiB unless the other side allows more.
        let (begin, rest) = long.split_at(8000);
        let stream = number * 2 + 1;
        let begin = frame(HEADERS, END_STREAM, stream, begin);
        let (middle, end) = rest.split_at(8000);
        let middle = frame(CONTINUATION, 0, stream, middle);
        [begin, middle, frame(CONTINUATION, END_HEADERS, stream, end)].concat()
    }),
    Flood("empty data", Expected::End(Some(CALM)), |number, path| match number {
        0 => frame(HEADERS, END_HEADERS, 1, &head(path)),
        _ => frame(DATA, 0, 1, &[]).repeat(AT_ONCE as usize),
    }),
    Flood("pings", Expected::Answered, |_, _| frame(PING, 0, 0, b"12345678").repeat(AT_ONCE as usize)),
    Flood("pings of somebody deaf", Expected::Waits, |_, _| {
        frame(PING, 0, 0, b"12345678").repeat(AT_ONCE as usize)
    }),
    Flood("answers to pings that were not sent", Expected::Any, |_, _| {
        frame(PING, ACK, 0, b"12345678").repeat(AT_ONCE as usize)
    }),
    Flood("settings", Expected::Answered, |number, _| {
        let window = number.to_be_bytes();
        let settings = [&[0, 4, 0, 0][..], &window[2..]].concat();
        frame(SETTINGS, 0, 0, &settings).repeat(AT_ONCE as usize)
    }),
    Flood("settings of somebody deaf", Expected::Waits, |_, _| {
        frame(SETTINGS, 0, 0, &[]).repeat(AT_ONCE as usize)
    }),
    Flood("windows and priorities", Expected::Any, |number, _| {
        many(number, |stream| {
            let priority = frame(PRIORITY, 0, stream, &[0, 0, 0, 0, 1]);
            [priority, frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])].concat()
        })
    }),
    Flood("frames of no kind", Expected::Any, |_, _| frame(0xee, 0, 0, &[0; 64]).repeat(AT_ONCE as usize)),
];

/// Sends all floods at the same time.
#[allow(clippy::print_stderr)]
async fn all_floods(visitor: &Visitor, to: SocketAddr, path: &'static str) -> Result<()> {
    let mut floods = JoinSet::new();
    for Flood(name, expected, next) in FLOODS {
        let visitor = visitor.clone();
        floods.spawn(async move {
            let listens = expected != Expected::Waits;
            let (patience, most) = if listens { (PATIENCE, MOST) } else { (DEAF, MOST_OF_DEAF) };
            let begun = Instant::now();
            let stream = visitor.connect(to, Ipv4Addr::LOCALHOST).await?;
            let ended = flood(stream, listens, most, patience, move |number| next(number, path));
            let ended = ended.await.context(name)?;
            eprintln!("{name}: {ended:?} after {:?}", begun.elapsed());
            let Ended { sent, by_server, error } = ended;
            match expected {
                Expected::End(code) => {
                    ensure!(by_server, "{name} has no end: {ended:?}");
                    // The connection may be gone before its last word is read.
                    ensure!(error.is_none() || code.is_none() || error == code, "{name}: {ended:?}");
                }
                Expected::Answered => ensure!(!by_server && sent == MOST, "{name} was ended: {ended:?}"),
                Expected::Waits => ensure!(!by_server && sent < most, "{name} was read: {ended:?}"),
                Expected::Any => {}
            }
            anyhow::Ok(())
        });
    }
    while let Some(one) = floods.join_next().await {
        one??;
    }
    Ok(())
}

const SESSION: &str = "/ringtune.v1.WorkerService/Session";
const EXCHANGE: &str = "/ringtune.v1.RingService/Exchange";

/// Floods the coordinator and a worker beside a job. `visitors`: who floods which of the two.
async fn beside_a_job(sandbox: &Sandbox, bystander: Bystander<'_>, visitors: [Visitor; 2]) -> Result<()> {
    let others = Box::pin(Others::start(&bystander)).await?;
    let floods = [SESSION, EXCHANGE].into_iter().zip(visitors);
    for (daemon, (path, visitor)) in daemons(&bystander.cluster)?.into_iter().zip(floods) {
        let memory = Memory::of(daemon.process_id().context("it has ended")?);
        let begun = Instant::now();
        all_floods(&visitor, daemon.grpc.parse()?, path).await.with_context(|| daemon.label.clone())?;
        memory.is_bounded(&format!("floods of {}, for {:?}", daemon.label, begun.elapsed()))?;
        let log = fs::metadata(sandbox.path(&format!("{}.log", daemon.label)))?.len();
        ensure!(log <= MOST_LOG, "{} wrote {log} bytes into its log", daemon.label);
    }
    others.were_served(bystander).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_end_or_cost_no_more_than_their_answers() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let bystander = Bystander::start(&sandbox, Launch::coordinator(), 8).await?;
    beside_a_job(&sandbox, bystander, [Visitor::plain(), Visitor::plain()]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_over_tls() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let bystander = Bystander::start(&sandbox, Launch::coordinator().over_tls(), 8).await?;
    // A stranger gets as far as anybody: who calls is asked with each call. A member of the ring is let in to its calls.
    let member = Visitor::known(HTTP2, &sandbox.path("worker-2/credentials"))?;
    beside_a_job(&sandbox, bystander, [Visitor::stranger(HTTP2)?, member]).await
}
