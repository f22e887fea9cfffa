//! Watching progress of ranks, and many jobs at once.

use std::collections::BTreeMap;

use ringtune_proto::v1::{
    self, JobState, ProgressStage, RankPhase, job_event::Event, session_request::Message as Up,
    session_response::Message as Down, watch_jobs_response::Response,
};
use ringtune_shared::ids::JobId;
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt as _;

use crate::{
    coordinator::Coordinator,
    jobs::{STEPS, states},
    soon,
    worker::{Worker, all_train, training},
};

/// Reports a step's durations.
async fn says_timings(worker: &Worker, rank: i32, epoch: u64, step: i64, compute_seconds: f64) {
    let timings = v1::RankTimings {
        job_id: worker.held.job_id.clone(),
        epoch,
        rank,
        step,
        compute_seconds,
        exchange_seconds: 0.25,
        wait_seconds: 4.0 - compute_seconds,
        traffic: Some(v1::RingTraffic {
            hidden_exchange_seconds: 0.125,
            sent_bytes: 4096,
            collective_seconds: 0.375,
            bus_bytes_per_second: 1e6,
        }),
    };
    worker.say(Up::RankTimings(timings)).await;
}

fn done(ranks: &[v1::RankProgress]) -> Vec<(i32, ProgressStage, i64)> {
    ranks.iter().map(|rank| (rank.rank, rank.stage(), rank.done)).collect()
}

