//! Clients that break HTTP/2's rules on purpose: each ends its own connection, and nobody else notices.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::{Code, Request};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::{coordinator::Coordinator, soon};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `:method: POST`, `:scheme: http`, `:path: /`, of HPACK's own table.
const CALL: [u8; 3] = [0x83, 0x86, 0x84];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length.to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Sends frames without end, and reads what comes. Returns the error code of the GOAWAY with which the server ended it,
/// none where it only closed the connection.
async fn flood(address: SocketAddr, mut next: impl FnMut(u32) -> Vec<u8> + Send + 'static) -> Option<u32> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    write.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.unwrap();
    let sending = tokio::spawn(async move {
        let mut number = 0;
        while write.write_all(&next(number)).await.is_ok() {
            number += 1;
            tokio::task::yield_now().await;
        }
    });
    let mut answers = Vec::new();
    let end = async {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = read.read(&mut buffer).await {
            answers.extend_from_slice(&buffer[..length]);
        }
    };
    soon("the end of a flood", end).await;
    drop(read);
    soon("the end of the sender", sending).await.unwrap();
    let mut rest = answers.as_slice();
    let mut code = None;
    while let Some((head, after)) = rest.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((payload, after)) = after.split_at_checked(length) else { break };
        if head[3] == GOAWAY {
            code = payload.get(4..8).map(|code| u32::from_be_bytes(code.try_into().unwrap()));
        }
        rest = after;
    }
    code
}

fn odd(number: u32) -> u32 {
    number * 2 + 1
}

#[tokio::test]
async fn floods_end_their_own_connection_and_no_other() {
    let coordinator = Coordinator::fresh().await;
    let job = coordinator.create(1).await;
    let mut watch = coordinator.watch(&job.job_id, 0).await;
    let address = coordinator.address;
    // Calls that are taken back at once.
    let resets = flood(address, |number| {
        let call = frame(HEADERS, END_HEADERS | END_STREAM, odd(number), &CALL);
        [call, frame(RST_STREAM, 0, odd(number), &8_u32.to_be_bytes())].concat()
    });
    assert_eq!(resets.await, Some(11), "ENHANCE_YOUR_CALM");
    // A header that never ends.
    let endless = flood(address, |number| match number {
        0 => frame(HEADERS, END_STREAM, 1, &CALL),
        // A name and a value that are not put into the table.
        _ => frame(CONTINUATION, 0, 1, &[&[0, 1, b'x', 127, 0][..], &[b'y'; 127]].concat().repeat(100)),
    });
    endless.await;
    // Frames that mean nothing, or the wrong thing.
    flood(address, |_| frame(PING, 0, 0, &[0; 7])).await;
    flood(address, |_| frame(0xee, 0, 0, &[0; 16_385 << 7])).await;
    flood(address, |number| frame(HEADERS, END_HEADERS, number * 2, &CALL)).await;
    flood(address, |_| b"GET / HTTP/1.1\r\n\r\n".to_vec()).await;
    // Nobody else noticed.
    coordinator.cancel(&job.job_id).await.unwrap();
    watch.until(ringtune_proto::v1::JobState::Cancelled).await;
    coordinator.stop().await;
}

#[tokio::test]
async fn what_is_too_long_is_refused_and_the_next_call_is_served() {
    let coordinator = Coordinator::fresh().await;
    let mut request = Request::new(ringtune_proto::v1::ListJobsRequest::default());
    request.metadata_mut().insert("x-long", "y".repeat(64 << 10).parse().unwrap());
    let refused = soon("an answer", coordinator.jobs().list_jobs(request)).await;
    assert!(refused.is_err(), "{refused:?}");
    let mut health = HealthClient::new(coordinator.channel.clone());
    let long = HealthCheckRequest { service: "y".repeat(64 << 10) };
    let refused = soon("an answer", health.check(long)).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    soon("an answer", health.check(HealthCheckRequest::default())).await.unwrap();
    coordinator.create(1).await;
    coordinator.stop().await;
}
