//! The thin loop around the session's state: it moves events in and effects out, and decides nothing.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use ringtune_proto::v1;
use ringtune_shared::{daemon::notify::Notifier, ids::JobId};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, Interval, MissedTickBehavior, interval, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::{
    link::{self, LinkEvent, LinkOptions},
    looking::Looking,
    orders::{EndOrder, RankControl, RankOrders},
    state::{Effect, Event, Message, Session},
    status_line::StatusLine,
    types::{Assignment, RankEvent, RankKey},
    wire::{self, Heard},
};
use crate::{engine::Activity, http::Metrics, ring::Rings};

/// Events of ranks on their way to the loop.
const QUEUED_EVENTS: usize = 256;
/// Messages that wait for a coordinator that does not read; then the session is given up.
const MOST_WAITING: usize = 500_000;
/// Interval of the service manager's status updates.
const TELL: Duration = Duration::from_secs(1);
/// Time for an orphaned worker to find its coordinator before it ends, unsaved files or not.
const NOBODY_LEFT: Duration = Duration::from_secs(3);
/// Timeout of the last messages.
const GOODBYE: Duration = Duration::from_secs(1);

/// Begins a rank's work.
pub trait RankLauncher: Send {
    /// The work says how it goes through `events`, and listens to the returned control. Does not block.
    fn launch(&self, assignment: Assignment, events: mpsc::Sender<(RankKey, RankEvent)>) -> RankControl;
}

/// Options of the session's loop.
#[derive(Debug)]
pub struct SessionOptions {
    /// The coordinator, and who calls it.
    pub link: LinkOptions,
    /// Metrics of the session.
    pub metrics: Arc<Metrics>,
    /// Timeout of a running rank's leave from its ring when the worker ends.
    pub leave_limit: Duration,
    /// And after that, how long the rank may keep what it has.
    pub keep_limit: Duration,
    /// After how long without a rank the worker ends.
    pub idle_limit: Option<Duration>,
    /// From where other workers are reached.
    pub rings: Rings,
    /// Cancelled when the worker's parent is gone, and with it a coordinator that it had started.
    pub orphaned: CancellationToken,
    /// The service manager.
    pub notifier: Notifier,
    /// Whether the engine gives signs of life.
    pub engine: Activity,
}

