//! A worker's daemon around its session's state machine: it moves events in and effects out, as the daemon's own loop.

use std::{collections::VecDeque, sync::Arc};

use ringtune_coordinator::core::{Capabilities, Hello, Input, LookAtLinks, Sender, SessionId, Sight};
use ringtune_shared::version::Dialect;
use ringtune_worker::session::{
    EndOrder, RankEvent, RankKey,
    state::{Effect, Event as Told, Message, Session},
};

use crate::{
    events::Event,
    life::Life,
    words,
    world::{World, id_of, number_of},
};

/// Timeout of a worker's try to reach another.
const LOOK: i64 = 1_500;

/// A worker's machine.
pub(crate) struct Node {
    /// Its process runs.
    pub(crate) alive: bool,
    /// Number of its start.
    pub(crate) start: u64,
    /// Since when it does nothing.
    pub(crate) frozen: Option<i64>,
    /// Events for when it continues.
    pub(crate) parked: Vec<Event>,
    pub(crate) session: Session,
    /// The session that it knows of.
    pub(crate) link: Option<u64>,
    /// The rank's life that runs.
    pub(crate) life: Option<Life>,
    /// Events of lives that the session has not heard yet.
    pub(crate) says: VecDeque<(RankKey, RankEvent)>,
    saying: bool,
    /// It was asked to end.
    pub(crate) drains: bool,
}

impl Node {
    pub(crate) fn new(_number: usize) -> Self {
        Self {
            alive: true,
            start: 1,
            frozen: None,
            parked: Vec::new(),
            session: Session::default(),
            link: None,
            life: None,
            says: VecDeque::new(),
            saying: false,
            drains: false,
        }
    }

    pub(crate) fn life_is(&self, number: u64) -> Option<&Life> {
        self.life.as_ref().filter(|life| life.number == number)
    }
}

impl World {
    pub(crate) fn dial(&mut self, worker: usize, start: u64) {
        let node = &self.nodes[worker];
        if !node.alive || node.start != start || node.link.is_some() {
            return;
        }
        if !self.reaches_coordinator(worker) {
            return self.after(200, 800, Event::Dial { worker, start });
        }
        self.count += 1;
        let session = self.count;
        let node = &mut self.nodes[worker];
        node.link = Some(session);
        let capabilities =
            Capabilities { numerics_class: "one".to_owned(), threads: 1, ..Capabilities::default() };
        let hello = Hello {
            worker: id_of(worker),
            incarnation: node.start,
            host_name: format!("host-{worker}"),
            address: format!("127.0.0.1:{worker}"),
            capabilities: Arc::new(capabilities),
            held: node.session.held_for_hello().iter().map(words::held).collect(),
            dialect: Dialect::ours(),
        };
        self.open_link(worker, Input::Hello { session: SessionId(session), hello }, session);
    }

    /// The worker's end of a session sees that it is over, and dials again.
    pub(crate) fn link_is_down(&mut self, worker: usize, session: u64) {
        if self.nodes[worker].link != Some(session) {
            return;
        }
        if let Some(link) = self.links.get_mut(&session) {
            link.open = false;
            // Messages in flight may arrive, or only some of them.
            let some = self.chance.below(link.up.len() + 1);
            link.up.truncate(some);
            if link.up.is_empty() {
                self.after(1, 20, Event::SessionOver(session));
            }
        }
        self.tell(|| format!("worker {worker} has no session"));
        self.nodes[worker].link = None;
        self.apply(worker, Told::Disconnected);
        let start = self.nodes[worker].start;
        self.after(50, 400, Event::Dial { worker, start });
    }

    pub(crate) fn beat(&mut self, worker: usize, session: u64) {
        if self.nodes[worker].link != Some(session) {
            return;
        }
        let held = self.nodes[worker].session.held().iter().map(words::held).collect();
        let sender = Sender { worker: id_of(worker), session: SessionId(session) };
        self.say_up(worker, Input::Heartbeat(sender, held));
        self.after(900, 1_100, Event::Beat { worker, session });
    }

