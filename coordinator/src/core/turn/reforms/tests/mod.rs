//! Rings that lose members, and get others.

mod done_again;
mod evictions;
mod links;
mod orders;
mod waits;

use std::collections::BTreeSet;
use std::sync::Arc;

use ringtune_shared::ids::{ContentHash, Epoch, JobId, WorkerId};
use ringtune_shared::job::JobSpec;

use crate::core::testing::{self, file, hello, inversion, new_job, step_record};
use crate::core::{
    Action, Cluster, Down, EnterRing, EventBody, Failure, HeldRank, Hello, Input, Job, JobState, LookAtLinks,
    Options, Phase, RankReport, ReasonCode, Recovered, RingPlace, Sender, SessionId, Sight, StepRecord, Time,
    Trouble, TroubleKind, WorkerState, Write,
};

/// A job whose first ranks train, and perhaps more workers. Worker n is on host n.
struct World {
    cluster: Cluster,
    now: Time,
    workers: Vec<Sender>,
    job: JobId,
    /// What each worker was told since the last look.
    told: Vec<(usize, Down)>,
    /// What the job's log says.
    notes: Vec<String>,
    ended: Option<Arc<Job>>,
    /// Which worker does not reach which.
    broken: BTreeSet<(usize, usize)>,
    /// Who does not answer.
    mute: BTreeSet<usize>,
}

impl World {
    fn training(ranks: usize, min: usize, more: usize) -> Self {
        let sections =
            format!("max_train_steps = 9\n[cluster]\nworld_size = {ranks}\nmin_world_size = {min}\n");
        Self::training_job(inversion(&sections), ranks, more)
    }

    fn training_job(spec: Arc<JobSpec>, ranks: usize, more: usize) -> Self {
        let mut world = Self {
            cluster: testing::cluster(),
            now: Time(1),
            workers: Vec::new(),
            job: JobId::new(),
            told: Vec::new(),
            notes: Vec::new(),
            ended: None,
            broken: BTreeSet::new(),
            mute: BTreeSet::new(),
        };
        (0..ranks).for_each(|_| world.arrive());
        world.apply(Input::CreateJob(new_job(world.job, spec)));
        for phase in [Phase::Ready, Phase::Training] {
            (0..ranks).for_each(|worker| world.say(worker, 1, Some(worker), phase));
        }
        (0..more).for_each(|_| world.arrive());
        world.told.clear();
        world
    }

    fn arrive(&mut self) {
        let (worker, number) = (WorkerId::new(), self.workers.len());
        self.workers.push(Sender { worker, session: SessionId(number as u64) });
        self.hello(number, 1, Vec::new());
    }

    fn hello(&mut self, number: usize, incarnation: u64, held: Vec<HeldRank>) {
        let session = SessionId(self.workers[number].session.0 + 100);
        self.workers[number].session = session;
        let worker = self.workers[number].worker;
        let hello = Hello { worker, incarnation, held, ..hello(number as u64) };
        self.apply(Input::Hello { session, hello });
    }

    fn apply(&mut self, input: Input) {
        self.now = self.now.plus(1);
        let effects = self.cluster.apply(input, self.now).unwrap();
        let placed = self.cluster.place(self.now);
        self.cluster.check_indexes().unwrap();
        let mut questions = Vec::new();
        for effects in [effects, placed] {
            for write in effects.writes {
                match write {
                    Write::AppendEvent(event) => {
                        if let EventBody::Log { message, .. } = event.body {
                            self.notes.push(message);
                        }
                    }
                    Write::UpdateJob(job) if job.state.is_terminal() => self.ended = Some(job),
                    _ => {}
                }
            }
            for action in effects.actions {
                if let Action::Send(session, message) = action
                    && let Some(worker) = self.workers.iter().position(|one| one.session == session)
                {
                    match message {
                        Down::LookAtLinks(question) => questions.push((worker, question)),
                        message => self.told.push((worker, message)),
                    }
                }
            }
        }
        questions.into_iter().for_each(|(worker, question)| self.look(worker, &question));
    }