/// Keeps the session with the coordinator, and the ranks that it hands out, until `end`; then leaves the ring in peace
/// if it can within `leave_limit`, or stops the running rank, which may upload what it has for `keep_limit`, says so, and
/// returns. The caller bounds how long all of that may take.
pub async fn run(options: SessionOptions, launcher: impl RankLauncher, end: CancellationToken) {
    let (held_sender, held_receiver) = watch::channel(Vec::new());
    let (link_sender, mut link_events) = mpsc::channel(QUEUED_EVENTS);
    let (rank_sender, mut rank_events) = mpsc::channel(QUEUED_EVENTS);
    let (last_session, link_end) = (CancellationToken::new(), CancellationToken::new());
    let _link_guard = link_end.clone().drop_guard();
    let link =
        tokio::spawn(link::keep(options.link, held_receiver, link_sender, last_session.clone(), link_end));
    let (looking, mut links_seen) = Looking::new(options.rings);
    let mut this = Loop {
        session: Session::default(),
        held: held_sender,
        launcher,
        rank_sender,
        controls: BTreeMap::new(),
        up: None,
        heartbeat: None,
        outbox: VecDeque::new(),
        timings: None,
        looking,
        metrics: options.metrics,
        status_line: StatusLine::default(),
    };
    let (notifier, engine) = (options.notifier, options.engine);
    let mut telling = interval(notifier.pace().map_or(TELL, |pace| pace.min(TELL)));
    telling.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut draining = false;
    let (mut leave_until, mut keep_until, mut alone_until, mut idle_until) = (None, None, None, None);
    loop {
        if draining && this.session.is_idle() && (this.outbox.is_empty() || this.up.is_none()) {
            break;
        }
        let is_alone = draining && options.orphaned.is_cancelled() && this.up.is_none();
        alone_until = is_alone.then(|| alone_until.unwrap_or(Instant::now() + NOBODY_LEFT));
        let idle_limit = options.idle_limit.filter(|_| !draining && this.session.is_idle());
        idle_until = idle_limit.map(|limit| idle_until.unwrap_or(Instant::now() + limit));
        tokio::select! {
            Some(event) = link_events.recv() => this.link_event(event),
            Some((key, event)) = rank_events.recv() => this.rank_event(key, event),
            Some(seen) = links_seen.recv() => this.say_links(seen),
            _ = telling.tick() => {
                notifier.status(&this.status(draining));
                // This loop runs, and the engine gets on: only both together are progress.
                if engine.is_alive() {
                    notifier.progressed();
                }
            }
            () = tick(&mut this.heartbeat) => this.beat(),
            permit = ready_to_send(this.up.as_ref()), if this.has_to_send() => this.send_next(permit),
            () = end.cancelled(), if !draining => {
                draining = true;
                leave_until = Some(Instant::now() + options.leave_limit);
                keep_until = leave_until.map(|left| left + options.keep_limit);
                this.apply(Event::Drain);
            }
            () = reached(leave_until) => {
                leave_until = None;
                this.apply(Event::LeaveIsOver);
            }
            () = reached(keep_until) => {
                keep_until = None;
                this.apply(Event::DrainIsOver);
            }
            () = reached(idle_until) => {
                idle_until = None;
                info!("no rank for as long as this worker may be idle: leaving");
                end.cancel();
            }
            () = reached(alone_until) => {
                alone_until = None;
                this.apply(Event::DrainIsOver);
            }
        }
    }
    // The stream ends here; what was said last still has to leave.
    last_session.cancel();
    this.up = None;
    let _ = timeout(GOODBYE, async {
        while let Some(event) = link_events.recv().await {
            if matches!(event, LinkEvent::Down(_)) {
                break;
            }
        }
    })
    .await;
    link.abort();
}

/// Everything the loop owns.
struct Loop<L> {
    session: Session,
    held: watch::Sender<Vec<v1::HeldRank>>,
    launcher: L,
    rank_sender: mpsc::Sender<(RankKey, RankEvent)>,
    controls: BTreeMap<JobId, RankControl>,
    up: Option<mpsc::Sender<v1::SessionRequest>>,
    heartbeat: Option<Interval>,
    outbox: VecDeque<v1::SessionRequest>,
    /// Goes out after all of that, if nothing newer has taken its place.
    timings: Option<v1::SessionRequest>,
    looking: Looking,
    metrics: Arc<Metrics>,
    status_line: StatusLine,
}

