//! Rings of a secured cluster: who may take whose place.

use ringtune_proto::v1::{
    self, ExchangeRequest, exchange_request::Part, ring_service_client::RingServiceClient,
};
use ringtune_security::{Connector, Role, Server as Called};
use ringtune_shared::ring::RingError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt as _;

use super::*;
use crate::{
    membership::testing::Certified,
    rank_state::RankState,
    ring::{FetchFrom, RankRing, StateProblem, StateRoom},
    train::SavedState,
};

const LIMIT: Duration = Duration::from_secs(20);

/// A worker with a certificate, and its port.
struct Worker {
    certified: Certified,
    trust: Trust,
    rings: Rings,
    address: SocketAddr,
}

async fn worker(cluster: &Cluster) -> Worker {
    let certified = cluster.worker();
    let trust = certified.trust();
    let options = RingOptions { trust: Some(trust.clone()), ..RingOptions::default() };
    let (rings, address) = listening(options).await;
    Worker { certified, trust, rings, address }
}

fn view_of(job: JobId, workers: &[&Worker]) -> RingView {
    let members = workers.iter().map(|worker| (worker.certified.id, worker.address));
    view_of_members(job, Epoch::FIRST, members)
}

/// Two ranks of a job, connected.
async fn ring_of_two(one: &Worker, two: &Worker) -> (RingView, RankRing, RankRing) {
    let view = view_of(JobId::new(), &[one, two]);
    let first = one.rings.take_seat(&view, 0, 2, RING_PROTOCOLS.max).unwrap();
    let second = two.rings.take_seat(&view, 1, 2, RING_PROTOCOLS.max).unwrap();
    let (first, second) = tokio::join!(first.connect(), second.connect());
    (view, first.unwrap(), second.unwrap())
}

async fn step(one: &mut RankRing, two: &mut RankRing) {
    let (first, second) = tokio::join!(one.gather(vec![vec![0.5]]), two.gather(vec![vec![1.5]]));
    assert_eq!(
        (first.unwrap().rows, second.unwrap().rows),
        (vec![vec![0.5], vec![1.5]], vec![vec![0.5], vec![1.5]])
    );
}

/// Calls a worker's port as somebody.
async fn call(as_whom: &Trust, (worker, address): (WorkerId, SocketAddr)) -> Channel {
    let connector = Connector::to(as_whom.clone(), Called::Worker(worker.0));
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
    endpoint.connect_with_connector(connector).await.unwrap()
}

/// Opens a stream as a rank of a job's first ring; what becomes of it.
async fn exchange_as(as_whom: &Trust, whom: &Worker, job: JobId, rank: i32) -> Status {
    exchange_at(as_whom, (whom.certified.id, whom.address), job, rank).await
}

