//! Tokens: from a line of text to a certificate, and whom a token believes.

use std::time::SystemTime;

use ringtune_security::{
    AccessToken, Authority, Clients, ConnectError, Connector, Credentials, Csr, JoinToken, Leaf, Protection,
    Revoked, Role, Roots, Secret, Trust,
};
use uuid::Uuid;

use crate::common::*;

fn token(ca: &Authority) -> JoinToken {
    let made = JoinToken::new(Role::Worker, ca.hash(), ca.cluster()).unwrap();
    made.reveal().parse().unwrap()
}

#[tokio::test]
async fn a_token_is_enough_to_join() {
    let ca = authority();
    let served = serve(secure(&trust(credentials(&ca, coordinator())), Clients::Optional), limits()).await;
    let token = token(&ca);
    let answer = caller(&served.https(), Connector::joining(&token)).await.unwrap();
    assert_eq!(answer, "somebody without a certificate");
    // What the coordinator does with it.
    let stored = token.secret.hash();
    assert!(Secret::from_bytes(*token.secret.reveal()).matches(&stored));
    let (key, csr) = Csr::make().unwrap();
    let id = Uuid::from_u128(8);
    let leaf = Leaf { holder: worker(id), valid_for: HOUR };
    let issued = ca.issue(csr.der(), &leaf, SystemTime::now()).unwrap();
    // What the worker does with the answer.
    let roots = Roots::from_pem(&ca.roots().pem()).unwrap();
    let joined = Credentials::new(key, &issued.chain_pem(), roots).unwrap();
    let place = tempfile::tempdir().unwrap();
    joined.store(&place.path().join("credentials")).unwrap();
    let joined = Credentials::load(&place.path().join("credentials")).unwrap().unwrap();
    assert_eq!(caller(&served.https(), to_coordinator(joined)).await.unwrap(), format!("worker {id}"));
}

#[tokio::test]
async fn a_token_believes_its_own_ca_alone() {
    let (ca, other) = (authority(), authority());
    let served = serve(secure(&trust(credentials(&ca, coordinator())), Clients::Optional), limits()).await;
    let connect =
        |token| async move { Connector::joining(&token).connect(&uri(&served.https())).await.unwrap_err() };
    let error = connect(token(&other)).await;
    assert!(matches!(error, ConnectError::OtherAuthority { .. }), "{error:?}");
    assert!(error.to_string().contains("is not the coordinator that made this token"), "{error}");
}

#[tokio::test]
async fn whoever_shows_the_right_root_still_has_to_be_signed_by_it() {
    let (ca, elsewhere) = (authority(), Elsewhere::new());
    // Mallory has the public root of the cluster, and a certificate of their own for its names.
    let names = vec![ringtune_security::names::coordinator(ca.cluster()), "127.0.0.1".to_owned()];
    let says = Says { names, ..Says::member(ca.cluster(), "admin/mallory") };
    let (key, leaf, middle) = elsewhere.parts(&says);
    let chain = format!("{leaf}{middle}{}", ca.roots().pem());
    let mallory = Credentials::new(key, &chain, elsewhere.roots()).unwrap();
    let served = serve(secure(&trust(mallory), Clients::Optional), limits()).await;
    let error = Connector::joining(&token(&ca)).connect(&uri(&served.https())).await.unwrap_err();
    assert!(matches!(error, ConnectError::UnknownAuthority { .. }), "{error:?}");
    // And a worker of the cluster is not its coordinator.
    let worker = trust(credentials(&ca, worker(Uuid::nil())));
    let served = serve(secure(&worker, Clients::Optional), limits()).await;
    let error = Connector::joining(&token(&ca)).connect(&uri(&served.https())).await.unwrap_err();
    assert!(matches!(error, ConnectError::OtherName { .. }), "{error:?}");
}

#[tokio::test]
async fn a_token_of_before_a_rotation_is_good_until_the_old_root_is_retired() {
    let place = tempfile::tempdir().unwrap();
    let mut ca = Authority::open_or_make(&place.path().join("pki"), SystemTime::now()).unwrap();
    let before = token(&ca);
    ca.rotate(SystemTime::now()).unwrap();
    let ours = trust(credentials(&ca, coordinator()));
    let served = serve(secure(&ours, Clients::Optional), limits()).await;
    let url = served.https();
    for token in [&before, &token(&ca)] {
        Connector::joining(token).connect(&uri(&url)).await.unwrap();
    }
    ca.retire().unwrap();
    ours.set_roots(ca.roots().clone()).unwrap();
    ours.set_credentials(credentials(&ca, coordinator())).unwrap();
    Connector::joining(&token(&ca)).connect(&uri(&url)).await.unwrap();
    let error = Connector::joining(&before).connect(&uri(&url)).await.unwrap_err();
    assert!(matches!(error, ConnectError::OtherAuthority { .. }), "{error:?}");
}

#[tokio::test]
async fn a_token_is_never_sent_in_the_clear() {
    let ca = authority();
    let served = serve(Protection::Plain, limits()).await;
    let error = Connector::joining(&token(&ca)).connect(&uri(&served.http())).await.unwrap_err();
    assert!(matches!(error, ConnectError::JoinInTheClear { .. }), "{error:?}");
    assert_eq!(served.connections.open(), 0);
}

#[tokio::test]
async fn a_bearer_token_needs_the_roots_alone() {
    let ca = authority();
    let own = credentials(&ca, coordinator());
    let ours = Trust::new(ca.cluster(), Some(own), ca.roots().clone(), Revoked::default()).unwrap();
    let served = serve(secure(&ours, Clients::Optional), limits()).await;
    let read: AccessToken = AccessToken::new().unwrap().reveal().parse().unwrap();
    assert!(!format!("{read:?}").contains(&hex::encode(read.secret.reveal())));
    let answer = caller(&served.https(), anonymous(&ca)).await.unwrap();
    assert_eq!(answer, "somebody without a certificate");
}
