use ringtune_shared::ids::{Epoch, JobId};
use ringtune_shared::version::Dialect;

use super::super::Turn;
use crate::core::testing::{self, hello, inversion, new_job};
use crate::core::{
    Action, Cluster, Down, Effects, Failure, Fault, Goal, HeldRank, Input, Job, JobState, Options, Phase,
    RankReport, ReasonCode, Refusal, Sender, SessionId, Time, Write,
};

/// A job whose only rank prepares, if there is a worker.
fn job(workers: u64) -> (Cluster, JobId, Option<Sender>) {
    let mut cluster = testing::cluster();
    let mut sender = None;
    for number in 0..workers {
        let (session, hello) = (SessionId(number), hello(number));
        sender = Some(Sender { worker: hello.worker, session });
        cluster.apply(Input::Hello { session, hello }, Time(1)).unwrap();
    }
    let id = JobId::new();
    cluster.apply(Input::CreateJob(new_job(id, inversion(""))), Time(1)).unwrap();
    cluster.place(Time(1));
    (cluster, id, sender)
}

/// What follows from something that is done to the cluster at a time.
fn turn(cluster: &mut Cluster, now: Time, act: impl FnOnce(&mut Turn<'_>)) -> Effects {
    let mut turn = Turn::new(cluster, now);
    act(&mut turn);
    let effects = turn.finish(None);
    cluster.check_indexes().unwrap();
    effects
}

fn report(cluster: &mut Cluster, sender: Sender, job: JobId, phase: Phase) -> Effects {
    let (epoch, reason, fault) = (Epoch::FIRST, String::new(), Fault::Unknown);
    let held = HeldRank { phase, reason, fault, ..HeldRank::of(job, epoch, Some(0)) };
    cluster.apply(Input::RankReport(sender, RankReport { held, progress: None }), Time(2)).unwrap()
}

fn row(effects: &Effects) -> &Job {
    let mut rows = effects.writes.iter().filter_map(|write| match write {
        Write::UpdateJob(job) => Some(&**job),
        _ => None,
    });
    rows.next_back().expect("a row")
}

#[test]
fn nothing_happens_to_a_job_that_may_not_end_so() {
    let (mut cluster, id, _) = job(0);
    let before = cluster.job(id).unwrap().clone();
    let may_end = [JobState::Cancelled, JobState::Failed];
    for to in JobState::ALL.into_iter().filter(|to| !may_end.contains(to)) {
        let effects = turn(&mut cluster, Time(2), |turn| turn.end_job(id, to, "no"));
        assert!(effects.writes.is_empty() && effects.actions.is_empty(), "{to}: {effects:?}");
        assert_eq!(cluster.job(id), Some(&before), "{to}");
    }
    for goal in [Goal::Succeeded, Goal::queued("no")] {
        let effects = turn(&mut cluster, Time(2), |turn| turn.reach(id, &goal));
        assert!(effects.writes.is_empty() && effects.actions.is_empty(), "{goal:?}: {effects:?}");
        assert_eq!(cluster.job(id), Some(&before), "{goal:?}");
    }
    // One that is over is not there any more.
    turn(&mut cluster, Time(2), |turn| turn.end_job(id, JobState::Cancelled, "yes"));
    let effects = turn(&mut cluster, Time(2), |turn| turn.end_job(id, JobState::Cancelled, "again"));
    assert!(effects.writes.is_empty());
}

#[test]
fn a_job_becomes_what_its_goal_says_once_its_ranks_have_stopped_or_their_time_is_over() {
    let reason = || "why".to_owned();
    for (goal, failure) in [
        (Goal::Cancelled { reason: reason() }, None),
        (Goal::Failed { failure: Failure::WorkerLost, reason: reason() }, Some(Failure::WorkerLost)),
        (Goal::queued(reason()), None),
    ] {
        for in_time in [true, false] {
            let (mut cluster, id, sender) = job(1);
            let effects = turn(&mut cluster, Time(2), |turn| turn.stop_job(id, goal.clone()));
            let (epoch, keep_artifacts) = (Epoch::FIRST, true);
            let told = Down::StopRank { job: id, epoch, reason: reason(), keep_artifacts };
            assert_eq!(effects.actions, [Action::Send(sender.unwrap().session, told)]);
            assert_eq!(row(&effects).stop.as_ref().map(|stop| &stop.goal), Some(&goal));
            assert_eq!(cluster.job(id).unwrap().state, JobState::Preparing);
            let effects = match in_time {
                true => report(&mut cluster, sender.unwrap(), id, Phase::Stopped),
                false => cluster.apply(Input::Tick, Time(2).plus(Options::default().cancel)).unwrap(),
            };
            let job = row(&effects);
            assert_eq!((job.state, job.reason.as_str()), (goal.state(), "why"), "in time: {in_time}");
            assert_eq!((job.failure, &job.stop, &job.ring), (failure, &None, &None));
            assert!(cluster.rank_of(sender.unwrap().worker).is_none());
        }
    }
}

#[test]
fn a_rank_that_is_ready_or_fails_meanwhile_changes_no_goal() {
    for phase in [Phase::Ready, Phase::Failed] {
        let (mut cluster, id, sender) = job(1);
        turn(&mut cluster, Time(2), |turn| turn.stop_job(id, Goal::queued("why")));
        report(&mut cluster, sender.unwrap(), id, phase);
        let state = if phase.is_terminal() { JobState::Queued } else { JobState::Preparing };
        assert_eq!(cluster.job(id).unwrap().state, state, "{phase:?}");
    }
}

#[test]
fn a_user_who_cancels_has_the_last_word() {
    let (mut cluster, id, sender) = job(1);
    turn(&mut cluster, Time(2), |turn| turn.stop_job(id, Goal::queued("why")));
    for _ in 0..2 {
        cluster.apply(Input::CancelJob { job: id, reason: "enough".to_owned() }, Time(3)).unwrap();
        assert_eq!(cluster.job(id).unwrap().reason, "cancelling: enough");
    }
    let effects = report(&mut cluster, sender.unwrap(), id, Phase::Stopped);
    assert_eq!((row(&effects).state, row(&effects).reason.as_str()), (JobState::Cancelled, "enough"));
}

/// A job whose only rank trains on a worker with these features.
fn training(features: Vec<String>) -> (Cluster, JobId, Sender) {
    let mut cluster = testing::cluster();
    let (session, mut hello) = (SessionId(1), hello(1));
    hello.dialect.features = features;
    let sender = Sender { worker: hello.worker, session };
    cluster.apply(Input::Hello { session, hello }, Time(1)).unwrap();
    let id = JobId::new();
    cluster.apply(Input::CreateJob(new_job(id, inversion(""))), Time(1)).unwrap();
    cluster.place(Time(1));
    for phase in [Phase::Ready, Phase::Training] {
        report(&mut cluster, sender, id, phase);
    }
    assert_eq!(cluster.job(id).unwrap().state, JobState::Running);
    (cluster, id, sender)
}

#[test]
fn a_job_that_is_paused_keeps_its_state_and_its_place() {
    let (mut cluster, id, sender) = training(Dialect::ours().features);
    for _ in 0..2 {
        cluster.apply(Input::PauseJob(id), Time(3)).unwrap();
        assert_eq!(cluster.job(id).unwrap().reason_code(), ReasonCode::Pausing);
    }
    let effects = report(&mut cluster, sender, id, Phase::Stopped);
    let job = row(&effects);
    assert_eq!((job.state, job.reason.as_str(), job.tries), (JobState::Paused, "paused by request", 0));
    assert!(job.ring.is_none() && job.pin.is_some());
    cluster.apply(Input::ResumeJob(id), Time(4)).unwrap();
    assert_eq!(cluster.job(id).unwrap().state, JobState::Queued);
    cluster.check_indexes().unwrap();
}

#[test]
fn a_pause_that_is_taken_back_after_the_ranks_were_told_is_a_way_back_to_the_queue() {
    let (mut cluster, id, _) = training(Dialect::ours().features);
    cluster.apply(Input::PauseJob(id), Time(3)).unwrap();
    cluster.apply(Input::ResumeJob(id), Time(3)).unwrap();
    let job = cluster.job(id).unwrap();
    assert!(!job.pauses() && job.stop.as_ref().is_some_and(|stop| stop.goal.state() == JobState::Queued));
}

#[test]
fn a_job_that_could_not_go_on_later_is_not_paused() {
    let (mut cluster, id, _) = training(Vec::new());
    let before = cluster.job(id).unwrap().clone();
    let refused = cluster.apply(Input::PauseJob(id), Time(3)).unwrap_err();
    assert_eq!(refused, Refusal::CannotPause(id));
    assert_eq!(cluster.job(id), Some(&before));
}
