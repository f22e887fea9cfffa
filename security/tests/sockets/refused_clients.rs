//! Clients whose certificate is not good, and what they hear.

use std::sync::Arc;
use std::time::SystemTime;

use rcgen::ExtendedKeyUsagePurpose;
use ringtune_security::{
    Clients, ConnectError, Connector, Credentials, Refusal, Revoked, Role, Server, Trust,
};
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::common::*;

/// What a client hears whose certificate the handshake refuses.
async fn refusal(served: &Served, connector: &Connector) -> String {
    let error = connector.connect(&uri(&served.https())).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    error.to_string()
}

/// Somebody with these credentials who believes this server.
fn client(of: &Trust, credentials: Credentials) -> Connector {
    Connector::to(believer(of.cluster(), credentials, &of.roots()), Server::Coordinator)
}

#[tokio::test]
async fn a_certificate_that_is_not_good_is_refused_with_the_reason() {
    let (ca, elsewhere) = (authority(), Elsewhere::new());
    let ours = trust(credentials(&ca, coordinator()));
    let served = serve(secure(&ours, Clients::Optional), limits()).await;
    let anna = |now| credentials_at(&ca, person("anna"), now);
    let now = SystemTime::now();
    let (expired, early) = (anna(now - 3 * HOUR), anna(now + 3 * HOUR));
    let foreign = elsewhere.credentials(&Says::member(ca.cluster(), "admin/mallory"), ca.roots());
    let (key, leaf, _) = elsewhere.parts(&Says::member(ca.cluster(), "admin/mallory"));
    let cut = Credentials::new(key, &leaf, ca.roots().clone()).unwrap();
    for (count, (credentials, says)) in [
        (foreign, "its CA is not known there"),
        (cut, "its CA is not known there"),
        (expired, "it has expired or is not valid yet (it is good from "),
        (early, "compare the clocks of both sides"),
        (credentials(&ca, coordinator()), "it is not one for clients"),
    ]
    .into_iter()
    .enumerate()
    {
        let text = refusal(&served, &client(&ours, credentials)).await;
        assert!(text.contains(says) && text.contains(&served.address.to_string()), "{text}");
        served.refused(Refusal::Certificate, count as u64 + 1).await;
    }
    // Nobody else noticed.
    assert_eq!(caller(&served.https(), client(&ours, anna(now))).await.unwrap(), "submitter anna");
}

#[tokio::test]
async fn a_chain_is_believed_only_when_it_is_whole() {
    let (ca, elsewhere) = (authority(), Elsewhere::new());
    let roots = both(&elsewhere.roots(), ca.roots());
    let ours = believer(ca.cluster(), credentials(&ca, coordinator()), &roots);
    let served = serve(secure(&ours, Clients::Optional), limits()).await;
    let says = Says::member(ca.cluster(), "admin/anna");
    let whole = elsewhere.credentials(&says, &roots);
    assert_eq!(caller(&served.https(), client(&ours, whole)).await.unwrap(), "admin anna");
    let (key, leaf, _) = elsewhere.parts(&says);
    let cut = Credentials::new(key, &leaf, roots).unwrap();
    assert!(refusal(&served, &client(&ours, cut)).await.contains("its CA is not known there"));
}

#[tokio::test]
async fn a_certificate_without_a_place_here_gets_the_reason_with_every_call() {
    let (ca, elsewhere) = (authority(), Elsewhere::new());
    let roots = both(&elsewhere.roots(), ca.roots());
    let cluster = ca.cluster();
    let ours = believer(cluster, credentials(&ca, coordinator()), &roots);
    let served = serve(secure(&ours, Clients::Optional), limits()).await;
    let other = authority().cluster();
    let says = |path: &str| Says::member(cluster, path);
    let nobody = Says { uris: vec!["https://example.org".into()], ..says("") };
    let several = Says { uris: [says("admin/a").uris, says("admin/b").uris].concat(), ..says("") };
    for (says, reason) in [
        (nobody, "names no role"),
        (several, "names 2 identities"),
        (says("king/anna"), "\"king\" is not a role"),
        (says("worker/anna"), "a UUID"),
        (Says::member(other, "admin/anna"), "is for the cluster"),
    ] {
        let credentials = elsewhere.credentials(&says, &roots);
        // Which cluster it is decides what the client believes, not whom it may call: the address is right.
        let believes = credentials.cluster().unwrap_or(cluster);
        let connector =
            Connector::to(believer(believes, credentials, &elsewhere_and(&roots)), Server::Coordinator);
        let answer = caller(&served.https(), connector).await.unwrap();
        assert!(answer.starts_with("somebody refused") && answer.contains(reason), "{answer}");
    }
    assert_eq!(served.refusals.count(Refusal::Certificate), 0);
}

