use std::sync::Arc;

use ringtune_shared::ids::{Epoch, JobId, SweepId};
use ringtune_shared::job::Rung;

use crate::core::testing::{self, hello, inversion, new_job, step_record};
use crate::core::{
    AnyFloat, Cluster, HeldRank, Input, Job, JobState, Limits, NewJob, Options, Phase, RankReport,
    ReasonCode, Recovered, Refusal, Sender, SessionId, StepRecord, SweepPlace, Time, Write,
};

/// Jobs of a sweep for one worker each, and workers.
struct World {
    cluster: Cluster,
    workers: Vec<Sender>,
    jobs: Vec<JobId>,
    ended: Vec<Arc<Job>>,
}

fn points(count: u32, rungs: &[(u64, u32)]) -> Vec<NewJob> {
    let (sweep, rungs) = (SweepId::new(), rungs.iter().map(|(step, keep)| Rung { step: *step, keep: *keep }));
    let rungs: Vec<Rung> = rungs.collect();
    let place = |point| SweepPlace {
        sweep,
        point,
        points: count,
        settings: [("train.seed".to_owned(), point.to_string())].into(),
        rungs: rungs.clone(),
        passed: 0,
        scores: Vec::new(),
    };
    let spec = inversion("max_train_steps = 9\n");
    (1..=count)
        .map(|point| NewJob { sweep: Some(place(point)), ..new_job(JobId::new(), spec.clone()) })
        .collect()
}

impl World {
    fn new(workers: u64, jobs: u32, rungs: &[(u64, u32)]) -> Self {
        let points = points(jobs, rungs);
        let jobs = points.iter().map(|point| point.id).collect();
        let mut world = Self { cluster: testing::cluster(), workers: Vec::new(), jobs, ended: Vec::new() };
        for number in 0..workers {
            let (session, hello) = (SessionId(number), hello(number));
            world.workers.push(Sender { worker: hello.worker, session });
            world.apply(Input::Hello { session, hello });
        }
        world.apply(Input::CreateSweep(points));
        world
    }

    fn apply(&mut self, input: Input) {
        let effects = self.cluster.apply(input, Time(1)).unwrap();
        self.cluster.place(Time(1));
        self.cluster.check_indexes().unwrap();
        self.ended.extend(effects.writes.into_iter().filter_map(|write| match write {
            Write::UpdateJob(job) if job.state.is_terminal() => Some(job),
            _ => None,
        }));
    }

    fn job(&self, number: usize) -> &Job {
        let id = self.jobs[number];
        let ended = self.ended.iter().find(|job| job.id == id);
        ended.or_else(|| self.cluster.job(id)).expect("a job")
    }

    fn states(&self) -> Vec<ReasonCode> {
        (0..self.jobs.len()).map(|number| self.job(number).reason_code()).collect()
    }

    /// Who has the job's rank, and the epoch.
    fn holder(&self, number: usize) -> (Sender, Epoch) {
        let ring = self.job(number).ring.as_ref().expect("a ring");
        let worker = ring.members[0].worker;
        (*self.workers.iter().find(|one| one.worker == worker).unwrap(), ring.epoch)
    }

    fn say(&mut self, number: usize, phase: Phase) {
        let (sender, epoch) = self.holder(number);
        let held = HeldRank { phase, ..HeldRank::of(self.jobs[number], epoch, Some(0)) };
        self.apply(Input::RankReport(sender, RankReport { held, progress: None }));
        if phase.is_terminal() {
            self.apply(Input::Heartbeat(sender, Vec::new()));
        }
    }

    /// The job trains up to this step, where its validation loss is taken.
    fn train(&mut self, number: usize, to: u64, loss: f64) {
        if self.job(number).state == JobState::Preparing {
            [Phase::Ready, Phase::Training].into_iter().for_each(|phase| self.say(number, phase));
        }
        for step in self.job(number).step + 1..=to {
            let validation_loss = (step == to).then_some(AnyFloat(loss));
            let (sender, epoch) = self.holder(number);
            let step = StepRecord { epoch, validation_loss, ..step_record(step) };
            self.apply(Input::RankStep(sender, self.jobs[number], epoch, step));
        }
    }
}

