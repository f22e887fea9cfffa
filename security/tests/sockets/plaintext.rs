//! Plain text to TLS, TLS to plain text, and bytes that are neither.

use ringtune_security::{Clients, ConnectError, Connector, Protection, Refusal};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::common::*;

async fn with_tls() -> Served {
    serve(secure(&trust(credentials(&authority(), coordinator())), Clients::Optional), limits()).await
}

/// All that a server answers to these bytes.
async fn answer(served: &Served, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    answer
}

#[tokio::test]
async fn grpc_without_tls_is_told_to_use_it() {
    let served = with_tls().await;
    let error = Connector::plain().connect(&uri(&served.http())).await.unwrap_err();
    assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
    let says = format!("{0} speaks TLS: use https://{0}", served.address);
    let heard = caller(&served.http(), Connector::plain()).await.unwrap_err();
    assert!(error.to_string() == says && heard.contains(&says), "{error} {heard}");
    served.refused(Refusal::Plaintext, 2).await;
}

#[tokio::test]
async fn a_browser_without_tls_is_told_to_use_it() {
    let served = with_tls().await;
    let answer = answer(&served, b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let text = String::from_utf8(answer).unwrap();
    assert!(text.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{text}");
    assert!(text.ends_with("\r\n\r\nthis port speaks TLS: use https://\n"), "{text}");
    served.refused(Refusal::Plaintext, 1).await;
}

#[tokio::test]
async fn a_stranger_without_tls_is_closed_without_a_word() {
    let served = with_tls().await;
    assert_eq!(answer(&served, b"\0\0\0\0").await, b"");
    served.refused(Refusal::Plaintext, 1).await;
    drop(TcpStream::connect(served.address).await.unwrap());
    served.refused(Refusal::Silent, 1).await;
}

#[tokio::test]
async fn tls_to_a_port_without_it_is_told_to_leave_it() {
    let served = serve(Protection::Plain, limits()).await;
    let anna = to_coordinator(credentials(&authority(), person("anna")));
    let error = anna.connect(&uri(&served.https())).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoTls { .. }), "{error:?}");
    assert!(error.to_string().contains(&format!("use {}", served.http())), "{error}");
    served.refused(Refusal::Tls, 1).await;
    assert_eq!(caller(&served.http(), anna).await.unwrap(), "somebody on an open port");
}

#[tokio::test]
async fn the_http_port_is_told_from_the_grpc_port() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let _ = stream.read(&mut [0; 1024]).await;
    });
    let error = caller(&format!("http://{address}"), Connector::plain()).await.unwrap_err();
    assert!(error.contains("speaks no HTTP/2"), "{error}");
}

#[tokio::test]
async fn garbage_within_a_handshake_harms_nobody() {
    let served = with_tls().await;
    let mut record = vec![22, 3, 1, 0, 200];
    record.extend([0xaa; 200]);
    let _ = answer(&served, &record).await;
    served.refused(Refusal::Handshake, 1).await;
    // It is counted first, and then told what was wrong.
    until("its place is free", || served.connections.open() == 0).await;
}
