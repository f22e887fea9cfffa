//! Gives a state to a rank that is behind, as a stream.
//!
//! Encoding and hashing block, so they have a thread; a task takes the parts from there to the connection. Two bounded
//! queues are between them: a neighbour that takes its time holds the thread, and nothing piles up.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ringtune_proto::v1::{self, FetchStateResponse, fetch_state_response::Part};
use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tracing::{Instrument as _, debug};

use super::registry::Given;

/// Bytes of a part at most.
pub(super) const LARGEST_CHUNK: usize = 1 << 20;
/// Parts in each of the two queues.
const QUEUED_PARTS: usize = 2;
/// Timeout of the other side for taking in a part.
const PART_LIMIT: Duration = Duration::from_secs(30);

type Parts = ReceiverStream<Result<FetchStateResponse, Status>>;

/// Begins to send a state, after those that others asked for before: each of these goes on or ends. It ends without its end when the offer
/// is withdrawn or the other side stops taking in. Dropped when nobody wants it any more.
///
/// # Errors
/// The offer was withdrawn before it began.
pub(super) async fn give(given: Given, giving: Arc<Semaphore>) -> Result<Parts, Status> {
    let span = given.span.clone();
    give_with(given, giving).instrument(span).await
}

async fn give_with(given: Given, giving: Arc<Semaphore>) -> Result<Parts, Status> {
    let gone = || Status::not_found("this worker's rank does not offer this state any more");
    let turn = given.withdrawn.run_until_cancelled(giving.acquire_owned()).await;
    let Some(Ok(turn)) = turn else { return Err(gone()) };
    let (encoded, mut to_pass_on) = mpsc::channel(QUEUED_PARTS);
    let (parts, taken) = mpsc::channel(QUEUED_PARTS);
    let Given { state, withdrawn, .. } = given;
    // 1. The thread. Its queue ends with it.
    ringtune_shared::tasks::spawn_blocking(move || {
        let mut parts = Chunks { parts: encoded };
        // Chunks of the encoding are as small as the tensors; the connection's are not.
        let mut writer = io::BufWriter::with_capacity(LARGEST_CHUNK, &mut parts);
        let outcome = state.write(&mut writer);
        drop(writer);
        let last = match outcome {
            Ok(encoded) => Ok(part(Part::End(v1::StateEnd {
                size_bytes: encoded.bytes,
                sha256: encoded.sha256.0.to_vec(),
            }))),
            Err(error) => Err(Status::internal(format!("the state cannot be sent: {error}"))),
        };
        // A taker that left needs no end.
        let _ = parts.parts.blocking_send(last);
    });
    // 2. The task. When it ends, so does the thread.
    ringtune_shared::tasks::spawn(async move {
        let pass_on = async {
            while let Some(part) = to_pass_on.recv().await {
                match timeout(PART_LIMIT, parts.send(part)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return debug!("a rank does not want the state any more"),
                    Err(_) => return debug!("a rank does not take in the state that it asked for"),
                }
            }
        };
        tokio::select! {
            () = pass_on => {}
            () = withdrawn.cancelled() => {}
        }
        drop(turn);
    });
    Ok(ReceiverStream::new(taken))
}

fn part(part: Part) -> FetchStateResponse {
    FetchStateResponse { part: Some(part) }
}

/// Cuts what is written into parts.
struct Chunks {
    parts: mpsc::Sender<Result<FetchStateResponse, Status>>,
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let chunk = bytes.get(..LARGEST_CHUNK).unwrap_or(bytes);
        let sent = self.parts.blocking_send(Ok(part(Part::Chunk(Bytes::copy_from_slice(chunk)))));
        sent.map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "nobody wants the state any more"))?;
        Ok(chunk.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
