//! Servers whose certificate is not good, and what their clients hear.

use std::io;
use std::time::{Duration, SystemTime};

use rcgen::ExtendedKeyUsagePurpose;
use ringtune_security::{Clients, ConnectError, Connector, Refusal, Server, Trust};
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::common::*;

async fn refused(url: &str, connector: &Connector) -> ConnectError {
    connector.connect(&uri(url)).await.unwrap_err()
}

#[tokio::test]
async fn a_server_of_another_ca_is_not_believed() {
    let (ca, other) = (authority(), authority());
    let served = serve(secure(&trust(credentials(&other, coordinator())), Clients::Optional), limits()).await;
    let error = refused(&served.https(), &to_coordinator(credentials(&ca, person("anna")))).await;
    assert!(matches!(error, ConnectError::UnknownAuthority { .. }), "{error:?}");
    assert!(error.to_string().contains("join again with a new token"), "{error}");
    served.refused(Refusal::Disbelieved, 1).await;
}

#[tokio::test]
async fn a_server_whose_time_is_wrong_is_told_with_both_clocks() {
    let ca = authority();
    let anna = to_coordinator(credentials(&ca, person("anna")));
    let now = SystemTime::now();
    let own = |now| secure(&trust(credentials_at(&ca, coordinator(), now)), Clients::Optional);
    let served = serve(own(now - 3 * HOUR), limits()).await;
    let error = refused(&served.https(), &anna).await;
    let ConnectError::Expired { until, now: clock, .. } = &error else { panic!("{error:?}") };
    assert!(clock.duration_since(*until).unwrap() > HOUR);
    assert!(error.to_string().contains(" ended at 20"), "{error}");

    let served = serve(own(now + 3 * HOUR), limits()).await;
    let error = refused(&served.https(), &anna).await;
    let ConnectError::NotYetValid { from, now: clock, .. } = &error else { panic!("{error:?}") };
    assert!(from.duration_since(*clock).unwrap() > HOUR);
    assert!(error.to_string().contains("set the clock that is wrong"), "{error}");

    // Clocks may differ by less than an hour.
    let served = serve(own(now + Duration::from_secs(3500)), limits()).await;
    assert_eq!(caller(&served.https(), anna).await.unwrap(), "submitter anna");
}

#[tokio::test]
async fn a_server_is_who_was_called_or_refused() {
    let (ca, id) = (authority(), Uuid::from_u128(1));
    let served = serve(secure(&trust(credentials(&ca, worker(id))), Clients::Required), limits()).await;
    let two = trust(credentials(&ca, worker(Uuid::from_u128(2))));
    // Another worker, and the coordinator.
    for server in [Server::Worker(Uuid::from_u128(3)), Server::Coordinator] {
        let error = refused(&served.https(), &Connector::to(two.clone(), server)).await;
        let ConnectError::OtherName { expected, names, .. } = &error else { panic!("{error:?}") };
        assert!(expected.ends_with(".ringtune.internal"), "{expected}");
        assert!(names[0].starts_with(&id.to_string()), "{names:?}");
    }
    // The coordinator is no worker.
    let served = serve(secure(&trust(credentials(&ca, coordinator())), Clients::Optional), limits()).await;
    let error = refused(&served.https(), &Connector::to(two, Server::Worker(id))).await;
    assert!(error.to_string().contains("localhost"), "{error}");
}

#[tokio::test]
async fn a_persons_certificate_serves_nobody() {
    let (elsewhere, cluster) = (Elsewhere::new(), authority().cluster());
    let roots = elsewhere.roots();
    let calls = Says {
        purposes: vec![ExtendedKeyUsagePurpose::ClientAuth],
        names: vec!["127.0.0.1".into()],
        ..Says::member(cluster, "admin/mallory")
    };
    let mallory = trust(elsewhere.credentials(&calls, &roots));
    let served = serve(secure(&mallory, Clients::Optional), limits()).await;
    let anna = trust(elsewhere.credentials(&Says::member(cluster, "admin/anna"), &roots));
    let error = refused(&served.https(), &Connector::to(anna, Server::Coordinator)).await;
    assert!(matches!(error, ConnectError::NoServer { .. }), "{error:?}");
}

#[tokio::test]
async fn another_clusters_coordinator_is_told_by_name() {
    // Two clusters with certificates of one office.
    let (elsewhere, ours, theirs) = (Elsewhere::new(), authority().cluster(), authority().cluster());
    let names = vec![ringtune_security::names::coordinator(theirs)];
    let says = Says { names, uris: Vec::new(), ..Says::member(theirs, "") };
    let served =
        serve(secure(&trust(elsewhere.credentials(&says, &elsewhere.roots())), Clients::Optional), limits())
            .await;
    let anna = elsewhere.credentials(&Says::member(ours, "admin/anna"), &elsewhere.roots());
    let error = refused(&served.https(), &to_coordinator(anna)).await;
    let ConnectError::OtherCluster { theirs: named, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*named, theirs);
    assert!(error.to_string().contains(&ours.to_string()), "{error}");
}

#[tokio::test]
async fn a_revoked_server_is_not_believed() {
    let (ca, id) = (authority(), Uuid::from_u128(1));
    let one = credentials(&ca, worker(id));
    let served = serve(secure(&trust(one.clone()), Clients::Required), limits()).await;
    let two = trust(credentials(&ca, worker(Uuid::from_u128(2))));
    let connector = Connector::to(two.clone(), Server::Worker(id));
    connector.connect(&uri(&served.https())).await.unwrap();
    two.revoke(|revoked| revoked.serials.extend([one.serial().to_owned()]));
    let error = refused(&served.https(), &connector).await;
    assert!(matches!(error, ConnectError::Revoked { .. }), "{error:?}");
}

#[tokio::test]
async fn nobody_there_keeps_its_kind() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let anna = to_coordinator(credentials(&authority(), person("anna")));
    for (scheme, connector) in [("https", anna), ("http", Connector::plain())] {
        let error = refused(&format!("{scheme}://{free}"), &connector).await;
        let cause = std::error::Error::source(&error).unwrap().downcast_ref::<io::Error>().unwrap();
        assert_eq!(cause.kind(), io::ErrorKind::ConnectionRefused);
        assert!(error.to_string().contains(&free.to_string()), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_is_left_in_time() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", silent.local_addr().unwrap());
    let anna = to_coordinator(credentials(&authority(), person("anna")));
    let error = refused(&url, &anna.within(Duration::from_millis(200))).await;
    assert!(matches!(error, ConnectError::Slow { .. }), "{error:?}");
}

#[tokio::test]
async fn https_needs_credentials() {
    let error = refused("https://127.0.0.1:1", &Connector::plain()).await;
    assert!(error.to_string().contains("join the cluster with a token first"), "{error}");
    let roots = Trust::of_roots(Elsewhere::new().roots()).unwrap_err();
    assert!(roots.to_string().contains("names a cluster"), "{roots}");
}
