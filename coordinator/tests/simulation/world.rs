//! The simulated world: a store that keeps rows, workers that do what daemons do, and chance.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ringtune_coordinator::core::{
    Account, Action, ArtifactRecord, Capabilities, Cluster, Down, Effects, HeldRank, Hello, Input, Job,
    JobEvent, Limits, LogLevel, LookAtLinks, NewJob, Options, Phase, RankReport, Recovered, Sender,
    SessionId, Sight, StepRecord, Time, WorkerState, Write,
};
use ringtune_shared::ids::{Epoch, JobId, WorkerId};
use ringtune_shared::job::{Order, QueueSpec};
use ringtune_shared::version::Dialect;

use crate::daemons::Daemon;
use crate::invariants::{check_assignment, check_rewrite};
use crate::samples::{Chance, STEPS, file, new_job, said_ready, spec, step_record, uuid_of};

const WORKERS: usize = 5;
/// Those of the first numerics class; the others are of a second one.
const FIRST_CLASS: usize = 3;

/// What survives a restart of the coordinator.
#[derive(Default)]
pub(crate) struct Disk {
    pub(crate) jobs: BTreeMap<JobId, Job>,
    pub(crate) events: BTreeMap<JobId, Vec<JobEvent>>,
    pub(crate) steps: BTreeMap<JobId, Vec<StepRecord>>,
    pub(crate) files: BTreeMap<(JobId, String), ArtifactRecord>,
    pub(crate) drained: BTreeSet<WorkerId>,
    pub(crate) accounts: BTreeMap<String, Account>,
}

pub(crate) struct World {
    pub(crate) chance: Chance,
    pub(crate) now: Time,
    pub(crate) cluster: Cluster,
    pub(crate) disk: Disk,
    pub(crate) daemons: Vec<Daemon>,
    /// Who said that its rank of which epoch was ready, or further, and was heard.
    pub(crate) ready: BTreeSet<(WorkerId, JobId, Epoch)>,
    /// The newest epoch that went around with the gradients of a step of a ring.
    pub(crate) heard: BTreeMap<(JobId, Epoch, u64), Epoch>,
    /// After which step a worker left a ring in peace.
    pub(crate) left: BTreeMap<(WorkerId, JobId, Epoch), u64>,
    sessions: u64,
    pub(crate) names: u64,
    inputs: u64,
    /// The disk fails now and then.
    disk_fails: bool,
    /// Links that do not work.
    cuts: BTreeSet<(WorkerId, WorkerId)>,
}

