//! Revocations, renewals and rotations while connections are open.

use std::time::{Duration, SystemTime};

use ringtune_security::{
    Authority, Clients, ConnectError, Connector, Credentials, Holder, Refusal, Role, Server, Trust,
};
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use uuid::Uuid;

use crate::common::*;

/// A call that is under way until the connection ends.
async fn held(served: &Served, connector: Connector) -> JoinHandle<Result<String, String>> {
    let mut channel: Channel = channel(&served.https(), connector).await.unwrap();
    // The connection is known to be used.
    call(&mut channel, "/who").await.unwrap();
    tokio::spawn(async move { call(&mut channel, "/hold").await })
}

async fn ends(call: JoinHandle<Result<String, String>>) -> String {
    tokio::time::timeout(SOON, call).await.expect("the call goes on").unwrap().unwrap_err()
}

#[tokio::test]
async fn revoking_ends_the_open_connections_of_one_and_of_no_other() {
    let ca = authority();
    let ours = trust(credentials(&ca, coordinator()));
    let served = serve(secure(&ours, Clients::Optional), limits()).await;
    let (anna, bob) = (credentials(&ca, person("anna")), credentials(&ca, person("bob")));
    let annas = held(&served, to_coordinator(anna.clone())).await;
    let bobs = held(&served, to_coordinator(bob.clone())).await;
    ours.revoke(|revoked| revoked.serials.extend([anna.serial().to_owned()]));
    ends(annas).await;
    served.refused(Refusal::Revoked, 1).await;
    let answer = caller(&served.https(), to_coordinator(anna)).await.unwrap();
    assert!(answer.contains("was revoked"), "{answer}");
    assert!(!bobs.is_finished());
    ours.revoke(|revoked| revoked.members.extend([(Role::Submitter, "bob".to_owned())]));
    ends(bobs).await;
    until("the connections end", || served.connections.open() == 0).await;
}

/// Credentials that end in some seconds.
fn ending(ca: &Authority, holder: Holder) -> Credentials {
    credentials_at(ca, holder, SystemTime::now() - HOUR + Duration::from_secs(2))
}

#[tokio::test]
async fn an_open_connection_ends_with_its_callers_certificate() {
    let ca = authority();
    let served = serve(secure(&trust(credentials(&ca, coordinator())), Clients::Optional), limits()).await;
    let anna = ending(&ca, person("anna"));
    let annas = held(&served, to_coordinator(anna.clone())).await;
    let bobs = held(&served, to_coordinator(credentials(&ca, person("bob")))).await;
    let nobodys = held(&served, anonymous(&ca)).await;
    ends(annas).await;
    assert!(anna.validity().is_over(SystemTime::now()), "too soon");
    served.refused(Refusal::Expired, 1).await;
    assert!(!bobs.is_finished() && !nobodys.is_finished());
    until("one connection ends", || served.connections.open() == 2).await;
}

#[tokio::test]
async fn an_open_connection_ends_with_its_servers_certificate() {
    let ca = authority();
    let ours = trust(ending(&ca, coordinator()));
    let served = serve(secure(&ours, Clients::Optional), limits()).await;
    let connector = to_coordinator(credentials(&ca, person("anna")));
    let annas = held(&served, connector.clone()).await;
    // Both certificates are known, and the sooner end counts.
    let servers = ours.credentials().unwrap().validity();
    assert_eq!(connector.valid(), Some(servers));
    // The next connection is made with the next certificate, and lives.
    ours.set_credentials(credentials(&ca, coordinator())).unwrap();
    let later = held(&served, connector.clone()).await;
    assert!(connector.valid().unwrap().until > servers.until);
    let error = ends(annas).await;
    assert!(error.contains("was closed: its certificate") && error.contains(" ended at 20"), "{error}");
    assert!(servers.is_over(SystemTime::now()) && !later.is_finished());
}

#[tokio::test]
async fn connections_to_a_server_that_is_revoked_end_at_once() {
    let ca = authority();
    let [one, two] = [1, 2].map(Uuid::from_u128);
    let served = |id| {
        let credentials = credentials(&ca, worker(id));
        async move { serve(secure(&trust(credentials), Clients::Required), limits()).await }
    };
    let (first, second) = (served(one).await, served(two).await);
    let ours = trust(credentials(&ca, worker(Uuid::from_u128(3))));
    let to = |id| Connector::to(ours.clone(), Server::Worker(id));
    let (firsts, seconds) = (held(&first, to(one)).await, held(&second, to(two)).await);
    ours.revoke(|revoked| revoked.members.extend([(Role::Worker, one.to_string())]));
    let error = ends(firsts).await;
    assert!(error.contains("was revoked"), "{error}");
    assert!(!seconds.is_finished());
}

#[tokio::test]
async fn a_rotation_disturbs_nobody() {
    let place = tempfile::tempdir().unwrap();
    let mut ca = Authority::open_or_make(&place.path().join("pki"), SystemTime::now()).unwrap();
    let ours = trust(credentials(&ca, coordinator()));
    let served = serve(secure(&ours, Clients::Optional), limits()).await;
    let anna = trust(credentials(&ca, person("anna")));
    let connector = Connector::to(anna.clone(), Server::Coordinator);
    let open = held(&served, connector.clone()).await;
    let url = served.https();
    let who = || caller(&url, connector.clone());

    // 1. The coordinator has a certificate of the new root; Anna knows the old one alone.
    ca.rotate(SystemTime::now()).unwrap();
    ours.set_roots(ca.roots().clone()).unwrap();
    ours.set_credentials(credentials(&ca, coordinator())).unwrap();
    assert_eq!(who().await.unwrap(), "submitter anna");
    // 2. She learns of both, and renews.
    anna.set_roots(ca.roots().clone()).unwrap();
    let renewed = credentials(&ca, person("anna"));
    let old = anna.credentials().unwrap();
    anna.set_credentials(renewed).unwrap();
    assert_eq!(who().await.unwrap(), "submitter anna");
    // 3. The old root goes, and with it whoever has not renewed.
    ca.retire().unwrap();
    ours.set_roots(ca.roots().clone()).unwrap();
    anna.set_roots(ca.roots().clone()).unwrap();
    assert_eq!(who().await.unwrap(), "submitter anna");
    let late = believer(ca.cluster(), old.as_ref().clone(), ca.roots());
    let late = Connector::to(late, Server::Coordinator).connect(&uri(&served.https())).await.unwrap_err();
    assert!(matches!(late, ConnectError::Refused { .. }), "{late:?}");
    // What was open all the time still is.
    assert!(!open.is_finished());
}

#[tokio::test]
async fn a_renewal_is_used_by_the_next_connection() {
    let ca = authority();
    let ours = trust(credentials_at(&ca, coordinator(), SystemTime::now() - 3 * HOUR));
    let served = serve(secure(&ours, Clients::Optional), limits()).await;
    let anna = Connector::to(trust(credentials(&ca, person("anna"))), Server::Coordinator);
    assert!(matches!(anna.connect(&uri(&served.https())).await, Err(ConnectError::Expired { .. })));
    ours.set_credentials(credentials(&ca, coordinator())).unwrap();
    assert_eq!(caller(&served.https(), anna).await.unwrap(), "submitter anna");
    let nobody = Trust::of_roots(ca.roots().clone()).unwrap();
    assert!(nobody.credentials().is_none());
}