#[test]
fn jobs_wait_at_a_rung_without_workers_until_the_last_has_come_and_the_best_go_on() {
    let mut world = World::new(2, 3, &[(2, 2), (4, 1)]);
    use ReasonCode::{OutOfSweep, Preparing, Running, WaitingForSweep, WaitingForWorkers};
    assert_eq!(world.states(), [Preparing, Preparing, WaitingForWorkers]);
    world.train(0, 2, 0.5);
    assert_eq!(world.states()[0], WaitingForSweep);
    // One step more on the way out counts for nothing.
    let (sender, epoch) = world.holder(0);
    let late = StepRecord { epoch, validation_loss: Some(AnyFloat(9.0)), ..step_record(3) };
    world.apply(Input::RankStep(sender, world.jobs[0], epoch, late));
    world.say(0, Phase::Stopped);
    assert_eq!(
        (world.job(0).state, world.job(0).reason.as_str()),
        (JobState::Paused, "waits for the other jobs of its sweep after step 2")
    );
    let refused = world.cluster.apply(Input::ResumeJob(world.jobs[0]), Time(1)).unwrap_err();
    assert_eq!(refused, Refusal::WaitsForSweep(world.jobs[0]));
    // Its worker has the third one, which is the worst.
    assert_eq!(world.states()[2], Preparing);
    world.train(2, 2, f64::NAN);
    world.say(2, Phase::Stopped);
    world.train(1, 2, 0.25);
    // The last to come goes on where it is.
    assert!(matches!(world.states()[..], [Preparing, Running(_), OutOfSweep]), "{:?}", world.states());
    assert_eq!(
        world.job(2).reason,
        "validation loss inf: not among the best 2 of the 3 jobs of its sweep after step 2"
    );
    assert_eq!(world.job(0).validation, Some(crate::core::Validation { step: 3, loss: 9.0 }));
    // The next round, with a restart of the coordinator in it: of equals the earlier point is better.
    world.train(1, 4, 0.5);
    world.say(1, Phase::Stopped);
    let jobs: Vec<Job> = world.cluster.jobs().map(|job| job.as_stored()).collect();
    let recovered = Recovered { jobs, last_number: 3, ..Recovered::default() };
    let before = world.holder(0);
    world.cluster = Cluster::recover(Options::default(), recovered, Time(1));
    for (number, sender) in (0..).zip(world.workers.clone()) {
        let held = match sender.worker == before.0.worker {
            true => vec![HeldRank::of(world.jobs[0], before.1, Some(0))],
            false => Vec::new(),
        };
        let hello = crate::core::Hello { worker: sender.worker, held, ..hello(number) };
        world.apply(Input::Hello { session: sender.session, hello });
    }
    world.train(0, 4, 0.5);
    assert!(matches!(world.states()[..], [Running(_), OutOfSweep, OutOfSweep]), "{:?}", world.states());
    assert_eq!(world.job(0).sweep.as_ref().map(|place| (place.passed, place.score())), Some((2, None)));
}

#[test]
fn a_job_that_fails_or_is_cancelled_is_waited_for_no_more() {
    let mut world = World::new(3, 3, &[(2, 1)]);
    world.train(0, 2, 0.5);
    world.say(0, Phase::Stopped);
    world.train(1, 1, 0.1);
    world.apply(Input::CancelJob { job: world.jobs[1], reason: String::new() });
    assert_eq!(world.states()[0], ReasonCode::WaitingForSweep);
    world.train(2, 1, 0.1);
    world.say(2, Phase::Failed);
    // It is the only one that is left, and goes on though another is still to stop.
    assert_eq!(world.states()[0], ReasonCode::Preparing);
    world.say(1, Phase::Stopped);
    assert_eq!(world.states()[1], ReasonCode::CancelledByUser);
}

#[test]
fn a_sweep_is_queued_whole_or_not_at_all_and_once() {
    let key = |id: &str| crate::core::RequestKey {
        id: id.to_owned(),
        fingerprint: ringtune_shared::ids::ContentHash::of(b"sweep"),
    };
    let mut world = World::new(0, 3, &[]);
    let limits = Limits { queued_jobs: 5, ..Limits::default() };
    world.cluster.set_limits(limits);
    let refused = world.cluster.apply(Input::CreateSweep(points(3, &[])), Time(1)).unwrap_err();
    assert_eq!(refused, Refusal::QueueFull { limit: 5 });
    let mut two = points(2, &[]);
    two[0].request = Some(key("once"));
    let first = world.cluster.apply(Input::CreateSweep(two.clone()), Time(1)).unwrap().about;
    assert_eq!(first, Some(two[0].id));
    let mut again = points(2, &[]);
    again[0].request = Some(key("once"));
    assert_eq!(world.cluster.apply(Input::CreateSweep(again), Time(1)).unwrap().about, first);
    assert_eq!(world.cluster.jobs().count(), 5);
    let sweep = two[0].sweep.as_ref().unwrap().sweep;
    world.apply(Input::CancelSweep { sweep, reason: "enough".to_owned() });
    assert_eq!((world.cluster.jobs().count(), world.ended.len()), (3, 2));
    assert!(world.ended.iter().all(|job| job.reason == "enough"));
    world.apply(Input::CancelSweep { sweep, reason: String::new() });
}
