//! Pages: what people, Prometheus and probes read.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use ringtune_security::{Limits, Listener, PageLimits, Peer, Protection, Refusal, Refusals, serve_pages};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::common::*;

/// More than the buffers of both sockets hold, several times.
const LONG: usize = 64 << 20;

/// A server of two pages: `/long`, and whatever else says who asks.
struct Site {
    address: std::net::SocketAddr,
    refusals: Refusals,
    connections: ringtune_security::Connections,
    end: CancellationToken,
    serving: JoinHandle<()>,
}

async fn site(limits: Limits, pages: PageLimits) -> Site {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (refusals, end) = (Refusals::default(), CancellationToken::new());
    let listener = Listener::start(tcp, Protection::Plain, limits, refusals.clone()).unwrap();
    let (address, connections) = (listener.local_addr(), listener.connections());
    let service = tower::service_fn(|request: Request<Incoming>| async move {
        let peer = request.extensions().get::<Peer>().unwrap().clone();
        let _call = peer.activity.begin();
        let text = peer.caller.to_string();
        let text = if request.uri().path() == "/long" { "x".repeat(LONG) } else { text };
        Ok::<_, Infallible>(Response::new(text))
    });
    let serving = tokio::spawn(serve_pages(listener, service, pages, end.clone().cancelled_owned()));
    Site { address, refusals, connections, end, serving }
}

impl Site {
    /// All that is answered to these bytes, until the server closes.
    async fn answer(&self, bytes: &[u8]) -> String {
        let (mut stream, mut answer) = (TcpStream::connect(self.address).await.unwrap(), Vec::new());
        stream.write_all(bytes).await.unwrap();
        // One that is closed with something unread is reset: what came before is there.
        let _ = tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await.unwrap();
        String::from_utf8(answer).unwrap()
    }
}

fn short() -> PageLimits {
    let short = Duration::from_millis(300);
    PageLimits { life: short, last_answer: short, ..PageLimits::default() }
}

#[tokio::test]
async fn requests_are_answered_one_after_the_other_by_whoever_asks() {
    let site = site(limits(), PageLimits::default()).await;
    let one = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    let last = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    let answers = site.answer(format!("{one}{one}{last}").as_bytes()).await;
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 3, "{answers}");
    assert_eq!(answers.matches("somebody on an open port").count(), 3, "{answers}");
    site.end.cancel();
    site.serving.await.unwrap();
}

#[tokio::test]
async fn a_head_has_bounds_and_http_2_is_not_spoken() {
    let site = site(limits(), PageLimits::default()).await;
    let long = "y".repeat(100_000);
    let many = "x: y\r\n".repeat(1000);
    for (request, status) in [
        (format!("GET /{long} HTTP/1.1\r\n\r\n"), "HTTP/1.1 4"),
        (format!("GET / HTTP/1.1\r\nx: {long}\r\n\r\n"), "HTTP/1.1 431 "),
        (format!("GET / HTTP/1.1\r\n{many}\r\n"), "HTTP/1.1 431 "),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_owned(), "HTTP/1.1 400 "),
    ] {
        let answer = site.answer(request.as_bytes()).await;
        assert!(answer.starts_with(status), "{status}: {answer:?}");
    }
    until("their places are free", || site.connections.open() == 0).await;
}

#[tokio::test]
async fn a_connection_is_not_kept_for_ever() {
    let site = site(limits(), short()).await;
    let mut kept = TcpStream::connect(site.address).await.unwrap();
    let mut answer = String::new();
    kept.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    tokio::time::timeout(SOON, kept.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert_eq!(site.refusals.counts().map(|(_, count)| count).iter().sum::<u64>(), 0);
}

#[tokio::test]
async fn who_takes_a_page_byte_by_byte_is_ended() {
    let site = site(Limits { unread: HOUR, ..limits() }, short()).await;
    let mut slow = TcpStream::connect(site.address).await.unwrap();
    slow.write_all(b"GET /long HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    until("it is ended", || site.refusals.count(Refusal::Unread) == 1).await;
    until("its place is free", || site.connections.open() == 0).await;
}

#[tokio::test]
async fn who_asks_for_pages_and_takes_none_is_ended() {
    let unread = Duration::from_millis(300);
    let site = site(Limits { unread, ..limits() }, PageLimits::default()).await;
    let (mut deaf, ask) =
        (TcpStream::connect(site.address).await.unwrap(), "GET /long HTTP/1.1\r\nhost: a\r\n\r\n");
    deaf.write_all(ask.repeat(20).as_bytes()).await.unwrap();
    until("it is ended", || site.refusals.count(Refusal::Unread) == 1).await;
    until("its place is free", || site.connections.open() == 0).await;
}
