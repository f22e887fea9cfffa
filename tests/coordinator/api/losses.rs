//! Jobs whose workers go: lost, restarted, or back in time.

use std::{sync::Arc, time::Duration};

use ringtune_coordinator::{
    core::{Capabilities, Hello, Options, WorkerState},
    metrics::Metrics,
    service,
    store::SqliteStore,
};
use ringtune_proto::v1::{self, JobState, RankPhase};
use ringtune_shared::{ids::WorkerId, version::VERSION};
use tonic::Code;

use crate::{
    coordinator::Coordinator,
    soon,
    worker::{Worker, training},
};

#[tokio::test]
async fn a_worker_that_comes_back_in_time_goes_on() {
    let (coordinator, mut worker, job) = training(|_| ()).await;
    worker.step(1).await;
    let mut live = coordinator.watch(&job.job_id, 0).await;
    let gone = worker.hang_up();
    let line = live.until_log("connection lost").await;
    assert_eq!(line, "rank 0 on host-a: connection lost; waiting 600 s for it");
    let mut worker = Worker::come_back(&coordinator, gone).await;
    worker.finish().await;
    live.until(JobState::Succeeded).await;
    worker.stopped(false).await;
    coordinator.stop().await;
}

#[tokio::test]
async fn a_worker_that_stays_away_fails_its_job() {
    let (coordinator, worker, job) = training(|settings| {
        settings.session.heartbeat_seconds = 0.5;
        settings.session.timeout_seconds = 2.0;
    })
    .await;
    let gone = worker.hang_up();
    let ended = coordinator.end(&job.job_id).await;
    assert_eq!(ended.state(), JobState::Failed);
    assert_eq!(ended.state_reason, "worker lost: rank 0 on host-a did not come back within 2 s");
    let mut worker = Worker::come_back(&coordinator, gone).await;
    worker.stopped(false).await;
    // It falls silent, its connection does not break.
    let silent = worker.end().await;
    assert_eq!((silent.code(), silent.message()), (Code::Aborted, "nothing heard for 2 s"));
    coordinator.stop().await;
}

#[tokio::test]
async fn a_worker_that_restarts_while_it_prepares_gives_its_rank_to_another_one() {
    let coordinator = Coordinator::fresh().await;
    let mut worker = Worker::start(&coordinator, "host-a").await;
    let job = coordinator.create(1).await;
    let first = worker.take_rank().await;
    let mut other = Worker::start(&coordinator, "host-b").await;
    let mut live = coordinator.watch(&job.job_id, 0).await;
    live.until(JobState::Preparing).await;
    let restarted = v1::Hello { incarnation: 2, ..worker.hello.clone() };
    let _restarted = Worker::open(&coordinator, restarted).await.unwrap();
    live.until(JobState::Queued).await;
    // On another worker, with what was decided for the first one.
    let second = other.take_rank().await;
    assert_eq!((first.ring.unwrap().epoch, second.ring.unwrap().epoch), (1, 2));
    assert_eq!(second.threads_per_rank, first.threads_per_rank);
    other.report(RankPhase::Ready, "").await;
    other.train().await;
    other.finish().await;
    assert_eq!(coordinator.end(&job.job_id).await.state(), JobState::Succeeded);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_worker_that_restarted_has_lost_its_rank() {
    let (coordinator, mut worker, job) = training(|_| ()).await;
    let mut hello = worker.hello.clone();
    hello.incarnation = 2;
    let _restarted = Worker::open(&coordinator, hello.clone()).await.unwrap();
    let ended = coordinator.end(&job.job_id).await;
    assert_eq!(ended.state(), JobState::Failed);
    assert_eq!(ended.state_reason, "worker restarted: rank 0 on host-a is lost");
    // Its old session is over, and its old self is not heard any more.
    assert_eq!(worker.end().await.code(), Code::Aborted);
    hello.incarnation = 1;
    let refused = Worker::open(&coordinator, hello).await.err().unwrap();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    coordinator.stop().await;
}

/// A call that is given up after its hello and before its answer leaves nobody to tell of its end.
#[tokio::test]
async fn a_session_that_never_came_about_is_lost_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("coordinator.db")).await.unwrap();
    let settings = service::Settings {
        options: Options { session_timeout: 600_000, ..Options::default() },
        store: Arc::new(store),
        metrics: Metrics::new().unwrap(),
        notifier: Default::default(),
        tracer: Default::default(),
    };
    let (handle, _loop) = service::start(settings).await.unwrap();
    let capabilities = Capabilities { version: VERSION.to_owned(), ..Capabilities::default() };
    let hello = Hello {
        worker: WorkerId::new(),
        incarnation: 1,
        host_name: "host-a".to_owned(),
        address: String::new(),
        capabilities: Arc::new(capabilities),
        held: Vec::new(),
        dialect: Options::default().dialect,
    };
    let (out, told) = tokio::sync::mpsc::channel(1);
    drop(told);
    handle.hello(hello, out).await.unwrap();
    let lost = async {
        while handle.cluster().count_workers(WorkerState::Lost) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("the worker to be lost", lost).await;
}
