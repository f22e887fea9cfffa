//! Rings over real loopback connections.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use ringtune_conformance::ring::{AnyTransport, Failure, NewRing, SuiteConfig, TransportFactory, run_all};
use ringtune_security::{CallRates, Clients, Limits, Listener, Protection, Protocols, Refusals, Trust};
use ringtune_shared::{
    ids::{Epoch, JobId, WorkerId},
    ring::{Frame, Member, ReceiveHalf as _, RingConfig, RingView, SendHalf as _, Signal, Transport},
    version::RING_PROTOCOLS,
};
use tokio::{net::TcpListener, task::JoinSet};
use tonic::transport::Server;

use super::{Error, RingOptions, RingServer, RingThread, Rings, Seat};
use crate::{callers::GuardCalls, http::Metrics, membership::testing::Cluster};

mod local;
mod reach;
mod seats;
mod secured;
mod states;
mod striped;

/// A worker's RingService on a port of its own. The server ends with the test's runtime.
async fn listening(options: RingOptions) -> (Rings, SocketAddr) {
    let rings = Rings::new(options, Arc::new(Metrics::new().unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    serve(&rings, listener);
    (rings, address)
}

/// So many of them.
async fn workers(count: usize, options: RingOptions) -> Vec<(Rings, SocketAddr)> {
    let mut workers = Vec::new();
    for _ in 0..count {
        workers.push(listening(options.clone()).await);
    }
    workers
}

/// Serves a RingService on a bound port.
fn serve(rings: &Rings, listener: TcpListener) {
    serve_at(rings, listener, CallRates::per_second(1000));
}

fn serve_at(rings: &Rings, listener: TcpListener, rates: CallRates) {
    let protection = match rings.options().trust.clone() {
        None => Protection::Plain,
        Some(trust) => Protection::Tls { trust, clients: Clients::Optional, protocols: Protocols::Http2 },
    };
    let limits = Limits::default().for_loopback();
    let incoming = Listener::start(listener, protection, limits, Refusals::default()).unwrap();
    rings.open_locally(&incoming);
    let server = Server::builder()
        .max_frame_size(super::MOST_FRAME_BYTES)
        .initial_stream_window_size(super::WINDOW_BYTES)
        .initial_connection_window_size(super::WINDOW_BYTES)
        .layer(GuardCalls { metrics: rings.metrics(), rates })
        .add_service(RingServer::service(rings.clone()))
        .serve_with_incoming(incoming);
    ringtune_shared::tasks::spawn(server);
}

/// Of workers that nobody asks who they are.
fn view(job: JobId, epoch: Epoch, addresses: impl IntoIterator<Item = SocketAddr>) -> RingView {
    let members = addresses.into_iter().map(|address| (WorkerId::new(), address));
    view_of_members(job, epoch, members)
}

fn view_of_members(
    job: JobId,
    epoch: Epoch,
    members: impl IntoIterator<Item = (WorkerId, SocketAddr)>,
) -> RingView {
    let member = |(worker, address): (WorkerId, SocketAddr)| Member { worker, address: address.to_string() };
    RingView { job, epoch, members: members.into_iter().map(member).collect() }
}

fn quick(peer_timeout: Duration) -> RingOptions {
    RingOptions { peer_timeout, ..RingOptions::default() }
}

/// The worker that a certificate names; without one: any.
fn worker_of(rings: &Rings) -> WorkerId {
    let trust = rings.options().trust.as_ref();
    let credentials = trust.and_then(Trust::credentials);
    let id = credentials.and_then(|credentials| credentials.identity().ok().and_then(|who| who.worker()));
    id.map_or_else(WorkerId::new, WorkerId)
}

/// Workers that keep their ports for all rings of the suite, as daemons do.
struct Workers(Vec<(Rings, SocketAddr)>);

#[async_trait]
impl TransportFactory for Workers {
    async fn connect(&self, ring: NewRing) -> Result<Vec<AnyTransport>, Failure> {
        let failure = |error: Error| Failure::new("connecting", error.to_string());
        let members = &self.0[..ring.world_size];
        let who = members.iter().map(|(rings, address)| (worker_of(rings), *address));
        let view = view_of_members(ring.job, ring.epoch, who);
        let mut seats = Vec::new();
        for (rank, (rings, _)) in members.iter().enumerate() {
            seats.push(rings.take_seat(&view, rank, 1, RING_PROTOCOLS.max).map_err(failure)?);
        }
        let mut connecting = JoinSet::new();
        for (rank, mut seat) in seats.into_iter().enumerate() {
            connecting.spawn(async move { (rank, seat.transport().await) });
        }
        let mut connected = connecting.join_all().await;
        connected.sort_by_key(|(rank, _)| *rank);
        let any = |(_, transport): (_, Result<_, _>)| transport.map(AnyTransport::new).map_err(failure);
        connected.into_iter().map(any).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_passes_the_suite_that_every_transport_must_pass() {
    pass_the_suite(None, vec![0, 1, 2, 5, 1000, 100_003]).await;
}

/// As daemons have it: connections are read on other threads than those that ask for collectives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rings_on_threads_of_their_own_pass_it_too() {
    let threads: Vec<RingThread> = (0..4).map(|_| RingThread::start().unwrap()).collect();
    let mut workers = Vec::new();
    for thread in &threads {
        let runtime = Some(thread.handle().clone());
        let listener = thread.adopt(TcpListener::bind("127.0.0.1:0").await.unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let rings =
            Rings::new(RingOptions { runtime, ..RingOptions::default() }, Arc::new(Metrics::new().unwrap()));
        let _there = thread.handle().enter();
        serve(&rings, listener);
        workers.push((rings, address));
    }
    let config = SuiteConfig { world_sizes: vec![2, 4], sizes: vec![0, 5, 100_003], ..over_sockets() };
    run_all(&Workers(workers), &config).await.unwrap();
    // Tasks in progress end with it.
    let running = threads[0].handle().spawn(std::future::pending::<()>());
    drop(threads);
    assert!(running.await.unwrap_err().is_cancelled());
}

/// In a secured cluster, or without one.
async fn pass_the_suite(cluster: Option<&Cluster>, sizes: Vec<usize>) {
    let mut workers = Vec::new();
    for _ in 0..7 {
        let trust = cluster.map(|cluster| cluster.worker().trust());
        workers.push(listening(RingOptions { trust, ..RingOptions::default() }).await);
    }
    run_all(&Workers(workers), &SuiteConfig { sizes, ..over_sockets() }).await.unwrap();
}

/// Short deadlines, and not too many frames.
fn over_sockets() -> SuiteConfig {
    SuiteConfig {
        segments: vec![1, 4096, 16_384],
        most_segments: 100,
        ring: RingConfig {
            pulse_interval: Duration::from_millis(100),
            peer_timeout: Duration::from_millis(1000),
            ..RingConfig::default()
        },
        ..SuiteConfig::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_gather_all_rows_and_leave_in_peace() {
    let rows = 5;
    let workers = workers(3, quick(Duration::from_secs(20))).await;
    let view = view(JobId::new(), Epoch::FIRST, workers.iter().map(|(_, address)| *address));
    // All of them before one connects, as the coordinator has it: a rank is told to start when all are ready.
    let take = |(rank, (rings, _)): (usize, &(Rings, SocketAddr))| {
        rings.take_seat(&view, rank, rows, RING_PROTOCOLS.max)
    };
    let seats: Vec<Seat> = workers.iter().enumerate().map(take).collect::<Result<_, _>>().unwrap();
    let mut ranks = JoinSet::new();
    for seat in seats {
        ranks.spawn(async move {
            let mut ring = seat.connect().await.unwrap();
            let row = |microbatch| vec![microbatch as f32, 0.5];
            let own = ring.microbatches().map(row).collect();
            let gathered = ring.gather(own).await.unwrap();
            assert_eq!(gathered.rows, (0..rows as u32).map(row).collect::<Vec<_>>());
            assert_eq!((0..rows).map(|m| ring.rank_of(m)).collect::<Vec<_>>(), [0, 0, 1, 1, 2]);
            ring.close().await.unwrap();
        });
    }
    ranks.join_all().await;
}

/// A rank whose process ends with its last word: what it sent last must be with its neighbour by then.
#[test]
fn what_a_rank_sent_has_arrived_when_it_has_left() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (servers, leaving) = (runtime(), runtime());
    let ((one, one_address), (two, two_address)) = servers.block_on(async {
        (listening(quick(Duration::from_secs(20))).await, listening(quick(Duration::from_secs(20))).await)
    });
    let view = view(JobId::new(), Epoch::FIRST, [one_address, two_address]);
    let mut first = one.take_seat(&view, 0, 2, RING_PROTOCOLS.max).unwrap();
    let mut second = two.take_seat(&view, 1, 2, RING_PROTOCOLS.max).unwrap();
    let (job, epoch) = (view.job, view.epoch);
    let frame = |segment| {
        let payload = vec![7; 1 << 16].into();
        Signal::Frame(Frame { job, epoch, collective: 1, hop: 0, segment, payload, checksum: None })
    };
    // 1. The second rank has a thread of its own and takes in whatever comes.
    let taking = std::thread::spawn(move || {
        servers.block_on(async move {
            let (_send, mut receive) = second.transport().await.unwrap().split();
            let mut taken = 0;
            while receive.receive().await.unwrap().is_some() {
                taken += 1;
            }
            taken
        })
    });
    // 2. The first one sends, leaves, and is gone with all its tasks.
    leaving.block_on(async {
        let (mut send, _receive) = first.transport().await.unwrap().split();
        for segment in 0..40 {
            send.send(frame(segment)).await.unwrap();
        }
        // The other side may be gone before its answer arrives.
        let _ = send.finish().await;
    });
    drop(leaving);
    assert_eq!(taking.join().unwrap(), 40);
}
