//! Takes a state from a rank that is ahead. Nothing that comes is trusted.
//!
//! The parts come to a task, which counts them and hands the bytes over a bounded queue to a thread that hashes them, and
//! decodes them or, where they would not fit into memory, puts them into a file without a name. The state is used only when
//! the stream came to its end, was as long and had the hash that its end says, could be read, and is the state that the ranks
//! agreed on.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::{Buf, Bytes};
use ringtune_proto::v1::{
    FetchStateRequest, FetchStateResponse, StateEnd, fetch_state_response::Part,
    ring_service_client::RingServiceClient,
};
use ringtune_shared::{
    ids::{ContentHash, Epoch, JobId, WorkerId},
    state::{Hashing, StateError},
    tasks::spawn_blocking,
};
use tokio::{sync::mpsc, task::JoinError, time::timeout};
use tonic::{Code, Streaming};

use super::{Error, Rings, StateProblem, state_give::LARGEST_CHUNK};
use crate::{
    error_chain::error_chain,
    rank_state::TakenState,
    status_text::status_text,
    train::{SavedState, saved::LARGEST_ENCODING},
};

/// A part and what is around it.
const MOST_MESSAGE_BYTES: usize = 2 * LARGEST_CHUNK;
/// Parts between the connection and the thread.
const QUEUED_PARTS: usize = 2;
/// Timeout between two parts.
const PART_LIMIT: Duration = Duration::from_secs(30);

/// A state to fetch, and its giver.
#[derive(Clone, Copy, Debug)]
pub struct FetchFrom<'a> {
    /// The giver.
    pub worker: WorkerId,
    /// Its address, host:port.
    pub address: &'a str,
    /// The job.
    pub job: JobId,
    /// Of the ring that both are in.
    pub epoch: Epoch,
    /// The giver's.
    pub rank: usize,
    /// The state after this step.
    pub step: u64,
    /// Its hash, as the ranks agreed.
    pub expected: ContentHash,
    /// Where it is kept until it is used.
    pub room: StateRoom<'a>,
}

/// Where a state is kept until it is complete.
#[derive(Clone, Copy, Debug)]
pub enum StateRoom<'a> {
    /// In memory: it is small.
    Memory,
    /// Into a file of this folder, which has no name and is gone with whoever holds it.
    Disk {
        /// The folder.
        folder: &'a Path,
        /// Bytes of its encoding at most.
        most_bytes: u64,
    },
}

impl StateRoom<'_> {
    fn most_bytes(&self) -> u64 {
        match self {
            Self::Memory => LARGEST_ENCODING,
            Self::Disk { most_bytes, .. } => *most_bytes,
        }
    }
}

impl Rings {
    /// Fetches a state and checks it: that it came whole, and that it is the expected one. May be dropped at any time, and is to be when the
    /// ring fails that both are in: a giver that serves others first says nothing meanwhile.
    ///
    /// # Errors
    /// The giver cannot be reached, refuses, or goes silent; what came is cut, too long, damaged, or another state; a newer
    /// epoch has taken the place.
    pub async fn fetch_state(&self, from: &FetchFrom<'_>) -> Result<TakenState, Error> {
        let FetchFrom { rank, address, .. } = *from;
        let place = self.place(from.job).filter(|place| place.epoch == from.epoch).ok_or(Error::Replaced)?;
        let wrong = |problem| Error::State { rank, address: address.to_owned(), problem };
        let unreachable = |reason| Error::Unreachable { rank, address: address.to_owned(), reason };
        // 1. Ask.
        let line = self.lines().to(from.worker, address).map_err(unreachable)?;
        let channel = line.connect().await.map_err(|error| unreachable(error_chain(&error)))?;
        let mut giver = RingServiceClient::new(channel).max_decoding_message_size(MOST_MESSAGE_BYTES);
        let request = FetchStateRequest {
            job_id: from.job.to_string(),
            epoch: from.epoch.0,
            // Both are far below 2^31 and 2^63; what is not is refused.
            rank: i32::try_from(place.rank).unwrap_or(-1),
            step: i64::try_from(from.step).unwrap_or(-1),
        };
        // It may have others to serve first, however long that takes.
        let answer = giver.fetch_state(request).await;
        let parts = answer.map_err(|status| wrong(of_answer(&status)))?.into_inner();
        // 2. Take in.
        take(parts, from.expected, &from.room).await?.map_err(wrong)
    }
}

fn of_answer(status: &tonic::Status) -> StateProblem {
    let reason = status_text(status);
    match status.code() {
        Code::NotFound
        | Code::FailedPrecondition
        | Code::InvalidArgument
        | Code::ResourceExhausted
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::Unimplemented => StateProblem::Refused { reason },
        _ => StateProblem::Broken { bytes: 0, reason },
    }
}