impl<L: RankLauncher> Loop<L> {
    fn link_event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Up { up, heartbeat, re_forms, timings } => {
                let mut beats = interval(heartbeat);
                beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
                self.heartbeat = Some(beats);
                self.up = Some(up);
                self.status_line.away = None;
                self.clear_outbox();
                self.metrics.session_up.set(1);
                self.metrics.sessions.inc();
                self.apply(Event::Connected { re_forms, timings });
            }
            LinkEvent::Message(message) => match wire::event(*message) {
                Ok(Heard::Event(event)) => self.apply(event),
                Ok(Heard::Question(question)) => {
                    let begun = self.looking.begin(question);
                    self.say_links(begun);
                }
                Ok(Heard::Nothing) => (),
                Ok(Heard::Unknown) => {
                    debug!("skipped a message of the coordinator that this version does not know");
                    self.metrics.unknown_messages.inc();
                }
                Err(error) => error!(%error, "a message that makes no sense"),
            },
            LinkEvent::Down(reason) => {
                self.status_line.away = Some(reason);
                self.disconnected();
            }
        }
    }

    fn has_to_send(&self) -> bool {
        !self.outbox.is_empty() || self.timings.is_some()
    }

    fn clear_outbox(&mut self) {
        self.outbox.clear();
        self.timings = None;
    }

    fn rank_event(&mut self, key: RankKey, event: RankEvent) {
        self.status_line.heard(key.job, &event);
        self.apply(Event::Rank(key, event));
    }

    fn status(&self, draining: bool) -> String {
        let running = self.session.running().map(|key| (key.job, self.session.place()));
        self.status_line.line(running, self.up.is_some(), draining)
    }

    fn send_next(&mut self, permit: Option<mpsc::OwnedPermit<v1::SessionRequest>>) {
        match (permit, self.outbox.pop_front().or_else(|| self.timings.take())) {
            (Some(permit), Some(message)) => {
                permit.send(message);
            }
            (Some(_), None) => (),
            (None, _) => self.disconnected(),
        }
    }

    fn disconnected(&mut self) {
        self.up = None;
        self.heartbeat = None;
        self.clear_outbox();
        self.metrics.session_up.set(0);
        self.apply(Event::Disconnected);
    }

    fn beat(&mut self) {
        let held = wire::held_ranks(&self.session.held());
        let heartbeat = v1::session_request::Message::Heartbeat(v1::Heartbeat { held });
        self.outbox.push_back(v1::SessionRequest { message: Some(heartbeat) });
    }

    /// A coordinator that was away meanwhile asks again.
    fn say_links(&mut self, seen: v1::LinksSeen) {
        if self.up.is_some() {
            let message = v1::session_request::Message::LinksSeen(seen);
            self.outbox.push_back(v1::SessionRequest { message: Some(message) });
        }
    }

    fn apply(&mut self, event: Event) {
        for effect in self.session.apply(event) {
            match effect {
                Effect::Send(message @ Message::Timings(..)) => self.timings = Some(wire::request(&message)),
                Effect::Send(message) => self.outbox.push_back(wire::request(&message)),
                Effect::Start(assignment) => {
                    let key = assignment.key();
                    self.status_line.begins(key.job, assignment.spec.total_steps());
                    let control = self.launcher.launch(*assignment, self.rank_sender.clone());
                    self.controls.insert(key.job, control);
                }
                Effect::Train(key) => self.order(key.job, |orders| orders.train = true),
                Effect::Enter(key, ring) => self.order(key.job, |orders| orders.ring = Some(ring)),
                Effect::Stored(key, step) => {
                    self.order(key.job, |orders| orders.stored_step = orders.stored_step.max(step));
                }
                Effect::End { key, keep_artifacts } => {
                    self.order(key.job, |orders| orders.end = Some(EndOrder { keep_artifacts }));
                }
            }
        }
        if self.outbox.len() > MOST_WAITING {
            warn!("the coordinator does not read: closing the session");
            self.disconnected();
        }
        self.metrics.rank.set(self.session.place().map_or(-1, |rank| rank as i64));
        let running = self.session.running().map(|key| key.job);
        self.controls.retain(|job, _| Some(*job) == running);
        let held = wire::held_ranks(&self.session.held_for_hello());
        let now = held.len();
        if now < self.held.send_replace(held).len() && self.up.is_some() {
            // The coordinator gives this worker no other rank before it hears that this one was let go.
            self.beat();
        }
    }

    fn order(&self, job: JobId, change: impl FnOnce(&mut RankOrders)) {
        if let Some(control) = self.controls.get(&job) {
            control.tell(change);
        }
    }
}

/// The moment; never, without one.
async fn reached(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// The next heartbeat; never, without a session.
async fn tick(heartbeat: &mut Option<Interval>) {
    match heartbeat {
        Some(beats) => {
            beats.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// Room for one message; `None` when the session is gone; never, without one.
async fn ready_to_send(
    up: Option<&mpsc::Sender<v1::SessionRequest>>,
) -> Option<mpsc::OwnedPermit<v1::SessionRequest>> {
    match up {
        Some(up) => up.clone().reserve_owned().await.ok(),
        None => std::future::pending().await,
    }
}
