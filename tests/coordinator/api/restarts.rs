//! The coordinator itself goes and comes back on the same state folder.

use ringtune_proto::v1::JobState;
use tonic::Code;

use crate::{
    coordinator::Coordinator,
    jobs::states,
    worker::{Worker, all_train},
};

#[tokio::test]
async fn a_running_job_outlives_its_coordinator() {
    let state = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(state.path()).await;
    let mut workers = Worker::pair(&coordinator).await;
    let job = coordinator.create(2).await;
    let queued = coordinator.create(1).await;
    all_train(&mut workers).await;
    workers.sort_by_key(|worker| worker.held.rank);
    let [mut first, mut second] = workers;
    first.step(1).await;
    let mut live = coordinator.watch(&job.job_id, 0).await;
    live.until(JobState::Running).await;
    coordinator.stop().await;
    for worker in [&mut first, &mut second] {
        assert_eq!(worker.end().await.code(), Code::Unavailable, "sessions are told of the end");
    }

    let coordinator = Coordinator::start(state.path()).await;
    let found = coordinator.job(&job.job_id).await;
    assert_eq!((found.state(), found.step, found.ring.unwrap().epoch), (JobState::Running, 1, 1));
    let mut first = Worker::come_back(&coordinator, first.hang_up()).await;
    // Until the second one is there as well, the first one trains and reports.
    first.step(2).await;
    assert_eq!(coordinator.job(&job.job_id).await.state(), JobState::Running);
    let mut second = Worker::come_back(&coordinator, second.hang_up()).await;
    first.finish().await;
    second.report(ringtune_proto::v1::RankPhase::Finished, "").await;
    first.stopped(false).await;
    second.stopped(false).await;
    let events = coordinator.watch(&job.job_id, 0).await.rest().await;
    let wanted = [JobState::Queued, JobState::Preparing, JobState::Running, JobState::Succeeded];
    assert_eq!(states(&events), wanted);
    // Queued jobs are still queued, and come next.
    first.heartbeat(Vec::new()).await;
    assert_eq!(first.take_rank().await.ring.unwrap().job_id, queued.job_id);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_running_job_that_nobody_comes_back_for_fails() {
    let state = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(state.path()).await;
    let mut worker = Worker::start(&coordinator, "host-a").await;
    let job = coordinator.create(1).await;
    worker.prepare().await;
    coordinator.stop().await;

    let coordinator =
        Coordinator::start_with(state.path(), |settings| settings.session.recovery_seconds = 1.0).await;
    let ended = coordinator.end(&job.job_id).await;
    assert_eq!(ended.state(), JobState::Failed);
    let id = &worker.hello.worker_id;
    let reason = format!(
        "worker lost: rank 0 on host-a (worker {id}) did not come back within 1 s after the coordinator's restart"
    );
    assert_eq!(ended.state_reason, reason);
    // The worker that is back too late lets go.
    let mut worker = Worker::come_back(&coordinator, worker.hang_up()).await;
    worker.stopped(false).await;
    coordinator.stop().await;
}
