//! A store that fails: nothing is acknowledged that is not stored.

use std::sync::Arc;

use ringtune_coordinator::core::Options;
use ringtune_proto::v1::{self, JobState, RankPhase};
use tonic::Code;

use crate::faulty_store::FaultyStore;
use crate::support::{Coordinator, create, ending, get, held, spec};

#[tokio::test]
async fn a_full_disk_refuses_requests_and_loses_no_report() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(FaultyStore::new());
    let coordinator = Coordinator::start_on(folder.path(), Options::default(), store.clone()).await;
    let mut jobs = coordinator.jobs().await;
    let mut worker = coordinator.worker().await;
    let job = create(&mut jobs, spec()).await;
    let assignment = worker.train().await;
    worker.step(&assignment, 1).await;
    worker.steps_stored().await;
    let before = get(&mut jobs, &job.job_id).await;

    store.set_full(true);
    let request = v1::CreateJobRequest { spec: Some(spec()), ..Default::default() };
    assert_eq!(jobs.create_job(request.clone()).await.unwrap_err().code(), Code::ResourceExhausted);
    worker.step(&assignment, 2).await;
    let back = v1::Hello { held: vec![held(&assignment, RankPhase::Training)], ..worker.hello.clone() };
    // The report is not acknowledged: the session ends, so that the worker sends it again.
    assert_eq!(worker.end().await.unwrap().code(), Code::Aborted);
    let now = get(&mut jobs, &job.job_id).await;
    assert!(now.state_reason.starts_with("waiting: the coordinator stores nothing"), "{}", now.state_reason);
    assert_eq!(v1::Job { state_reason: before.state_reason.clone(), ..now }, before);

    store.set_full(false);
    let mut worker = coordinator.worker_like(back).await.unwrap();
    for step in [2, 3] {
        worker.step(&assignment, step).await;
        assert_eq!(worker.steps_stored().await, step);
    }
    worker.report(&assignment, RankPhase::Finished, "").await;
    assert_eq!(ending(&mut jobs, &job.job_id).await.0, JobState::Succeeded);
    jobs.create_job(request).await.unwrap();
    coordinator.stop().await;
}
