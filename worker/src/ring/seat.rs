//! A place in a ring, and how its neighbours get connected.

use std::{
    future::{Future, poll_fn},
    task::Poll,
    time::Duration,
};

use ringtune_security::Validity;
use ringtune_shared::{
    ring::{Place, Ring, RingConfig, RingView},
    version::GROWING_RING_PROTOCOL,
};
use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{
    Error, Rings,
    lines::{Dialled, NextRank, NoConnection},
    outgoing::{Ended, Outgoing},
    reach::Vigil,
    registry::{Called, Registration},
    stripes::{Gathered, StreamCount, Trial},
    transport::{GrpcTransport, IncomingStream},
};

/// Pulses come so often, where the lease allows it.
const PULSE_INTERVAL: Duration = Duration::from_millis(500);
/// Between two attempts to reach the next rank, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// A place in one epoch of a job's ring, before the neighbours are connected. Dropping it gives the place up.
#[derive(Debug)]
pub struct Seat {
    registration: Registration,
    view: RingView,
    place: Place,
    rows: usize,
    /// Of RingService, as all members speak it.
    protocol: u32,
    /// Bytes of a step's exchange.
    step_bytes: u64,
    /// When the certificates of its connections are good, once there are any.
    valid: Option<Validity>,
    /// Keeps an eye on the neighbours until all ranks are there.
    vigil: Option<Vigil>,
    /// Description of the connections to the next rank, if notable.
    reached: Option<String>,
}

impl Rings {
    /// Takes the place of `rank` in a ring; streams for it are accepted from now on, those that came before too. An older
    /// epoch of the same job loses its place. `rows`: microbatches of a step, over all ranks; `protocol`: of RingService,
    /// as all members speak it.
    ///
    /// # Errors
    /// The members make no ring, or not one with this rank; [`Error::Replaced`] if a newer epoch has the place.
    pub fn take_seat(&self, view: &RingView, rank: usize, rows: usize, protocol: u32) -> Result<Seat, Error> {
        view.check()?;
        view.next_of(rank)?;
        let place = Place { job: view.job, epoch: view.epoch, rank, world_size: view.world_size() };
        let members = view.members.iter().map(|member| member.worker).collect();
        let registration = self.register(place, members)?;
        let view = view.clone();
        Ok(Seat {
            registration,
            view,
            place,
            rows,
            protocol,
            step_bytes: 0,
            valid: None,
            vigil: None,
            reached: None,
        })
    }
}

impl Seat {
    /// Says how many bytes a step brings to the ring: where they are many, it is measured how many connections to the next rank are
    /// worth while.
    #[must_use]
    pub fn for_steps_of(self, step_bytes: u64) -> Self {
        Self { step_bytes, ..self }
    }

