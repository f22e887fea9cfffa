//! The two tasks that keep a rank in touch with its neighbours, whatever it is doing itself.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};

use super::{Frame, LinkBroken, Place, ReceiveHalf, RingError, SendHalf, Signal};

/// A ring's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Status {
    /// Nothing has gone wrong so far.
    Open,
    /// It is over.
    Failed(RingError),
}

/// Makes a ring fail, unless it has failed before. Both tasks then end and break the connections,
/// so that the neighbours learn of it.
pub(super) fn fail(status: &watch::Sender<Status>, error: RingError) {
    status.send_if_modified(|status| {
        let first = !matches!(status, Status::Failed(_));
        if first {
            *status = Status::Failed(error);
        }
        first
    });
}

/// The error that a ring has failed with, if it has.
pub(super) fn failure(status: &watch::Sender<Status>) -> Option<RingError> {
    match &*status.borrow() {
        Status::Failed(error) => Some(error.clone()),
        Status::Open => None,
    }
}

/// Waits until a ring fails. Never ends for one that is dropped unfailed.
pub(super) async fn failed(mut status: watch::Receiver<Status>) -> RingError {
    let found =
        status.wait_for(|status| matches!(status, Status::Failed(_))).await.map(|status| status.clone());
    match found {
        Ok(Status::Failed(error)) => error,
        _ => std::future::pending().await,
    }
}

/// How long a neighbour may give no sign of life: `peer_timeout`, and after that another `pulse_interval`. A process that
/// was itself frozen finds the first deadline passed when it wakes, and must look at what has come meanwhile before it
/// blames anybody.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) peer_timeout: Duration,
    pub(super) pulse_interval: Duration,
}

impl Lease {
    /// Its whole length.
    pub(super) fn length(self) -> Duration {
        self.peer_timeout.saturating_add(self.pulse_interval)
    }

    /// Waits until it is over. The second part begins when this runs after the first, however late that is.
    pub(super) async fn over(self) {
        sleep(self.peer_timeout).await;
        sleep(self.pulse_interval).await;
    }

    /// Awaits a future within the lease; None when it is over.
    pub(super) async fn within<T>(self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            given = future => Some(given),
            () = self.over() => None,
        }
    }
}

/// A frame that waits to be used, and the room that it takes until then.
pub(super) struct Received {
    pub(super) frame: Frame,
    _room: OwnedSemaphorePermit,
}

/// Queue of received frames, bounded by their bytes: a rank that still computes has room for all the small
/// frames of a collective that the others have begun, and so goes on to listen.
pub(super) struct Inbox {
    frames: mpsc::Sender<Received>,
    room: Arc<Semaphore>,
    bytes: usize,
    /// Minimal cost of a frame.
    least: usize,
}

impl Inbox {
    /// A frame takes no less room, so that there are not too many of them. Where segments are smaller, as in tests, these
    /// are the bound.
    const LEAST_BYTES: usize = 1 << 10;

    /// An inbox with room for a number of frames with whole segments.
    pub(super) fn new(full_frames: usize, segment: usize) -> (Self, mpsc::Receiver<Received>) {
        let least = segment.min(Self::LEAST_BYTES);
        let bytes = full_frames.saturating_mul(segment).min(Semaphore::MAX_PERMITS);
        let (frames, received) = mpsc::channel(bytes.div_ceil(least));
        (Self { frames, room: Arc::new(Semaphore::new(bytes)), bytes, least }, received)
    }

    /// Waits for room. False: nobody wants frames any more.
    async fn put(&self, frame: Frame) -> bool {
        let bytes = frame.payload.len().max(self.least).min(self.bytes);
        let room = Arc::clone(&self.room).acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX));
        tokio::select! {
            biased;
            () = self.frames.closed() => false,
            room = room => match room {
                Ok(room) => self.frames.send(Received { frame, _room: room }).await.is_ok(),
                Err(_) => false,
            },
        }
    }
}

/// Sends what the collectives hand over; between frames, pulses. Ends cleanly once the queue is
/// closed and empty.
///
/// A next rank that is gone is a failure only when there is a frame for it: it may have all it
/// needed and have left while this rank still takes in. If it died instead, the ranks after it
/// notice, and then this one through the ring.
pub(super) async fn send_frames(
    mut half: impl SendHalf,
    mut frames: mpsc::Receiver<Frame>,
    place: Place,
    pulse_interval: Duration,
    status: watch::Sender<Status>,
) {
    let work = async {
        loop {
            let next_frame = timeout(pulse_interval, frames.recv()).await;
            let sent = match next_frame {
                Ok(Some(frame)) => half.send(Signal::Frame(frame)).await,
                Ok(None) => {
                    // This rank is done; whether the next one still listens is not its concern.
                    let _ = half.finish().await;
                    return Ok(());
                }
                Err(_) => {
                    let pulse = Signal::Pulse { job: place.job, epoch: place.epoch };
                    match half.send(pulse).await {
                        Err(gone) if frames.recv().await.is_some() => Err(gone),
                        Err(_) => return Ok(()),
                        Ok(()) => Ok(()),
                    }
                }
            };
            sent?;
        }
    };
    tokio::select! {
        biased;
        _ = failed(status.subscribe()) => {}
        sent = work => if let Err(LinkBroken(reason)) = sent {
            fail(&status, RingError::PeerLost { rank: place.next(), reason });
        },
    }
}

