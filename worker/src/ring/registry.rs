//! Registry of this worker's rings: its places, the states that it offers, and the streams that arrive.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use ringtune_security::{Invitation, Listener, LocalDoor, Peer, Trust};
use ringtune_shared::{
    ids::{Epoch, JobId, WorkerId},
    ring::Place,
};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, SemaphorePermit, mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::{Span, info, warn};

use super::{
    Error,
    admission::{self, Admission, Calling, Opening, Roster, Wish},
    lines::{self, Lines, Locally},
    stripes::{MOST_STRIPES, Stripe},
    transport::IncomingStream,
};
use crate::{http::Metrics, rank_state::RankState};

/// Calls that wait for a place or an offer at the same time.
const MOST_WAITING: usize = 128;
/// Limit of one worker's waiting calls: it has a neighbour or two, and in several jobs at most for a moment; all its streams wait at once.
const MOST_WAITING_OF_ONE: usize = 2 * MOST_STRIPES;
/// The previous rank's stream waits so long for this rank to take its seat, and then comes again: a coordinator that restarts
/// between telling one rank and telling the next takes its time.
const SEAT_PATIENCE: Duration = Duration::from_secs(120);
/// A state that is asked for is offered within this time: all ranks conclude at the same time that it has to be.
const OFFER_PATIENCE: Duration = Duration::from_secs(10);
/// States that are sent at the same time; who comes later waits.
const MOST_STATES_AT_ONCE: usize = 2;

/// Answer of a worker without a local socket.
pub(super) const NO_DOOR: &str = "this worker has no local socket";

/// A stream from the previous rank, and which of that one's it is.
pub(super) type Called = (Stripe, IncomingStream);

/// Options of this worker's rings.
#[derive(Clone, Debug)]
pub struct RingOptions {
    /// A neighbour without a sign of life for so long, and for one pulse more, is lost.
    pub peer_timeout: Duration,
    /// In a secured cluster whom this worker believes: it calls its neighbours over TLS.
    pub trust: Option<Trust>,
    /// Neighbours on the same machine reach each other through Unix sockets, and this worker's is here. None: it has none, and
    /// uses none.
    pub local_socket: Option<PathBuf>,
    /// Large payloads to such a neighbour go through shared memory.
    pub shared_memory: bool,
    /// Connections through ports to a next rank, 1 to 8; 0: as many as a measurement finds worth while, where steps bring much to
    /// the ring.
    pub connections: usize,
    /// Where its connections are read and written, and what comes is added up; see [`super::RingThread`]. None: in the
    /// runtime that asks for it.
    pub runtime: Option<Handle>,
}

impl Default for RingOptions {
    fn default() -> Self {
        Self {
            peer_timeout: Duration::from_secs(2),
            trust: None,
            local_socket: None,
            shared_memory: true,
            connections: 0,
            runtime: None,
        }
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
    held: Mutex<Held>,
    /// Something was added to what is held.
    changes: watch::Sender<()>,
    waiting: Semaphore,
    giving: Arc<Semaphore>,
    /// Once the port is served.
    door: OnceLock<LocalDoor>,
}

#[derive(Debug, Default)]
struct Held {
    places: BTreeMap<JobId, Registered>,
    offers: BTreeMap<JobId, Offered>,
    /// Number of waiting calls by caller.
    waiting: BTreeMap<WorkerId, usize>,
    /// Places and offers so far: each has a number of its own.
    count: u64,
}

#[derive(Debug)]
struct Registered {
    number: u64,
    roster: Roster,
    streams: mpsc::Sender<Called>,
    /// Of the rank that has the place: what is said about calls for it.
    span: Span,
}

#[derive(Debug)]
struct Offered {
    number: u64,
    epoch: Epoch,
    step: u64,
    given: Given,
}

/// A state on its way to its taker.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) state: RankState,
    /// It is offered no more: what is under way ends.
    pub(super) withdrawn: CancellationToken,
    /// Of the rank that gives it.
    pub(super) span: Span,
}

