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
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    Error, Rings,
    lines::{Dialled, NextRank, NoConnection, Why},
    outgoing::{Ended, Outgoing},
    registry::{Called, Registration},
    stripes::{Gathered, Trial, Wanted},
    transport::{GrpcTransport, IncomingStream},
};

/// Pulses come so often, where the lease allows it.
const PULSE_INTERVAL: Duration = Duration::from_millis(500);
/// Between two attempts to reach the next rank, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// A neighbour listens from before it is given a rank for as long as it lives. So if nobody does for so long, it is gone.
const NOBODY_LISTENS: Duration = Duration::from_secs(1);
/// The members learn of a new root, or of somebody's new certificate, one after the other. Who does not believe the other
/// for so long does not, and the ring is to be formed without it.
const NOT_BELIEVED: Duration = Duration::from_secs(5);

/// A place in one epoch of a job's ring, before the neighbours are connected. Dropping it gives the place up.
#[derive(Debug)]
pub struct Seat {
    registration: Registration,
    view: RingView,
    place: Place,
    rows: usize,
    /// Of RingService, as all members speak it.
    protocol: u32,
    /// That a step brings to the ring.
    step_bytes: u64,
    /// When the certificates of its connections are good, once there are any.
    valid: Option<Validity>,
    /// The members finish a step of the ring before it first.
    after_step: bool,
    /// How the next rank is reached, where that is worth a word.
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
            after_step: false,
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

    /// Says whether the ring before it is whole, and its members finish a step there before they connect. That takes as long as it
    /// takes: whoever is lost meanwhile is the coordinator's to find, and then there is another ring.
    #[must_use]
    pub fn after_step(self, after_step: bool) -> Self {
        Self { after_step, ..self }
    }

    /// How long the neighbours may take to connect. None: as long as it takes.
    fn limit(&self) -> Option<Duration> {
        Some(self.registration.rings.options().connect_timeout).filter(|_| !self.after_step)
    }

    /// How the next rank is reached, for people: where there are several connections, or it was measured how many are worth while.
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
    /// seat is held.
    ///
    /// # Errors
    /// As [`Seat::connect`].
    pub async fn ring(&mut self) -> Result<Ring, Error> {
        let place = self.place;
        if place.world_size == 1 {
            return Ok(Ring::alone(place.job, place.epoch));
        }
        let transport = self.transport().await?;
        self.valid = transport.valid();
        let peer_timeout = self.registration.rings.options().peer_timeout;
        let default = RingConfig::default();
        let config = RingConfig {
            pulse_interval: PULSE_INTERVAL.min(peer_timeout / 4),
            peer_timeout,
            first_sign: self.limit().unwrap_or(Duration::MAX),
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
        let deadline = Deadline::after(self.limit());
        let (place, view) = (self.place, &self.view);
        let previous = (place.previous(), view.previous_of(place.rank)?.address.clone());
        let member = view.next_of(place.rank)?;
        let next = NextRank {
            worker: member.worker,
            address: member.address.clone(),
            place,
            protocol: self.protocol,
            wanted: Wanted::of(connections, self.step_bytes),
            attempt: 0,
            lines: self.registration.rings.lines(),
            metrics: self.registration.rings.metrics(),
        };
        let heard = CancellationToken::new();
        let dial = dial(next, deadline, heard.cancelled());
        let listen = async {
            let called = deadline.within(all_of_one(&mut self.registration.incoming)).await;
            heard.cancel();
            match called {
                Ok(Some(streams)) => Ok(streams),
                Ok(None) => Err(Error::Replaced),
                Err(Late { seconds }) => {
                    let (rank, address) = previous;
                    Err(Error::NotCalled { rank, address, seconds })
                }
            }
        };
        // A listener that has failed says more than the dialler that waits for it.
        let (incoming, dialled) = tokio::try_join!(biased; listen, dial)?;
        let Dialled { streams, trial } = dialled;
        self.reached = trial.text(place.next(), streams.len());
        Ok(GrpcTransport::new(streams, incoming))
    }
}

/// Until when the neighbours may take to connect.
#[derive(Clone, Copy, Debug)]
struct Deadline(Option<(Instant, Duration)>);

/// It is over, after so many seconds.
struct Late {
    seconds: f64,
}

impl Deadline {
    fn after(limit: Option<Duration>) -> Self {
        Self(limit.map(|limit| (Instant::now() + limit, limit)))
    }

    /// What a future gives before it.
    async fn within<T>(self, future: impl Future<Output = T>) -> Result<T, Late> {
        match self.0 {
            None => Ok(future.await),
            Some((at, limit)) => {
                timeout_at(at, future).await.map_err(|_| Late { seconds: limit.as_secs_f64() })
            }
        }
    }

    /// Waits a while, unless it is over by then.
    async fn pause(self, pause: Duration) -> Result<(), Late> {
        if let Some((at, limit)) = self.0
            && Instant::now() + pause >= at
        {
            return Err(Late { seconds: limit.as_secs_f64() });
        }
        sleep(pause).await;
        Ok(())
    }
}

/// All streams of the previous rank, in their order; none when no more come.
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
/// next rank makes of them is watched until the previous one has called too; from then on the ring does that.
async fn dial(
    mut next: NextRank,
    deadline: Deadline,
    heard: impl Future<Output = ()>,
) -> Result<Dialled, Error> {
    let (rank, address) = (next.place.next(), next.address.clone());
    let unreachable = |reason| Error::Unreachable { rank, address: address.clone(), reason };
    let line = next.line().map_err(unreachable)?;
    tokio::pin!(heard);
    let (mut pause, longest) = PAUSES;
    let (mut alone_since, mut disbelieved_since) = (None, None);
    let mut measured = Trial::default();
    loop {
        next.attempt += 1;
        let reason = match deadline.within(next.dial(&line)).await {
            Err(Late { seconds }) => return Err(unreachable(format!("no connection within {seconds} s"))),
            Ok(Err(NoConnection { reason, why: Why::NobodyListens })) => {
                let since = *alone_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= NOBODY_LISTENS {
                    return Err(unreachable(reason));
                }
                pause = PAUSES.0;
                reason
            }
            Ok(Err(NoConnection { reason, why: Why::Disbelief })) => {
                let since = *disbelieved_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= NOT_BELIEVED {
                    return Err(Error::Refused { rank, address: address.clone(), reason });
                }
                reason
            }
            Ok(Err(NoConnection { reason, why: Why::Other })) => reason,
            Ok(Ok(Dialled { mut streams, trial })) => {
                // Once is enough.
                if next.wanted == Wanted::Measured {
                    (next.wanted, measured) = (Wanted::Exactly(streams.len()), trial);
                }
                tokio::select! {
                    biased;
                    ended = first_ended(&mut streams) => match ended {
                        Ended::TooEarly(reason) => reason,
                        Ended::Refused(reason) => return Err(Error::Refused { rank, address, reason }),
                        Ended::Broken(reason) => return Err(unreachable(reason)),
                    },
                    () = &mut heard => return Ok(Dialled { streams, trial: measured }),
                }
            }
        };
        if let Err(Late { seconds }) = deadline.pause(pause).await {
            return Err(unreachable(format!("{reason} (for {seconds} s)")));
        }
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
