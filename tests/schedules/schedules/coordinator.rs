//! The coordinator around its core: sessions, a disk, commits that fail, and an end at any moment.

use std::collections::VecDeque;

use ringtune_coordinator::core::{Action, Cluster, Down, Effects, Input, Options, Sender, SessionId, Time};
use ringtune_shared::version::{RE_FORM, TIMINGS};
use ringtune_worker::session::state;

use crate::{
    check::Disk,
    events::{Answer, Event},
    faults::Planted,
    words,
    world::{World, id_of},
};

const TICK: i64 = 250;

/// Inputs that are not stored yet.
#[derive(Debug)]
enum Arrived {
    Said(Sender, Input),
    /// Somebody waits for the answer: a rank's life.
    Request(Input, Option<(usize, u64)>),
}

/// The daemon.
pub(crate) struct Coordinator {
    /// None: not running.
    pub(crate) cluster: Option<Cluster>,
    pub(crate) disk: Disk,
    arrived: Vec<Arrived>,
    commits: bool,
    /// Sessions of which it could not store what they said.
    unheard: Vec<Sender>,
    /// Once in so many times its disk fails; 0: never.
    pub(crate) disk_fails: usize,
    /// It dies at the next commit, before or after what is stored.
    pub(crate) dies: Option<bool>,
}

/// A session between a worker and the coordinator: what is on its way, in its order.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) worker: usize,
    pub(crate) up: VecDeque<Input>,
    pub(crate) down: VecDeque<Down>,
    /// As each side sees it.
    pub(crate) open: bool,
    pub(crate) open_there: bool,
    /// The messages that were sent before the end still come.
    pumps: (bool, bool),
    pub(crate) welcome: bool,
}

/// Shorter times than the usual ones, so that schedules are short.
pub(crate) fn options() -> Options {
    Options {
        session_timeout: 3_000,
        recovery: 6_000,
        cancel: 2_000,
        root_cause: 1_000,
        finish: 2_000,
        rest: 300,
        longest_rest: 2_000,
        spare: 5_000,
        apart: 600,
        longest_apart: 3_000,
        head: 1_500,
        ..Options::default()
    }
}

impl Coordinator {
    pub(crate) fn new() -> Self {
        Self {
            cluster: Some(Cluster::recover(options(), Disk::default().recover(), Time(0))),
            disk: Disk::default(),
            arrived: Vec::new(),
            commits: false,
            unheard: Vec::new(),
            disk_fails: 0,
            dies: None,
        }
    }
}

impl World {
    /// A request, and who waits for the answer.
    pub(crate) fn request(&mut self, input: Input, asks: Option<(usize, u64)>) {
        self.coordinator.arrived.push(Arrived::Request(input, asks));
        self.commit_soon();
    }

    /// A request of a user, who asks again until it is accepted.
    pub(crate) fn accept(&mut self, input: Input) {
        let Some(cluster) = &self.coordinator.cluster else { return };
        let mut next = cluster.clone();
        let made = next.apply(input, Time(self.now)).expect("a good request");
        let placed = next.place(Time(self.now));
        self.store(next, vec![made, placed], Vec::new());
    }

    fn commit_soon(&mut self) {
        if !self.coordinator.commits {
            self.coordinator.commits = true;
            let most = if self.chance.one_in(8) { 40 } else { 2 };
            self.after(0, most, Event::Commit);
        }
    }

    /// A worker calls.
    pub(crate) fn open_link(&mut self, worker: usize, hello: Input, session: u64) {
        let link = Link {
            worker,
            up: VecDeque::from([hello]),
            down: VecDeque::new(),
            open: true,
            open_there: true,
            pumps: (false, false),
            welcome: false,
        };
        self.links.insert(session, link);
        self.pump(session);
    }

    /// Delivers messages in flight, if possible.
    pub(crate) fn pump(&mut self, session: u64) {
        let hub = self.hub();
        let Some(link) = self.links.get_mut(&session) else { return };
        let worker = link.worker;
        let blocked = self.cuts.contains_key(&(worker, hub)) || self.nodes[worker].frozen.is_some();
        if !blocked && !link.pumps.0 && !link.up.is_empty() && link.open_there {
            link.pumps.0 = true;
            self.after(0, 2, Event::Up(session));
        }
        let blocked = self.cuts.contains_key(&(hub, worker)) || self.nodes[worker].frozen.is_some();
        let Some(link) = self.links.get_mut(&session) else { return };
        if !blocked && !link.pumps.1 && !link.down.is_empty() && link.open {
            link.pumps.1 = true;
            self.after(0, 2, Event::Down(session));
        }
    }

