//! Which rings this worker has a place in, and where their streams go.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ringtune_shared::{
    ids::{Epoch, JobId},
    ring::{Place, Ring, RingConfig, RingView},
    version::RING_PROTOCOLS,
};
use tokio::{sync::mpsc, time::timeout};
use tonic::Status;

use super::{
    Error,
    transport::{self, GrpcTransport, IncomingStream, Outgoing},
};
use crate::{http::Metrics, session::Assignment};

/// How rings work here.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// A neighbour without a sign of life for so long is lost.
    pub peer_timeout: Duration,
    /// How long the neighbours may take to connect: a coordinator that restarts between telling one rank and
    /// telling the next takes its time.
    pub connect_timeout: Duration,
}

impl Default for RingOptions {
    fn default() -> Self {
        Self { peer_timeout: Duration::from_secs(30), connect_timeout: Duration::from_secs(120) }
    }
}

/// The places of this worker. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Rings {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: RingOptions,
    metrics: Arc<Metrics>,
    places: Mutex<HashMap<JobId, Registered>>,
}

#[derive(Debug)]
struct Registered {
    place: Place,
    streams: mpsc::Sender<IncomingStream>,
}

/// What the first message of a stream says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opening {
    pub(super) job: JobId,
    pub(super) epoch: Epoch,
    pub(super) rank: i32,
    pub(super) world_size: i32,
}

impl Rings {
    /// No places yet.
    pub fn new(options: RingOptions, metrics: Arc<Metrics>) -> Self {
        Self { shared: Arc::new(Shared { options, metrics, places: Mutex::default() }) }
    }

    /// Takes the assignment's place; streams for it are accepted from now on. An older epoch of the same job
    /// loses its place.
    pub fn take_seat(&self, assignment: &Assignment) -> Result<Seat, Error> {
        let rows = assignment.spec.global_microbatches() as usize;
        let mut seat = self.take_place(assignment.ring.clone(), assignment.rank, rows)?;
        seat.protocol = assignment.ring_protocol;
        Ok(seat)
    }

    /// The same from its parts. `rows`: microbatches of a step, over all ranks.
    pub(super) fn take_place(&self, view: RingView, rank: usize, rows: usize) -> Result<Seat, Error> {
        view.check()?;
        view.next_of(rank)?;
        let place = Place { job: view.job, epoch: view.epoch, rank, world_size: view.world_size() };
        let (streams, incoming) = mpsc::channel(1);
        self.places().insert(place.job, Registered { place, streams });
        let protocol = RING_PROTOCOLS.max;
        Ok(Seat { rings: self.clone(), view, place, rows, protocol, incoming })
    }

    pub(super) fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.shared.metrics)
    }

    /// Where a stream that begins so belongs. Every reason to refuse it is told to the caller.
    pub(super) fn find(&self, opening: Opening) -> Result<mpsc::Sender<IncomingStream>, Status> {
        let places = self.places();
        let Opening { job, epoch, rank, world_size } = opening;
        let Some(Registered { place, streams }) = places.get(&job) else {
            return Err(Status::not_found(format!("this worker has no rank of job {job}")));
        };
        if epoch != place.epoch {
            let age = if epoch < place.epoch { "an older" } else { "a newer" };
            let text = format!("epoch {epoch} is {age} one: this rank is at epoch {}", place.epoch);
            return Err(Status::failed_precondition(text));
        }
        let expected = (place.previous(), place.world_size);
        if (usize::try_from(rank), usize::try_from(world_size)) != (Ok(expected.0), Ok(expected.1)) {
            return Err(Status::failed_precondition(format!(
                "rank {rank} of {world_size} calls, but rank {} of {} precedes this one, which is rank {}",
                expected.0, expected.1, place.rank
            )));
        }
        Ok(streams.clone())
    }

    fn give_up(&self, place: Place) {
        let mut places = self.places();
        if places.get(&place.job).is_some_and(|registered| registered.place == place) {
            places.remove(&place.job);
        }
    }

    fn places(&self) -> MutexGuard<'_, HashMap<JobId, Registered>> {
        self.shared.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in one epoch of a job's ring, before the neighbours are connected. Dropping it gives the place up.
#[derive(Debug)]
pub struct Seat {
    rings: Rings,
    view: RingView,
    place: Place,
    pub(super) rows: usize,
    /// Of RingService, as all members speak it.
    protocol: u32,
    incoming: mpsc::Receiver<IncomingStream>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.rings.give_up(self.place);
    }
}

impl Seat {
    /// Dials the next rank and waits for the previous one.
    pub(super) async fn ring(&mut self) -> Result<Ring, Error> {
        let place = self.place;
        if place.world_size == 1 {
            return Ok(Ring::alone(place.job, place.epoch));
        }
        let transport = Box::new(self.transport().await?);
        let peer_timeout = self.rings.shared.options.peer_timeout;
        let config = RingConfig {
            pulse_interval: Duration::from_secs(1).min(peer_timeout / 4),
            peer_timeout,
            ..RingConfig::default()
        };
        Ok(Ring::start(place, transport, config)?)
    }

    /// The streams to and from the neighbours. Both at once: a ring is a cycle, and somebody has to be first.
    pub(super) async fn transport(&mut self) -> Result<GrpcTransport, Error> {
        let (place, protocol) = (self.place, self.protocol);
        let limit = self.rings.shared.options.connect_timeout;
        let next_address = self.view.next_of(place.rank)?.address.clone();
        let previous_address = self.view.previous_of(place.rank)?.address.clone();
        let metrics = self.rings.metrics();
        let dial = async {
            let unreachable =
                |reason| Error::Unreachable { rank: place.next(), address: next_address.clone(), reason };
            match timeout(limit, transport::dial(&next_address, place, protocol, metrics)).await {
                Ok(dialled) => dialled.map_err(unreachable),
                Err(_) => Err(unreachable(format!("no connection within {} s", limit.as_secs_f64()))),
            }
        };
        let listen = async {
            match timeout(limit, self.incoming.recv()).await {
                Ok(Some(stream)) => Ok(stream),
                Ok(None) => Err(Error::Replaced),
                Err(_) => Err(Error::NotCalled {
                    rank: place.previous(),
                    address: previous_address,
                    seconds: limit.as_secs_f64(),
                }),
            }
        };
        let (outgoing, stream): (Outgoing, IncomingStream) = tokio::try_join!(dial, listen)?;
        Ok(GrpcTransport::new(outgoing, stream))
    }
}
