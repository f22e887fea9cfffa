//! Bytes below gRPC: HTTP/2's own frames, to the ports of both daemons.

use std::time::Duration;

use ringtune_fuzzing::{Path, words};
use ringtune_tests::http2::{
    ACK, DATA, END_HEADERS, END_STREAM, Frame, HEADERS, PING, PREFACE, PRIORITY, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame, head, message,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{MOST_BYTES, beside_a_ring};

/// A connection whose client has said all is ended within this time, on a busy machine too.
const SOON: Duration = Duration::from_secs(15);
/// Who has come so far gets this back.
const QUESTION: [u8; 8] = *b"are you?";
/// The first bytes of a frame.
const HEAD: usize = 9;

/// What clients send after the preface, frame by frame.
fn valid() -> Vec<Vec<u8>> {
    let calls = [
        "/grpc.health.v1.Health/Check",
        "/ringtune.v1.JobService/ListJobs",
        "/ringtune.v1.RingService/Exchange",
    ];
    let mut all: Vec<Vec<u8>> = calls
        .into_iter()
        .map(|path| {
            [
                frame(SETTINGS, 0, 0, &[0, 4, 0, 16, 0, 0]),
                frame(SETTINGS, ACK, 0, &[]),
                frame(WINDOW_UPDATE, 0, 0, &[0, 1, 0, 0]),
                frame(HEADERS, END_HEADERS, 1, &head(path)),
                frame(DATA, END_STREAM, 1, &message(&[])),
                frame(PRIORITY, 0, 3, &[0, 0, 0, 1, 16]),
                frame(HEADERS, END_HEADERS, 3, &head(path)),
                frame(DATA, 0, 3, &message(b"\x0a\x02ab")),
                frame(RST_STREAM, 0, 3, &[0, 0, 0, 8]),
            ]
            .concat()
        })
        .collect();
    all.push(
        [frame(SETTINGS, 0, 0, &[]), frame(PING, 0, 0, b"12345678"), frame(0xbe, 0, 0, &[0; 40])].concat(),
    );
    all
}

/// Cuts frames where they end, so that what comes after one that was changed is a frame again.
fn mend(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut place = 0;
    while bytes.len() - place >= HEAD {
        let left = bytes.len() - place - HEAD;
        let length = u32::from_be_bytes([0, bytes[place], bytes[place + 1], bytes[place + 2]]) as usize;
        let length = if length > left { left } else { length };
        bytes[place..place + 3].copy_from_slice(&(length as u32).to_be_bytes()[1..]);
        place += HEAD + length;
    }
    bytes.truncate(place);
    bytes
}

/// Whether the server still answers on that connection after these bytes. It ends it, whatever they are.
async fn survives(address: &str, bytes: &[u8]) -> bool {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let all = [PREFACE, bytes, &frame(PING, 0, 0, &QUESTION)].concat();
    // The server may have had enough before it has everything.
    let _ = stream.write_all(&all).await;
    let _ = stream.shutdown().await;
    let mut answers = Vec::new();
    let end = stream.read_to_end(&mut answers);
    assert!(tokio::time::timeout(SOON, end).await.is_ok(), "the connection is not ended");
    let mut rest = answers.as_slice();
    while let Some(frame) = Frame::read(&mut rest).await {
        if (frame.kind, frame.flags, frame.payload.as_slice()) == (PING, ACK, &QUESTION[..]) {
            return true;
        }
    }
    false
}

fn fuzz(name: &'static str, worker: Option<usize>) {
    beside_a_ring(|runtime, bystander| {
        let cluster = &bystander.cluster;
        let daemon = worker.map_or(&cluster.coordinator, |place| &cluster.workers[place]);
        let (address, handle) = (daemon.grpc.clone(), runtime.handle().clone());
        Path {
            name,
            words: words("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n|GET / HTTP/1.1\r\n\r\n|:path|grpc-timeout|te"),
            valid: valid(),
            mend,
            most_bytes: MOST_BYTES,
            read: Box::new(move |bytes| handle.block_on(survives(&address, bytes))),
        }
    });
}

#[test]
fn bytes_to_the_coordinator() {
    fuzz("bytes-to-the-coordinator", None);
}

#[test]
fn bytes_to_a_worker() {
    fuzz("bytes-to-a-worker", Some(0));
}