#[tokio::test]
async fn progress_is_told_to_all_who_watch_and_kept_nowhere() {
    const PICTURES: i64 = 2000;
    let coordinator = Coordinator::fresh().await;
    let mut worker = Worker::start(&coordinator, "host-a").await;
    let job = coordinator.create(1).await;
    let id = job.job_id.as_str();
    let mut live = coordinator.watch(id, 0).await;
    worker.take_rank().await;
    live.until(JobState::Preparing).await;
    let before = coordinator.job(id).await.last_sequence;

    // 1. A report for each picture, of which a watcher gets the newest.
    for picture in 0..=PICTURES {
        worker.progress(ProgressStage::Fetch, picture, PICTURES).await;
    }
    let mut told = 0;
    loop {
        let ranks = live.next_progress().await;
        told += 1;
        if done(&ranks) == [(0, ProgressStage::Fetch, PICTURES)] {
            break;
        }
        assert!(told < PICTURES / 10, "{told} messages about {PICTURES} pictures");
    }

    // 2. Who comes later is told where the rank is, once, and nobody is told of it as history.
    let mut late = coordinator.watch(id, 0).await;
    assert_eq!(done(&late.next_progress().await), [(0, ProgressStage::Fetch, PICTURES)]);
    worker.progress(ProgressStage::Load, 0, 1).await;
    for watch in [&mut live, &mut late] {
        assert_eq!(done(&watch.next_progress().await), [(0, ProgressStage::Load, 0)]);
    }
    assert_eq!(coordinator.job(id).await.last_sequence, before, "progress is not an event");

    // 3. What another rank or another epoch says of itself is not believed.
    let mut stranger = worker.held.clone();
    stranger.epoch += 1;
    std::mem::swap(&mut worker.held, &mut stranger);
    worker.progress(ProgressStage::Encode, 7, 9).await;
    worker.stopped(false).await;
    std::mem::swap(&mut worker.held, &mut stranger);

    // 4. Once the job runs, its preparation is over.
    worker.report(RankPhase::Ready, "").await;
    worker.train().await;
    worker.progress(ProgressStage::Draw, 1, 4).await;
    let mut later = coordinator.watch(id, 0).await;
    assert_eq!(done(&later.next_progress().await), [(0, ProgressStage::Draw, 1)]);
    worker.finish().await;
    let events = coordinator.watch(id, 0).await.rest().await;
    let wanted = [JobState::Queued, JobState::Preparing, JobState::Running, JobState::Succeeded];
    assert_eq!(states(&events), wanted);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_watch_from_an_event_that_never_was_is_refused() {
    let (coordinator, mut worker, job) = training(|_| ()).await;
    let watch = async |after_sequence| {
        let request = v1::WatchJobRequest { job_id: job.job_id.clone(), after_sequence };
        coordinator.jobs().watch_job(request).await
    };
    let newest = coordinator.job(&job.job_id).await.last_sequence;
    assert!(watch(newest).await.is_ok(), "the next event is waited for");
    for after in [newest + 1, u64::MAX] {
        let refused = watch(after).await.unwrap_err();
        assert_eq!(refused.code(), Code::OutOfRange);
        let named = refused.get_details_bad_request().unwrap().field_violations;
        assert_eq!(named.iter().map(|one| one.field.as_str()).collect::<Vec<_>>(), ["after_sequence"]);
        assert!(refused.message().contains(&after.to_string()), "{refused}");
        assert!(refused.message().contains(&newest.to_string()), "{refused}");
    }
    // Also when the job has ended, and nobody is disturbed by it.
    worker.finish().await;
    let ended = coordinator.end(&job.job_id).await;
    assert_eq!(ended.state(), JobState::Succeeded);
    assert_eq!(watch(ended.last_sequence + 1).await.unwrap_err().code(), Code::OutOfRange);
    assert!(coordinator.watch(&job.job_id, ended.last_sequence).await.rest().await.is_empty());
    coordinator.stop().await;
}

/// Events of a watch of many jobs, by job.
#[derive(Default)]
struct Seen {
    jobs: BTreeMap<String, v1::Job>,
    events: BTreeMap<String, Vec<v1::JobEvent>>,
    deleted: Vec<String>,
}

impl Seen {
    /// Takes answers in until `enough`, or the end; every event must be the next one of its job.
    async fn read(
        &mut self,
        watch: &mut Streaming<v1::WatchJobsResponse>,
        enough: impl Fn(&Self) -> bool,
    ) -> Result<(), Status> {
        while !enough(self) {
            match soon("an answer", watch.message()).await?.map(|answer| answer.response.unwrap()) {
                None => return Ok(()),
                Some(Response::Job(job)) => {
                    assert!(job.spec.is_none());
                    assert!(self.jobs.insert(job.job_id.clone(), job).is_none(), "a job came twice");
                }
                Some(Response::Event(event)) => {
                    let events = self.events.entry(event.job_id.clone()).or_default();
                    let told = self.jobs[&event.job_id].last_sequence + events.len() as u64;
                    assert_eq!(event.sequence, told + 1, "{event:?}");
                    events.push(event);
                }
                Some(Response::Deleted(job)) => self.deleted.push(job.job_id),
                Some(Response::Alive(_)) => {}
            }
        }
        Ok(())
    }

    fn ended(&self, id: &str) -> bool {
        let ends = |event: &v1::JobEvent| matches!(&event.event, Some(Event::StateChange(change)) if change.to() == JobState::Succeeded);
        self.events.get(id).is_some_and(|events| events.last().is_some_and(ends))
    }
}

#[tokio::test]
async fn many_jobs_are_watched_at_once_each_without_a_gap() {
    let coordinator = Coordinator::fresh().await;
    let watch = async |job_ids: Vec<String>| {
        let request = v1::WatchJobsRequest { job_ids };
        coordinator.jobs().watch_jobs(request).await.map(tonic::Response::into_inner)
    };
    let ended = coordinator.create(1).await.job_id;
    coordinator.cancel(&ended).await.unwrap();
    let (first, second) = (coordinator.create(1).await.job_id, coordinator.create(1).await.job_id);
    let mut all = watch(Vec::new()).await.unwrap();
    // Two of them, one twice, and one that has ended.
    let mut some = watch(vec![first.clone(), ended.clone(), first.clone()]).await.unwrap();

    let (mut told, mut told_of_some) = (Seen::default(), Seen::default());
    told.read(&mut all, |seen| seen.jobs.len() == 2).await.unwrap();
    assert_eq!(told.jobs.keys().collect::<Vec<_>>(), [&first, &second]);
    assert_eq!(told.jobs[&first].state(), JobState::Queued);

    // 1. The jobs run, and one comes that nobody knew.
    let mut worker = Worker::start(&coordinator, "host-a").await;
    let third = coordinator.create(1).await.job_id;
    for _ in 0..3 {
        worker.prepare().await;
        worker.finish().await;
        worker.stopped(false).await;
        worker.heartbeat(Vec::new()).await;
        worker.held.step = 0;
    }
    told.read(&mut all, |seen| [&first, &second, &third].iter().all(|id| seen.ended(id))).await.unwrap();
    assert_eq!(told.jobs.len(), 3);
    for (id, events) in &told.events {
        let steps = events.iter().filter(|event| matches!(event.event, Some(Event::Step(_)))).count();
        assert_eq!(steps as i64, STEPS, "{id}");
    }

    // 2. The watch of those that were named ends with them.
    told_of_some.read(&mut some, |_| false).await.unwrap();
    assert_eq!(told_of_some.jobs.keys().collect::<Vec<_>>(), [&ended, &first]);
    assert_eq!(told_of_some.jobs[&ended].state(), JobState::Cancelled);
    assert_eq!(told_of_some.events, BTreeMap::from([(first.clone(), told.events[&first].clone())]));

    // 3. An invalid name, and an unknown one.
    assert_eq!(watch(vec!["seven".to_owned()]).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(watch(vec![first, JobId::new().to_string()]).await.unwrap_err().code(), Code::NotFound);
    coordinator.stop().await;
}

#[tokio::test]
async fn whoever_watches_is_told_what_the_ranks_steps_take_and_for_whom_they_wait() {
    let coordinator = Coordinator::fresh().await;
    let mut workers = Worker::pair(&coordinator).await;
    let job = coordinator.create(2).await;
    all_train(&mut workers).await;
    let mut watch = coordinator.watch(&job.job_id, 0).await;
    watch.until(JobState::Running).await;
    let epoch = workers[0].held.epoch;
    let slow = usize::from(workers[0].held.rank == 1);
    // A rank's report of another rank, or of another epoch, is ignored.
    says_timings(&workers[0], 1 - workers[0].held.rank, epoch, 9, 0.5).await;
    says_timings(&workers[0], workers[0].held.rank, epoch + 1, 9, 0.5).await;
    let mut told = Vec::new();
    // As many rounds as name somebody, each of a step that takes seconds.
    for step in 1..=6 {
        for (index, worker) in workers.iter().enumerate() {
            let seconds = if index == slow { 3.0 } else { 1.0 };
            says_timings(worker, worker.held.rank, epoch, step, seconds).await;
        }
        let both = async {
            while told.len() < 2 || told.iter().any(|rank: &v1::RankTiming| rank.step != step) {
                told = watch.next_timings().await;
            }
        };
        soon("the word of both ranks", both).await;
    }
    let facts: Vec<_> =
        told.iter().map(|rank| (rank.rank, rank.epoch, rank.compute_seconds, rank.slowdown)).collect();
    assert_eq!(facts, [(0, epoch, 3.0, 3.0), (1, epoch, 1.0, 0.0)]);
    assert_eq!([told[0].straggler, told[1].straggler], [true, false]);
    assert_eq!(told[1].traffic.map(|traffic| traffic.sent_bytes), Some(4096));
    let metrics = coordinator.http_get("/metrics").await;
    assert!(metrics.contains("\nringtune_stragglers 1\n"), "{metrics}");
    // A later watcher is told the same; it ends with the job.
    let mut late = coordinator.watch(&job.job_id, 0).await;
    assert_eq!(soon("the timings again", late.next_timings()).await.len(), 2);
    coordinator.cancel(&job.job_id).await.unwrap();
    for worker in &mut workers {
        while !matches!(worker.hear().await.unwrap(), Down::StopRank(_)) {}
        worker.report(RankPhase::Stopped, "").await;
    }
    soon("the job's end", coordinator.end(&job.job_id)).await;
    let metrics = coordinator.http_get("/metrics").await;
    assert!(metrics.contains("\nringtune_stragglers 0\n"), "{metrics}");
    // An impossible measurement ends the session.
    says_timings(&workers[0], 0, epoch, 1, f64::NAN).await;
    let status = workers[0].end().await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().starts_with("rank_timings.compute_seconds: got NaN"), "{}", status.message());
    coordinator.stop().await;
}