/// The same roots in an order whose newest names no cluster, so that anybody may believe them.
fn elsewhere_and(roots: &ringtune_security::Roots) -> ringtune_security::Roots {
    ringtune_security::Roots::new(roots.ders().iter().rev().cloned().collect()).unwrap()
}

#[tokio::test]
async fn a_revoked_certificate_gets_the_reason_with_every_call() {
    let ca = authority();
    let (anna, bob) = (credentials(&ca, person("anna")), credentials(&ca, person("bob")));
    let revoked = Revoked {
        serials: [anna.serial().to_owned()].into(),
        members: [(Role::Submitter, "bob".to_owned())].into(),
    };
    let own = credentials(&ca, coordinator());
    let ours = Trust::new(ca.cluster(), Some(own), ca.roots().clone(), revoked).unwrap();
    let served = serve(secure(&ours, Clients::Optional), limits()).await;
    for credentials in [anna, bob] {
        let answer = caller(&served.https(), to_coordinator(credentials)).await.unwrap();
        assert!(answer.contains("was revoked: join again with a new token"), "{answer}");
    }
    let again = credentials(&ca, person("anna"));
    assert_eq!(caller(&served.https(), to_coordinator(again)).await.unwrap(), "submitter anna");
}

#[tokio::test]
async fn a_port_for_members_wants_a_certificate() {
    let ca = authority();
    let id = Uuid::from_u128(1);
    let ours = trust(credentials(&ca, worker(id)));
    let served = serve(secure(&ours, Clients::Required), limits()).await;
    let nobody = Connector::to(Trust::of_roots(ca.roots().clone()).unwrap(), Server::Worker(id));
    let text = refusal(&served, &nobody).await;
    assert!(text.contains("it wants one, and there is none here"), "{text}");
    served.refused(Refusal::NoCertificate, 1).await;
    // Somebody in another role is known: the ring's calls decide.
    let anna = Connector::to(trust(credentials(&ca, person("anna"))), Server::Worker(id));
    assert_eq!(caller(&served.https(), anna).await.unwrap(), "submitter anna");
}

#[tokio::test]
async fn a_certificate_for_servers_alone_cannot_call() {
    let elsewhere = Elsewhere::new();
    let cluster = authority().cluster();
    let id = Uuid::from_u128(7);
    let ours = elsewhere.credentials(&Says::member(cluster, &format!("worker/{id}")), &elsewhere.roots());
    let served = serve(secure(&trust(ours.clone()), Clients::Required), limits()).await;
    let serves = Says {
        purposes: vec![ExtendedKeyUsagePurpose::ServerAuth],
        ..Says::member(cluster, &format!("worker/{}", Uuid::nil()))
    };
    let serves = elsewhere.credentials(&serves, &elsewhere.roots());
    let text = refusal(&served, &Connector::to(trust(serves), Server::Worker(id))).await;
    assert!(text.contains("it is not one for clients"), "{text}");
}

#[tokio::test]
async fn older_tls_and_other_protocols_are_refused() {
    let ca = authority();
    let ours = trust(credentials(&ca, coordinator()));
    let served = serve(secure(&ours, Clients::Optional), limits()).await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(ca.roots().ders().iter().cloned());
    let client = |versions: &[&'static rustls::SupportedProtocolVersion], alpn: &[&[u8]]| {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(versions).unwrap();
        let mut config = builder.with_root_certificates(roots.clone()).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        async move {
            let tcp = TcpStream::connect(served.address).await.unwrap();
            connector.connect("localhost".try_into().unwrap(), tcp).await.map(drop)
        }
    };
    let old = client(&[&rustls::version::TLS12], &[b"h2"]).await.unwrap_err();
    assert!(old.to_string().contains("ProtocolVersion"), "{old}");
    let other = client(&[&rustls::version::TLS13], &[b"spdy"]).await.unwrap_err();
    assert!(other.to_string().contains("NoApplicationProtocol"), "{other}");
    client(&[&rustls::version::TLS13], &[b"h2"]).await.unwrap();
    served.refused(Refusal::Handshake, 2).await;
}
