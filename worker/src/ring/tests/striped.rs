//! Rings whose ranks are connected through several streams.

use ringtune_proto::v1::{MeasureRequest, RingOpen, ring_service_client::RingServiceClient};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep_until},
};
use tokio_stream::iter;
use tonic::Code;

use super::*;
use crate::ring::{RankRing, call, wire::MOST_SEGMENT_BYTES};

/// Enough bytes for a measurement.
const MUCH: u64 = 1 << 30;

async fn pass_with(connections: usize, cluster: Option<&Cluster>, sizes: Vec<usize>) {
    let mut all = Vec::new();
    for _ in 0..4 {
        let trust = cluster.map(|cluster| cluster.worker().trust());
        all.push(listening(RingOptions { trust, connections, ..RingOptions::default() }).await);
    }
    let config = SuiteConfig { world_sizes: vec![2, 3, 4], sizes, ..over_sockets() };
    let all = Workers(all);
    run_all(&all, &config).await.unwrap();
    // They were that many.
    let opened = || all.0.iter().map(|(rings, _)| streams_of(rings)).collect::<Vec<_>>();
    let before = opened();
    all.connect(NewRing { job: JobId::new(), epoch: Epoch::FIRST, world_size: 4 }).await.unwrap();
    let after: Vec<u64> = before.iter().map(|streams| streams + connections as u64).collect();
    assert_eq!(opened(), after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_streams_pass_the_suite_that_every_transport_must_pass() {
    pass_with(3, None, vec![0, 5, 1000, 100_003]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_streams_of_a_secured_cluster_pass_it_too() {
    pass_with(2, Some(&Cluster::new()), vec![0, 100_003]).await;
}

/// Two ranks, connected, whose steps bring so much to the ring. `second`: where the second one is dialled.
async fn ring_of_two(workers: &[(Rings, SocketAddr)], second: SocketAddr, bytes: u64) -> [RankRing; 2] {
    let addresses = [workers[0].1, second];
    let view = view(JobId::new(), Epoch::FIRST, addresses);
    let seat = |rank: usize| {
        workers[rank].0.take_seat(&view, rank, 2, RING_PROTOCOLS.max).unwrap().for_steps_of(bytes)
    };
    let (one, two) = tokio::join!(seat(0).connect(), seat(1).connect());
    [one.unwrap(), two.unwrap()]
}

fn streams_of(rings: &Rings) -> u64 {
    rings.metrics().ring_streams.with_label_values(&["tcp"]).get()
}

/// A link that gives each connection so many bytes a second.
async fn paced(to: SocketAddr, bytes_per_second: f64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = listener.local_addr().unwrap();
    ringtune_shared::tasks::spawn(async move {
        let mut ways = JoinSet::new();
        while let Ok((from, _)) = listener.accept().await {
            let ((mut reads, mut answers), (mut answered, mut writes)) =
                (from.into_split(), TcpStream::connect(to).await.unwrap().into_split());
            ways.spawn(async move {
                let (mut bytes, mut free_at) = (vec![0; 64 << 10], Instant::now());
                while let Ok(count @ 1..) = reads.read(&mut bytes).await {
                    sleep_until(free_at).await;
                    free_at = free_at.max(Instant::now())
                        + Duration::from_secs_f64(count as f64 / bytes_per_second);
                    if writes.write_all(&bytes[..count]).await.is_err() {
                        return;
                    }
                }
            });
            ways.spawn(async move {
                let _ = tokio::io::copy(&mut answered, &mut answers).await;
            });
        }
    });
    here
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_each_connection_has_a_share_of_the_link_several_are_taken() {
    let workers = workers(2, quick(Duration::from_secs(20))).await;
    // 1. Slow enough for a busy machine to show it.
    let second = paced(workers[1].1, 20e6).await;
    let [mut one, mut two] = ring_of_two(&workers, second, MUCH).await;
    let (streams, told) = (streams_of(&workers[0].0), one.reached().unwrap());
    assert!(streams >= 4, "{told}");
    let expected = format!("rank 1 is reached through {streams} connections: 1 carries 0.0");
    assert!(told.starts_with(&expected), "{told}");
    // 2. What goes through them comes as it was sent.
    let numbers = |rank: usize| (0..100_000).map(|at| (at * (rank + 1)) as f32).collect::<Vec<f32>>();
    let spread = ringtune_shared::ring::Spread::EVEN;
    let (first, second) = tokio::join!(
        one.sum_fast(numbers(0), ringtune_shared::ring::Element::Fp32, spread),
        two.sum_fast(numbers(1), ringtune_shared::ring::Element::Fp32, spread),
    );
    let expected: Vec<f32> = (0..100_000).map(|at| (at * 3) as f32).collect();
    assert!(first.unwrap() == expected && second.unwrap() == expected);
    let (one, two) = tokio::join!(one.close(), two.close());
    one.and(two).unwrap();
}

#[test]
fn a_setting_allows_as_many_connections_as_there_may_be() {
    assert_eq!(crate::settings::MOST_RING_CONNECTIONS, crate::ring::stripes::MOST_STRIPES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn little_takes_one_stream_and_nothing_is_measured() {
    let workers = workers(2, quick(Duration::from_secs(20))).await;
    let second = paced(workers[1].1, 20e6).await;
    let [one, two] = ring_of_two(&workers, second, 1 << 20).await;
    assert_eq!((streams_of(&workers[0].0), one.reached()), (1, None));
    drop((one, two));
    // A given number is used, whatever it is worth.
    let [one, _two] = {
        let options = RingOptions { connections: 3, ..quick(Duration::from_secs(20)) };
        let workers = self::workers(2, options).await;
        ring_of_two(&workers, workers[1].1, 0).await
    };
    assert_eq!(one.reached(), Some("rank 1 is reached through 3 connections"));
}

/// As a rank of a build before there were several: what it does not know is refused by tonic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_cannot_be_measured_is_given_one_stream() {
    let workers = workers(1, quick(Duration::from_secs(20))).await;
    let (older, address) = without_measure(quick(Duration::from_secs(20))).await;
    let all = [workers[0].clone(), (older, address)];
    let [one, two] = ring_of_two(&all, address, MUCH).await;
    assert_eq!((streams_of(&all[0].0), one.reached()), (1, None));
    let (one, two) = tokio::join!(one.close(), two.close());
    one.and(two).unwrap();
}

/// A worker whose RingService has no `Measure`.
async fn without_measure(options: RingOptions) -> (Rings, SocketAddr) {
    use std::task::{Context, Poll};
    use tonic::{body::Body, codegen::Service, server::NamedService};

    #[derive(Clone)]
    struct Older(crate::ring::RingGrpc);
    impl NamedService for Older {
        const NAME: &'static str = crate::ring::RingGrpc::NAME;
    }
    impl Service<http::Request<Body>> for Older {
        type Response = http::Response<Body>;
        type Error = std::convert::Infallible;
        type Future = <crate::ring::RingGrpc as Service<http::Request<Body>>>::Future;

        fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Service::<http::Request<Body>>::poll_ready(&mut self.0, context)
        }

        fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
            if request.uri().path() == call::MEASURE {
                *request.uri_mut() = http::Uri::from_static("/ringtune.v1.RingService/Unheard");
            }
            self.0.call(request)
        }
    }

    let rings = Rings::new(options, Arc::new(Metrics::new().unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits::default().for_loopback();
    let incoming = Listener::start(listener, Protection::Plain, limits, Refusals::default()).unwrap();
    let server = Server::builder()
        .layer(GuardCalls { metrics: rings.metrics(), rates: CallRates::per_second(1000) })
        .add_service(Older(RingServer::service(rings.clone())))
        .serve_with_incoming(incoming);
    ringtune_shared::tasks::spawn(server);
    (rings, address)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openings_of_impossible_streams_and_endless_measurements_are_refused() {
    let workers = workers(1, quick(Duration::from_secs(20))).await;
    let (rings, address) = &workers[0];
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = RingServiceClient::new(endpoint.connect().await.unwrap());
    // 1. Streams.
    let view = view(JobId::new(), Epoch::FIRST, [*address, "127.0.0.1:1".parse().unwrap()]);
    let _seat = rings.take_seat(&view, 0, 2, RING_PROTOCOLS.max).unwrap();
    let opening = |stripes, stripe| RingOpen {
        job_id: view.job.to_string(),
        epoch: 1,
        rank: 1,
        world_size: 2,
        protocol: RING_PROTOCOLS.max,
        max_segment_bytes: MOST_SEGMENT_BYTES,
        stripes,
        stripe,
        attempt: 1,
    };
    for (stripes, stripe, field) in [(9, 0, "open.stripes"), (2, 2, "open.stripe"), (0, 1, "open.stripe")] {
        let part = Some(ringtune_proto::v1::exchange_request::Part::Open(opening(stripes, stripe)));
        let request = iter([ringtune_proto::v1::ExchangeRequest { part }]);
        let refused = client.exchange(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with(field), "{refused}");
    }
    // 2. Any gRPC peer may measure; not without end.
    let filler = |bytes| MeasureRequest { filler: vec![0; bytes] };
    let answer = client.measure(iter([filler(100_000), filler(0)])).await.unwrap().into_inner();
    assert_eq!((answer.received_bytes, answer.most_stripes), (100_000 + 4 + 5 + 5, 8));
    let endless = iter((0..).map(move |_| filler(3 << 20)));
    let refused = client.measure(endless).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
}
