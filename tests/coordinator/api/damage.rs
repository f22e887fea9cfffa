//! A database with a damaged row.

use ringtune_proto::v1::{self, JobState};
use sqlx::Connection as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::{coordinator::Coordinator, worker::Worker};

#[tokio::test]
async fn a_coordinator_starts_with_a_damaged_job_which_can_be_seen_and_deleted() {
    let state = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(state.path()).await;
    let (damaged, whole) = (coordinator.create(1).await, coordinator.create(1).await);
    coordinator.stop().await;
    let options = SqliteConnectOptions::new().filename(state.path().join("ringtune.sqlite"));
    let mut database = SqliteConnection::connect_with(&options).await.unwrap();
    let damage = "UPDATE job_specs SET spec = '{' WHERE number = 1";
    sqlx::raw_sql(damage).execute(&mut database).await.unwrap();
    database.close().await.unwrap();

    let coordinator = Coordinator::start(state.path()).await;
    let mut jobs = coordinator.jobs();
    let listed = jobs.list_jobs(v1::ListJobsRequest::default()).await.unwrap().into_inner().jobs;
    let ids: Vec<&str> = listed.iter().map(|job| job.job_id.as_str()).collect();
    assert_eq!(ids, [&whole.job_id, &damaged.job_id]);
    assert_eq!((listed[0].state(), listed[1].state()), (JobState::Queued, JobState::Failed));
    assert!(listed[1].state_reason.contains("cannot be read"), "{}", listed[1].state_reason);
    let delete = v1::DeleteJobRequest { job_id: damaged.job_id };
    jobs.delete_job(delete).await.unwrap();
    let listed = jobs.list_jobs(v1::ListJobsRequest::default()).await.unwrap().into_inner().jobs;
    assert_eq!(listed.len(), 1);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_coordinator_starts_with_a_damaged_step_of_a_job_that_trains_and_the_job_goes_on() {
    let state = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(state.path()).await;
    let mut worker = Worker::start(&coordinator, "host-a").await;
    let id = coordinator.create(1).await.job_id;
    worker.prepare().await;
    for step in 1..=2 {
        worker.step(step).await;
    }
    tokio::join!(coordinator.stop(), worker.end());
    let options = SqliteConnectOptions::new().filename(state.path().join("ringtune.sqlite"));
    let mut database = SqliteConnection::connect_with(&options).await.unwrap();
    let damaged = sqlx::raw_sql("UPDATE steps SET body = '{' WHERE step = 1").execute(&mut database).await;
    assert_eq!(damaged.unwrap().rows_affected(), 1);
    database.close().await.unwrap();

    let coordinator = Coordinator::start(state.path()).await;
    assert_eq!(coordinator.job(&id).await.state(), JobState::Running);
    let mut worker = Worker::come_back(&coordinator, worker.hang_up()).await;
    let mut watch = coordinator.watch(&id, coordinator.job(&id).await.last_sequence).await;
    worker.finish().await;
    watch.until(JobState::Succeeded).await;
    coordinator.stop().await;
}
