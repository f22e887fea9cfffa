//! Random schedules: rings whose signals are delayed at random, and where a rank may fail at a
//! random frame. A seed decides everything, so that a failed schedule can be run again.
//!
//! Meant for tokio's paused clock on one thread, where a run takes no time and two runs of one
//! seed do exactly the same.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ringtune_shared::ring::tree::TreeSum;
use ringtune_shared::ring::{
    Element, LinkBroken, ReceiveHalf, Ring, RingConfig, RingError, SendHalf, Signal, Transport, block_of,
};
use tokio::time::{Instant, sleep};

use super::any::{AnyReceiveHalf, AnySendHalf, AnyTransport};
use super::harness::{Case, Outcome, Suite};
use super::reference::{self, mix};
use super::{Failure, Fault, NewRing, SuiteConfig, TransportFactory, spread};

/// What happened in a schedule: one line an event, the same for the same seed.
pub type Trace = Vec<String>;

/// Runs the schedule of a seed over rings that `factory` makes. The failure names the seed.
///
/// Whatever the schedule does: a collective that succeeds has the right bits, one that fails has a
/// typed error, a ring without a fault does not fail, and nothing hangs.
pub async fn run(factory: &dyn TransportFactory, seed: u64) -> Result<Trace, Failure> {
    // 1. What the seed says.
    let mut random = Random::new(seed);
    let world_size = 2 + random.below(5);
    let collectives = 1 + random.below(4);
    let ring = RingConfig {
        segment_floats: 1 + random.below(40),
        segment_growth: 4,
        frames_in_flight: 2 + random.below(4),
        pulse_interval: Duration::from_millis(100),
        peer_timeout: Duration::from_millis(1000),
        first_sign: Duration::ZERO,
    };
    let fault = (random.below(2) == 0).then(|| {
        let after = random.below(60);
        let fault = if random.below(2) == 0 { Fault::Die { after } } else { Fault::Freeze { after } };
        (random.below(world_size), fault)
    });
    let work_seed = random.next();

    // 2. A ring whose signals take their time, but never so long that they look like silence.
    let trace = SharedTrace { lines: Arc::default(), began: Instant::now() };
    let delayed = Delayed { inner: factory, seed: random.next(), trace: trace.clone() };
    let config = SuiteConfig { ring, slack: Duration::from_secs(600), ..SuiteConfig::default() };
    let name = format!("random schedule, seed {seed}");
    let mut case = Case::new(name, Suite { factory: &delayed, config: &config }, world_size);
    case.fault = fault;

    // 3. Some collectives of random kinds and sizes; then everybody leaves.
    let traced = trace.clone();
    let outcomes = case
        .run(move |ring| {
            let trace = traced.clone();
            async move {
                let rank = ring.place().rank;
                let result = some_collectives(ring, work_seed, collectives).await;
                trace.add(format!("rank {rank} ends: {result:?}"));
                result
            }
        })
        .await?;
    for (rank, Outcome { result, .. }) in outcomes.into_iter().enumerate() {
        match (result, fault) {
            (Ok(None), _) => {}
            (Ok(Some(difference)), _) => return Err(case.failure(format!("rank {rank}: {difference}"))),
            (Err(RingError::PeerLost { .. } | RingError::Stalled { .. }), Some(_)) => {}
            (Err(error), _) => return Err(case.failure(format!("rank {rank}: {error}"))),
        }
    }
    Ok(trace.take())
}