fn options() -> Options {
    let limits = Limits { queued_jobs: 6, ..Limits::default() };
    Options { limits, longest_rest: 60_000, spare: 40_000, ..Options::default() }
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let daemons = (0..WORKERS).map(|index| Daemon {
            id: WorkerId(uuid_of(1000 + index as u64)),
            class: if index < FIRST_CLASS { "one" } else { "two" },
            threads: index as u32 + 1,
            incarnation: 1,
            session: None,
            inbox: VecDeque::new(),
            ranks: Vec::new(),
            past: None,
            // In every third world.
            old: seed.is_multiple_of(3) && index == 1,
            hangs: false,
            leaving: false,
        });
        Self {
            chance: Chance(seed),
            now: Time(1_000_000),
            cluster: Cluster::recover(options(), Recovered::default(), Time(1_000_000)),
            disk: Disk::default(),
            daemons: daemons.collect(),
            ready: BTreeSet::new(),
            heard: BTreeMap::new(),
            left: BTreeMap::new(),
            sessions: 0,
            names: 0,
            inputs: 0,
            disk_fails: true,
            cuts: BTreeSet::new(),
        }
    }

    /// One thing that can happen.
    pub(crate) fn random_event(&mut self) {
        let who = self.chance.below(WORKERS);
        match self.chance.below(100) {
            0..5 => self.create(),
            5..6 => self.create_sweep(),
            6..9 => self.wish(),
            9..20 => self.connect(who),
            20..23 => self.hang_up(who, true),
            23..25 => self.hang_up(who, false),
            25..27 => self.restart_daemon(who),
            27..28 => self.restart_coordinator(),
            28..60 => self.read_inbox(who),
            60..82 => self.work(who, true),
            82..90 => self.heartbeat(who),
            90..91 => self.keep_artifact(),
            91..92 => self.take_out(who),
            92..93 => self.drop_artifact(),
            93..95 => self.speak_of_the_past(who),
            95..98 => self.pass(700),
            98..99 => self.cut_or_mend(who),
            _ => self.pass(20_000),
        }
    }

    /// From here on everybody behaves: every job that can end must end.
    pub(crate) fn settle(&mut self) {
        self.disk_fails = false;
        self.cuts.clear();
        let jobs: Vec<JobId> = self.disk.jobs.keys().copied().collect();
        for job in jobs {
            self.apply(Input::ResumeJob(job));
        }
        for _ in 0..400 {
            for who in 0..WORKERS {
                self.behave(who);
                self.connect(who);
                self.read_inbox(who);
                self.work(who, false);
                self.heartbeat(who);
            }
            self.pass(500);
            self.check();
        }
        let waiting = self.cluster.waiting();
        let left = self.cluster.jobs().map(|job| (job.id, job.state, waiting.reason(job.id)));
        let too_large =
            |reason: &Option<String>| reason.as_ref().is_some_and(|text| text.contains("9 needed"));
        let stuck: Vec<_> = left.filter(|(_, _, reason)| !too_large(reason)).collect();
        assert!(stuck.is_empty(), "never ended: {stuck:?}");
        assert_eq!(self.cluster.count_workers(WorkerState::Idle), WORKERS, "ranks were not let go");
        self.check_sweeps();
    }

    pub(crate) fn summary(&self) -> String {
        let ends = self.disk.jobs.values().map(|job| format!("{} {} {}", job.state, job.step, job.reason));
        format!("{:?} {:?}", self.now, ends.collect::<Vec<_>>())
    }

    /// A worker hangs, ends, is drained, or loses its certificate; or all that is over.
    fn take_out(&mut self, who: usize) {
        let worker = self.daemons[who].id;
        match self.chance.below(6) {
            0 => self.daemons[who].hangs = !self.daemons[who].hangs,
            1 => self.daemons[who].leaving = true,
            2 => drop(self.apply(Input::DrainWorker { worker, draining: true })),
            3 => drop(self.apply(Input::DrainWorker { worker, draining: false })),
            by_session => self.evict(who, by_session == 4),
        }
    }

    /// Its certificate is revoked, or all that it has: its connection is closed. It comes back with another one.
    fn evict(&mut self, who: usize, by_session: bool) {
        let worker = self.daemons[who].id;
        let session = self.daemons[who].session.take();
        self.daemons[who].inbox.clear();
        let session = session.filter(|_| by_session);
        // The service tries again when its disk failed.
        while !self.apply(Input::Evicted { worker, session }) {}
        let known = self.cluster.worker(worker);
        assert!(known.is_none_or(|worker| worker.session.is_none()), "an evicted worker has a session");
        let Some(place) = self.cluster.place_of(worker) else { return };
        // Only a ring that ends anyway, or is put together anew, still names it.
        let job = self.cluster.job(place.job()).expect("a place in no job");
        assert!(job.stop.is_some(), "an evicted worker has a place: {job:?}");
    }

    /// A link between two workers breaks for a long time; or all work again.
    fn cut_or_mend(&mut self, who: usize) {
        let other = (who + 1 + self.chance.below(WORKERS - 1)) % WORKERS;
        match self.chance.below(3) {
            0 => self.cuts.clear(),
            _ => drop(self.cuts.insert((self.daemons[who].id, self.daemons[other].id))),
        }
    }

    /// Whether two workers reach each other.
    pub(crate) fn is_cut(&self, one: WorkerId, other: WorkerId) -> bool {
        self.cuts.contains(&(one, other)) || self.cuts.contains(&(other, one))
    }

    /// A worker says whom it reaches.
    pub(crate) fn look(&mut self, who: usize, question: &LookAtLinks) {
        let worker = self.daemons[who].id;
        let dead = |other| self.daemons.iter().any(|daemon| daemon.id == other && daemon.hangs);
        let broken = question.workers.iter().filter(|(other, _)| self.is_cut(worker, *other) || dead(*other));
        let broken = broken.map(|(other, _)| (*other, "no answer".to_owned())).collect();
        for sight in [Sight::Looking, Sight::Seen(broken)] {
            let Some(session) = self.daemons[who].session else { return };
            let (sender, job, look) = (Sender { worker, session }, question.job, question.look);
            self.say(who, Input::LinksSeen { sender, job, look, sight });
        }
    }

    fn behave(&mut self, who: usize) {
        let worker = self.daemons[who].id;
        self.daemons[who].hangs = false;
        self.apply(Input::DrainWorker { worker, draining: false });
        if self.daemons[who].leaving && self.daemons[who].ranks.is_empty() {
            self.restart_daemon(who);
        }
    }

    fn create(&mut self) {
        self.names += 1;
        // Some jobs want more than there is.
        let world = [1, 1, 2, 3, 5, 9][self.chance.below(6)];
        let least = if self.chance.below(2) == 0 || world == WORKERS as i64 { 1 } else { world };
        let id = JobId(uuid_of(self.names));
        // Some may take ranks from others.
        let owner = ["", "ada", "bob"][self.chance.below(3)].to_owned();
        let priority = [0, 0, 50, 100, 200][self.chance.below(5)];
        let queue = Arc::new(QueueSpec { owner, priority, ..QueueSpec::default() });
        if self.apply(Input::CreateJob(NewJob { queue, ..new_job(id, spec(world, least)) })) {
            assert!(self.disk.jobs.contains_key(&id), "an accepted job is not stored");
        }
    }

    fn random_job(&mut self) -> Option<JobId> {
        let count = self.disk.jobs.len();
        if count == 0 { None } else { self.disk.jobs.keys().nth(self.chance.below(count)).copied() }
    }

    /// A user cancels, pauses or resumes a job.
    fn wish(&mut self) {
        if let Some(job) = self.random_job() {
            let wish = match self.chance.below(4) {
                // Those that wait may have to make do with workers that know no orders.
                3 if self.disk.jobs[&job].ring.is_some() => {
                    Input::OrderJob { job, order: Order::LearningRate(0.5), after_step: 0 }
                }
                0 => Input::CancelJob { job, reason: String::new() },
                1 => Input::PauseJob(job),
                _ => Input::ResumeJob(job),
            };
            self.apply(wish);
        }
    }

    fn keep_artifact(&mut self) {
        if let Some(job) = self.random_job() {
            // A user's, also in the place of a checkpoint.
            let name = ["a", "checkpoint-2.safetensors"][self.chance.below(2)];
            self.apply(Input::KeepArtifact { artifact: file(job, name.to_owned(), None, self.now) });
        }
    }

    fn drop_artifact(&mut self) {
        let count = self.disk.files.len();
        if count > 0
            && let Some((job, name)) = self.disk.files.keys().nth(self.chance.below(count)).cloned()
        {
            self.apply(Input::DropArtifact { job, name, epoch: None });
        }
    }

    /// A worker that was frozen says what was true of a rank that it has let go: nobody is to believe it.
    fn speak_of_the_past(&mut self, who: usize) {
        let daemon = &self.daemons[who];
        let (Some(session), Some(past)) = (daemon.session, daemon.past.clone()) else { return };
        let (job, epoch, sender) = (past.held.job, past.held.epoch, Sender { worker: daemon.id, session });
        let before = self.cluster.job(job).cloned();
        // Of a ring that still runs with other members: of that it may have more to say, and is not believed either.
        let still_runs = before
            .as_ref()
            .and_then(|job| job.ring.as_ref())
            .is_some_and(|ring| (ring.first_epoch()..=ring.epoch).contains(&epoch));
        if still_runs && (past.held.rank.is_none() || past.held.epoch == self.newest_epoch(job)) {
            return;
        }
        let artifact = file(job, "checkpoint-3.safetensors".to_owned(), Some(epoch), self.now);
        let held = HeldRank { phase: Phase::Ready, ..past.held };
        let message = "from the past".to_owned();
        let level = LogLevel::Info;
        match if still_runs { 0 } else { self.chance.below(4) } {
            0 => self.say(who, Input::RankReport(sender, RankReport { held, progress: None })),
            1 => self.say(who, Input::RankStep(sender, job, epoch, step_record(STEPS))),
            2 => self.say(who, Input::RankLog { sender, job, epoch, level, message }),
            _ => assert!(!self.apply(Input::KeepArtifact { artifact }), "a file of another epoch was taken"),
        }
        // A session that could not be stored ends, and a queued job may have got its next ring meanwhile.
        if let Some(before) = before.filter(|before| before.ring.is_some())
            && self.daemons[who].session.is_some()
        {
            assert_eq!(Some(&before), self.cluster.job(job), "an older epoch was believed");
        }
    }

    fn newest_epoch(&self, job: JobId) -> Epoch {
        Epoch(self.cluster.job(job).map_or(0, |job| job.rings))
    }

    fn connect(&mut self, who: usize) {
        if self.daemons[who].session.is_some() || self.daemons[who].hangs {
            return;
        }
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let daemon = &mut self.daemons[who];
        daemon.inbox.clear();
        daemon.session = Some(session);
        let capabilities = Capabilities {
            numerics_class: daemon.class.to_owned(),
            threads: daemon.threads,
            ..Capabilities::default()
        };
        let hello = Hello {
            worker: daemon.id,
            incarnation: daemon.incarnation,
            host_name: format!("host-{who}"),
            address: format!("127.0.0.1:{who}"),
            capabilities: Arc::new(capabilities),
            held: daemon.ranks.iter().map(|rank| rank.held.clone()).collect(),
            dialect: if daemon.old {
                Dialect { features: Vec::new(), ..Dialect::ours() }
            } else {
                Dialect::ours()
            },
        };
        if !self.apply(Input::Hello { session, hello }) {
            self.daemons[who].session = None;
        }
    }

    /// A broken connection: the coordinator sees it now, or only when it hears nothing any more.
    fn hang_up(&mut self, who: usize, seen: bool) {
        let Some(session) = self.daemons[who].session.take() else { return };
        self.daemons[who].inbox.clear();
        let worker = self.daemons[who].id;
        if seen {
            // The service tries again when its disk failed.
            while !self.apply(Input::SessionEnded(Sender { worker, session })) {}
        }
    }

    fn restart_daemon(&mut self, who: usize) {
        self.hang_up(who, false);
        self.daemons[who].incarnation += 1;
        self.daemons[who].ranks.clear();
        (self.daemons[who].hangs, self.daemons[who].leaving) = (false, false);
    }

    fn restart_coordinator(&mut self) {
        let jobs: Vec<Job> =
            self.disk.jobs.values().filter(|job| !job.state.is_terminal()).cloned().collect();
        let last_number = self.disk.jobs.values().map(|job| job.number).max().unwrap_or(0);
        let files = self.disk.files.values().filter(|file| jobs.iter().any(|job| job.id == file.job));
        let checkpoints = files.filter_map(|file| Some((file.job, file.checkpoint()?))).collect();
        let steps = self.disk.steps.iter().filter(|(id, _)| jobs.iter().any(|job| job.id == **id));
        let hashes =
            steps.flat_map(|(id, steps)| steps.iter().filter_map(|step| Some((*id, step.step, step.state?))));
        let (hashes, drained) = (hashes.collect(), self.disk.drained.iter().copied().collect());
        let accounts = self.disk.accounts.clone().into_iter().collect();
        let recovered = Recovered { jobs, checkpoints, hashes, drained, accounts, last_number };
        self.cluster = Cluster::recover(options(), recovered, self.now);
        for daemon in &mut self.daemons {
            daemon.session = None;
            daemon.inbox.clear();
        }
    }

    pub(crate) fn heartbeat(&mut self, who: usize) {
        let daemon = &self.daemons[who];
        let Some(session) = daemon.session.filter(|_| !daemon.hangs) else { return };
        let leaving = daemon.leaving;
        let held = daemon.ranks.iter().map(|rank| HeldRank { leaving, ..rank.held.clone() }).collect();
        self.say(who, Input::Heartbeat(Sender { worker: daemon.id, session }, held));
    }

    /// What a worker said and the coordinator could not take ends the session, as in the service.
    pub(crate) fn say(&mut self, who: usize, input: Input) {
        if !self.apply(input) {
            self.hang_up(who, true);
        }
    }

    fn pass(&mut self, milliseconds: i64) {
        self.now = self.now.plus(milliseconds);
        self.apply(Input::Tick);
    }

    /// Applies an input as the service does: on a copy, which counts once it is stored.
    pub(crate) fn apply(&mut self, input: Input) -> bool {
        let mut next = self.cluster.clone();
        self.inputs += 1;
        if self.inputs.is_multiple_of(32) {
            // Dear, so not each time.
            next.check_indexes().unwrap();
        }
        let before: Vec<Arc<Job>> = next.jobs().cloned().collect();
        let ready = said_ready(&input);
        match next.apply(input, self.now) {
            Err(_) => {
                assert!(before.iter().eq(next.jobs()), "a refusal changed the state");
                false
            }
            Ok(_) if self.disk_fails && self.chance.below(200) == 0 => false,
            Ok(effects) => {
                // The service forms rings once for all inputs of a batch.
                let placed = if self.chance.below(4) > 0 { next.place(self.now) } else { Effects::default() };
                self.cluster = next;
                self.ready.extend(ready);
                for effects in [effects, placed] {
                    self.store(&effects);
                    self.act(effects.actions);
                }
                true
            }
        }
    }

    fn store(&mut self, effects: &Effects) {
        for write in &effects.writes {
            match write {
                Write::InsertJob(job) => assert!(self.disk.jobs.insert(job.id, job.as_stored()).is_none()),
                Write::UpdateJob(job) => {
                    let before =
                        self.disk.jobs.insert(job.id, job.as_stored()).expect("updated before inserted");
                    check_rewrite(&before, job);
                    self.check_kept(&before, job);
                }
                Write::UpdateProgress { job, step, loss, validation, last_sequence, artifacts, updated } => {
                    let row = self.disk.jobs.get_mut(job).expect("updated before inserted");
                    assert!(!row.state.is_terminal(), "an ended job changed: {row:?}");
                    (row.step, row.loss, row.validation, row.updated) = (*step, *loss, *validation, *updated);
                    (row.last_sequence, row.artifacts) = (*last_sequence, *artifacts);
                }
                Write::AppendEvent(event) => {
                    let events = self.disk.events.entry(event.job).or_default();
                    assert_eq!(event.sequence, events.len() as u64 + 1, "a gap in the events");
                    events.push(event.clone());
                }
                Write::AppendStep(job, step) => {
                    let steps = self.disk.steps.entry(*job).or_default();
                    assert!(steps.last().is_none_or(|last| last.step < step.step), "a step came twice");
                    steps.push(*step);
                }
                Write::SetDraining(worker, true) => drop(self.disk.drained.insert(*worker)),
                Write::SetDraining(worker, false) => drop(self.disk.drained.remove(worker)),
                Write::SetAccount(owner, Some(account)) => {
                    self.disk.accounts.insert(owner.clone(), *account);
                }
                Write::SetAccount(owner, None) => drop(self.disk.accounts.remove(owner)),
                Write::PutArtifact(file) => {
                    self.disk.files.insert((file.job, file.name.clone()), file.clone());
                }
                Write::DropArtifact(job, name) => {
                    self.disk.files.remove(&(*job, name.clone()));
                }
            }
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match &action {
                Action::Send(_, Down::Assignment(given)) => check_assignment(self, given),
                Action::Send(_, Down::StartRank(job, epoch)) => self.check_start(*job, *epoch),
                _ => {}
            }
            let (Action::Send(session, _) | Action::Close(session, _)) = &action;
            let Some(daemon) = self.daemons.iter_mut().find(|one| one.session == Some(*session)) else {
                continue;
            };
            match action {
                Action::Send(_, message) => daemon.inbox.push_back(message),
                Action::Close(..) => {
                    daemon.session = None;
                    daemon.inbox.clear();
                }
            }
        }
    }
}
