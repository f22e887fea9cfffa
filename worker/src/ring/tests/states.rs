//! A state on its way from one worker to another, and everything that may be wrong with it.

use ringtune_proto::v1::{
    self, FetchStateResponse, StateEnd,
    fetch_state_response::Part,
    ring_service_server::{RingService, RingServiceServer},
};
use ringtune_shared::{
    ids::ContentHash,
    state::{Dtype, Encoder, MemoryState, Metadata, State as _, TensorInfo, transfer},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, transport::server::TcpIncoming};

use super::*;
use crate::{
    rank_state::RankState,
    ring::{FetchFrom, StateProblem, StateRoom},
    train::SavedState,
};

const STEP: u64 = 7;

/// Longer than two parts.
fn state() -> SavedState {
    let mut state = SavedState::default();
    state.put_tensor("rows", (0..600_000).map(|number| number as f32 * -0.5).collect());
    state.put_tensor("none", Vec::new());
    state.put_number("count", u64::MAX);
    state
}

/// A worker that gives, as rank 0, and one that takes, as rank 1, in rings of the same job of these epochs.
struct Pair {
    job: JobId,
    giver: (Rings, SocketAddr),
    taker: Rings,
    epoch: Epoch,
    /// Folder of a state until it is used; None: in memory.
    folder: Option<tempfile::TempDir>,
    _seats: (Seat, Seat),
}

async fn pair(giving: u64, taking: u64) -> Pair {
    let (giver, taker) = (listening(RingOptions::default()).await, listening(RingOptions::default()).await);
    let job = JobId::new();
    let of = |epoch| view(job, Epoch(epoch), [giver.1, taker.1]);
    let seats = (
        giver.0.take_seat(&of(giving), 0, 2, RING_PROTOCOLS.max).unwrap(),
        taker.0.take_seat(&of(taking), 1, 2, RING_PROTOCOLS.max).unwrap(),
    );
    Pair { job, giver, taker: taker.0, epoch: Epoch(taking), folder: None, _seats: seats }
}

impl Pair {
    async fn fetch(&self, step: u64) -> Result<SavedState, Error> {
        self.fetch_at(&self.giver.1.to_string(), step).await
    }

    async fn fetch_at(&self, address: &str, step: u64) -> Result<SavedState, Error> {
        let (job, epoch, expected) = (self.job, self.epoch, state().hash().unwrap());
        let most_bytes = RankState::small(state()).most_bytes();
        let room = self
            .folder
            .as_ref()
            .map_or(StateRoom::Memory, |folder| StateRoom::Disk { folder: folder.path(), most_bytes });
        self.taker
            .fetch_state(&FetchFrom {
                worker: WorkerId::new(),
                address,
                job,
                epoch,
                rank: 0,
                step,
                expected,
                room,
            })
            .await?
            .into_saved()
            .map_err(|error| panic!("{error}"))
    }
}