    pub(crate) fn up_arrives(&mut self, session: u64) {
        let hub = self.hub();
        let Some(link) = self.links.get_mut(&session) else { return };
        link.pumps.0 = false;
        let worker = link.worker;
        if self.coordinator.cluster.is_none() || self.cuts.contains_key(&(worker, hub)) || !link.open_there {
            return;
        }
        if let Some(input) = link.up.pop_front() {
            let sender = Sender { worker: id_of(worker), session: SessionId(session) };
            self.coordinator.arrived.push(Arrived::Said(sender, input));
            self.commit_soon();
        }
        let over = self.links.get(&session).is_some_and(|link| link.up.is_empty() && !link.open);
        if over { self.session_is_over(session) } else { self.pump(session) }
    }

    pub(crate) fn down_arrives(&mut self, session: u64) {
        let hub = self.hub();
        let Some(link) = self.links.get_mut(&session) else { return };
        link.pumps.1 = false;
        let worker = link.worker;
        if self.cuts.contains_key(&(hub, worker)) || self.nodes[worker].frozen.is_some() || !link.open {
            return;
        }
        let Some(message) = link.down.pop_front() else { return };
        self.tell(|| format!("worker {worker} is told {}", brief(&message)));
        if let Down::Welcome(agreement) = &message {
            let [re_forms, timings] =
                [RE_FORM, TIMINGS].map(|name| agreement.features.iter().any(|feature| feature == name));
            if let Some(link) = self.links.get_mut(&session) {
                link.welcome = true;
            }
            self.after(900, 1_100, Event::Beat { worker, session });
            self.apply(worker, state::Event::Connected { re_forms, timings });
        } else if let Down::LookAtLinks(question) = message {
            self.look_at_links(worker, session, question);
        } else if let Some(event) = words::event(message) {
            self.apply(worker, event);
        }
        self.pump(session);
    }

    /// The coordinator lets a session go; the worker learns of it if it can.
    fn close_there(&mut self, session: u64) {
        if let Some(link) = self.links.get_mut(&session)
            && link.open_there
        {
            link.open_there = false;
            let worker = link.worker;
            self.after(1, 5, Event::LinkDown { worker, session });
        }
    }

    pub(crate) fn session_is_over(&mut self, session: u64) {
        let Some(link) = self.links.get_mut(&session).filter(|link| link.open_there) else { return };
        if self.coordinator.cluster.is_none() {
            return;
        }
        link.open_there = false;
        let sender = Sender { worker: id_of(link.worker), session: SessionId(session) };
        self.coordinator.arrived.push(Arrived::Said(sender, Input::SessionEnded(sender)));
        self.commit_soon();
    }

    pub(crate) fn tick(&mut self) {
        self.after(TICK, TICK, Event::Tick);
        let Some(cluster) = &self.coordinator.cluster else { return };
        let mut next = cluster.clone();
        let time = Time(self.now);
        let mut all = Vec::new();
        for sender in std::mem::take(&mut self.coordinator.unheard) {
            all.extend(next.apply(Input::SessionEnded(sender), time).ok());
        }
        all.extend(next.apply(Input::Tick, time).ok());
        all.push(next.place(time));
        self.store(next, all, Vec::new());
    }

    pub(crate) fn commit(&mut self) {
        self.coordinator.commits = false;
        let Some(cluster) = &self.coordinator.cluster else { return };
        let mut next = cluster.clone();
        let time = Time(self.now);
        let (mut all, mut answers, mut heard) = (Vec::new(), Vec::new(), Vec::new());
        for arrived in std::mem::take(&mut self.coordinator.arrived) {
            match arrived {
                Arrived::Said(sender, input) => {
                    let is_hello = matches!(input, Input::Hello { .. });
                    match next.apply(input, time) {
                        Ok(effects) => {
                            heard.push(sender);
                            all.push(effects);
                        }
                        Err(refusal) => {
                            self.tell(|| format!("of {} refused: {refusal}", sender.worker));
                            if is_hello {
                                self.close_there(sender.session.0);
                            }
                        }
                    }
                }
                Arrived::Request(input, asks) => match next.apply(input, time) {
                    Ok(effects) => {
                        all.push(effects);
                        answers.extend(asks.map(|asks| (asks, Answer::Done)));
                    }
                    Err(refusal) => {
                        self.tell(|| format!("refused: {refusal}"));
                        answers.extend(asks.map(|asks| (asks, Answer::Refused)));
                    }
                },
            }
        }
        all.push(next.place(time));
        let fails = self.coordinator.disk_fails > 0 && {
            let times = self.coordinator.disk_fails;
            self.chance.one_in(times)
        };
        let dies = self.coordinator.dies.take();
        if fails || dies == Some(false) {
            self.tell(|| "nothing could be stored".to_owned());
            if self.planted == Some(Planted::LostAcknowledgement) {
                self.act(&all);
            }
            for ((worker, life), _) in answers {
                self.after(1, 5, Event::Answer { worker, life, answer: Answer::Away });
            }
            for sender in heard {
                self.close_there(sender.session.0);
                self.coordinator.unheard.push(sender);
            }
        } else if dies == Some(true) {
            // It is stored, and nobody hears of it.
            self.write(&all);
            self.coordinator.cluster = Some(next);
            for ((worker, life), _) in answers {
                self.after(1, 5, Event::Answer { worker, life, answer: Answer::Away });
            }
        } else {
            self.store(next, all, answers);
        }
        if dies.is_some() {
            self.coordinator_dies();
        }
    }