impl Rings {
    /// No places yet.
    pub fn new(options: RingOptions, metrics: Arc<Metrics>) -> Self {
        let shared = Shared {
            options,
            metrics,
            held: Mutex::default(),
            changes: watch::Sender::new(()),
            waiting: Semaphore::new(MOST_WAITING),
            giving: Arc::new(Semaphore::new(MOST_STATES_AT_ONCE)),
            door: OnceLock::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Streams for this place are accepted from now on, those that came before too. What had a place in the same ring, or
    /// in an older one of the same job, loses it. `members`: who has which rank.
    ///
    /// # Errors
    /// [`Error::Replaced`]: a newer epoch has the place.
    pub(super) fn register(&self, place: Place, members: Arc<[WorkerId]>) -> Result<Registration, Error> {
        let (streams, incoming) = mpsc::channel(MOST_STRIPES);
        let mut held = self.held();
        if held.places.get(&place.job).is_some_and(|other| other.roster.place.epoch > place.epoch) {
            return Err(Error::Replaced);
        }
        held.count += 1;
        let number = held.count;
        let roster = Roster { place, members };
        held.places.insert(place.job, Registered { number, roster, streams, span: Span::current() });
        drop(held);
        self.shared.changes.send_replace(());
        Ok(Registration { rings: self.clone(), job: place.job, number, incoming })
    }

    /// Offers the state of this job in this epoch, as long as the guard lives: `state` is the one after
    /// `step`. A second offer for the same job takes the place of the first.
    pub fn offer_state(&self, job: JobId, epoch: Epoch, step: u64, state: RankState) -> StateOffer {
        let given = Given { state, withdrawn: CancellationToken::new(), span: Span::current() };
        let mut held = self.held();
        held.count += 1;
        let number = held.count;
        if let Some(before) = held.offers.insert(job, Offered { number, epoch, step, given }) {
            before.given.withdrawn.cancel();
        }
        drop(held);
        self.shared.changes.send_replace(());
        StateOffer { rings: self.clone(), job, number }
    }

    /// Opens the local socket beside the port where the streams come, if there is to be one. Without it neighbours come through
    /// the port.
    pub fn open_locally(&self, listener: &Listener) {
        let Some(path) = &self.shared.options.local_socket else { return };
        match listener.open_locally(path) {
            // Once: a worker has one port.
            Ok(door) => drop(self.shared.door.set(door)),
            Err(error) => info!(
                path = %path.display(), %error, "there is no local socket: neighbours on this machine come through the port"
            ),
        }
    }

    /// Lets a caller come through the local socket.
    pub(super) fn invite(&self, peer: &Peer) -> Result<Invitation, Status> {
        let door = self.shared.door.get().ok_or_else(|| Status::unimplemented(NO_DOOR))?;
        door.invite(peer).map_err(|error| Status::resource_exhausted(error.to_string()))
    }

    /// For the server: how often HTTP/2 asks whether a connection stands, and how long an answer may take.
    pub(crate) fn keep_alive(&self) -> (Duration, Duration) {
        lines::keep_alive(self.shared.options.peer_timeout)
    }

    /// Whether this worker has a place in any ring.
    pub(crate) fn has_places(&self) -> bool {
        !self.held().places.is_empty()
    }

    /// Opens connections to neighbours.
    pub(super) fn lines(&self) -> Lines {
        let RingOptions { peer_timeout, trust, local_socket, shared_memory, .. } = &self.shared.options;
        let locally = local_socket.as_ref().map(|_| Locally { shared_memory: *shared_memory });
        Lines { peer_timeout: *peer_timeout, trust: trust.clone(), locally, runtime: self.runtime() }
    }

    /// Runtime of the rings' tasks.
    pub(super) fn runtime(&self) -> Handle {
        self.shared.options.runtime.clone().unwrap_or_else(Handle::current)
    }

    pub(super) fn options(&self) -> &RingOptions {
        &self.shared.options
    }

    pub(super) fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.shared.metrics)
    }

    pub(super) fn giving(&self) -> Arc<Semaphore> {
        Arc::clone(&self.shared.giving)
    }

    /// The place that this worker has in the ring of a job.
    pub(super) fn place(&self, job: JobId) -> Option<Place> {
        self.held().places.get(&job).map(|registered| registered.roster.place)
    }

    /// Where a stream that begins so belongs; waits for the place to be taken. Every reason to refuse it is told to the
    /// caller.
    pub(super) async fn find(&self, opening: Opening) -> Result<mpsc::Sender<Called>, Status> {
        let look = |held: &Held| {
            let registered = held.places.get(&opening.job);
            let admission = admission::of_stream(registered.map(|registered| &registered.roster), opening);
            (admission, registered.map(|registered| registered.streams.clone()))
        };
        let late =
            || Status::not_found(format!("this worker has no rank of job {} in its epoch", opening.job));
        self.wait(opening.calling, opening.job, SEAT_PATIENCE, look, late).await
    }

