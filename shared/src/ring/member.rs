//! A rank's hold on its ring.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::link::{self, Inbox, Lease, Received, Status};
use super::pool::Pool;
use super::segments::segment_of;
use super::{Frame, Place, RingError, Transport};
use crate::ids::{Epoch, JobId};
use crate::tasks;

/// A ring's configuration. All ranks must have the same `segment_floats` and `segment_growth`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingConfig {
    /// Numbers in a segment, 1 to 262144 (1 MiB). Default 65536 (256 KiB).
    pub segment_floats: usize,
    /// The segments of large buffers have up to so many times as many numbers, up to 262144 too; 1: none has. Default 2.
    pub segment_growth: usize,
    /// Frames that wait to be sent, and frames that wait to be used, at least 2 each; of those that wait to be used, there
    /// may be more where they are not full: as many bytes as that many full ones. Default 16.
    pub frames_in_flight: usize,
    /// Between pulses while there is nothing to send. Default 0.5 s.
    pub pulse_interval: Duration,
    /// Maximal silence of a neighbour; at least two pulse intervals. It is lost when this and one more pulse
    /// interval are over. Default 2 s.
    pub peer_timeout: Duration,
    /// Extra time for the first sign of life: a previous rank gives none before its own previous rank is connected, which
    /// may wait for others again. Default 0, for ranks that begin together.
    pub first_sign: Duration,
}

impl Default for RingConfig {
    fn default() -> Self {
        Self {
            segment_floats: 1 << 16,
            segment_growth: 2,
            frames_in_flight: 16,
            pulse_interval: Duration::from_millis(500),
            peer_timeout: Duration::from_secs(2),
            first_sign: Duration::ZERO,
        }
    }
}

impl RingConfig {
    /// Numbers of a frame at most.
    pub(super) const LARGEST_SEGMENT: usize = 1 << 18;

    fn check(&self) -> Result<(), RingError> {
        let wrong = if self.segment_floats == 0 || self.segment_floats > Self::LARGEST_SEGMENT {
            format!("segment_floats: got {}; allowed: 1 to {}", self.segment_floats, Self::LARGEST_SEGMENT)
        } else if self.segment_growth == 0
            || self.segment_growth > Self::LARGEST_SEGMENT / self.segment_floats
        {
            let most = Self::LARGEST_SEGMENT / self.segment_floats;
            format!("segment_growth: got {}; allowed: 1 to {most}", self.segment_growth)
        } else if self.frames_in_flight < 2 {
            format!("frames_in_flight: got {}; allowed: at least 2", self.frames_in_flight)
        } else if self.pulse_interval.is_zero() || self.peer_timeout < self.pulse_interval * 2 {
            format!(
                "peer_timeout: got {:?} with pulses every {:?}; allowed: at least two pulses",
                self.peer_timeout, self.pulse_interval
            )
        } else {
            return Ok(());
        };
        Err(RingError::Misuse(wrong))
    }
}

/// Durations of the last collective.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exchange {
    /// In total.
    pub total: Duration,
    /// The part before the first frame came: what this rank waited for slower ones.
    pub wait: Duration,
    /// Payload that this rank sent.
    pub sent_bytes: u64,
    /// The segments that it was cut into.
    pub sent_segments: u64,
}

/// A rank's hold on its ring, for one epoch.
///
/// All ranks must call the same collectives in the same order. Once one has failed, or its future
/// was dropped half-way, the ring is unusable. Dropping the ring breaks it for the
/// neighbours too; [`Ring::close`] leaves it in peace.
pub struct Ring {
    pub(super) place: Place,
    segment_floats: usize,
    segment_growth: usize,
    /// Collectives begun.
    pub(super) collective: u64,
    pub(super) last_exchange: Exchange,
    /// Absent in a ring of one.
    pub(super) links: Option<Links>,
    pub(super) status: watch::Sender<Status>,
}

/// The ends of the queues to and from the two tasks, and the tasks.
pub(super) struct Links {
    pub(super) outgoing: mpsc::Sender<Frame>,
    pub(super) incoming: mpsc::Receiver<Received>,
    pub(super) status: watch::Receiver<Status>,
    pub(super) lease: Lease,
    pub(super) pool: Pool,
    /// Runtime of the tasks and collectives.
    pub(super) runtime: Handle,
    sending: JoinHandle<()>,
    receiving: JoinHandle<()>,
}

impl Drop for Links {
    fn drop(&mut self) {
        self.sending.abort();
        self.receiving.abort();
    }
}

/// Makes a ring fail from elsewhere.
#[derive(Clone)]
pub struct Canceller {
    status: watch::Sender<Status>,
}

impl Canceller {
    /// Ends the collective that is under way, and all later ones, with [`RingError::Cancelled`].
    pub fn cancel(&self) {
        link::fail(&self.status, RingError::Cancelled);
    }

