use std::sync::Arc;

use ringtune_shared::ids::{ContentHash, Epoch, JobId};
use ringtune_shared::job::MixedPrecision;
use ringtune_shared::version::{Dialect, RE_FORM};

use crate::core::testing::{self, hello, inversion, new_job, step_record};
use crate::core::{
    Action, Assignment, Capabilities, Cluster, Difference, Down, Effects, Failure, HeldRank, Hello, Input,
    Job, JobState, NewJob, NewVerification, Options, Phase, Pin, RankReport, ReasonCode, Sender, SessionId,
    StepRecord, Time, Verification, Write,
};

/// A coordinator with workers of class "one".
struct World {
    cluster: Cluster,
    now: Time,
    given: Vec<(SessionId, Assignment)>,
    ended: Option<Job>,
}

impl World {
    fn new() -> Self {
        Self { cluster: testing::cluster(), now: Time(1), given: Vec::new(), ended: None }
    }

    fn apply(&mut self, input: Input) {
        let effects = self.cluster.apply(input, self.now).unwrap();
        self.take(effects);
        let placed = self.cluster.place(self.now);
        self.take(placed);
        self.cluster.check_indexes().unwrap();
    }

    fn take(&mut self, effects: Effects) {
        for action in effects.actions {
            if let Action::Send(session, Down::Assignment(given)) = action {
                self.given.push((session, *given));
            }
        }
        for write in effects.writes {
            if let Write::UpdateJob(job) = write
                && job.state.is_terminal()
            {
                self.ended = Some((*job).clone());
            }
        }
    }

    fn worker(&mut self, number: u64, dialect: Dialect) -> Sender {
        let class = "one".to_owned();
        let capabilities = Capabilities { numerics_class: class, threads: 1, ..Capabilities::default() };
        let hello = Hello { capabilities: Arc::new(capabilities), dialect, ..hello(number) };
        let sender = Sender { worker: hello.worker, session: SessionId(number) };
        self.apply(Input::Hello { session: SessionId(number), hello });
        sender
    }

    /// Of steps 3 to 5 of a job that wanted two ranks and has more steps.
    fn verify(&mut self) -> JobId {
        let verification = Verification { job: JobId::new(), first_step: 3, last_step: 5, difference: None };
        let pin = Arc::new(Pin {
            numerics_class: "one".to_owned(),
            threads_per_rank: 3,
            precision: MixedPrecision::No,
            version: "0.3.0".to_owned(),
        });
        let job = sized_job(2);
        let id = job.id;
        self.apply(Input::VerifyJob(Box::new(NewVerification { job, verification, pin })));
        id
    }

    fn report(&mut self, sender: Sender, job: JobId, phase: Phase) {
        let held = HeldRank { phase, ..HeldRank::of(job, Epoch::FIRST, Some(0)) };
        self.apply(Input::RankReport(sender, RankReport { held, progress: None }));
    }

    /// A verification that runs on the only worker.
    fn running() -> (Self, Sender, JobId) {
        let mut world = Self::new();
        let sender = world.worker(1, Dialect::ours());
        let job = world.verify();
        [Phase::Ready, Phase::Training].into_iter().for_each(|phase| world.report(sender, job, phase));
        assert_eq!(world.job(job).state, JobState::Running);
        (world, sender, job)
    }

    fn job(&self, id: JobId) -> Job {
        (**self.cluster.job(id).unwrap()).clone()
    }

    fn step(&mut self, sender: Sender, job: JobId, step: u64, computed: &str, stored: Option<&str>) {
        let step = StepRecord { state: Some(hash(computed)), ..step_record(step) };
        let stored = stored.map(hash);
        self.apply(Input::StepAgain { sender, job, epoch: Epoch::FIRST, step, stored });
    }
}

fn hash(text: &str) -> ContentHash {
    ContentHash::of(text.as_bytes())
}

fn sized_job(size: u32) -> NewJob {
    let sections = format!("max_train_steps = 9\n[cluster]\nworld_size = {size}\nmin_world_size = {size}\n");
    new_job(JobId::new(), inversion(&sections))
}

#[test]
fn one_worker_computes_on_what_the_job_was_computed_on() {
    let (world, _, job) = World::running();
    let [(_, given)] = world.given.as_slice() else { panic!("{:?}", world.given) };
    assert_eq!((given.proof, given.members.len(), given.threads_per_rank), (Some(5), 1, 3));
    assert_eq!((given.numerics_class.as_str(), given.version.as_str()), ("one", "0.3.0"));
    // What decides the bits is as it was.
    assert_eq!(given.spec.common.cluster.world_size, 2);
    let job = world.job(job);
    assert_eq!((job.total_steps(), job.compared(), job.reason_code()), (5, 0, ReasonCode::Verifying));
}