    /// The state that a rank asks for; waits for it to be offered.
    pub(super) async fn wanted(&self, wish: Wish) -> Result<Given, Status> {
        let look = |held: &Held| {
            let roster = held.places.get(&wish.job).map(|registered| &registered.roster);
            let is_present = |offered: &&Offered| roster.is_some_and(|it| it.place.epoch == offered.epoch);
            let offered = held.offers.get(&wish.job).filter(is_present);
            let admission = admission::of_wish(roster, offered.map(|offered| offered.step), wish);
            (admission, offered.map(|offered| offered.given.clone()))
        };
        self.wait(wish.calling, wish.job, OFFER_PATIENCE, look, || {
            Status::failed_precondition("this rank gives no state")
        })
        .await
    }

    /// Looks at what is held, and again whenever something is added to it, until a call is let in or refused.
    async fn wait<T>(
        &self,
        calling: Calling,
        job: JobId,
        patience: Duration,
        look: impl Fn(&Held) -> (Admission, Option<T>),
        late: impl FnOnce() -> Status,
    ) -> Result<T, Status> {
        let look = || {
            let held = self.held();
            let span = held.places.get(&job).map_or_else(Span::none, |registered| registered.span.clone());
            (look(&held), span)
        };
        let decide = || match look() {
            ((Admission::Welcome, found), _) => found.map(Ok),
            ((Admission::NotYet, _), _) => None,
            ((Admission::Refused(status), _), _) => Some(Err(status)),
            ((Admission::Stale(status), _), _) => {
                self.shared.metrics.stale_calls.inc();
                Some(Err(status))
            }
            ((Admission::Denied(status), _), span) => {
                let _about = span.entered();
                warn!(reason = status.message(), "a worker calls as somebody else: refused");
                self.shared.metrics.denied_calls.inc();
                Some(Err(status))
            }
        };
        // Before the first look, so that no change is missed.
        let mut changes = self.shared.changes.subscribe();
        if let Some(decided) = decide() {
            return decided;
        }
        let Some(_turn) = self.turn(calling) else {
            return Err(Status::resource_exhausted("too many calls wait for a place on this worker"));
        };
        let decided = timeout(patience, async {
            while changes.changed().await.is_ok() {
                if let Some(decided) = decide() {
                    return Some(decided);
                }
            }
            None
        });
        decided.await.ok().flatten().unwrap_or_else(|| Err(late()))
    }

    /// A place among those that wait, as long as the guard lives. None: there is none.
    fn turn(&self, calling: Calling) -> Option<Turn<'_>> {
        let permit = self.shared.waiting.try_acquire().ok()?;
        let caller = match calling {
            Calling::Anybody => None,
            Calling::Worker(caller) => Some(caller),
        };
        if let Some(caller) = caller {
            let mut held = self.held();
            let count = held.waiting.entry(caller).or_default();
            if *count >= MOST_WAITING_OF_ONE {
                return None;
            }
            *count += 1;
        }
        Some(Turn { rings: self, caller, _permit: permit })
    }

    /// Calls that wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        MOST_WAITING - self.shared.waiting.available_permits()
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.shared.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that waits.
struct Turn<'a> {
    rings: &'a Rings,
    caller: Option<WorkerId>,
    _permit: SemaphorePermit<'a>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(caller) = self.caller else { return };
        let mut held = self.rings.held();
        let left = held.waiting.get(&caller).map_or(0, |count| count.saturating_sub(1));
        if left == 0 {
            held.waiting.remove(&caller);
        } else {
            held.waiting.insert(caller, left);
        }
    }
}

/// Registration of a place: its streams are accepted and arrive here. Dropping it gives the place up.
#[derive(Debug)]
pub(super) struct Registration {
    pub(super) rings: Rings,
    job: JobId,
    number: u64,
    /// None comes any more once another registration has taken the place.
    pub(super) incoming: mpsc::Receiver<Called>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut held = self.rings.held();
        if held.places.get(&self.job).is_some_and(|registered| registered.number == self.number) {
            held.places.remove(&self.job);
        }
    }
}

/// An offered state. Dropping it withdraws the offer, and ends the streams of it.
#[derive(Debug)]
#[must_use = "a state is offered only as long as this lives"]
pub struct StateOffer {
    rings: Rings,
    job: JobId,
    number: u64,
}

impl Drop for StateOffer {
    fn drop(&mut self) {
        let mut held = self.rings.held();
        if held.offers.get(&self.job).is_some_and(|offered| offered.number == self.number)
            && let Some(offered) = held.offers.remove(&self.job)
        {
            offered.given.withdrawn.cancel();
        }
    }
}