    /// Waits until the ring has failed, for whatever reason. Never ends while it has not.
    ///
    /// A rank that is in no collective learns that a neighbour is gone as long as there is room for
    /// the frames that come before; at the latest it learns it in its next collective.
    pub async fn failed(&self) -> RingError {
        link::failed(self.status.subscribe()).await
    }
}

impl Ring {
    /// Takes a place in a ring of several ranks. Pulses begin at once.
    ///
    /// Must be called within a tokio runtime: there its frames are sent, received and added up, whoever waits for it.
    pub fn start(place: Place, transport: impl Transport, config: RingConfig) -> Result<Self, RingError> {
        config.check()?;
        if place.rank >= place.world_size {
            let problem = format!("there is no rank {} in a ring of {}", place.rank, place.world_size);
            return Err(RingError::Misuse(problem));
        }
        if place.world_size == 1 {
            return Ok(Self::alone(place.job, place.epoch));
        }
        let (status, status_seen) = watch::channel(Status::Open);
        let (outgoing, to_send) = mpsc::channel(config.frames_in_flight);
        let (inbox, incoming) = Inbox::new(config.frames_in_flight, config.segment_floats * 4);
        let lease = Lease { peer_timeout: config.peer_timeout, pulse_interval: config.pulse_interval };
        let (send_half, receive_half) = transport.split();
        let sending =
            tasks::spawn(link::send_frames(send_half, to_send, place, config.pulse_interval, status.clone()));
        let first = Lease { peer_timeout: config.peer_timeout.saturating_add(config.first_sign), ..lease };
        let receiving = link::receive_frames(receive_half, inbox, place, first, lease, status.clone());
        let receiving = tasks::spawn(receiving);
        // Frames to be sent, frames in the transport, and sums in between.
        let pool = Pool::new(config.frames_in_flight.saturating_mul(4));
        let runtime = Handle::current();
        let links =
            Links { outgoing, incoming, status: status_seen, lease, pool, runtime, sending, receiving };
        Ok(Self {
            place,
            segment_floats: config.segment_floats,
            segment_growth: config.segment_growth,
            collective: 0,
            last_exchange: Exchange::default(),
            links: Some(links),
            status,
        })
    }

    /// A ring of one: its collectives are copies.
    pub fn alone(job: JobId, epoch: Epoch) -> Self {
        Self {
            place: Place { job, epoch, rank: 0, world_size: 1 },
            segment_floats: RingConfig::default().segment_floats,
            segment_growth: 1,
            collective: 0,
            last_exchange: Exchange::default(),
            links: None,
            status: watch::channel(Status::Open).0,
        }
    }

    /// Numbers of a segment, where so many numbers are cut into chunks.
    pub(super) fn segment_of(&self, length: usize) -> usize {
        segment_of(length, self.place.world_size, self.segment_floats, self.segment_growth)
    }

    /// This rank's place.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Durations of the last collective.
    pub fn last_exchange(&self) -> Exchange {
        self.last_exchange
    }

    /// A handle that ends the ring, or waits for its end, from elsewhere.
    pub fn canceller(&self) -> Canceller {
        Canceller { status: self.status.clone() }
    }

    /// The error that the ring has failed with, if it has.
    pub fn failure(&self) -> Option<RingError> {
        link::failure(&self.status)
    }

    /// Makes the ring fail and gives back the error that it failed with first.
    pub(super) fn failed_with(&self, error: RingError) -> RingError {
        link::fail(&self.status, error.clone());
        self.failure().unwrap_or(error)
    }

    /// Leaves the ring in peace, after the last collective: what was sent still arrives, and the
    /// neighbours do not take it for a failure. The next rank must take in for that within the lease: this rank is through
    /// the last collective, so the next one has begun it, and listens whatever it is busy with. Then waits until the
    /// previous rank leaves as well, or gives no sign of life for the lease: it may still wait for what others have to
    /// send, and would take this rank's end for a failure of the ring.
    pub async fn close(mut self) -> Result<(), RingError> {
        if self.place.world_size == 1 {
            return Ok(());
        }
        let Some(mut links) = self.links.take() else { return Err(self.failed_with(RingError::Cancelled)) };

        // 1. A queue without a sender ends the sending task, which says good-bye.
        let (nowhere, _) = mpsc::channel(1);
        drop(std::mem::replace(&mut links.outgoing, nowhere));
        match links.lease.within(&mut links.sending).await {
            Some(Ok(())) => {}
            // The runtime ends: nobody said good-bye.
            Some(Err(_)) => return Err(self.failed_with(RingError::Cancelled)),
            None => {
                let stalled = RingError::Stalled { rank: self.place.next(), silent: links.lease.length() };
                return Err(self.failed_with(stalled));
            }
        }
        if let Some(error) = self.failure() {
            return Err(error);
        }

        // 2. All of this rank's is where it belongs. Whatever happens from here on is not its
        //    concern; it only stays to listen. The receiving task ends the queue.
        while links.incoming.recv().await.is_some() {}
        Ok(())
    }
}