#[test]
fn steps_that_are_the_same_make_it_succeed() {
    let (mut world, sender, job) = World::running();
    let original = world.job(job).verification.unwrap().job;
    // Before the first step there need not be anything to compare with.
    world.step(sender, job, 1, "a", None);
    world.step(sender, job, 2, "b", Some("b"));
    assert_eq!(world.job(job).compared(), 0);
    for (step, state) in [(3, "c"), (4, "d"), (5, "e")] {
        world.step(sender, job, step, state, Some(state));
        assert_eq!(world.job(job).compared(), step);
    }
    world.report(sender, job, Phase::Finished);
    let ended = world.ended.unwrap();
    assert_eq!((ended.state, ended.reason_code()), (JobState::Succeeded, ReasonCode::Completed));
    assert_eq!(ended.reason, format!("same: steps 3 to 5 of {original}"));
}

#[test]
fn the_first_step_that_differs_ends_it_with_both_hashes() {
    for differing in [2, 4] {
        let (mut world, sender, job) = World::running();
        let original = world.job(job).verification.unwrap().job;
        for step in 1..differing {
            world.step(sender, job, step, "x", Some("x"));
        }
        world.step(sender, job, differing, "now", Some("then"));
        let ended = world.ended.clone().unwrap();
        let (stored, computed) = (hash("then"), hash("now"));
        assert_eq!(ended.state, JobState::Failed);
        assert_eq!(ended.reason_code(), ReasonCode::Failed(Failure::Differs));
        let found = ended.verification.as_ref().unwrap().difference;
        assert_eq!(found, Some(Difference { step: differing, stored, computed }));
        let expected = format!(
            "differs: step {differing} of {original}: stored sha256:{stored}, computed sha256:{computed}"
        );
        assert_eq!(ended.reason, expected);
        assert_eq!(ended.compared(), if differing == 4 { 3 } else { 0 });
        assert!(world.cluster.job(job).is_none());
    }
}

#[test]
fn it_fails_where_there_is_nothing_to_compare_with_and_where_steps_are_missing() {
    let (mut world, sender, job) = World::running();
    world.step(sender, job, 3, "a", Some("a"));
    world.step(sender, job, 4, "b", None);
    let ended = world.ended.unwrap();
    assert_eq!(ended.reason_code(), ReasonCode::Failed(Failure::NothingToCompare));
    assert!(ended.reason.contains("step 4") && ended.reason.contains("was deleted"), "{}", ended.reason);

    let (mut world, sender, job) = World::running();
    world.step(sender, job, 3, "a", Some("a"));
    world.report(sender, job, Phase::Finished);
    assert!(world.ended.is_none(), "the steps may be on their way");
    world.now = world.now.plus(Options::default().finish + 1);
    world.apply(Input::Tick);
    let ended = world.ended.unwrap();
    assert_eq!((ended.state, ended.compared()), (JobState::Failed, 3), "{}", ended.reason);
}

#[test]
fn a_step_of_somebody_else_says_nothing() {
    let (mut world, _, job) = World::running();
    let other = world.worker(2, Dialect::ours());
    world.step(other, job, 3, "now", Some("then"));
    assert!(world.ended.is_none());
    assert_eq!(world.job(job).step, 0);
}

#[test]
fn a_worker_that_cannot_verify_gets_no_such_rank_and_the_jobs_behind_it_are_not_held_up() {
    let mut world = World::new();
    let older = Dialect { features: vec![RE_FORM.to_owned()], ..Dialect::ours() };
    world.worker(1, older);
    let verification = world.verify();
    assert!(world.given.is_empty(), "{:?}", world.given);
    let job = world.job(verification);
    assert_eq!((job.state, job.reason_code()), (JobState::Queued, ReasonCode::WaitingForWorkers));
    let reason = world.cluster.waiting().reason(verification).unwrap();
    assert_eq!(reason, "waiting for workers: 0 free, 1 needed");
    let ordinary = sized_job(1);
    let id = ordinary.id;
    world.apply(Input::CreateJob(ordinary));
    assert_eq!(
        world.given.iter().map(|(_, given)| (given.job, given.proof)).collect::<Vec<_>>(),
        [(id, None)]
    );
    // One that can comes.
    world.worker(2, Dialect::ours());
    let (session, given) = world.given.last().unwrap();
    assert_eq!((*session, given.job, given.proof), (SessionId(2), verification, Some(5)));
}

#[test]
fn one_that_is_queued_again_is_still_bound_to_its_class() {
    let (mut world, sender, job) = World::running();
    world.step(sender, job, 1, "a", None);
    world.apply(Input::DrainWorker { worker: sender.worker, draining: true });
    world.report(sender, job, Phase::Stopped);
    let queued = world.job(job);
    assert_eq!((queued.state, queued.reason_code()), (JobState::Queued, ReasonCode::Recovering));
    world.worker(2, Dialect::ours());
    let (_, given) = world.given.last().unwrap();
    assert_eq!((given.proof, given.epoch, given.threads_per_rank), (Some(5), Epoch(2), 3));
}
