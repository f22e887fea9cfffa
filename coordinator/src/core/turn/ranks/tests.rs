use std::sync::Arc;

use ringtune_shared::ids::{Epoch, JobId};
use ringtune_shared::version::Dialect;

use crate::core::testing::{self, hello, inversion, new_job, step_record};
use crate::core::{
    Cluster, Effects, Fault, HeldRank, Hello, Input, JobState, Options, Phase, RankReport, Sender, SessionId,
    StepRecord, Time, Write,
};

/// A job whose ranks all train, each on a host of its own.
struct Ring {
    cluster: Cluster,
    job: JobId,
    members: Vec<Sender>,
    now: Time,
    /// The last step that ranks report.
    step: u64,
    /// The final state and reason, once there is one.
    ended: Option<(JobState, String)>,
}

impl Ring {
    fn training(size: u32) -> Self {
        Self::training_job(size, "")
    }

    /// With more lines in the job's `[train]`.
    fn training_job(size: u32, train: &str) -> Self {
        let mut ring = Self {
            cluster: testing::cluster(),
            job: JobId::new(),
            members: Vec::new(),
            now: Time(1),
            step: 0,
            ended: None,
        };
        for number in 0..u64::from(size) {
            // As release 0.2.0: its rings cannot go on without a member.
            let dialect = Dialect { features: Vec::new(), ..Dialect::ours() };
            let hello = Hello { dialect, ..hello(number) };
            ring.apply(Input::Hello { session: SessionId(number), hello });
        }
        let spec = inversion(&format!("{train}\n[cluster]\nworld_size = {size}\nmin_world_size = {size}\n"));
        ring.apply(Input::CreateJob(new_job(ring.job, spec)));
        let members = &ring.cluster.job(ring.job).unwrap().ring.clone().unwrap().members;
        let sender =
            |worker| Sender { worker, session: ring.cluster.worker(worker).unwrap().session.unwrap() };
        ring.members = members.iter().map(|member| sender(member.worker)).collect();
        for phase in [Phase::Ready, Phase::Training] {
            (0..size).for_each(|rank| ring.report(rank, phase, "", false));
        }
        assert_eq!(ring.cluster.job(ring.job).unwrap().state, JobState::Running);
        ring
    }

    fn apply(&mut self, input: Input) {
        let Effects { writes, .. } = self.cluster.apply(input, self.now).unwrap();
        self.cluster.place(self.now);
        self.cluster.check_indexes().unwrap();
        for write in writes {
            if let Write::UpdateJob(job) = write
                && job.state.is_terminal()
            {
                self.ended = Some((job.state, job.reason.clone()));
            }
        }
    }

    fn report(&mut self, rank: u32, phase: Phase, reason: &str, neighbour_lost: bool) {
        let (job, reason) = (self.job, reason.to_owned());
        let (epoch, fault, step) = (Epoch::FIRST, Fault::Unknown, self.step);
        let held =
            HeldRank { phase, reason, neighbour_lost, fault, step, ..HeldRank::of(job, epoch, Some(rank)) };
        let sender = self.members[rank as usize];
        self.apply(Input::RankReport(sender, RankReport { held, progress: None }));
    }

    fn step(&mut self, step: u64) {
        let record = StepRecord { world_size: self.members.len() as u32, ..step_record(step) };
        self.step = step;
        self.apply(Input::RankStep(self.members[0], self.job, Epoch::FIRST, record));
    }

    fn finishes(&mut self) {
        (0..self.members.len() as u32).for_each(|rank| self.report(rank, Phase::Finished, "", false));
    }

    fn loses_its_neighbour(&mut self, rank: u32) {
        self.report(rank, Phase::Failed, "a neighbour was lost", true);
    }

    fn pass(&mut self, milliseconds: i64) {
        self.now = self.now.plus(milliseconds);
        self.apply(Input::Tick);
    }

    fn host(&self, rank: usize) -> String {
        self.cluster.worker(self.members[rank].worker).unwrap().host_name.clone()
    }

    fn failed_with(&self, rank: usize, words: &str) {
        let reason = format!("rank {rank} on {}: {words}", self.host(rank));
        assert_eq!(self.ended, Some((JobState::Failed, reason)));
    }
}

#[test]
fn the_cause_is_the_reason_whichever_report_comes_first() {
    for first in ["cause", "loss"] {
        let mut ring = Ring::training(3);
        if first == "loss" {
            ring.loses_its_neighbour(0);
            ring.loses_its_neighbour(2);
            ring.pass(Options::default().root_cause - 1);
            assert_eq!(ring.ended, None, "nobody has said why yet");
        }
        ring.report(1, Phase::Failed, "no space left", false);
        ring.failed_with(1, "no space left");
    }
}