/// Receives from the previous rank, watches its signs of life, and passes frames to the collectives.
/// `first`: lease for the first sign of life; `later`: for all others.
pub(super) async fn receive_frames(
    mut half: impl ReceiveHalf,
    inbox: Inbox,
    place: Place,
    first: Lease,
    later: Lease,
    status: watch::Sender<Status>,
) {
    let work = async {
        let mut lease = first;
        // A full inbox keeps this from listening. Its frames are signs of life themselves; silence is
        // measured again once there is room.
        while let Some(signal) = hear(&mut half, place, lease).await? {
            lease = later;
            check_membership(&signal, place)?;
            if let Signal::Frame(frame) = signal
                && !inbox.put(frame).await
            {
                break;
            }
        }
        Ok(())
    };
    let received = tokio::select! {
        biased;
        _ = failed(status.subscribe()) => return,
        received = work => received,
    };
    // A previous rank that is done ends this task and with it the queue: a failure only for a
    // collective that still waits for frames.
    if let Err(error) = received {
        fail(&status, error);
    }
}

/// The next signal, unless there is none for the whole lease.
async fn hear(half: &mut impl ReceiveHalf, place: Place, lease: Lease) -> Result<Option<Signal>, RingError> {
    let rank = place.previous();
    match lease.within(half.receive()).await {
        Some(heard) => heard.map_err(|LinkBroken(reason)| RingError::PeerLost { rank, reason }),
        None => Err(RingError::Stalled { rank, silent: lease.length() }),
    }
}

fn check_membership(signal: &Signal, place: Place) -> Result<(), RingError> {
    let rank = place.previous();
    if signal.job() != place.job {
        let problem = format!("it speaks for job {} in the ring of job {}", signal.job(), place.job);
        return Err(RingError::Protocol { rank, problem });
    }
    let (got, current) = (signal.epoch(), place.epoch);
    if got < current {
        return Err(RingError::StaleEpoch { rank, got, current });
    }
    if got > current {
        let problem = format!("it speaks for epoch {got}, but the ring is at epoch {current}");
        return Err(RingError::Protocol { rank, problem });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::ids::{Epoch, JobId};

    const LEASE: Lease =
        Lease { peer_timeout: Duration::from_secs(2), pulse_interval: Duration::from_millis(500) };

    struct Channel(mpsc::Receiver<Signal>);

    impl ReceiveHalf for Channel {
        async fn receive(&mut self) -> Result<Option<Signal>, LinkBroken> {
            Ok(self.0.recv().await)
        }
    }

    /// The first sign of life may take longer than those after it.
    #[tokio::test(start_paused = true)]
    async fn a_neighbour_that_still_waits_for_its_own_is_waited_for() {
        let place = Place { job: JobId::new(), epoch: Epoch(1), rank: 0, world_size: 2 };
        let (send, receive) = mpsc::channel(1);
        let (inbox, _frames) = Inbox::new(2, 4);
        let (status, mut seen) = watch::channel(Status::Open);
        let first = Lease { peer_timeout: Duration::MAX, ..LEASE };
        tokio::spawn(receive_frames(Channel(receive), inbox, place, first, LEASE, status));
        assert!(timeout(Duration::from_secs(3600), seen.changed()).await.is_err());
        send.send(Signal::Pulse { job: place.job, epoch: place.epoch }).await.unwrap();
        let stalled = RingError::Stalled { rank: 1, silent: Duration::from_millis(2500) };
        timeout(Duration::from_secs(3), seen.changed()).await.unwrap().unwrap();
        assert_eq!(*seen.borrow(), Status::Failed(stalled));
    }

    /// Signals that came while this process was frozen arrive once its other tasks run again.
    #[tokio::test(start_paused = true)]
    async fn a_process_that_was_frozen_looks_at_what_came_before_it_blames_its_neighbour() {
        let place = Place { job: JobId::new(), epoch: Epoch(1), rank: 0, world_size: 2 };
        for wakes_in_time in [true, false] {
            let (send, receive) = mpsc::channel(1);
            let hearing =
                tokio::spawn(async move { hear(&mut Channel(receive), place, LEASE).await.map(drop) });
            tokio::task::yield_now().await;
            advance(Duration::from_secs(60)).await;
            if wakes_in_time {
                advance(Duration::from_millis(400)).await;
                send.send(Signal::Pulse { job: place.job, epoch: place.epoch }).await.unwrap();
                assert_eq!(hearing.await.unwrap(), Ok(()));
            } else {
                let expected = RingError::Stalled { rank: 1, silent: Duration::from_millis(2500) };
                assert_eq!(hearing.await.unwrap(), Err(expected));
            }
        }
    }
}