    fn store(&mut self, next: Cluster, all: Vec<Effects>, answers: Vec<((usize, u64), Answer)>) {
        self.write(&all);
        self.coordinator.cluster = Some(next);
        self.check_cluster();
        for ((worker, life), answer) in answers {
            self.after(1, 5, Event::Answer { worker, life, answer });
        }
        self.act(&all);
    }

    fn act(&mut self, all: &[Effects]) {
        for action in all.iter().flat_map(|effects| &effects.actions) {
            match action {
                Action::Send(session, down) => {
                    self.check_word(down);
                    if let Some(link) = self.links.get_mut(&session.0).filter(|link| link.open_there) {
                        link.down.push_back(down.clone());
                        self.pump(session.0);
                    }
                }
                Action::Close(session, why) => {
                    self.tell(|| format!("session {} is closed: {why}", session.0));
                    self.close_there(session.0);
                }
            }
        }
    }

    /// It is killed. What has arrived is lost.
    pub(crate) fn coordinator_dies(&mut self) {
        if self.coordinator.cluster.take().is_none() {
            return;
        }
        self.tell(|| "the coordinator dies".to_owned());
        for arrived in std::mem::take(&mut self.coordinator.arrived) {
            if let Arrived::Request(_, Some((worker, life))) = arrived {
                self.after(1, 5, Event::Answer { worker, life, answer: Answer::Away });
            }
        }
        self.coordinator.unheard.clear();
        let sessions: Vec<u64> = self.links.keys().copied().collect();
        for session in sessions {
            self.close_there(session);
        }
        self.after(100, 4_000, Event::CoordinatorStarts);
    }

    pub(crate) fn coordinator_starts(&mut self) {
        if self.coordinator.cluster.is_none() {
            self.tell(|| "the coordinator starts".to_owned());
            let recovered = self.coordinator.disk.recover();
            self.coordinator.cluster = Some(Cluster::recover(options(), recovered, Time(self.now)));
            self.check_acknowledged();
        }
    }
}

/// Short description of a message to a worker.
fn brief(down: &Down) -> String {
    match down {
        Down::Welcome(_) => "welcome".to_owned(),
        Down::Assignment(given) => {
            let members: Vec<String> = given
                .members
                .iter()
                .map(|(worker, _)| crate::world::number_of(*worker).to_string())
                .collect();
            let resumes = if given.resume_from.is_some() { ", resumed" } else { "" };
            let (epoch, rank) = (given.epoch, given.rank);
            format!(
                "assignment {} epoch {epoch} rank {rank:?} of {}{resumes}",
                short(given.job),
                members.join(" ")
            )
        }
        Down::EnterRing(given) => {
            let members: Vec<String> = given
                .members
                .iter()
                .map(|(worker, _)| crate::world::number_of(*worker).to_string())
                .collect();
            let (epoch, rank, after) = (given.epoch, given.rank, given.after_step);
            let job = short(given.job);
            format!(
                "enter {job} epoch {epoch} rank {rank:?} of {} after_step {after}: {}",
                members.join(" "),
                given.reason
            )
        }
        Down::LookAtLinks(question) => format!("look {} of {}", question.look, short(question.job)),
        Down::StartRank(job, epoch) => format!("start {} epoch {epoch}", short(*job)),
        Down::StopRank { job, epoch, reason, keep_artifacts } => {
            format!("stop {} epoch {epoch} keep {keep_artifacts}: {reason}", short(*job))
        }
        Down::StepsStored(job, epoch, step) => format!("stored {} epoch {epoch} step {step}", short(*job)),
    }
}

/// A job's number.
pub(crate) fn short(job: ringtune_shared::ids::JobId) -> String {
    format!("job {}", job.0.as_u128())
}
