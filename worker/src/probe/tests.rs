//! The service over a real loopback connection.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use ringtune_proto::v1::{self, probe_service_client::ProbeServiceClient};
use ringtune_security::{CallRates, Limits, Listener, Protection, Refusals};
use ringtune_shared::{
    ids::{Epoch, JobId, WorkerId},
    ring::{Member, RingView},
    version::RING_PROTOCOLS,
};
use tokio::net::TcpListener;
use tonic::{
    Code, Status, Streaming,
    transport::{Channel, Endpoint, Server},
};

use super::{About, LONGEST_MILLISECONDS, ProbeServer, noise};
use crate::{
    advertise::Advertised,
    callers::GuardCalls,
    cloud::Zone,
    http::Metrics,
    ring::{RingOptions, Rings, Seat},
    settings::Settings,
};

type Client = ProbeServiceClient<Channel>;

async fn serving() -> (Rings, WorkerId, Client) {
    let metrics = Arc::new(Metrics::new().unwrap());
    let rings = Rings::new(RingOptions::default(), Arc::clone(&metrics));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits::default().for_loopback();
    let incoming = Listener::start(listener, Protection::Plain, limits, Refusals::default()).unwrap();
    let worker = WorkerId::new();
    let about = About {
        worker,
        host_name: "node-a".to_owned(),
        advertised: Advertised::new(&Settings::default(), "10.0.0.1:7080".parse().unwrap()),
        capabilities: v1::Capabilities::default(),
        zone: Zone::default(),
    };
    let server = Server::builder()
        .layer(GuardCalls { metrics, rates: CallRates::per_second(1000) })
        .add_service(ProbeServer::service(about, rings.clone()));
    tokio::spawn(server.serve_with_incoming(incoming));
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    (rings, worker, Client::new(channel))
}

/// A place in a ring, until it is dropped.
fn seat(rings: &Rings) -> Seat {
    let member = |port| Member { worker: WorkerId::new(), address: format!("127.0.0.1:{port}") };
    let view = RingView { job: JobId::new(), epoch: Epoch::FIRST, members: vec![member(1), member(2)] };
    rings.take_seat(&view, 0, 1, RING_PROTOCOLS.max).unwrap()
}

/// A measurement that has begun.
async fn pulling(client: &Client, milliseconds: u32) -> Result<Streaming<v1::PullResponse>, Status> {
    Ok(client.clone().pull(v1::PullRequest { milliseconds }).await?.into_inner())
}

async fn to_its_end(mut messages: Streaming<v1::PullResponse>) -> Result<u64, Status> {
    let mut bytes = 0;
    while let Some(message) = messages.message().await? {
        bytes += u64::try_from(message.chunk.len()).unwrap();
    }
    Ok(bytes)
}

async fn pull(client: &Client, milliseconds: u32) -> Result<u64, Status> {
    to_its_end(pulling(client, milliseconds).await?).await
}

async fn push(client: &Client, messages: usize) -> Result<v1::PushResponse, Status> {
    let noise = noise();
    let messages = std::iter::repeat_with(move || v1::PushRequest { chunk: noise.clone() }).take(messages);
    Ok(client.clone().push(tokio_stream::iter(messages)).await?.into_inner())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_says_who_is_here_and_whether_a_ring_needs_it() {
    let (rings, worker, mut client) = serving().await;
    let here = client.identify(v1::IdentifyRequest {}).await.unwrap().into_inner();
    assert_eq!((here.worker_id, here.host_name.as_str(), here.busy), (worker.to_string(), "node-a", false));
    assert_eq!((here.caller_ip.as_str(), here.mtu.is_some()), ("127.0.0.1", true));
    let seat = seat(&rings);
    assert!(client.identify(v1::IdentifyRequest {}).await.unwrap().into_inner().busy);
    drop(seat);
    assert!(!client.identify(v1::IdentifyRequest {}).await.unwrap().into_inner().busy);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_go_both_ways_one_measurement_at_a_time() {
    let (_rings, _, client) = serving().await;
    assert!(pull(&client, 50).await.unwrap() > 0);
    let counted = push(&client, 40).await.unwrap();
    // All messages but the first.
    assert_eq!(counted.bytes, 39 * (256 << 10));
    // Beside one that runs, whichever it is, none begins.
    let under_way = pulling(&client, LONGEST_MILLISECONDS).await.unwrap();
    assert_eq!(push(&client, 1).await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(pull(&client, 1).await.unwrap_err().code(), Code::ResourceExhausted);
    let dialled = client.clone().dial_back(v1::DialBackRequest { port: 1 }).await;
    assert_eq!(dialled.unwrap_err().code(), Code::ResourceExhausted);
    // A caller that goes away frees its turn.
    drop(under_way);
    let again = async { while push(&client, 2).await.is_err() {} };
    tokio::time::timeout(Duration::from_secs(20), again).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ring_comes_first() {
    let (rings, _, client) = serving().await;
    let running = pulling(&client, LONGEST_MILLISECONDS).await.unwrap();
    let seat = seat(&rings);
    let ended = to_its_end(running).await.unwrap_err();
    assert_eq!(ended.code(), Code::FailedPrecondition, "{ended}");
    assert!(ended.message().contains("has a place in a ring"), "{ended}");
    for refused in [pull(&client, 1).await.map(drop), push(&client, 1).await.map(drop)] {
        assert_eq!(refused.unwrap_err().code(), Code::FailedPrecondition);
    }
    drop(seat);
    pull(&client, 1).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_caller_is_dialled_and_nobody_else() {
    let (_rings, _, mut client) = serving().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let request = |port: u32| v1::DialBackRequest { port };
    let back = client.dial_back(request(address.port().into())).await.unwrap().into_inner();
    assert_eq!((back.error.as_str(), back.address), ("", address.to_string()));
    assert!(listener.accept().await.unwrap().1.ip().is_loopback());
    drop(listener);
    let back = client.dial_back(request(address.port().into())).await.unwrap().into_inner();
    assert!(back.error.contains("refused"), "{back:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_out_of_range_is_told() {
    let (_rings, _, mut client) = serving().await;
    for port in [0, 65_536, u32::MAX] {
        let refused = client.dial_back(v1::DialBackRequest { port }).await.unwrap_err();
        let told = format!("port: got {port}; allowed: 1 to 65535");
        assert_eq!((refused.code(), refused.message()), (Code::InvalidArgument, told.as_str()));
    }
    let refused = pull(&client, LONGEST_MILLISECONDS + 1).await.unwrap_err();
    assert_eq!(refused.message(), "milliseconds: got 3001; allowed: 0 to 3000");
    // A message that is too large.
    let large = v1::PushRequest { chunk: vec![0; 2 << 20].into() };
    let refused = client.push(tokio_stream::iter([large])).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    // And after all that it serves as before.
    pull(&client, 1).await.unwrap();
}

#[test]
fn what_is_sent_does_not_get_smaller() {
    let noise = noise();
    assert_eq!(noise.len(), 256 << 10);
    let mut counts = [0u32; 256];
    noise.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    assert!(counts.iter().all(|count| (900..1150).contains(count)), "{counts:?}");
}