    /// It is asked whom it reaches. Where it reaches all it knows at once; otherwise it tries for a while.
    pub(crate) fn look_at_links(&mut self, worker: usize, session: u64, question: LookAtLinks) {
        self.say_links(worker, &question, Sight::Looking);
        let all = question.workers.iter().all(|(other, _)| self.is_reached(worker, number_of(*other)));
        let (least, most) = if all { (1, 30) } else { (LOOK, LOOK + 30) };
        self.after(least, most, Event::Looked { worker, session, question });
    }

    pub(crate) fn looked(&mut self, worker: usize, session: u64, question: &LookAtLinks) {
        if self.nodes[worker].link != Some(session) {
            return;
        }
        let broken = question.workers.iter().filter(|(other, _)| !self.is_reached(worker, number_of(*other)));
        let broken = broken.map(|(other, _)| (*other, "it did not answer".to_owned())).collect();
        self.say_links(worker, question, Sight::Seen(broken));
    }

    fn say_links(&mut self, worker: usize, question: &LookAtLinks, sight: Sight) {
        let Some(session) = self.nodes[worker].link else { return };
        let sender = Sender { worker: id_of(worker), session: SessionId(session) };
        let (job, look) = (question.job, question.look);
        self.say_up(worker, Input::LinksSeen { sender, job, look, sight });
    }

    /// Whether a worker's port is reached from another one.
    pub(crate) fn is_reached(&self, from: usize, worker: usize) -> bool {
        let node = &self.nodes[worker];
        self.is_linked(from, worker) && node.alive && node.frozen.is_none()
    }

    fn say_up(&mut self, worker: usize, input: Input) {
        let Some(session) = self.nodes[worker].link else { return };
        if let Some(link) = self.links.get_mut(&session) {
            link.up.push_back(input);
            self.pump(session);
        }
    }

    /// A life's word is on its way to the session.
    pub(crate) fn say(&mut self, worker: usize, key: RankKey, event: RankEvent) {
        let node = &mut self.nodes[worker];
        node.says.push_back((key, event));
        if !node.saying {
            node.saying = true;
            let start = node.start;
            let most = if self.chance.one_in(6) { 6 } else { 0 };
            self.after(0, most, Event::Say { worker, start });
        }
    }

    pub(crate) fn hear_life(&mut self, worker: usize, start: u64) {
        let node = &mut self.nodes[worker];
        if node.start != start {
            return;
        }
        node.saying = false;
        // Everything available.
        for _ in 0..node.says.len() {
            let Some((key, event)) = self.nodes[worker].says.pop_front() else { break };
            self.tell(|| format!("worker {worker}: {key}: {}", brief(&event)));
            self.apply(worker, Told::Rank(key, event));
        }
    }

    /// The session is told, and what it wants is done.
    pub(crate) fn apply(&mut self, worker: usize, event: Told) {
        let mut told = false;
        for effect in self.nodes[worker].session.apply(event) {
            match effect {
                Effect::Send(message) => {
                    if let Some(session) = self.nodes[worker].link {
                        if let Message::Report { held, .. } = &message {
                            let (phase, key, step) = (held.phase, held.key, held.step);
                            self.tell(|| format!("worker {worker} reports {key}: {phase:?} step {step}"));
                        }
                        let sender = Sender { worker: id_of(worker), session: SessionId(session) };
                        self.say_up(worker, words::input(sender, &message));
                    }
                }
                Effect::Start(assignment) => self.begin_life(worker, *assignment),
                Effect::Train(key) => told |= self.order(worker, key, |orders| orders.train = true),
                Effect::Enter(key, ring) => {
                    told |= self.order(worker, key, |orders| orders.ring = Some(ring));
                    self.send_what_waited(worker);
                }
                Effect::Stored(key, step) => {
                    self.order(worker, key, |orders| orders.stored_step = orders.stored_step.max(step));
                    self.send_what_waited(worker);
                }
                Effect::End { key, keep_artifacts } => {
                    told |= self.order(worker, key, |orders| orders.end = Some(EndOrder { keep_artifacts }));
                }
            }
        }
        if told {
            self.look(worker);
        }
        self.exit_if_idle(worker);
    }

