//! The parts of an upload, from a client that keeps its pace.

use std::time::Duration;

use ringtune_proto::convert::FieldError;
use ringtune_proto::v1::{self, upload_request::Part};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::status::{FailedRequest, shutting_down};

/// Bytes that an upload brings at least while it is waited for as long as the idle limit.
const LEAST_BYTES: usize = 64 << 10;

/// An upload's messages.
pub(super) struct Parts {
    messages: Streaming<v1::UploadRequest>,
    pace: Pace,
    shutdown: CancellationToken,
}

/// How long a client was waited for, and what it brought meanwhile.
#[derive(Debug)]
struct Pace {
    limit: Duration,
    waited: Duration,
    bytes: usize,
}

impl Parts {
    /// `idle_limit`: so long a client is waited for until it has brought 64 KiB, or all.
    pub(super) fn new(
        messages: Streaming<v1::UploadRequest>,
        idle_limit: Duration,
        shutdown: CancellationToken,
    ) -> Self {
        let pace = Pace { limit: idle_limit, waited: Duration::ZERO, bytes: 0 };
        Self { messages, pace, shutdown }
    }

    /// The next part; none at the end. A client that falls silent, or nearly, does not keep its place.
    pub(super) async fn next(&mut self) -> Result<Option<Part>, Status> {
        let begin = Instant::now();
        let message = tokio::select! {
            message = tokio::time::timeout(self.pace.left(), self.messages.message()) => message,
            () = self.shutdown.cancelled() => return Err(shutting_down()),
        };
        let message = message.map_err(|_| self.pace.too_slow())??;
        let part = match message {
            None => return Ok(None),
            Some(v1::UploadRequest { part: Some(part) }) => part,
            Some(v1::UploadRequest { part: None }) => {
                return Err(FailedRequest::from(FieldError::new("part", "is missing")).into());
            }
        };
        let bytes = if let Part::Chunk(chunk) = &part { chunk.len() } else { 0 };
        self.pace.came(begin.elapsed(), bytes);
        Ok(Some(part))
    }
}

impl Pace {
    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.waited)
    }

    /// Only waiting for the client counts: that the disk is slow is not its fault.
    fn came(&mut self, waited: Duration, bytes: usize) {
        self.waited += waited;
        self.bytes += bytes;
        if self.bytes >= LEAST_BYTES {
            (self.waited, self.bytes) = (Duration::ZERO, 0);
        }
    }

    fn too_slow(&self) -> Status {
        Status::deadline_exceeded(format!(
            "{} bytes came in {} s, and an upload that brings fewer than {LEAST_BYTES} in that time is ended; what came is kept",
            self.bytes,
            self.limit.as_secs_f64()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_enough_bytes_start_the_time_anew() {
        let second = Duration::from_secs(1);
        let mut pace = Pace { limit: 60 * second, waited: Duration::ZERO, bytes: 0 };
        for _ in 0..59 {
            pace.came(second, 1);
        }
        assert_eq!(pace.left(), second);
        pace.came(second, LEAST_BYTES);
        assert_eq!(pace.left(), 60 * second);
        pace.came(100 * second, 0);
        assert_eq!(pace.left(), Duration::ZERO);
    }
}
