//! The outcome of a call in words.

use tonic::{Code, Status};

/// The code and the text of a status. A connection that broke in the middle of a call has neither from the other side: what
/// the libraries say of it is about their own protocols.
pub(crate) fn status_text(status: &Status) -> String {
    let message = status.message();
    let is_transport = matches!(status.code(), Code::Unknown | Code::Internal)
        && (message.starts_with("h2 protocol error") || message.contains("close_notify"));
    if is_transport {
        return "the connection was closed before there was an answer".to_owned();
    }
    format!("{}: {message}", status.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_broke_is_no_answer() {
        for broken in
            ["h2 protocol error: http2 error", "peer closed connection without sending TLS close_notify"]
        {
            let text = status_text(&Status::unknown(broken));
            assert_eq!(text, "the connection was closed before there was an answer");
        }
        let said = Status::unavailable("shutting down");
        assert_eq!(status_text(&said), format!("{}: shutting down", Code::Unavailable));
    }
}
