//! That all that live know within the lease, and half a second, that a rank is gone.

use ringtune_shared::ring::{Place, Ring, RingError};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::harness::EPOCH;
use super::*;

/// Longer than any lease.
const LONG: Duration = Duration::from_secs(3600);
/// The lease, and half a second.
const BOUND: Duration = Duration::from_millis(3000);

/// What the ranks do meanwhile.
#[derive(Debug, Clone, Copy)]
enum Busy {
    /// Nothing: no collective.
    Idle,
    /// All are in one collective after the other.
    Exchanging,
    /// This one computes and does not come to the collective that the others have begun.
    Computing(usize),
}

/// When each rank's ring failed, counted from the start, and how. None: not within an hour.
async fn ends(
    world_size: usize,
    faulty: usize,
    fault: Fault,
    busy: Busy,
) -> Vec<Option<(Duration, RingError)>> {
    let (job, graveyard) = (JobId::new(), Graveyard::default());
    let began = Instant::now();
    let mut ranks = JoinSet::new();
    for (rank, transport) in memory::ring(world_size, 4).into_iter().enumerate() {
        let mut transport = AnyTransport::new(transport);
        if rank == faulty {
            transport = Faulty::any(transport, fault, &graveyard);
        }
        let place = Place { job, epoch: EPOCH, rank, world_size };
        let ring = Ring::start(place, transport, RingConfig::default()).unwrap();
        let watching = ring.canceller();
        ranks.spawn(async move {
            let mut ring = ring;
            let working = async {
                match busy {
                    Busy::Idle => sleep(LONG * 2).await,
                    Busy::Computing(slow) if slow == rank => sleep(LONG * 2).await,
                    // Pauses, as between steps: a second in which frames and pulses take turns.
                    _ => {
                        while ring.gather_rows(&[rank as f32; 500], 500, world_size).await.is_ok() {
                            sleep(Duration::from_millis(1100)).await;
                        }
                    }
                }
                std::future::pending().await
            };
            let failed = async {
                let error = watching.failed().await;
                (began.elapsed(), error)
            };
            let end = tokio::select! {
                end = timeout(LONG, failed) => end.ok(),
                () = working => None,
            };
            // A rank whose ring failed lets go of it, which its neighbours see.
            drop(ring);
            (rank, end)
        });
    }
    let mut ends = ranks.join_all().await;
    ends.sort_by_key(|(rank, _)| *rank);
    ends.into_iter().map(|(_, end)| end).collect()
}

#[tokio::test(start_paused = true)]
async fn all_that_live_know_within_the_lease_that_a_rank_is_gone() {
    for world_size in [2, 3, 4, 7, 20] {
        let gone = world_size / 2;
        // As kill -9, SIGSTOP and a cut link have it; before the first frame, and in the second collective.
        for after in [0, world_size] {
            for fault in [Fault::Die { after }, Fault::Freeze { after }, Fault::Swallow { after }] {
                for busy in [
                    Busy::Idle,
                    Busy::Exchanging,
                    Busy::Computing((gone + 1) % world_size),
                    Busy::Computing(0),
                ] {
                    // The fault comes with a frame that is never sent.
                    if after > 0 && !matches!(busy, Busy::Exchanging) {
                        continue;
                    }
                    let case = format!("{world_size} ranks, rank {gone}: {fault:?}, {busy:?}");
                    // One pause before the second collective.
                    let bound = if after == 0 { BOUND } else { BOUND + Duration::from_millis(1100) };
                    for (rank, end) in ends(world_size, gone, fault, busy).await.into_iter().enumerate() {
                        // The one that is gone knows nothing any more; at the two ends of a cut link, both live.
                        if rank == gone && !matches!(fault, Fault::Swallow { .. }) {
                            continue;
                        }
                        let Some((after, error)) = end else { panic!("{case}: rank {rank} never knew") };
                        assert!(after <= bound, "{case}: rank {rank} took {after:?}: {error}");
                        let first = rank == (gone + 1) % world_size;
                        let right = match (&error, fault) {
                            // The one after it hears nothing of it. The one before it may have received all of a
                            // collective, and cannot get rid of what it has to send.
                            (RingError::Stalled { rank: blamed, .. }, Fault::Freeze { .. }) => {
                                *blamed == gone && (first || (rank + 1) % world_size == gone)
                            }
                            (RingError::Stalled { rank: blamed, .. }, Fault::Swallow { .. }) => {
                                first && *blamed == gone || rank == gone && *blamed == (gone + 1) % world_size
                            }
                            (RingError::PeerLost { .. }, Fault::Die { .. }) => true,
                            (RingError::PeerLost { .. }, _) => !first,
                            _ => false,
                        };
                        assert!(right, "{case}: rank {rank}: {error}");
                    }
                }
            }
        }
    }
}

/// One that pulses is not lost, however long it computes, and whoever is ahead waits for it.
#[tokio::test(start_paused = true)]
async fn a_rank_that_computes_for_an_hour_is_lost_to_nobody() {
    for world_size in [2, 3, 7] {
        for slow in [0, world_size - 1] {
            let never = Fault::Die { after: usize::MAX };
            let ends = ends(world_size, 0, never, Busy::Computing(slow)).await;
            assert!(ends.iter().all(Option::is_none), "{world_size} ranks, rank {slow} is slow: {ends:?}");
        }
    }
}
