//! Plain text to ports with TLS and TLS to ports without: each is told which the port speaks, and counted.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use ringtune_tests::{
    Cluster, Launch, Sandbox, Visitor,
    http2::{PREFACE, SETTINGS, frame},
    visitor::{self, HTTP1, HTTP2},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinSet,
};

use crate::{daemons, from, reader, refused};

/// So many of each kind come to each port at the same time.
const EACH: u32 = 40;

/// What somebody says, and what is in the answer; nothing: it is closed without one.
type Said = (&'static str, Vec<u8>, &'static str);

/// Says so, and reads all that is answered, until it is closed.
async fn say(to: SocketAddr, number: u32, said: Said) -> Result<()> {
    let (who, said, expected) = said;
    let mut stream = visitor::tcp(to, from(number)).await?;
    stream.write_all(&said).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.with_context(|| who.to_owned())?;
    let answer = String::from_utf8_lossy(&answer);
    ensure!(answer.is_empty() == expected.is_empty(), "{who} is answered {answer:?}");
    ensure!(answer.contains(expected), "{who} is answered {answer:?}");
    Ok(())
}

/// Says all of it to all four ports of a cluster, and looks that each is counted.
async fn say_to_all(cluster: &Cluster<'_>, reader: &Visitor, all: &[Said], reason: &str) -> Result<()> {
    for daemon in daemons(cluster)? {
        let counted = refused(reader, daemon, reason).await?;
        let (mut saying, mut expected) = (JoinSet::new(), 0);
        for port in [&daemon.grpc, &daemon.http] {
            let to: SocketAddr = port.parse()?;
            for said in all {
                for number in 0..EACH {
                    saying.spawn(say(to, number, said.clone()));
                    expected += 1;
                }
            }
        }
        while let Some(one) = saying.join_next().await {
            one?.with_context(|| daemon.label.clone())?;
        }
        let counted = refused(reader, daemon, reason).await? - counted;
        ensure!(counted == expected, "{} counted {counted} of {expected}", daemon.label);
    }
    Ok(())
}

async fn cluster(sandbox: &Sandbox, launch: Launch) -> Result<Cluster<'_>> {
    Cluster::start_fake_with(sandbox, launch, 1, |worker| worker).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_text_to_every_port_with_tls_is_told_to_use_https() -> Result<()> {
    const USE_HTTPS: &str = "this port speaks TLS: use https://";
    let sandbox = Sandbox::new()?;
    let cluster = cluster(&sandbox, Launch::coordinator().over_tls()).await?;
    let reader = reader(&cluster, &sandbox)?;
    let grpc = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let said = [
        ("a browser", b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec(), USE_HTTPS),
        ("gRPC", grpc, USE_HTTPS),
        ("somebody else", b"\0\x01\x02\x03".to_vec(), ""),
    ];
    say_to_all(&cluster, &reader, &said, "plaintext").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_to_every_port_without_it_is_told_to_use_http() -> Result<()> {
    const USE_HTTP: &str = "this port speaks no TLS: use http://";
    let sandbox = Sandbox::new()?;
    let cluster = cluster(&sandbox, Launch::coordinator()).await?;
    let said = [
        ("a browser with TLS", Visitor::stranger(HTTP1)?.hello()?, USE_HTTP),
        ("gRPC with TLS", Visitor::stranger(HTTP2)?.hello()?, USE_HTTP),
    ];
    say_to_all(&cluster, &Visitor::plain(), &said, "tls").await?;
    // gRPC to the port of pages: it is not spoken there.
    for daemon in daemons(&cluster)? {
        let mut stream = Visitor::plain().connect(daemon.http.parse()?, Ipv4Addr::LOCALHOST).await?;
        stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await?;
        let mut answer = Vec::new();
        // It may be reset, as not all that was said is read; the answer comes before.
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        ensure!(answer.starts_with("HTTP/1.1 400 "), "{} answers {answer:?}", daemon.label);
    }
    Ok(())
}
