//! What TLS costs a ring: all-reduces of two ranks on this machine, with it and without it in turns.
//!
//! `cargo bench --workspace --bench ring` prints medians in milliseconds and their ratio; it judges nothing.

use std::{
    error::Error,
    io::Write as _,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use ringtune_security::{
    Authority, Clients, Credentials, Csr, Holder, Leaf, Limits, Listener, Protection, Protocols, Refusals,
    Role, Trust,
};
use ringtune_shared::{
    ids::{Epoch, JobId, WorkerId},
    ring::{Member, Ring, RingView},
    version::RING_PROTOCOLS,
};
use ringtune_worker::{
    http::Metrics,
    ring::{RingOptions, RingServer, Rings, Seat},
};
use tokio::{net::TcpListener, runtime::Builder};
use tonic::transport::Server;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Floats, and how often: 25 MB are the gradient of a small model, 768 floats that of one token.
const SIZES: [(usize, usize); 2] = [(6_250_000, 15), (768, 400)];
/// Rounds of each that do not count.
const WARM_UP: usize = 3;

fn main() -> Outcome<()> {
    Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(compare())
}

async fn compare() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    let authority = Authority::open_or_make(&folder.path().join("pki"), SystemTime::now())?;
    let mut plain = Pair::connect(None).await?;
    let mut secure = Pair::connect(Some(&authority)).await?;
    for (floats, rounds) in SIZES {
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for round in 0..WARM_UP + rounds {
            let both = (plain.all_reduce(floats).await?, secure.all_reduce(floats).await?);
            if round >= WARM_UP {
                without.push(both.0);
                with.push(both.1);
            }
        }
        let (without, with) = (median(without), median(with));
        writeln!(
            std::io::stdout(),
            "all_reduce of {floats} floats, 2 ranks, {rounds} rounds: plain {:.3} ms, TLS {:.3} ms, ratio {:.2}",
            without.as_secs_f64() * 1e3,
            with.as_secs_f64() * 1e3,
            with.as_secs_f64() / without.as_secs_f64()
        )?;
    }
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Two connected ranks, and the seats that they sit on.
struct Pair {
    rings: [Ring; 2],
    _seats: [Seat; 2],
}

impl Pair {
    async fn connect(authority: Option<&Authority>) -> Outcome<Self> {
        let (one, two) = (Worker::start(authority).await?, Worker::start(authority).await?);
        let members = vec![one.member.clone(), two.member.clone()];
        let view = RingView { job: JobId::new(), epoch: Epoch::FIRST, members };
        let mut first = one.rings.take_seat(&view, 0, 2, RING_PROTOCOLS.max)?;
        let mut second = two.rings.take_seat(&view, 1, 2, RING_PROTOCOLS.max)?;
        let (one, two) = tokio::try_join!(first.ring(), second.ring())?;
        Ok(Self { rings: [one, two], _seats: [first, second] })
    }

    async fn all_reduce(&mut self, floats: usize) -> Outcome<Duration> {
        let [one, two] = &mut self.rings;
        let (mut first, mut second) = (vec![1.0; floats], vec![2.0; floats]);
        let began = Instant::now();
        tokio::try_join!(one.all_reduce(&mut first), two.all_reduce(&mut second))?;
        let took = began.elapsed();
        if first != second || first.first() != Some(&3.0) {
            return Err("the sums are wrong".into());
        }
        Ok(took)
    }
}

/// One worker's places and port.
struct Worker {
    rings: Rings,
    member: Member,
}

impl Worker {
    async fn start(authority: Option<&Authority>) -> Outcome<Self> {
        let worker = WorkerId::new();
        let trust = authority.map(|authority| certified(authority, worker)).transpose()?;
        let protection = match trust.clone() {
            None => Protection::Plain,
            Some(trust) => Protection::Tls { trust, clients: Clients::Optional, protocols: Protocols::Http2 },
        };
        let rings = Rings::new(RingOptions { trust, ..RingOptions::default() }, Arc::new(Metrics::new()?));
        let tcp = TcpListener::bind("127.0.0.1:0").await?;
        let address = tcp.local_addr()?.to_string();
        // Nobody says here when a call begins.
        let hour = Duration::from_secs(3600);
        let limits = Limits { first_call: hour, idle: hour, ..Limits::default() }.for_loopback();
        let listener = Listener::start(tcp, protection, limits, Refusals::default())?;
        let server = Server::builder()
            .max_frame_size(1 << 20)
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(4 << 20)
            .add_service(RingServer::service(rings.clone()))
            .serve_with_incoming(listener);
        tokio::spawn(server);
        Ok(Self { rings, member: Member { worker, address } })
    }
}

fn certified(authority: &Authority, worker: WorkerId) -> Outcome<Trust> {
    let (key, csr) = Csr::make()?;
    let holder = Holder::Member { role: Role::Worker, name: worker.to_string() };
    let leaf = Leaf { holder, valid_for: Duration::from_secs(3600) };
    let issued = authority.issue(csr.der(), &leaf, SystemTime::now())?;
    Ok(Trust::of(Credentials::new(key, &issued.chain_pem(), authority.roots().clone())?)?)
}
