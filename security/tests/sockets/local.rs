//! The local door of a port: whoever was invited comes in as who it is, and nobody else does.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use ringtune_security::{
    Caller, Clients, ConnectError, Connector, Invitation, Listener, LocalDoor, NotInvited, Outgoing,
    Protection, Refusal, Refusals, Role, Server,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixStream};
use tonic::transport::{Channel, Endpoint};
use uuid::Uuid;

use crate::common::*;

/// A port with a door.
struct Doored {
    served: Served,
    door: Arc<LocalDoor>,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

async fn doored(protection: Protection) -> Doored {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("door.sock");
    // What a process that was killed has left.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refusals = Refusals::default();
    let listener = Listener::start(tcp, protection, limits(), refusals.clone()).unwrap();
    let door = Arc::new(listener.open_locally(&path).unwrap());
    let served = serve_on(listener, refusals, Some(door.clone()));
    Doored { served, door, path, _folder: folder }
}

impl Doored {
    /// Asks on the port for an invitation.
    async fn invited(&self, url: &str, connector: &Connector) -> Invitation {
        let mut channel = channel(url, connector.clone()).await.unwrap();
        let secret = hex::decode(call(&mut channel, "/invite").await.unwrap()).unwrap();
        Invitation { path: self.path.clone(), secret: secret.try_into().unwrap() }
    }

    /// What the door says to whoever begins with these bytes.
    async fn says(&self, secret: &[u8]) -> Vec<u8> {
        let mut stream = UnixStream::connect(&self.path).await.unwrap();
        stream.write_all(secret).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut said = Vec::new();
        // A connection that is closed with something unread is reset.
        let _ = stream.read_to_end(&mut said).await;
        said
    }
}

/// A channel over a connection that stands.
async fn over(connection: Outgoing) -> Channel {
    let mut connection = Some(TokioIo::new(connection));
    let once = tower::service_fn(move |_| {
        let connection = connection.take().ok_or_else(|| std::io::Error::other("only once"));
        async move { connection }
    });
    Endpoint::from_static("http://local").connect_with_connector(once).await.unwrap()
}

#[tokio::test]
async fn whoever_was_invited_is_known_as_on_the_port() {
    let ca = authority();
    let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let at_two = trust(credentials(&ca, worker(two)));
    let doored_two = doored(secure(&at_two, Clients::Optional)).await;
    let connector = Connector::to(trust(credentials(&ca, worker(one))), Server::Worker(two));
    let invitation = doored_two.invited(&doored_two.served.https(), &connector).await;
    let made = connector.connect_locally(&invitation, &[]).await.unwrap();
    assert!(made.is_within_this_machine());
    let mut channel = over(made).await;
    assert_eq!(call(&mut channel, "/who").await.unwrap(), format!("worker {one}"));
    // A secret is good once.
    let again = connector.connect_locally(&invitation, &[]).await.unwrap_err();
    assert!(matches!(again, ConnectError::Closed { .. }), "{again}");
    doored_two.served.refused(Refusal::Uninvited, 1).await;
    // What ends the connections of a member ends this one, too, on both sides.
    at_two.revoke(|revoked| revoked.members.extend([(Role::Worker, one.to_string())]));
    until("the connection ends", || doored_two.served.connections.open() == 0).await;
    assert!(call(&mut channel, "/who").await.is_err());
}

#[tokio::test]
async fn a_server_that_is_revoked_is_left_at_its_door_as_at_its_port() {
    let ca = authority();
    let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let (at_one, at_two) = (trust(credentials(&ca, worker(one))), trust(credentials(&ca, worker(two))));
    let doored_two = doored(secure(&at_two, Clients::Optional)).await;
    let connector = Connector::to(at_one.clone(), Server::Worker(two));
    let invitation = doored_two.invited(&doored_two.served.https(), &connector).await;
    let mut channel = over(connector.connect_locally(&invitation, &[]).await.unwrap()).await;
    call(&mut channel, "/who").await.unwrap();
    at_one.revoke(|revoked| revoked.members.extend([(Role::Worker, two.to_string())]));
    until("the connection ends", || doored_two.served.connections.open() == 0).await;
}

#[tokio::test]
async fn without_tls_whoever_was_invited_is_open() {
    let plain = doored(Protection::Plain).await;
    let invitation = plain.invited(&plain.served.http(), &Connector::plain()).await;
    let mut channel = over(Connector::plain().connect_locally(&invitation, &[]).await.unwrap()).await;
    assert_eq!(call(&mut channel, "/who").await.unwrap(), Caller::Open.to_string());
}

#[tokio::test]
async fn whoever_was_not_invited_is_not_let_in() {
    let plain = doored(Protection::Plain).await;
    // The socket is for this user alone.
    assert_eq!(std::fs::metadata(&plain.path).unwrap().permissions().mode() & 0o777, 0o600);
    for secret in [&[7; 32][..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n and what follows it", b"short", b""] {
        assert_eq!(plain.says(secret).await, b"", "{secret:?}");
    }
    plain.served.refused(Refusal::Uninvited, 4).await;
    assert_eq!(plain.served.connections.open(), 0);
}

#[tokio::test]
async fn invitations_are_bounded_and_the_door_goes_with_its_socket() {
    let plain = doored(Protection::Plain).await;
    let mut listener = Listener::start(
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        Protection::Plain,
        limits(),
        Refusals::default(),
    )
    .unwrap();
    let address = listener.local_addr();
    let (connector, url) = (Connector::plain(), uri(&format!("http://{address}")));
    let (_connected, connection) = tokio::join!(connector.connect(&url), listener.accept());
    let mut invited = 0;
    let full = loop {
        match plain.door.invite(connection.peer()) {
            Ok(_) => invited += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, NotInvited::Full) && invited == 64, "{full}, {invited}");
    // At a path where no socket can be there is no door.
    let long = plain.path.with_file_name("a".repeat(120));
    assert!(listener.open_locally(&long).is_err());
    let Doored { served, door, path, _folder } = plain;
    drop((served, door));
    until("the socket is gone", || !path.exists()).await;
}