    /// A worker says whom it reaches, unless it is mute.
    fn look(&mut self, worker: usize, question: &LookAtLinks) {
        if self.mute.contains(&worker) {
            return;
        }
        let number = |id| self.workers.iter().position(|one| one.worker == id).unwrap();
        let not_reached = |(id, address): &(WorkerId, String)| {
            let broken = self.broken.contains(&(worker, number(*id)));
            broken.then(|| (*id, format!("{address}: it did not answer")))
        };
        let seen = Sight::Seen(question.workers.iter().filter_map(not_reached).collect());
        for sight in [Sight::Looking, seen] {
            let (sender, job, look) = (self.workers[worker], question.job, question.look);
            self.apply(Input::LinksSeen { sender, job, look, sight });
        }
    }

    fn held(&self, epoch: u64, rank: Option<usize>, phase: Phase) -> HeldRank {
        let rank = rank.map(|rank| u32::try_from(rank).unwrap());
        HeldRank { phase, ..HeldRank::of(self.job, Epoch(epoch), rank) }
    }

    fn say(&mut self, worker: usize, epoch: u64, rank: Option<usize>, phase: Phase) {
        let held = self.held(epoch, rank, phase);
        self.apply(Input::RankReport(self.workers[worker], RankReport { held, progress: None }));
    }

    fn waits(&mut self, worker: usize, epoch: u64, rank: usize, lost: u32) {
        let text = format!("rank {lost} closed the connection");
        let trouble = Some(Trouble { kind: TroubleKind::Closed, rank: Some(lost), text });
        let held = HeldRank { trouble, ..self.held(epoch, Some(rank), Phase::Waiting) };
        self.apply(Input::RankReport(self.workers[worker], RankReport { held, progress: None }));
    }

    fn step(&mut self, worker: usize, epoch: u64, step: u64, state: &str) {
        let (epoch, state) = (Epoch(epoch), Some(ContentHash::of(state.as_bytes())));
        let (step_seconds, compute_seconds) = (1.0, 1.0);
        let record = StepRecord { epoch, step_seconds, compute_seconds, state, ..step_record(step) };
        self.apply(Input::RankStep(self.workers[worker], self.job, epoch, record));
    }

    fn go(&mut self, worker: usize) {
        self.apply(Input::SessionEnded(self.workers[worker]));
    }

    /// All but these say that they live.
    fn pass(&mut self, seconds: i64, silent: &[usize]) {
        for _ in 0..seconds {
            self.now = self.now.plus(1000);
            for worker in (0..self.workers.len()).filter(|worker| !silent.contains(worker)) {
                let held = self.told_place(worker).into_iter().collect();
                self.apply(Input::Heartbeat(self.workers[worker], held));
            }
            self.apply(Input::Tick);
        }
    }

    /// What a worker would say of its place.
    fn told_place(&self, worker: usize) -> Option<HeldRank> {
        let id = self.workers[worker].worker;
        let ring = self.cluster.job(self.job)?.ring.as_ref()?;
        let member = ring.member(id).or(ring.joiner(id).map(|joiner| &joiner.member))?;
        let epoch = ring.joiner(id).map_or(ring.epoch, |joiner| joiner.epoch);
        Some(self.held(epoch.0, ring.rank_of(id), member.phase.max(Phase::Preparing)))
    }

    fn job(&self) -> &Job {
        self.cluster.job(self.job).unwrap()
    }

    /// Who was told to enter which ring: the worker, the epoch, its rank, and whether after the step.
    fn told_to_enter(&mut self) -> Vec<(usize, u64, Option<u32>, bool)> {
        let told = std::mem::take(&mut self.told).into_iter();
        told.filter_map(|(worker, message)| match message {
            Down::EnterRing(given) => {
                let EnterRing { epoch, rank, after_step, .. } = *given;
                Some((worker, epoch.0, rank, after_step))
            }
            _ => None,
        })
        .collect()
    }
}