    /// Awaits a future of a complete ring. Until it is complete, a neighbour may be lost that was never heard.
    ///
    /// # Errors
    /// The future's, or a neighbour that is lost.
    pub(super) async fn guard<T, E: Into<Error>>(
        &mut self,
        first: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Error> {
        let Some(vigil) = &mut self.vigil else { return first.await.map_err(Into::into) };
        let given = tokio::select! {
            biased;
            given = first => given.map_err(Into::into)?,
            lost = vigil.failed() => return Err(lost),
        };
        self.vigil = None;
        Ok(given)
    }

    /// Describes the connections to the next rank, if there are several or they were measured.
    pub fn reached(&self) -> Option<&str> {
        self.reached.as_deref()
    }

    /// Microbatches of a step, over all ranks.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Of RingService, as all members speak it.
    pub(super) fn protocol(&self) -> u32 {
        self.protocol
    }

    /// When the certificates of its connections are good. None: without TLS, or before there are any.
    pub(super) fn valid(&self) -> Option<Validity> {
        self.valid
    }

    /// Dials the next rank and waits for the previous one; what comes back is the exchange alone, which lasts as long as the
    /// seat is held. That takes as long as it takes, while both neighbours answer at all: one may have a step to finish, or not
    /// have heard of the ring yet.
    ///
    /// # Errors
    /// As [`Seat::connect`].
    pub async fn ring(&mut self) -> Result<Ring, Error> {
        let place = self.place;
        if place.world_size == 1 {
            return Ok(Ring::alone(place.job, place.epoch));
        }
        let view = &self.view;
        let both =
            [place.next(), place.previous()].map(|rank| view.members.get(rank).map(|member| (rank, member)));
        let mut neighbours: Vec<_> = both.into_iter().flatten().collect();
        neighbours.dedup_by_key(|(rank, _)| *rank);
        let mut vigil = self.registration.rings.watch(&neighbours)?;
        let transport = tokio::select! {
            biased;
            connected = self.transport() => connected?,
            lost = vigil.failed() => return Err(lost),
        };
        self.vigil = Some(vigil);
        self.valid = transport.valid();
        let peer_timeout = self.registration.rings.options().peer_timeout;
        let default = RingConfig::default();
        let config = RingConfig {
            pulse_interval: PULSE_INTERVAL.min(peer_timeout / 4),
            peer_timeout,
            // Until then the vigil is kept.
            first_sign: Duration::MAX,
            segment_growth: if self.protocol < GROWING_RING_PROTOCOL { 1 } else { default.segment_growth },
            ..default
        };
        let runtime = self.registration.rings.runtime();
        let _there = runtime.enter();
        Ok(Ring::start(place, transport, config)?)
    }

    /// The streams to and from the neighbours. Both at once: a ring is a cycle, and somebody has to be first.
    pub(super) async fn transport(&mut self) -> Result<GrpcTransport, Error> {
        let connections = self.registration.rings.options().connections;
        let (place, view) = (self.place, &self.view);
        let member = view.next_of(place.rank)?;
        let next = NextRank {
            worker: member.worker,
            address: member.address.clone(),
            place,
            protocol: self.protocol,
            wanted: StreamCount::of(connections, self.step_bytes),
            attempt: 0,
            lines: self.registration.rings.lines(),
            metrics: self.registration.rings.metrics(),
        };
        let heard = CancellationToken::new();
        let dial = dial(next, heard.cancelled());
        let listen = async {
            let called = all_of_one(&mut self.registration.incoming).await;
            heard.cancel();
            called.ok_or(Error::Replaced)
        };
        // A listener that has failed says more than the dialler that waits for it.
        let (incoming, dialled) = tokio::try_join!(biased; listen, dial)?;
        let Dialled { streams, trial } = dialled;
        self.reached = trial.text(place.next(), streams.len());
        Ok(GrpcTransport::new(streams, incoming))
    }
}

/// All streams of the previous rank, in order; None if no more come.
async fn all_of_one(called: &mut mpsc::Receiver<Called>) -> Option<Vec<IncomingStream>> {
    let mut gathered = Gathered::default();
    loop {
        let (stripe, stream) = called.recv().await?;
        if let Some(streams) = gathered.add(stripe, stream) {
            return Some(streams);
        }
    }
}

/// Dials until somebody takes the streams: a neighbour may not be listening yet, or may not know of the ring yet. What the
/// next rank makes of them is watched until the previous one has called too; from then on the ring does that. Whether the
/// next rank is there at all is for the [`Vigil`] to say.
async fn dial(mut next: NextRank, heard: impl Future<Output = ()>) -> Result<Dialled, Error> {
    let (rank, address) = (next.place.next(), next.address.clone());
    let unreachable = |reason| Error::Unreachable { rank, address: address.clone(), reason };
    let line = next.line().map_err(unreachable)?;
    tokio::pin!(heard);
    let (mut pause, longest) = PAUSES;
    let mut measured = Trial::default();
    loop {
        next.attempt += 1;
        match next.dial(&line).await {
            Err(NoConnection { reason, .. }) => debug!(reason, rank, "the next rank is not reached yet"),
            Ok(Dialled { mut streams, trial }) => {
                // Once is enough.
                if next.wanted == StreamCount::Measured {
                    (next.wanted, measured) = (StreamCount::Exactly(streams.len()), trial);
                }
                tokio::select! {
                    biased;
                    ended = first_ended(&mut streams) => match ended {
                        Ended::TooEarly(reason) => debug!(reason, rank, "the next rank is not there yet"),
                        Ended::Refused(reason) => return Err(Error::Refused { rank, address, reason }),
                        Ended::Broken(reason) => return Err(unreachable(reason)),
                    },
                    () = &mut heard => return Ok(Dialled { streams, trial: measured }),
                }
            }
        }
        sleep(pause).await;
        pause = longest.min(pause * 2);
    }
}

/// Waits until one of them has ended. None of them is of any use then.
async fn first_ended(streams: &mut [Outgoing]) -> Ended {
    let mut ends: Vec<_> = streams.iter_mut().map(|stream| Box::pin(stream.ended())).collect();
    poll_fn(|context| {
        let ended = ends.iter_mut().find_map(|end| match end.as_mut().poll(context) {
            Poll::Ready(ended) => Some(ended),
            Poll::Pending => None,
        });
        ended.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}
