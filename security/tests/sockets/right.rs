//! What is right goes through: everybody is known by their certificate, from this CA or from elsewhere.

use std::net::SocketAddr;

use futures::StreamExt as _;
use ringtune_security::{
    Caller, Clients, Connector, Listener, Protection, Protocols, Refusals, Revoked, Roots, Server, Trust,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

use crate::common::*;

#[tokio::test]
async fn everybody_is_known_by_their_certificate() {
    let ca = authority();
    let served = serve(secure(&trust(credentials(&ca, coordinator())), Clients::Optional), limits()).await;
    let id = Uuid::from_u128(9);
    let as_worker = to_coordinator(credentials(&ca, worker(id)));
    assert_eq!(caller(&served.https(), as_worker).await.unwrap(), format!("worker {id}"));
    let as_anna = to_coordinator(credentials(&ca, person("anna")));
    assert_eq!(caller(&served.https(), as_anna).await.unwrap(), "submitter anna");
    let nobody = caller(&served.https(), anonymous(&ca)).await.unwrap();
    assert_eq!(nobody, Caller::Anonymous.to_string());
    until("the connections end", || served.connections.open() == 0).await;
    assert!(served.refusals.counts().iter().all(|(_, count)| *count == 0), "{:?}", served.refusals.counts());
}

#[tokio::test]
async fn without_tls_everybody_is_open() {
    let served = serve(Protection::Plain, limits()).await;
    let open = Caller::Open.to_string();
    assert_eq!(caller(&served.http(), Connector::plain()).await.unwrap(), open);
    let anna = to_coordinator(credentials(&authority(), person("anna")));
    assert_eq!(caller(&served.http(), anna).await.unwrap(), open);
}

#[tokio::test]
async fn workers_call_each_other_by_their_ids() {
    let ca = authority();
    let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let served = serve(secure(&trust(credentials(&ca, worker(one))), Clients::Required), limits()).await;
    let as_two = Connector::to(trust(credentials(&ca, worker(two))), Server::Worker(one));
    assert_eq!(caller(&served.https(), as_two).await.unwrap(), format!("worker {two}"));
}

#[tokio::test]
async fn certificates_from_elsewhere_serve_and_call() {
    let (ca, elsewhere) = (authority(), Elsewhere::new());
    let (cluster, roots) = (ca.cluster(), elsewhere.roots());
    // The coordinator by its host, a worker by its identity.
    let names = vec!["127.0.0.1".to_owned()];
    let by_host = Says { uris: Vec::new(), names, ..Says::member(cluster, "") };
    let both = both(&roots, ca.roots());
    let office = believer(cluster, elsewhere.credentials(&by_host, &roots), &both);
    let served = serve(secure(&office, Clients::Optional), limits()).await;
    let anna = elsewhere.credentials(&Says::member(cluster, "admin/anna@example.org"), &roots);
    assert_eq!(caller(&served.https(), to_coordinator(anna)).await.unwrap(), "admin anna@example.org");
    let ours = credentials(&ca, person("bob")).with_roots(both.clone());
    assert_eq!(caller(&served.https(), to_coordinator(ours)).await.unwrap(), "submitter bob");

    let id = Uuid::from_u128(4);
    let office = trust(elsewhere.credentials(&Says::member(cluster, &format!("worker/{id}")), &roots));
    let served = serve(secure(&office, Clients::Required), limits()).await;
    let other = elsewhere.credentials(&Says::member(cluster, &format!("worker/{}", Uuid::nil())), &roots);
    let to_worker = Connector::to(trust(other), Server::Worker(id));
    assert_eq!(caller(&served.https(), to_worker).await.unwrap(), format!("worker {}", Uuid::nil()));
}

#[tokio::test]
async fn a_port_for_http1_serves_whoever_speaks_it() {
    let ca = authority();
    let protection = Protection::Tls {
        trust: trust(credentials(&ca, coordinator())),
        clients: Clients::Optional,
        protocols: Protocols::Http1,
    };
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut listener = Listener::start(tcp, protection, limits(), Refusals::default()).unwrap();
    let address: SocketAddr = listener.local_addr();
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(ca.roots().ders().iter().cloned());
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let client = async {
        let tcp = TcpStream::connect(address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
        let mut tls = connector.connect("localhost".try_into().unwrap(), tcp).await.unwrap();
        assert_eq!(tls.get_ref().1.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
        tls.write_all(b"ping").await.unwrap();
        let mut answer = [0; 4];
        tls.read_exact(&mut answer).await.unwrap();
        answer
    };
    let server = async {
        let mut connection = listener.accept().await;
        let mut question = [0; 4];
        connection.read_exact(&mut question).await.unwrap();
        connection.write_all(b"pong").await.unwrap();
        connection.flush().await.unwrap();
        (connection, question)
    };
    let (answer, (connection, question)) = tokio::join!(client, server);
    assert_eq!((&answer, &question), (b"pong", b"ping"));
    assert_eq!(connection.peer().caller, Caller::Anonymous);
    // gRPC does not speak HTTP/1.
    let grpc = anonymous(&ca).connect(&uri(&format!("https://{address}"))).await.unwrap_err();
    assert!(grpc.to_string().contains("speaks no HTTP/2"), "{grpc}");
}

#[tokio::test]
async fn a_listener_is_a_stream_and_ends_when_it_is_dropped() {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listener = Listener::start(tcp, Protection::Plain, limits(), Refusals::default()).unwrap();
    let (address, connections) = (listener.local_addr(), listener.connections());
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"x").await.unwrap();
    let mut listener = Box::pin(listener);
    let mut served = listener.next().await.unwrap().unwrap();
    drop(listener);
    until("nothing listens", || std::net::TcpStream::connect(address).is_err()).await;
    assert_eq!(served.read_u8().await.unwrap(), b'x');
    until("the one connection is left", || connections.open() == 1).await;
    drop(served);
    assert_eq!(connections.open(), 0);
}

#[tokio::test]
async fn a_port_with_tls_needs_a_certificate() {
    let ca = authority();
    let trust = Trust::new(ca.cluster(), None, ca.roots().clone(), Revoked::default()).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let error =
        Listener::start(tcp, secure(&trust, Clients::Optional), limits(), Refusals::default()).unwrap_err();
    assert!(error.to_string().contains("no certificate to serve with"), "{error}");
}

/// A collector, say: known by its host, as in a browser.
#[tokio::test]
async fn a_server_that_is_none_of_the_clusters_is_known_by_its_host() {
    let (ca, elsewhere) = (authority(), Elsewhere::new());
    let named = |name: &str| Says {
        uris: Vec::new(),
        names: vec![name.to_owned()],
        ..Says::member(ca.cluster(), "")
    };
    let serving = async |name: &str| {
        let credentials = elsewhere.credentials(&named(name), &elsewhere.roots());
        serve(secure(&believer(ca.cluster(), credentials, &elsewhere.roots()), Clients::Optional), limits())
            .await
    };
    let (right, wrong) = (serving("127.0.0.1").await, serving("127.0.0.2").await);
    let outside = |roots: &Roots| Connector::outside(roots).unwrap();
    let nobody = Caller::Anonymous.to_string();
    assert_eq!(caller(&right.https(), outside(&elsewhere.roots())).await.unwrap(), nobody);
    assert!(caller(&right.https(), outside(ca.roots())).await.is_err());
    assert!(caller(&wrong.https(), outside(&elsewhere.roots())).await.is_err());
}
