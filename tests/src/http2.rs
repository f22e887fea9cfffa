//! HTTP/2 by hand, for clients that break its rules: frames, and what a server says to them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// A client's preface.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Kinds of frames.
pub const DATA: u8 = 0;
/// The head of a call, or of an answer.
pub const HEADERS: u8 = 1;
/// Frame type PRIORITY.
pub const PRIORITY: u8 = 2;
/// Frame type RST_STREAM.
pub const RST_STREAM: u8 = 3;
/// Frame type SETTINGS.
pub const SETTINGS: u8 = 4;
/// A question that must be answered.
pub const PING: u8 = 6;
/// The connection ends.
pub const GOAWAY: u8 = 7;
/// More may be sent.
pub const WINDOW_UPDATE: u8 = 8;
/// A head goes on.
pub const CONTINUATION: u8 = 9;
/// Flags: nothing follows in this stream; an answer to PING or SETTINGS; the head ends here.
pub const END_STREAM: u8 = 1;
/// See [`END_STREAM`].
pub const ACK: u8 = 1;
/// See [`END_STREAM`].
pub const END_HEADERS: u8 = 4;
/// The error with which a server ends a flood: ENHANCE_YOUR_CALM.
pub const CALM: u32 = 11;

/// A frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    let mut frame = length.to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A text as HPACK has it, without Huffman's code.
fn text(bytes: &[u8]) -> Vec<u8> {
    let mut coded = Vec::with_capacity(bytes.len() + 4);
    let mut left = bytes.len();
    if left < 127 {
        coded.push(left as u8);
    } else {
        coded.push(127);
        left -= 127;
        while left >= 128 {
            coded.push((left % 128) as u8 | 128);
            left /= 128;
        }
        coded.push(left as u8);
    }
    coded.extend(bytes);
    coded
}

/// A header that goes into nobody's table.
pub fn header(name: &str, value: &str) -> Vec<u8> {
    [&[0][..], &text(name.as_bytes()), &text(value.as_bytes())].concat()
}

/// The head of a gRPC call, as HPACK: POST of "/ringtune.v1.JobService/ListJobs", say.
pub fn head(path: &str) -> Vec<u8> {
    // `:method: POST` and `:scheme: http` stand in HPACK's own table, and the names of `:path` and `:authority`.
    let mut head = vec![0x83, 0x86, 4];
    head.extend(text(path.as_bytes()));
    head.push(1);
    head.extend(text(b"localhost"));
    head.extend(header("content-type", "application/grpc"));
    head.extend(header("te", "trailers"));
    head
}

/// A message as gRPC sends it.
pub fn message(bytes: &[u8]) -> Vec<u8> {
    [&[0][..], &u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes(), bytes].concat()
}

/// A frame that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Frame type.
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Its stream; 0: the connection.
    pub stream: u32,
    /// Payload.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Reads the next one; none at the end of the connection.
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> Option<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        from.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Some(Self { kind: head[3], flags: head[4], stream, payload })
    }

    /// Of a GOAWAY: why.
    pub fn error(&self) -> Option<u32> {
        let code = self.payload.get(4..8).filter(|_| self.kind == GOAWAY)?;
        Some(u32::from_be_bytes(code.try_into().ok()?))
    }
}

/// End of a flood.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ended {
    /// Number of frames sent.
    pub sent: u32,
    /// Whether the server ended the connection before everything was sent.
    pub by_server: bool,
    /// The error of its GOAWAY, where it sent one.
    pub error: Option<u32>,
}

/// Opens HTTP/2 and sends what `next` gives, `most` times or until the server ends the connection. What comes is read
/// where `listens`; else the server cannot get rid of what it answers, and may make the flood wait: one that waits for
/// `patience` has ended.
///
/// # Errors
/// The server does neither: it lets the flood wait although its answers are read.
pub async fn flood(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    listens: bool,
    most: u32,
    patience: Duration,
    next: impl Fn(u32) -> Vec<u8> + Send + 'static,
) -> Result<Ended> {
    let (mut read, mut write) = tokio::io::split(stream);
    write.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await.context("the preface")?;
    let reading = tokio::spawn(async move {
        let mut error = None;
        if !listens {
            // It holds its half, so that the connection stays, and reads nothing until it is aborted.
            std::future::pending::<()>().await;
        }
        while let Some(frame) = Frame::read(&mut read).await {
            error = frame.error().or(error);
        }
        error
    });
    let mut ended = Ended::default();
    while ended.sent < most {
        let sent = tokio::time::timeout(patience, write.write_all(&next(ended.sent))).await;
        match sent {
            Ok(Ok(())) => ended.sent += 1,
            Ok(Err(_)) => {
                ended.by_server = true;
                break;
            }
            Err(_) => {
                anyhow::ensure!(!listens, "the server reads no more, after {} times", ended.sent);
                break;
            }
        }
    }
    if !listens {
        reading.abort();
        return Ok(ended);
    }
    // Nothing more comes: the server answers what it has to, and closes.
    let _ = write.shutdown().await;
    ended.error = tokio::time::timeout(patience, reading).await.context("the end of the connection")??;
    ended.by_server |= ended.error.is_some_and(|error| error != 0);
    Ok(ended)
}
