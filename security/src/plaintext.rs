//! What is said without TLS to whoever uses the wrong one of the two: enough that the other side can tell its user.

/// What every client of HTTP/2 begins with.
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first byte of every TLS connection: a handshake record.
const HANDSHAKE_RECORD: u8 = 22;
/// The first byte of what a TLS server answers to plain text: an alert record.
const ALERT_RECORD: u8 = 21;
/// To plain text on a port with TLS.
const USE_HTTPS: &str = "this port speaks TLS: use https://";
/// To TLS on a port without it.
const USE_HTTP: &str = "this port speaks no TLS: use http://";
/// To gRPC on a port of pages.
const USE_HTTP1: &str = "this port has pages, and speaks HTTP/1 alone: gRPC has another one";
/// HTTP/2's word for a connection that is not secure enough (RFC 9113, 7).
const INADEQUATE_SECURITY: u32 = 0xc;

/// What a client speaks, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spoken {
    /// TLS, or what looks like it.
    Tls,
    /// HTTP/2 in plain text, as gRPC.
    Http2,
    /// HTTP/1 in plain text.
    Http1,
    /// Something else.
    Other,
}

impl Spoken {
    /// By the first bytes of a client, at least one.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        match bytes {
            [HANDSHAKE_RECORD, ..] => Self::Tls,
            bytes if bytes.starts_with(b"PRI") => Self::Http2,
            [b'A'..=b'Z', ..] => Self::Http1,
            _ => Self::Other,
        }
    }
}

/// The answer to a client without TLS on a port with it.
pub(crate) fn use_https(spoken: Spoken) -> Vec<u8> {
    match spoken {
        Spoken::Http2 => goaway(USE_HTTPS),
        Spoken::Http1 => bad_request(USE_HTTPS),
        Spoken::Tls | Spoken::Other => Vec::new(),
    }
}

/// The answer to a client with TLS on a port without it. No TLS library reads it, but each sees that it is not TLS.
pub(crate) fn use_http() -> Vec<u8> {
    bad_request(USE_HTTP)
}

/// The answer to a client of HTTP/2 on a port of pages.
pub(crate) fn use_http1() -> Vec<u8> {
    bad_request(USE_HTTP1)
}

fn bad_request(text: &str) -> Vec<u8> {
    let length = text.len() + 1;
    let head = "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n";
    format!("{head}content-length: {length}\r\n\r\n{text}\n").into_bytes()
}

/// The empty SETTINGS that begin every server's side of HTTP/2, and a GOAWAY with the text as its debug data.
fn goaway(text: &str) -> Vec<u8> {
    let mut frames = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
    let [_, length @ ..] = u32::try_from(8 + text.len()).unwrap_or(8).to_be_bytes();
    frames.extend(length);
    // GOAWAY, no flags, stream 0; the last stream that was looked at: none.
    frames.extend([7, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    frames.extend(INADEQUATE_SECURITY.to_be_bytes());
    frames.extend(text.as_bytes());
    frames
}

/// What the first bytes of a server mean to a client that speaks HTTP/2 in plain text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// HTTP/2, or too little to say.
    Fine,
    /// The server speaks TLS.
    Tls,
    /// The server speaks HTTP/1.
    Http1,
}

impl Answer {
    /// By the first bytes of a server.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let says_https = bytes.windows(USE_HTTPS.len()).any(|window| window == USE_HTTPS.as_bytes());
        match bytes {
            // A TLS record's version begins with 3.
            [ALERT_RECORD | HANDSHAKE_RECORD, 3, ..] => Self::Tls,
            _ if says_https => Self::Tls,
            bytes if bytes.starts_with(b"HTTP/1.") => Self::Http1,
            _ => Self::Fine,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_known_by_their_first_bytes() {
        for (bytes, spoken) in [
            (&[22, 3, 1][..], Spoken::Tls),
            (PREFACE, Spoken::Http2),
            (b"GET / HTTP/1.1", Spoken::Http1),
            (b"P", Spoken::Http1),
            (b"\0", Spoken::Other),
            (b"ssh", Spoken::Other),
        ] {
            assert_eq!(Spoken::of(bytes), spoken, "{bytes:?}");
        }
    }

    #[test]
    fn answers_are_known_by_their_first_bytes() {
        assert_eq!(Answer::of(&use_https(Spoken::Http2)), Answer::Tls);
        assert_eq!(Answer::of(&[21, 3, 3, 0, 2, 2, 10]), Answer::Tls);
        assert_eq!(Answer::of(&use_http()), Answer::Http1);
        assert_eq!(Answer::of(&[0, 0, 0, 4, 0, 0, 0, 0, 0]), Answer::Fine);
        assert_eq!(Answer::of(&[]), Answer::Fine);
    }

    #[test]
    fn frames_and_headers_have_their_lengths() {
        let frames = use_https(Spoken::Http2);
        assert_eq!(usize::from(frames[11]), frames.len() - 18);
        let text = String::from_utf8(use_https(Spoken::Http1)).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
        assert_eq!(use_https(Spoken::Other), b"");
    }
}
