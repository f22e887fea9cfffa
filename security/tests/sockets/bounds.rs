//! Bounds: in number and in time.

use std::time::{Duration, Instant};

use ringtune_security::{Clients, Connector, Limits, Protection, Refusal, Server};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::common::*;

/// Whether the other side closes this in time; what it says before is of no interest.
async fn is_closed(mut stream: TcpStream) -> bool {
    let read = async {
        let mut buffer = [0; 1024];
        while matches!(stream.read(&mut buffer).await, Ok(1..)) {}
    };
    tokio::time::timeout(SOON, read).await.is_ok()
}

fn quick() -> Limits {
    let short = Duration::from_millis(400);
    Limits { opening: short, first_call: short, idle: short, ..limits() }
}

#[tokio::test]
async fn a_slow_handshake_is_ended() {
    let ca = authority();
    let served = serve(secure(&trust(credentials(&ca, coordinator())), Clients::Optional), quick()).await;
    let begun = Instant::now();
    let mut slow = TcpStream::connect(served.address).await.unwrap();
    // The beginning of a record that never ends.
    slow.write_all(&[22, 3, 1, 2, 0, 1, 0]).await.unwrap();
    let silent = TcpStream::connect(served.address).await.unwrap();
    assert!(is_closed(slow).await && is_closed(silent).await);
    assert!(begun.elapsed() >= Duration::from_millis(400));
    served.refused(Refusal::Slow, 2).await;
}

#[tokio::test]
async fn a_connection_without_calls_is_ended_and_one_with_calls_is_not() {
    let served = serve(Protection::Plain, quick()).await;
    let mut never = TcpStream::connect(served.address).await.unwrap();
    never.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut busy = channel(&served.http(), Connector::plain()).await.unwrap();
    let mut idle = channel(&served.http(), Connector::plain()).await.unwrap();
    call(&mut idle, "/who").await.unwrap();
    let held = tokio::spawn(async move { call(&mut busy, "/hold").await });
    assert!(is_closed(never).await);
    served.refused(Refusal::Unused, 1).await;
    served.refused(Refusal::Idle, 1).await;
    until("the one with a call is left", || served.connections.open() == 1).await;
    // It is looked at again and again, and stays.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!held.is_finished() && served.connections.open() == 1);
    // A client that was ended for being idle only connects anew.
    call(&mut idle, "/who").await.unwrap();
}

/// Says this again and again and listens to nothing, until the other side ends the connection.
async fn shout(mut stream: impl AsyncRead + AsyncWrite + Unpin, first: &[u8], again: &[u8]) {
    let shouting = async {
        stream.write_all(first).await.unwrap();
        while stream.write_all(again).await.is_ok() {}
    };
    tokio::time::timeout(SOON, shouting).await.unwrap();
}

#[tokio::test]
async fn a_connection_that_takes_no_answers_is_ended() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let pings = b"\0\0\x08\x06\0\0\0\0\x0012345678".repeat(1000);
    // Nothing else would end it so soon.
    let unread = Duration::from_millis(400);
    let limits = Limits { unread, first_call: HOUR, idle: HOUR, ..limits() };
    let served = serve(Protection::Plain, limits).await;
    shout(TcpStream::connect(served.address).await.unwrap(), PREFACE, &pings).await;
    served.refused(Refusal::Unread, 1).await;

    let ca = authority();
    let served = serve(secure(&trust(credentials(&ca, coordinator())), Clients::Optional), limits).await;
    shout(anonymous(&ca).connect(&uri(&served.https())).await.unwrap(), PREFACE, &pings).await;
    served.refused(Refusal::Unread, 1).await;
    until("their places are free", || served.connections.open() == 0).await;
}