#[test]
fn a_ring_that_all_leave_by_themselves_is_formed_anew_however_often() {
    let mut world = World::training(2, 1, 0);
    for epoch in 1..9 {
        world.step(0, epoch, epoch, "a step");
        world.say(1, epoch, Some(1), Phase::Waiting);
        assert_eq!(world.told_to_enter(), [], "the other one may still say whom it lost");
        world.say(0, epoch, Some(0), Phase::Waiting);
        assert_eq!(world.told_to_enter(), [(0, epoch + 1, Some(0), false), (1, epoch + 1, Some(1), false)]);
        assert_eq!(world.job().reason, "re-forming the ring: its members connect anew");
        world.say(0, epoch + 1, Some(0), Phase::Training);
        world.say(1, epoch + 1, Some(1), Phase::Training);
    }
}

#[test]
fn a_ring_that_loses_a_member_goes_on_at_once_with_the_others() {
    let mut world = World::training(3, 1, 0);
    world.step(0, 1, 1, "one");
    world.go(1);
    assert_eq!(world.told_to_enter(), [], "the ring may go on without the coordinator");
    world.waits(2, 1, 2, 1);
    assert_eq!(world.told_to_enter(), [(0, 2, Some(0), false), (2, 2, Some(1), false)]);
    let job = world.job();
    assert_eq!((job.state, job.reason_code(), job.rings), (JobState::Running, ReasonCode::Reforming, 2));
    assert_eq!(job.reason, "re-forming the ring: rank 1 on host-1 was lost");
    // The other one says so a moment later, of the ring before: it is told again.
    world.waits(0, 1, 0, 1);
    assert_eq!(world.told_to_enter(), [(0, 2, Some(0), false)]);
    // What rank 0 did in the old ring is its own; the first step in the new one is the end of it.
    world.say(0, 2, Some(0), Phase::Training);
    world.say(2, 2, Some(1), Phase::Training);
    world.step(0, 1, 2, "two");
    assert_eq!(world.job().reason_code(), ReasonCode::Reforming);
    world.step(0, 2, 3, "three");
    let job = world.job();
    assert!(matches!(job.reason_code(), ReasonCode::Running(_)));
    assert_eq!((job.reason.as_str(), job.step), ("training on 2 rank(s)", 3));
    let note = world.notes.last().unwrap();
    assert!(note.starts_with("re-formed: epoch 2, 2 of 3 ranks, after 0.0 s"), "{note}");
}

#[test]
fn a_worker_that_was_lost_lets_its_rank_go_and_comes_in_again_as_a_newcomer() {
    let mut world = World::training(3, 1, 0);
    world.step(0, 1, 1, "one");
    world.go(1);
    world.waits(2, 1, 2, 1);
    for (worker, rank) in [(0, 0), (2, 1)] {
        world.say(worker, 2, Some(rank), Phase::Training);
    }
    world.told.clear();
    // 1. It only lost its connection, and believes that it has the rank.
    world.hello(1, 1, vec![world.held(1, Some(1), Phase::Training)]);
    let stopped = Down::StopRank {
        job: world.job,
        epoch: Epoch(1),
        reason: "the coordinator has no such rank".to_owned(),
        keep_artifacts: false,
    };
    assert!(world.told.contains(&(1, stopped)), "{:?}", world.told);
    assert_eq!(world.cluster.place_of(world.workers[1].worker), None);
    // 2. It has let go, and prepares.
    world.told.clear();
    world.apply(Input::Heartbeat(world.workers[1], Vec::new()));
    let [(1, Down::Assignment(given))] = world.told.as_slice() else { panic!("{:?}", world.told) };
    assert_eq!((given.rank, given.epoch, given.members.len()), (None, Epoch(2), 2));
    assert_eq!(world.cluster.place_of(world.workers[1].worker), Some(RingPlace::Joins(world.job)));
    // 3. It is ready: all leave the ring together, after the same step.
    world.told.clear();
    world.say(1, 2, None, Phase::Preparing);
    world.say(1, 2, None, Phase::Ready);
    assert_eq!(world.told_to_enter(), [(0, 3, Some(0), true), (2, 3, Some(1), true), (1, 3, Some(2), true)]);
    // Until then they are where they were, and nobody minds.
    world.say(2, 2, Some(1), Phase::Training);
    world.step(0, 2, 2, "two");
    assert!(world.told_to_enter().is_empty());
}

