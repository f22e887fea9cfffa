//! HTTP/1 to the coordinator's port of pages: heads, bodies of JSON, queries, cookies, ranges.

use std::time::Duration;

use ringtune_fuzzing::{Path, words};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{MOST_BYTES, beside_a_ring};

/// Whoever has said all hears something within this time, on a busy machine too; who has not may be waited for.
const SOON: Duration = Duration::from_secs(5);
/// How long is waited for an answer to a request that is not whole.
const PATIENCE: Duration = Duration::from_millis(200);
const BLANK: &[u8] = b"\r\n\r\n";
/// What a browser sends with every request.
const BROWSER: &str = "Host: localhost\r\nOrigin: http://localhost\r\nSec-Fetch-Site: same-origin\r\n\
                       Cookie: a=b; __Host-ringtune=rta1.abc\r\nAccept-Encoding: gzip\r\n";

fn get(path: &str, more: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\n{BROWSER}{more}\r\n").into_bytes()
}

fn call(method: &str, json: &str) -> Vec<u8> {
    let path = format!("/api/ringtune.v1.{method}");
    format!("POST {path} HTTP/1.1\r\n{BROWSER}Content-Type: application/json\r\n\r\n{json}").into_bytes()
}

/// Gives a request an end of its head, and its body the length that it has.
fn mend(request: Vec<u8>) -> Vec<u8> {
    let end = request.windows(BLANK.len()).position(|window| window == BLANK);
    let (head, body) = match end {
        Some(end) => (&request[..end], &request[end + BLANK.len()..]),
        None => (request.as_slice(), &[][..]),
    };
    let mut mended = head.to_vec();
    if !body.is_empty() {
        mended.extend(format!("\r\nContent-Length: {}", body.len()).bytes());
    }
    mended.extend(BLANK);
    mended.extend(body);
    mended
}

/// Whether nothing of a request is missing, as far as one can see.
fn is_whole(request: &[u8]) -> bool {
    let Some(end) = request.windows(BLANK.len()).position(|window| window == BLANK) else { return false };
    let body = request.len() - end - BLANK.len();
    body == 0 || request[..end].ends_with(format!("\r\nContent-Length: {body}").as_bytes())
}

/// Whether a request is answered as one that is understood. A connection that was not ended has an answer.
async fn is_accepted(address: &str, request: &[u8]) -> bool {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may have had enough before it has everything.
    let _ = stream.write_all(request).await;
    let mut status = [0; 12];
    let patience = if is_whole(request) { SOON } else { PATIENCE };
    let read = tokio::time::timeout(patience, stream.read_exact(&mut status)).await;
    // Of an answer that is a file or a stream a part is read, and then the client goes.
    if matches!(read, Ok(Ok(_))) {
        let mut rest = vec![0; 16 << 10];
        let _ = tokio::time::timeout(Duration::from_millis(20), stream.read(&mut rest)).await;
    }
    status.starts_with(b"HTTP/1.1 2")
}

#[test]
fn pages_of_the_coordinator() {
    beside_a_ring(|runtime, bystander| {
        let (address, handle) = (bystander.cluster.coordinator.http.clone(), runtime.handle().clone());
        let job = &bystander.job;
        let list = "..|%2e%2e%2f|%00|\r\n|bytes=0-1,2-3|Range|If-Range|Last-Event-ID|HEAD|OPTIONS\
            |Transfer-Encoding: chunked|Expect: 100-continue|Upgrade: websocket|/api/events?job=|null\
            |http://evil.example|__Host-ringtune=|[[[[[[[[|{\"a\":|1e999|\"\\ud800\"|{\"validateOnly\":false}\
            |/api/files/|/api/contents/|/login|/logout|/assets/|/metrics|HTTP/1.0";
        Path {
            name: "pages-of-the-coordinator",
            words: words(list),
            valid: vec![
                get("/", ""),
                get("/assets/page.css", "If-None-Match: \"x\"\r\n"),
                get("/metrics", ""),
                get("/api/session", "Authorization: Bearer rta1.abc\r\n"),
                get(&format!("/api/events?job={job}&after=3"), "Last-Event-ID: 4\r\n"),
                call(
                    "JobService/ListJobs",
                    r#"{"pageSize":2,"states":["JOB_STATE_RUNNING"],"filter":"name = \"x\""}"#,
                ),
                call("JobService/GetJob", &format!(r#"{{"jobId":"{job}"}}"#)),
                call(
                    "JobService/ListSteps",
                    &format!(r#"{{"jobId":"{job}","afterStep":"1","maxPoints":10}}"#),
                ),
                call("ClusterService/ListWorkers", "{}"),
            ],
            mend,
            most_bytes: MOST_BYTES,
            read: Box::new(move |request| handle.block_on(is_accepted(&address, request))),
        }
    });
}