#[tokio::test]
async fn over_a_bound_a_connection_is_closed_at_once() {
    let open = TcpStream::connect;
    let bounded = Limits { connections: 3, openings: 3, ..limits() };
    let served = serve(Protection::Plain, bounded).await;
    let three = [open(served.address).await, open(served.address).await, open(served.address).await];
    until("three are open", || served.connections.open() == 3).await;
    assert!(is_closed(open(served.address).await.unwrap()).await);
    served.refused(Refusal::Full, 1).await;
    drop(three);
    until("their places are free", || served.connections.open() == 0).await;
    assert!(caller(&served.http(), Connector::plain()).await.is_ok());

    for (limits, refusal) in [
        (Limits { per_address: 1, ..limits() }, Refusal::FullForAddress),
        (Limits { openings: 1, ..limits() }, Refusal::Openings),
        (Limits { openings_per_address: 1, ..limits() }, Refusal::OpeningsForAddress),
    ] {
        let served = serve(Protection::Plain, limits).await;
        let _first = open(served.address).await.unwrap();
        until("one is open", || served.connections.open() == 1).await;
        assert!(is_closed(open(served.address).await.unwrap()).await);
        served.refused(refusal, 1).await;
    }
}

#[tokio::test]
async fn a_client_over_a_bound_hears_why_as_far_as_can_be_told() {
    let ca = authority();
    let full = Limits { connections: 0, ..limits() };
    let served = serve(secure(&trust(credentials(&ca, coordinator())), Clients::Optional), full).await;
    let error = anonymous(&ca).connect(&uri(&served.https())).await.unwrap_err();
    assert!(error.to_string().contains("as many connections as it allows"), "{error}");
}

/// As many open files as the machine allows this process.
fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    maximum.unwrap_or(u64::MAX)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_thousand_idle_connections_are_ended_and_nobody_notices() {
    const CROWD: u64 = 2000;
    assert!(raise_open_files() > 2 * CROWD + 500, "too few open files are allowed here");
    let ca = authority();
    let second = Duration::from_secs(1);
    let limits = Limits { opening: second, first_call: second, ..limits() };
    let limits = Limits { openings: 4000, openings_per_address: 4000, ..limits };
    let served = serve(secure(&trust(credentials(&ca, coordinator())), Clients::Optional), limits).await;
    let anna = Connector::to(trust(credentials(&ca, person("anna"))), Server::Coordinator);
    let mut channel = channel(&served.https(), anna).await.unwrap();
    call(&mut channel, "/who").await.unwrap();

    let mut crowd = JoinSet::new();
    for index in 0..CROWD {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        crowd.spawn(async move {
            // Every other one begins a handshake.
            if index % 2 == 0 {
                let _ = stream.write_all(&[22, 3, 1]).await;
            }
            is_closed(stream).await
        });
    }
    let mut slowest = Duration::ZERO;
    while !crowd.is_empty() {
        let begun = Instant::now();
        assert_eq!(call(&mut channel, "/who").await.unwrap(), "submitter anna");
        slowest = slowest.max(begun.elapsed());
        while let Some(closed) = crowd.try_join_next() {
            assert!(closed.unwrap(), "a connection stays open");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    served.refused(Refusal::Slow, CROWD).await;
    assert_eq!(served.connections.open(), 1);
    assert!(slowest < Duration::from_secs(5), "a call took {slowest:?}");
}

#[tokio::test]
async fn of_a_crowd_only_as_many_as_may_be_are_kept_at_all() {
    let bounded = Limits { openings: 20, openings_per_address: 10, ..limits() };
    let served = serve(Protection::Plain, bounded).await;
    let mut crowd = Vec::new();
    for _ in 0..200 {
        crowd.push(TcpStream::connect(served.address).await.unwrap());
    }
    served.refused(Refusal::OpeningsForAddress, 190).await;
    assert_eq!((served.connections.open(), served.connections.opening()), (10, 10));
    drop(crowd);
    served.refused(Refusal::Silent, 10).await;
    assert!(caller(&served.http(), Connector::plain()).await.is_ok());
}