#[test]
fn a_worker_that_restarts_or_whose_node_fails_is_lost_at_once() {
    let mut world = World::training(2, 1, 0);
    world.hello(1, 2, Vec::new());
    assert_eq!(world.told_to_enter(), [(0, 2, Some(0), false)]);
    assert_eq!(world.cluster.place_of(world.workers[1].worker), Some(RingPlace::Joins(world.job)));
    // Nobody else is left, nor a state: from the beginning.
    world.say(0, 2, Some(0), Phase::Failed);
    assert_eq!(
        world.ended.as_ref().map(|job| job.failure),
        Some(Some(Failure::Rank)),
        "not its node's fault"
    );
}

#[test]
fn too_few_members_wait_for_a_spare() {
    let mut world = World::training(2, 2, 0);
    world.step(0, 1, 1, "one");
    world.go(1);
    world.waits(0, 1, 0, 1);
    let job = world.job();
    assert_eq!((job.state, job.reason_code()), (JobState::Running, ReasonCode::WaitingForSpare));
    assert_eq!(job.reason, "1 rank(s) left, 2 needed: waiting for another worker");
    assert!(world.told_to_enter().is_empty());
    // 1. Somebody comes.
    world.arrive();
    world.say(2, 1, None, Phase::Ready);
    assert_eq!(world.told_to_enter(), [(0, 2, Some(0), false), (2, 2, Some(1), false)]);
    // 2. That one goes, too, and now nobody comes.
    world.go(2);
    world.waits(0, 2, 0, 1);
    world.pass(590, &[1, 2]);
    assert_eq!(world.job().reason_code(), ReasonCode::WaitingForSpare);
    world.told.clear();
    world.pass(12, &[1, 2]);
    let keeps = |told: &(usize, Down)| matches!(told, (0, Down::StopRank { keep_artifacts: true, .. }));
    assert!(world.told.iter().any(keeps), "{:?}", world.told);
    let artifact = file(world.job, "checkpoint-1.safetensors", b"checkpoint", Some(2));
    world.apply(Input::KeepArtifact { artifact });
    world.say(0, 2, Some(0), Phase::Stopped);
    let job = world.job();
    assert_eq!((job.state, job.reason_code()), (JobState::Queued, ReasonCode::Recovering));
    // 3. Two are there again: they go on from the checkpoint.
    world.told.clear();
    world.apply(Input::Heartbeat(world.workers[0], Vec::new()));
    world.arrive();
    let resumed = world.told.iter().filter_map(|(_, message)| match message {
        Down::Assignment(given) => Some((given.epoch.0, given.rank, given.resume_from)),
        _ => None,
    });
    let checkpoint = Some(ContentHash::of(b"checkpoint"));
    assert_eq!(resumed.collect::<Vec<_>>(), [(3, Some(0), checkpoint), (3, Some(1), checkpoint)]);
}

#[test]
fn a_step_that_is_done_again_must_come_to_the_same_state() {
    let mut world = World::training(1, 1, 0);
    for (step, state) in [(1, "one"), (2, "two"), (1, "one"), (2, "two")] {
        world.told.clear();
        world.step(0, 1, step, state);
        assert_eq!(world.told, [(0, Down::StepsStored(world.job, Epoch(1), step))]);
    }
    assert_eq!(world.job().step, 2);
    world.step(0, 1, 2, "another");
    let ended = world.ended.clone().unwrap();
    assert_eq!((ended.state, ended.failure), (JobState::Failed, Some(Failure::Diverged)));
    let (one, other) = (ContentHash::of(b"another"), ContentHash::of(b"two"));
    assert!(ended.reason.starts_with("step 2 was done again"), "{}", ended.reason);
    assert!(ended.reason.contains(&one.to_string()) && ended.reason.contains(&other.to_string()));
}