    /// A checkpoint may wait for what the rank was told now.
    fn send_what_waited(&mut self, worker: usize) {
        if let Some(life) = self.nodes[worker].life.as_ref().map(|life| life.number) {
            self.send_next(worker, life, 0, 3);
        }
    }

    fn order(
        &mut self,
        worker: usize,
        key: RankKey,
        change: impl FnOnce(&mut ringtune_worker::session::RankOrders),
    ) -> bool {
        match self.nodes[worker].life.as_mut().filter(|life| life.key.job == key.job) {
            Some(life) => {
                change(&mut life.orders);
                true
            }
            None => false,
        }
    }

    /// SIGTERM.
    pub(crate) fn drain(&mut self, worker: usize) {
        let node = &mut self.nodes[worker];
        if !node.alive || node.drains || node.frozen.is_some() {
            return;
        }
        self.tell(|| format!("worker {worker} is to end"));
        self.nodes[worker].drains = true;
        let start = self.nodes[worker].start;
        self.after(1_500, 1_500, Event::Drained { worker, start, over: false });
        self.after(4_000, 4_000, Event::Drained { worker, start, over: true });
        self.apply(worker, Told::Drain);
    }

    pub(crate) fn drain_is_over(&mut self, worker: usize, start: u64, over: bool) {
        if self.nodes[worker].alive && self.nodes[worker].start == start {
            self.apply(worker, if over { Told::DrainIsOver } else { Told::LeaveIsOver });
        }
    }

    fn exit_if_idle(&mut self, worker: usize) {
        let node = &self.nodes[worker];
        if !node.drains || !node.alive || !node.session.is_idle() {
            return;
        }
        self.tell(|| format!("worker {worker} ends"));
        if let Some(session) = self.nodes[worker].link
            && let Some(link) = self.links.get_mut(&session)
        {
            // The last words get out; then it is over.
            link.open = false;
            if link.up.is_empty() {
                self.after(1, 20, Event::SessionOver(session));
            } else {
                self.pump(session);
            }
        }
        self.process_is_gone(worker);
    }

    /// SIGKILL, or a machine that is gone.
    pub(crate) fn kill(&mut self, worker: usize) {
        if !self.nodes[worker].alive {
            return;
        }
        self.tell(|| format!("worker {worker} dies"));
        if let Some(session) = self.nodes[worker].link
            && let Some(link) = self.links.get_mut(&session)
        {
            link.open = false;
            let some = self.chance.below(link.up.len() + 1);
            link.up.truncate(some);
            if link.up.is_empty() && !self.chance.one_in(4) {
                self.after(1, 20, Event::SessionOver(session));
            }
        }
        self.process_is_gone(worker);
    }

    fn process_is_gone(&mut self, worker: usize) {
        self.give_up_seats(worker);
        let node = &mut self.nodes[worker];
        (node.alive, node.frozen, node.link, node.life) = (false, None, None, None);
        node.parked.clear();
        node.says.clear();
        (node.saying, node.drains, node.session) = (false, false, Session::default());
        self.after(200, 3_000, Event::Starts { worker });
    }

    pub(crate) fn starts(&mut self, worker: usize) {
        let node = &mut self.nodes[worker];
        if node.alive {
            return;
        }
        (node.alive, node.start) = (true, node.start + 1);
        let start = node.start;
        self.tell(|| format!("worker {worker} starts"));
        self.after(0, 50, Event::Dial { worker, start });
    }
}

/// A word of a rank's life, for people.
fn brief(event: &RankEvent) -> String {
    match event {
        RankEvent::Step(step) => format!("step {} of epoch {}", step.step, step.epoch),
        other => format!("{other:?}"),
    }
}