fn reason(fetched: Result<SavedState, Error>) -> String {
    match fetched {
        Err(Error::State { rank: 0, problem: StateProblem::Refused { reason }, .. }) => reason,
        other => panic!("it was not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_state_comes_over_bit_for_bit_also_to_one_that_asks_before_it_is_offered() {
    let pair = pair(3, 3).await;
    let offer = || pair.giver.0.offer_state(pair.job, Epoch(3), STEP, RankState::small(state()));
    let offered = offer();
    assert_eq!(pair.fetch(STEP).await.unwrap(), state());
    // An offer of another epoch is none.
    drop(offered);
    let _older = pair.giver.0.offer_state(pair.job, Epoch(2), STEP, RankState::small(SavedState::default()));
    let asking = pair.fetch(STEP);
    let offering = async {
        while pair.giver.0.waiting() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        offer()
    };
    let (fetched, _offer) = tokio::join!(asking, offering);
    assert_eq!(fetched.unwrap(), state());
}

#[tokio::test]
async fn another_job_epoch_or_step_is_refused() {
    let pair = pair(3, 3).await;
    let _offer = pair.giver.0.offer_state(pair.job, Epoch(3), STEP, RankState::small(state()));
    assert!(reason(pair.fetch(STEP - 1).await).contains("gives the state after step 7"));
    // The taker has a rank in a ring that the giver is not in.
    let strange = Pair { job: JobId::new(), ..pair_of(&pair) };
    let _seat =
        strange.taker.take_seat(&view(strange.job, Epoch(3), [strange.giver.1, nowhere()]), 1, 2, 3).unwrap();
    assert!(reason(strange.fetch(STEP).await).contains("no rank of job"));
    for (giving, taking, expected) in [(3, 4, "a newer one"), (4, 3, "an older one")] {
        let pair = super::states::pair(giving, taking).await;
        let _offer = pair.giver.0.offer_state(pair.job, Epoch(giving), STEP, RankState::small(state()));
        assert!(reason(pair.fetch(STEP).await).contains(expected));
        assert_eq!(pair.giver.0.metrics().stale_calls.get(), u64::from(taking < giving));
    }
    // A rank without a place in that epoch does not even ask.
    let late = Pair { epoch: Epoch(2), ..pair_of(&pair) };
    assert!(matches!(late.fetch(STEP).await, Err(Error::Replaced)));
}

fn nowhere() -> SocketAddr {
    "127.0.0.1:2".parse().unwrap()
}

/// The same two workers.
fn pair_of(pair: &Pair) -> Pair {
    let spare = |rank| {
        let rings = Rings::new(RingOptions::default(), Arc::new(Metrics::new().unwrap()));
        rings.take_seat(&view(JobId::new(), Epoch::FIRST, [nowhere(), pair.giver.1]), rank, 2, 3).unwrap()
    };
    let (giver, taker) = (pair.giver.clone(), pair.taker.clone());
    Pair { job: pair.job, giver, taker, epoch: pair.epoch, folder: None, _seats: (spare(0), spare(1)) }
}

/// A worker that sends whatever it was told to.
struct Liar(Vec<Result<FetchStateResponse, Status>>);

#[tonic::async_trait]
impl RingService for Liar {
    type FetchStateStream = ReceiverStream<Result<FetchStateResponse, Status>>;

    async fn fetch_state(
        &self,
        _: Request<v1::FetchStateRequest>,
    ) -> Result<Response<Self::FetchStateStream>, Status> {
        let (parts, taken) = tokio::sync::mpsc::channel(1);
        let told = self.0.clone();
        ringtune_shared::tasks::spawn(async move {
            for part in told {
                if parts.send(part).await.is_err() {
                    break;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(taken)))
    }

    async fn invite(&self, _: Request<v1::InviteRequest>) -> Result<Response<v1::InviteResponse>, Status> {
        Err(Status::unimplemented("it only lies"))
    }

    async fn measure(
        &self,
        _: Request<tonic::Streaming<v1::MeasureRequest>>,
    ) -> Result<Response<v1::MeasureResponse>, Status> {
        Err(Status::unimplemented("it only lies"))
    }

    async fn exchange(
        &self,
        _: Request<tonic::Streaming<v1::ExchangeRequest>>,
    ) -> Result<Response<v1::ExchangeResponse>, Status> {
        Err(Status::unimplemented("it only lies"))
    }
}

fn part(part: Part) -> Result<FetchStateResponse, Status> {
    Ok(FetchStateResponse { part: Some(part) })
}

fn chunks(bytes: &[u8]) -> Vec<Result<FetchStateResponse, Status>> {
    bytes.chunks(1 << 20).map(|chunk| part(Part::Chunk(bytes::Bytes::copy_from_slice(chunk)))).collect()
}

fn end(size_bytes: u64, sha256: ContentHash) -> Result<FetchStateResponse, Status> {
    part(Part::End(StateEnd { size_bytes, sha256: sha256.0.to_vec() }))
}

/// As an honest giver sends these bytes.
fn honest(bytes: &[u8]) -> Vec<Result<FetchStateResponse, Status>> {
    let mut parts = chunks(bytes);
    parts.push(end(bytes.len() as u64, ContentHash::of(bytes)));
    parts
}

/// A state of the same counters, with a matrix.
fn of_another_layout() -> Vec<u8> {
    let matrix = TensorInfo::new("rows", Dtype::F32, vec![2, 2]).unwrap();
    let tensors = MemoryState::new(vec![(matrix, vec![0; 16])]).unwrap();
    let counters = ("ringtune.counters".to_owned(), "{\"count\":1}".to_owned());
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(Metadata::from([counters]), &mut bytes);
    transfer(&mut *tensors.source().unwrap(), &mut encoder).unwrap();
    bytes
}

/// A bad stream: its name, its parts, and the problem that it is.
type Case = (&'static str, Vec<Result<FetchStateResponse, Status>>, fn(&StateProblem) -> bool);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bad_stream_has_its_own_error_and_nothing_of_it_is_used() {
    let mut pair = pair(3, 3).await;
    try_bad_streams(&pair).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    pair.folder = Some(folder);
    try_bad_streams(&pair).await;
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 0, "something was left on the disk");
}

async fn try_bad_streams(pair: &Pair) {
    let mut bytes = Vec::new();
    state().write(&mut bytes).unwrap();
    let (size, sha256) = (bytes.len() as u64, ContentHash::of(&bytes));
    let flipped = |place: usize| {
        let mut bytes = bytes.clone();
        bytes[place] ^= 1;
        bytes
    };
    let last = bytes.len() - 1;
    let ending = |mut parts: Vec<_>, more: Vec<_>| {
        parts.extend(more);
        parts
    };
    let mut other = state();
    other.put_number("count", 3);
    let mut other_bytes = Vec::new();
    other.write(&mut other_bytes).unwrap();
    let megabyte = bytes::Bytes::from(vec![7; 1 << 20]);
    let endless = std::iter::repeat_n(part(Part::Chunk(megabyte)), 300).collect();
    let large = part(Part::Chunk(vec![7; (1 << 20) + 1].into()));
    let broken = Err(Status::internal("it fell over"));
    let cases: Vec<Case> = vec![
        ("cut", chunks(&bytes[..1000]), |it| matches!(it, StateProblem::Cut { bytes: 1000 })),
        ("all but its end", chunks(&bytes), |it| matches!(it, StateProblem::Cut { .. })),
        ("nothing", vec![], |it| matches!(it, StateProblem::Cut { bytes: 0 })),
        (
            "broken",
            ending(chunks(&bytes[..9]), vec![broken]),
            |it| matches!(it, StateProblem::Broken { bytes: 9, reason } if reason.contains("it fell over")),
        ),
        ("too long", endless, |it| matches!(it, StateProblem::TooLong { .. })),
        ("a large part", vec![large], |it| matches!(it, StateProblem::Chunk { .. })),
        ("an empty part", vec![part(Part::Chunk(bytes::Bytes::new()))], |it| {
            matches!(it, StateProblem::Chunk { given: 0, .. })
        }),
        ("an unknown part", vec![Ok(FetchStateResponse { part: None })], |it| {
            matches!(it, StateProblem::Unknown)
        }),
        ("two ends", ending(honest(&bytes), vec![end(size, sha256)]), |it| {
            matches!(it, StateProblem::AfterTheEnd)
        }),
        ("another length", ending(chunks(&bytes), vec![end(size + 1, sha256)]), |it| {
            matches!(it, StateProblem::Length { .. })
        }),
        ("a flipped bit", ending(chunks(&flipped(last)), vec![end(size, sha256)]), |it| {
            matches!(it, StateProblem::Hash { .. })
        }),
        ("a flipped bit in front", ending(chunks(&flipped(20)), vec![end(size, sha256)]), |it| {
            matches!(it, StateProblem::Hash { .. })
        }),
        (
            "a hash that is none",
            ending(
                chunks(&bytes),
                vec![part(Part::End(StateEnd { size_bytes: size, sha256: vec![1; 1000] }))],
            ),
            |it| matches!(it, StateProblem::Hash { .. }),
        ),
        ("a byte too many", honest(&[bytes.as_slice(), &[0]].concat()), |it| {
            matches!(it, StateProblem::Unreadable(_))
        }),
        ("a byte too few", honest(&bytes[..last]), |it| matches!(it, StateProblem::Unreadable(_))),
        ("no state", honest(b"not a state at all"), |it| matches!(it, StateProblem::Unreadable(_))),
        (
            "another layout",
            honest(&of_another_layout()),
            // Through a file, it is not read before its hash was compared.
            |it| match it {
                StateProblem::Unreadable(problem) => problem.to_string().contains("F32 [2, 2]"),
                it => matches!(it, StateProblem::Other { .. }),
            },
        ),
        ("another state", honest(&other_bytes), |it| matches!(it, StateProblem::Other { .. })),
        ("a state with a flipped bit", honest(&flipped(last)), |it| matches!(it, StateProblem::Other { .. })),
    ];
    // The liar is believed when it tells the truth.
    assert_eq!(from_liar(pair, honest(&bytes)).await.unwrap(), state());
    for (name, parts, expected) in cases {
        match from_liar(pair, parts).await {
            Err(Error::State { rank: 0, problem, .. }) if expected(&problem) => {}
            other => panic!("{name}: {:?}", other.map(|state| state.numbers)),
        }
    }
}

async fn from_liar(pair: &Pair, parts: Vec<Result<FetchStateResponse, Status>>) -> Result<SavedState, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Server::builder()
        .add_service(RingServiceServer::new(Liar(parts)))
        .serve_with_incoming(TcpIncoming::from(listener));
    let serving = tokio_util::task::AbortOnDropHandle::new(ringtune_shared::tasks::spawn(server));
    let fetched = pair.fetch_at(&address, STEP).await;
    drop(serving);
    fetched
}
