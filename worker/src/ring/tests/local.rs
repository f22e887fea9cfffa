//! Rings of workers on one machine, through their local sockets.

use ringtune_security::{Connector, Server as Called};

use super::*;
use crate::ring::RankRing;

const LIMIT: Duration = Duration::from_secs(20);

/// A worker with a socket in this folder.
async fn worker(folder: &tempfile::TempDir, trust: Option<Trust>) -> (Rings, SocketAddr) {
    worker_with(folder, RingOptions { trust, ..RingOptions::default() }).await
}

async fn worker_with(folder: &tempfile::TempDir, options: RingOptions) -> (Rings, SocketAddr) {
    let local_socket = Some(folder.path().join(format!("{}.sock", WorkerId::new())));
    listening(RingOptions { local_socket, ..options }).await
}

fn folder() -> tempfile::TempDir {
    // Paths of sockets are short.
    tempfile::Builder::new().prefix("rt").tempdir_in("/tmp").unwrap()
}

/// Number of streams that a worker has opened by port, by socket, and by socket with memory.
fn ways(rings: &Rings) -> [u64; 3] {
    ["tcp", "local", "memory"].map(|way| rings.metrics().ring_streams.with_label_values(&[way]).get())
}

async fn pass_locally(cluster: Option<&Cluster>, shared_memory: bool, sizes: Vec<usize>) {
    let folder = folder();
    let mut workers = Vec::new();
    for _ in 0..7 {
        let trust = cluster.map(|cluster| cluster.worker().trust());
        workers
            .push(worker_with(&folder, RingOptions { trust, shared_memory, ..RingOptions::default() }).await);
    }
    let workers = Workers(workers);
    run_all(&workers, &SuiteConfig { sizes, ..over_sockets() }).await.unwrap();
    for (rings, _) in &workers.0 {
        let [tcp, local, memory] = ways(rings);
        assert!(
            tcp == 0 && (local > 0) != shared_memory && (memory > 0) == shared_memory,
            "{:?}",
            ways(rings)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_memory_passes_the_suite_that_every_transport_must_pass() {
    pass_locally(None, true, vec![0, 1, 2, 5, 1000, 100_003]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_sockets_without_it_pass_it_too() {
    pass_locally(None, false, vec![0, 5, 10_003]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_sockets_of_a_secured_cluster_pass_it_too() {
    pass_locally(Some(&Cluster::new()), true, vec![0, 5, 40_003]).await;
}

/// Two ranks of a job, connected, that have exchanged something.
async fn ring_of_two(workers: &[(Rings, SocketAddr)]) -> [RankRing; 2] {
    let who = workers.iter().map(|(rings, address)| (worker_of(rings), *address));
    let view = view_of_members(JobId::new(), Epoch::FIRST, who);
    let seat = |rank: usize| workers[rank].0.take_seat(&view, rank, 2, RING_PROTOCOLS.max).unwrap();
    let (one, two) = tokio::join!(seat(0).connect(), seat(1).connect());
    let (mut one, mut two) = (one.unwrap(), two.unwrap());
    let (first, second) = tokio::join!(one.gather(vec![vec![0.5]]), two.gather(vec![vec![1.5]]));
    assert_eq!(first.unwrap().rows, second.unwrap().rows);
    [one, two]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_one_has_no_socket_the_port_is_taken() {
    let folder = folder();
    // 1. One of the two has none: nobody uses the other's, as it does not ask.
    let with = worker(&folder, None).await;
    let without = listening(quick(LIMIT)).await;
    let workers = [with, without];
    ring_of_two(&workers).await;
    assert_eq!([ways(&workers[0].0), ways(&workers[1].0)], [[1, 0, 0], [1, 0, 0]]);
    // 2. One whose path is too long for a socket.
    let path = folder.path().join("a".repeat(150));
    let long = listening(RingOptions { local_socket: Some(path), ..quick(LIMIT) }).await;
    let workers = [workers.into_iter().next().unwrap(), long];
    ring_of_two(&workers).await;
    assert_eq!([ways(&workers[0].0), ways(&workers[1].0)], [[2, 0, 0], [0, 0, 1]]);
    // 3. One whose socket was taken away: it is on another machine's disk, or in another container.
    let gone = worker(&folder, None).await;
    std::fs::remove_file(gone.0.options().local_socket.as_ref().unwrap()).unwrap();
    let workers = [workers.into_iter().next().unwrap(), gone];
    ring_of_two(&workers).await;
    assert_eq!([ways(&workers[0].0), ways(&workers[1].0)], [[3, 0, 0], [0, 0, 1]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_revoked_loses_its_place_at_the_socket_too() {
    let (cluster, folder) = (Cluster::new(), folder());
    let (first, second) = (cluster.worker(), cluster.worker());
    let trusts = [first.trust(), second.trust()];
    let mut workers = Vec::new();
    for trust in &trusts {
        workers.push(worker(&folder, Some(trust.clone())).await);
    }
    let [one, two] = ring_of_two(&workers).await;
    assert_eq!([ways(&workers[0].0), ways(&workers[1].0)], [[0, 0, 1], [0, 0, 1]]);
    // Its connections end with its certificate.
    assert!(!one.is_over(std::time::SystemTime::now()));
    assert!(two.is_to_reconnect(std::time::SystemTime::now() + Duration::from_secs(100 * 24 * 3600)));
    let failed = two.failed();
    trusts[1].revoke(|revoked| revoked.serials.extend([first.identity().serial]));
    let error = tokio::time::timeout(LIMIT, failed).await.unwrap();
    assert!(matches!(error, ringtune_shared::ring::RingError::PeerLost { rank: 0, .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_business_in_a_ring_is_not_invited() {
    use ringtune_proto::v1::{InviteRequest, ring_service_client::RingServiceClient};
    use tonic::{Code, transport::Endpoint};
    let (cluster, folder) = (Cluster::new(), folder());
    let certified = cluster.worker();
    let (_rings, address) = worker(&folder, Some(certified.trust())).await;
    let ask = async |trust: Trust| {
        let connector = Connector::to(trust, Called::Worker(certified.id.0));
        let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
        let channel = endpoint.connect_with_connector(connector).await.unwrap();
        RingServiceClient::new(channel).invite(InviteRequest {}).await
    };
    let admin = Trust::of(cluster.person(ringtune_security::Role::Admin)).unwrap();
    assert_eq!(ask(admin).await.unwrap_err().code(), Code::PermissionDenied);
    let nobody = Trust::of_roots(cluster.roots()).unwrap();
    assert_eq!(ask(nobody).await.unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(ask(cluster.worker().trust()).await.unwrap().into_inner().secret.len(), 32);
}