#[test]
fn a_loss_that_nobody_explains_fails_the_job_in_time() {
    for order in [[0, 2], [2, 0]] {
        let mut ring = Ring::training(3);
        order.into_iter().for_each(|rank| ring.loses_its_neighbour(rank));
        ring.pass(Options::default().root_cause);
        ring.failed_with(0, "a neighbour was lost");
    }
}

#[test]
fn nothing_is_waited_for_once_all_ranks_have_ended() {
    let mut ring = Ring::training(2);
    ring.loses_its_neighbour(1);
    assert_eq!(ring.ended, None);
    ring.loses_its_neighbour(0);
    ring.failed_with(0, "a neighbour was lost");
}

#[test]
fn a_worker_that_is_away_is_named_as_lost() {
    let mut ring = Ring::training(2);
    let gone = ring.members[1];
    ring.apply(Input::SessionEnded(gone));
    ring.loses_its_neighbour(0);
    ring.pass(Options::default().root_cause);
    let wanted =
        format!("worker lost: rank 1 on {}; rank 0 on {}: a neighbour was lost", ring.host(1), ring.host(0));
    assert_eq!(ring.ended, Some((JobState::Failed, wanted)));
}

#[test]
fn a_broken_ring_is_still_cancelled() {
    let mut ring = Ring::training(2);
    ring.loses_its_neighbour(0);
    ring.apply(Input::CancelJob { job: ring.job, reason: "enough".to_owned() });
    ring.report(1, Phase::Stopped, "", false);
    assert_eq!(ring.ended, Some((JobState::Cancelled, "enough".to_owned())));
}

const EARLY: &str = "max_train_steps = 9\nvalidation_loss_steps = 1\nearly_stop_patience = 2";

#[test]
fn a_job_that_may_stop_early_succeeds_before_its_last_step_and_says_why() {
    let mut ring = Ring::training_job(2, EARLY);
    (1..=4).for_each(|step| ring.step(step));
    ring.finishes();
    let (state, reason) = ring.ended.unwrap();
    assert_eq!(state, JobState::Succeeded);
    assert_eq!(reason, "4 of 9 steps done: stopped early, no lower validation loss in 2 validations");
}

#[test]
fn it_waits_for_the_steps_before_the_one_it_stopped_at() {
    let mut ring = Ring::training_job(2, EARLY);
    (1..=3).for_each(|step| ring.step(step));
    ring.step = 4;
    ring.finishes();
    assert_eq!(ring.ended, None);
    ring.step(4);
    assert_eq!(ring.ended.map(|(state, _)| state), Some(JobState::Succeeded));
}

#[test]
fn a_job_that_may_not_stop_early_waits_for_its_last_step() {
    for train in ["max_train_steps = 9", "max_train_steps = 9\nvalidation_loss_steps = 1"] {
        let mut ring = Ring::training_job(1, train);
        (1..=4).for_each(|step| ring.step(step));
        ring.finishes();
        assert_eq!(ring.ended, None);
    }
}

#[test]
fn a_step_writes_only_the_numbers_that_it_changes() {
    let mut ring = Ring::training(2);
    // The first one makes up for all tries, once.
    ring.step(1);
    let input = Input::RankStep(ring.members[0], ring.job, Epoch::FIRST, step_record(2));
    let writes = ring.cluster.apply(input, ring.now).unwrap().writes;
    let sequence = ring.cluster.job(ring.job).unwrap().last_sequence;
    let [Write::AppendStep(..), Write::AppendEvent(..), progress] = &writes[..] else { panic!("{writes:?}") };
    let (job, step, loss) = (ring.job, 2, Some(0.5));
    let (validation, artifacts, updated) = (None, 0, ring.now);
    assert_eq!(
        *progress,
        Write::UpdateProgress { job, step, loss, validation, last_sequence: sequence, artifacts, updated }
    );
}

#[test]
fn a_sign_of_life_writes_nothing_and_touches_no_job() {
    let mut ring = Ring::training(2);
    let before = ring.cluster.job(ring.job).unwrap().clone();
    let (job, reason) = (ring.job, String::new());
    let (epoch, phase, fault) = (Epoch::FIRST, Phase::Training, Fault::Unknown);
    let held = HeldRank { phase, reason, fault, ..HeldRank::of(job, epoch, Some(1)) };
    let effects = ring.cluster.apply(Input::Heartbeat(ring.members[1], vec![held]), ring.now).unwrap();
    assert!(effects.writes.is_empty() && effects.actions.is_empty());
    assert!(Arc::ptr_eq(&before, ring.cluster.job(ring.job).unwrap()));
}