/// The state of a stream.
async fn take(
    parts: Streaming<FetchStateResponse>,
    expected: ContentHash,
    room: &StateRoom<'_>,
) -> Result<Result<TakenState, StateProblem>, JoinError> {
    let (bytes, queue) = mpsc::channel(QUEUED_PARTS);
    let folder: Option<PathBuf> = match room {
        StateRoom::Memory => None,
        StateRoom::Disk { folder, .. } => Some((*folder).to_owned()),
    };
    let reading = spawn_blocking(move || match folder {
        None => Found::read(queue),
        Some(folder) => Found::spool(queue, &folder),
    });
    let end = receive(parts, bytes, room.most_bytes()).await;
    let read = reading.await?;
    Ok(end.and_then(|end| judge(end, read, expected)))
}

/// Hands the parts on, until their end. What it gives back is what the stream says of itself.
async fn receive(
    mut parts: Streaming<FetchStateResponse>,
    queue: mpsc::Sender<Bytes>,
    limit: u64,
) -> Result<StateEnd, StateProblem> {
    let mut bytes = 0u64;
    let mut end = None;
    loop {
        let silent = |_| StateProblem::Silent { bytes, seconds: PART_LIMIT.as_secs_f64() };
        let next = timeout(PART_LIMIT, parts.message()).await.map_err(silent)?;
        let broken = |status: tonic::Status| StateProblem::Broken { bytes, reason: status_text(&status) };
        let part = match (next.map_err(broken)?, end.take()) {
            (None, Some(end)) => return Ok(end),
            (None, None) => return Err(StateProblem::Cut { bytes }),
            (Some(_), Some(_)) => return Err(StateProblem::AfterTheEnd),
            (Some(part), None) => part,
        };
        match part.part {
            Some(Part::Chunk(chunk)) => {
                if chunk.is_empty() || chunk.len() > LARGEST_CHUNK {
                    return Err(StateProblem::Chunk { given: chunk.len(), limit: LARGEST_CHUNK });
                }
                bytes += chunk.len() as u64;
                if bytes > limit {
                    return Err(StateProblem::TooLong { limit });
                }
                // The thread takes all; if it died, that is said by whoever waits for it.
                let _ = queue.send(chunk).await;
            }
            Some(Part::End(came)) => end = Some(came),
            None => return Err(StateProblem::Unknown),
        }
    }
}

/// The thread's result.
struct Found {
    bytes: u64,
    sha256: ContentHash,
    /// The state with its hash.
    state: Result<(TakenState, ContentHash), StateError>,
}

impl Found {
    /// Reads to the end in any case: whether the bytes are those that were sent comes before what they mean. Blocks.
    fn read(queue: mpsc::Receiver<Bytes>) -> Self {
        let mut reader = Hashing::new(Queue { parts: queue, current: Bytes::new() });
        let state = SavedState::decode(&mut reader).and_then(|state| {
            let hash = state.hash()?;
            Ok((TakenState::of(state)?, hash))
        });
        // A queue gives no error.
        let _ = io::copy(&mut reader, &mut io::sink());
        Self { bytes: Hashing::bytes(&reader), sha256: reader.hash(), state }
    }

    /// As above through a file, whose bytes are a canonical encoding if their hash is that of the state. Blocks.
    fn spool(queue: mpsc::Receiver<Bytes>, folder: &Path) -> Self {
        let mut reader = Hashing::new(Queue { parts: queue, current: Bytes::new() });
        let file = unnamed_file(folder).and_then(|mut file| {
            io::copy(&mut reader, &mut file)?;
            Ok(file)
        });
        let _ = io::copy(&mut reader, &mut io::sink());
        let (bytes, sha256) = (Hashing::bytes(&reader), reader.hash());
        let state = file.map_err(StateError::from).and_then(TakenState::in_file);
        Self { bytes, sha256, state: state.map(|state| (state, sha256)) }
    }
}

/// A new file that goes with its handle, whatever happens to this process.
fn unnamed_file(folder: &Path) -> io::Result<File> {
    let path = folder.join("state.tmp");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// Whether what came is what was to come.
fn judge(end: StateEnd, found: Found, expected: ContentHash) -> Result<TakenState, StateProblem> {
    let Found { bytes, sha256, state } = found;
    if end.size_bytes != bytes {
        return Err(StateProblem::Length { expected: end.size_bytes, found: bytes });
    }
    if end.sha256 != sha256.0 {
        let expected = end.sha256.iter().take(32).map(|byte| format!("{byte:02x}")).collect();
        return Err(StateProblem::Hash { expected, found: sha256 });
    }
    let (state, hash) = state.map_err(StateProblem::Unreadable)?;
    if hash != expected {
        return Err(StateProblem::Other { expected, found: hash });
    }
    Ok(state)
}

/// The bytes of the parts, one after the other, to be read on a thread that may block.
struct Queue {
    parts: mpsc::Receiver<Bytes>,
    current: Bytes,
}

impl Read for Queue {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            let Some(part) = self.parts.blocking_recv() else { return Ok(0) };
            self.current = part;
        }
        let count = self.current.len().min(buffer.len());
        self.current.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}