#[test]
fn a_drained_worker_leaves_after_its_step_and_gets_no_rank() {
    let mut world = World::training(2, 1, 1);
    let worker = world.workers[0].worker;
    for _ in 0..2 {
        world.apply(Input::DrainWorker { worker, draining: true });
    }
    // Rank 0 moves to the next one.
    assert_eq!(world.told_to_enter(), [(1, 2, Some(0), true), (0, 2, None, true)]);
    // It trains on to the end of the step, and then has let go.
    let last = world.held(1, Some(0), Phase::Training);
    world.apply(Input::Heartbeat(world.workers[0], vec![last]));
    assert!(world.told.iter().all(|(worker, _)| *worker != 0), "{:?}", world.told);
    world.apply(Input::Heartbeat(world.workers[0], Vec::new()));
    assert_eq!(world.cluster.place_of(worker), None);
    // The other one comes in for it.
    assert_eq!(world.cluster.place_of(world.workers[2].worker), Some(RingPlace::Joins(world.job)));
    world.apply(Input::DrainWorker { worker, draining: false });
    let nobody = WorkerId::new();
    let refused = world.cluster.apply(Input::DrainWorker { worker: nobody, draining: true }, world.now);
    assert_eq!(refused.err(), Some(crate::core::Refusal::NoSuchWorker(nobody)));
}

#[test]
fn rank_0_may_be_lost_after_the_last_step() {
    let mut world = World::training(3, 3, 0);
    (1..=9).for_each(|step| world.step(0, 1, step, "state"));
    world.say(1, 1, Some(1), Phase::Done);
    world.say(2, 1, Some(2), Phase::Done);
    world.go(0);
    world.pass(1, &[0]);
    assert!(world.told_to_enter().is_empty());
    world.pass(2, &[0]);
    assert_eq!(world.told_to_enter(), [(1, 2, Some(0), false), (2, 2, Some(1), false)]);
    for (worker, rank, phase) in [(1, 0, Phase::Training), (2, 1, Phase::Done), (1, 0, Phase::Finished)] {
        world.say(worker, 2, Some(rank), phase);
    }
    assert_eq!(world.ended.as_ref().map(|job| job.state), Some(JobState::Succeeded));
}

#[test]
fn any_member_may_tell_of_a_step() {
    let mut world = World::training(2, 2, 1);
    world.step(0, 1, 1, "one");
    world.step(1, 1, 1, "one");
    world.step(1, 1, 2, "two");
    assert_eq!(world.job().step, 2);
    assert!(world.told.contains(&(1, Down::StepsStored(world.job, Epoch(1), 2))));
    // Nobody else may.
    world.step(2, 1, 3, "three");
    assert_eq!(world.job().step, 2);
}

#[test]
fn a_newcomer_counts_once_it_has_the_state() {
    let lost = |arrived: bool| {
        let mut world = World::training(2, 1, 0);
        (1..=3).for_each(|step| world.step(0, 1, step, "state"));
        // 1. One is restarted, comes back, and takes the state, or does not.
        world.hello(1, 2, Vec::new());
        world.waits(0, 1, 0, 1);
        world.say(0, 2, Some(0), Phase::Training);
        world.say(1, 2, None, Phase::Ready);
        world.say(0, 3, Some(0), Phase::Training);
        if arrived {
            world.say(1, 3, Some(1), Phase::Training);
        }
        // 2. The other one is lost.
        world.hello(0, 2, Vec::new());
        world.waits(1, 3, 1, 0);
        (world.job().state, world.job().reason.clone())
    };
    assert_eq!(lost(true).0, JobState::Running);
    let (state, reason) = lost(false);
    assert_eq!(state, JobState::Preparing, "{reason}");
}

#[test]
fn a_joiner_that_never_got_its_place_is_told_of_the_ring_as_it_is_now() {
    let mut world = World::training(3, 1, 0);
    // 1. One is restarted, and is to join the ring of the other two. Then another one is, so that the ring is a newer one.
    world.hello(1, 2, Vec::new());
    world.hello(2, 2, Vec::new());
    world.say(0, 3, Some(0), Phase::Training);
    // 2. What the first was told is lost: it says hello without it, and is told again.
    world.hello(1, 2, Vec::new());
    world.told_to_enter();
    world.say(1, 3, None, Phase::Ready);
    assert_eq!(world.told_to_enter(), [(0, 4, Some(0), true), (1, 4, Some(1), true)]);
}