async fn some_collectives(mut ring: Ring, seed: u64, count: usize) -> Result<Option<String>, RingError> {
    // The same on all ranks, so all do the same collectives.
    let mut random = Random::new(seed);
    let (rank, world_size) = (ring.place().rank, ring.place().world_size);
    // Of its own.
    let mut pace = Random::new(seed ^ mix(rank as u64));
    for _ in 0..count {
        sleep(Duration::from_millis(pace.below(3000) as u64)).await;
        let size = random.below(300);
        let kind = random.below(5);
        let difference = if kind == 4 {
            let granule = 1 + random.below(50);
            spread::sums_on_two_ranks(&mut ring, size, granule).await?
        } else if kind == 0 {
            let buffer = ring.all_reduce(reference::buffer(rank, size)).await?;
            reference::difference(&buffer, &reference::reduced(world_size, size))
        } else if kind == 3 {
            let buffer = ring.all_reduce_as(reference::buffer(rank, size), Element::Bf16).await?;
            reference::difference(&buffer, &reference::reduced_in_bf16(world_size, size))
        } else if kind == 1 {
            let total = 1 + random.below(2 * world_size);
            let mut sum = TreeSum::new(total);
            for microbatch in block_of(rank, world_size, total) {
                sum.push(microbatch, reference::buffer(microbatch, size));
            }
            let summed = ring.sum_exactly(sum, size, || vec![0.0; size]).await?;
            reference::difference(&summed.sum, &reference::summed_by_the_tree(total, size))
        } else {
            let rows = random.below(20);
            let width = size / 10;
            let own = reference::own_rows(rank, world_size, width, rows);
            let gathered = ring.gather_rows(&own, width, rows).await?;
            reference::difference(&gathered, &reference::rows(width, rows))
        };
        if difference.is_some() {
            return Ok(difference);
        }
    }
    ring.close().await?;
    Ok(None)
}

/// SplitMix64: small, and the same everywhere.
struct Random {
    state: u64,
}

impl Random {
    fn new(seed: u64) -> Self {
        Self { state: mix(seed) }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Usually none at all, often a moment, seldom most of a pulse.
    fn delay(&mut self) -> Duration {
        match self.below(16) {
            0..8 => Duration::ZERO,
            8..15 => Duration::from_micros(self.below(2_000) as u64),
            _ => Duration::from_millis(self.below(80) as u64),
        }
    }
}

#[derive(Clone)]
struct SharedTrace {
    lines: Arc<Mutex<Trace>>,
    began: Instant,
}

impl SharedTrace {
    fn add(&self, event: String) {
        let line = format!("{:?} {event}", self.began.elapsed());
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn take(&self) -> Trace {
        std::mem::take(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Rings whose signals are delayed.
struct Delayed<'inner> {
    inner: &'inner dyn TransportFactory,
    seed: u64,
    trace: SharedTrace,
}

struct DelayedTransport {
    rank: usize,
    inner: AnyTransport,
    seed: u64,
    trace: SharedTrace,
}

struct DelayedHalf<Inner> {
    rank: usize,
    inner: Inner,
    random: Random,
    trace: SharedTrace,
}

#[async_trait]
impl TransportFactory for Delayed<'_> {
    async fn connect(&self, ring: NewRing) -> Result<Vec<AnyTransport>, Failure> {
        let transports = self.inner.connect(ring).await?.into_iter().enumerate();
        let delayed = |(rank, inner)| {
            let seed = self.seed ^ mix(rank as u64);
            AnyTransport::new(DelayedTransport { rank, inner, seed, trace: self.trace.clone() })
        };
        Ok(transports.map(delayed).collect())
    }
}

impl Transport for DelayedTransport {
    type Send = DelayedHalf<AnySendHalf>;
    type Receive = DelayedHalf<AnyReceiveHalf>;

    fn split(self) -> (Self::Send, Self::Receive) {
        let Self { rank, inner, seed, trace } = self;
        let (send, receive) = inner.split();
        let send = DelayedHalf { rank, inner: send, random: Random::new(seed), trace: trace.clone() };
        let receive = DelayedHalf { rank, inner: receive, random: Random::new(!seed), trace };
        (send, receive)
    }
}

impl SendHalf for DelayedHalf<AnySendHalf> {
    async fn send(&mut self, signal: Signal) -> Result<(), LinkBroken> {
        sleep(self.random.delay()).await;
        let what = match &signal {
            Signal::Frame(frame) => format!("{}.{}.{}", frame.collective, frame.hop, frame.segment),
            Signal::Pulse { .. } => "pulse".into(),
        };
        self.trace.add(format!("rank {} sends {what}", self.rank));
        self.inner.send(signal).await
    }

    async fn finish(&mut self) -> Result<(), LinkBroken> {
        sleep(self.random.delay()).await;
        self.inner.finish().await
    }
}

impl ReceiveHalf for DelayedHalf<AnyReceiveHalf> {
    async fn receive(&mut self) -> Result<Option<Signal>, LinkBroken> {
        // Before anything is taken, so that nothing is lost when this is dropped.
        sleep(self.random.delay()).await;
        self.inner.receive().await
    }
}