async fn exchange_at(as_whom: &Trust, whom: (WorkerId, SocketAddr), job: JobId, rank: i32) -> Status {
    let open = v1::RingOpen {
        job_id: job.to_string(),
        epoch: 1,
        rank,
        world_size: 2,
        protocol: RING_PROTOCOLS.max,
        max_segment_bytes: 1 << 16,
        ..v1::RingOpen::default()
    };
    let (messages, queue) = mpsc::channel(2);
    messages.send(ExchangeRequest { part: Some(Part::Open(open)) }).await.unwrap();
    let mut client = RingServiceClient::new(call(as_whom, whom).await);
    client.exchange(ReceiverStream::new(queue)).await.expect_err("not let in")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_passes_the_suite_that_every_transport_must_pass() {
    pass_the_suite(Some(&Cluster::new()), vec![0, 1, 5, 10_003]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strangers_stream_takes_no_seat_and_breaks_no_ring() {
    let cluster = Cluster::new();
    let (one, two, third) = (worker(&cluster).await, worker(&cluster).await, worker(&cluster).await);
    // 1. The seat is taken, and nobody has called yet: the stranger comes first.
    let view = view_of(JobId::new(), &[&one, &two]);
    let waiting = two.rings.take_seat(&view, 1, 2, RING_PROTOCOLS.max).unwrap();
    let status = exchange_as(&third.trust, &two, view.job, 0).await;
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    assert!(status.message().contains(&third.certified.id.to_string()), "{status}");
    assert_eq!(two.rings.metrics().denied_calls.get(), 1);
    // 2. The members come after it, as if nothing had been.
    let first = one.rings.take_seat(&view, 0, 2, RING_PROTOCOLS.max).unwrap();
    let (first, second) = tokio::join!(first.connect(), waiting.connect());
    let (mut first, mut second) = (first.unwrap(), second.unwrap());
    step(&mut first, &mut second).await;
    // 3. Nor is a ring disturbed that stands; a member cannot be another rank either.
    assert_eq!(exchange_as(&third.trust, &two, view.job, 0).await.code(), Code::PermissionDenied);
    assert_eq!(exchange_as(&two.trust, &two, view.job, 0).await.code(), Code::PermissionDenied);
    step(&mut first, &mut second).await;
    assert_eq!(two.rings.metrics().denied_calls.get(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_that_waits_for_a_seat_does_not_get_it() {
    let cluster = Cluster::new();
    let (one, two, third) = (worker(&cluster).await, worker(&cluster).await, worker(&cluster).await);
    let view = view_of(JobId::new(), &[&one, &two]);
    let (trust, job) = (third.trust.clone(), view.job);
    let early = async { exchange_as(&trust, &two, job, 0).await };
    let later = async {
        while two.rings.waiting() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        two.rings.take_seat(&view, 1, 2, RING_PROTOCOLS.max).unwrap()
    };
    let (status, second) = tokio::join!(early, later);
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    let first = one.rings.take_seat(&view, 0, 2, RING_PROTOCOLS.max).unwrap();
    let (first, second) = tokio::join!(first.connect(), second.connect());
    step(&mut first.unwrap(), &mut second.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_worker_alone_does_not_take_all_room_to_wait_in() {
    let cluster = Cluster::new();
    let (one, two, third) = (worker(&cluster).await, worker(&cluster).await, worker(&cluster).await);
    let mut greedy = JoinSet::new();
    for _ in 0..70 {
        let (trust, whom) = (third.trust.clone(), (two.certified.id, two.address));
        greedy.spawn(async move { exchange_at(&trust, whom, JobId::new(), 0).await });
    }
    // All but a few are refused at once, and others find room.
    for _ in 0..54 {
        assert_eq!(greedy.join_next().await.unwrap().unwrap().code(), Code::ResourceExhausted);
    }
    assert_eq!(two.rings.waiting(), 16);
    let view = view_of(JobId::new(), &[&one, &two]);
    let first = one.rings.take_seat(&view, 0, 2, RING_PROTOCOLS.max).unwrap();
    let early = ringtune_shared::tasks::spawn(first.connect());
    while two.rings.waiting() < 17 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let second = two.rings.take_seat(&view, 1, 2, RING_PROTOCOLS.max).unwrap().connect().await;
    step(&mut early.await.unwrap().unwrap(), &mut second.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_worker_that_calls_without_end_makes_nobody_else_wait() {
    let cluster = Cluster::new();
    let (one, third) = (worker(&cluster).await, worker(&cluster).await);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let whom = (one.certified.id, listener.local_addr().unwrap());
    serve_at(&one.rings, listener, CallRates::per_second(1));
    let ask = |mut client: RingServiceClient<Channel>| async move {
        client.fetch_state(v1::FetchStateRequest::default()).await.expect_err("there is no such state")
    };
    let greedy = RingServiceClient::new(call(&third.trust, whom).await);
    let mut asked = JoinSet::new();
    for _ in 0..100 {
        asked.spawn(ask(greedy.clone()));
    }
    let refused = loop {
        let status = asked.join_next().await.unwrap().unwrap();
        if status.code() == Code::ResourceExhausted {
            break status;
        }
    };
    assert!(refused.message().contains(&format!("worker {}", third.certified.id)), "{refused}");
    assert!(refused.get_details_retry_info().is_some(), "{refused}");
    // The greedy one's turns are used up, those of its neighbour are all there.
    let began = std::time::Instant::now();
    let others = RingServiceClient::new(call(&one.trust, whom).await);
    for _ in 0..10 {
        assert_ne!(ask(others.clone()).await.code(), Code::ResourceExhausted);
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(one.rings.metrics().denied_calls.get() >= 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_is_given_to_the_worker_that_has_the_rank() {
    let cluster = Cluster::new();
    let (one, two, third) = (worker(&cluster).await, worker(&cluster).await, worker(&cluster).await);
    let (view, _first, _second) = ring_of_two(&one, &two).await;
    let mut state = SavedState::default();
    state.put_number("count", 7);
    let _offer = one.rings.offer_state(view.job, Epoch::FIRST, 3, RankState::small(state.clone()));
    let address = one.address.to_string();
    let from = FetchFrom {
        worker: one.certified.id,
        address: &address,
        job: view.job,
        epoch: Epoch::FIRST,
        rank: 0,
        step: 3,
        expected: state.hash().unwrap(),
        room: StateRoom::Memory,
    };
    assert_eq!(two.rings.fetch_state(&from).await.unwrap().into_saved().unwrap(), state);
    // The third one believes that it is rank 1.
    let _seat = third.rings.take_seat(&view, 1, 2, RING_PROTOCOLS.max).unwrap();
    let refused = third.rings.fetch_state(&from).await;
    assert!(
        matches!(&refused, Err(Error::State { problem: StateProblem::Refused { reason }, .. })
            if reason.contains("not that of worker")),
        "{refused:?}"
    );
    // And whoever is asked has to be the worker that is meant.
    let elsewhere = third.address.to_string();
    let other = two.rings.fetch_state(&FetchFrom { address: &elsewhere, ..from }).await;
    assert!(
        matches!(&other, Err(Error::Unreachable { reason, .. }) if reason.contains("is not")),
        "{other:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_than_workers_have_no_business_in_a_ring() {
    let cluster = Cluster::new();
    let (one, two) = (worker(&cluster).await, worker(&cluster).await);
    let (view, mut first, mut second) = ring_of_two(&one, &two).await;
    let admin = Trust::of(cluster.person(Role::Admin)).unwrap();
    let status = exchange_as(&admin, &two, view.job, 0).await;
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(status.message(), "Exchange needs the role worker; you are admin ada");
    let nobody = Trust::of_roots(cluster.roots()).unwrap();
    let status = exchange_as(&nobody, &two, view.job, 0).await;
    assert_eq!(status.code(), Code::Unauthenticated);
    let health = tonic_health::pb::HealthCheckRequest::default();
    let channel = call(&nobody, (two.certified.id, two.address)).await;
    let asked = tonic_health::pb::health_client::HealthClient::new(channel).check(health).await;
    // It is not served in this test, and not refused either.
    assert_eq!(asked.unwrap_err().code(), Code::Unimplemented);
    step(&mut first, &mut second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_member_loses_its_place_at_once() {
    let cluster = Cluster::new();
    let (one, two) = (worker(&cluster).await, worker(&cluster).await);
    let (_view, mut first, mut second) = ring_of_two(&one, &two).await;
    step(&mut first, &mut second).await;
    let failed = second.failed();
    let serial = one.certified.identity().serial;
    two.trust.revoke(|revoked| revoked.serials.extend([serial]));
    let error = tokio::time::timeout(LIMIT, failed).await.unwrap();
    assert!(matches!(error, RingError::PeerLost { rank: 0, .. }), "{error}");
    // It does not come back.
    let seat = two.rings.take_seat(&view_of(JobId::new(), &[&one, &two]), 1, 2, RING_PROTOCOLS.max).unwrap();
    let _other =
        one.rings.take_seat(&view_of(JobId::new(), &[&one, &two]), 0, 2, RING_PROTOCOLS.max).unwrap();
    let error = tokio::time::timeout(LIMIT, seat.connect()).await.unwrap().unwrap_err();
    assert!(
        matches!(&error, Error::Unreachable { rank: 0, reason, .. } if reason.contains("revoked")),
        "{error}"
    );
}
