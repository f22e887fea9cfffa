//! WatchJob: stored events, then live ones, without gap or duplicate.

use ringtune_coordinator::core::Options;
use ringtune_proto::v1::{self, RankPhase};
use tonic::Code;

use crate::support::{Coordinator, create, next_event, soon, spec, watch_to_end};

fn long_job(steps: i64) -> v1::JobSpec {
    let mut spec = spec();
    spec.train.as_mut().unwrap().max_train_steps = Some(steps);
    spec
}

#[tokio::test]
async fn watchers_that_come_early_late_or_read_slowly_see_the_same() {
    const STEPS: i64 = 1000;
    let coordinator = Coordinator::fresh(Options::default()).await;
    let mut jobs = coordinator.jobs().await;
    let mut worker = coordinator.worker().await;
    let job = create(&mut jobs, long_job(STEPS)).await;
    let early = {
        let (mut jobs, job_id) = (jobs.clone(), job.job_id.clone());
        tokio::spawn(async move { watch_to_end(&mut jobs, &job_id, 0).await })
    };
    // Never reads before the end: holds up neither the job nor the other watchers.
    let request = v1::WatchJobRequest { job_id: job.job_id.clone(), after_sequence: 0 };
    let mut slow = coordinator.jobs().await.watch_job(request).await.unwrap().into_inner();

    let assignment = worker.train().await;
    let mut stored = 0;
    for step in 1..=STEPS {
        worker.step(&assignment, step).await;
        // As a worker does: a bounded number of reports is under way.
        while step - stored > 32 {
            stored = worker.steps_stored().await;
        }
    }
    worker.report(&assignment, RankPhase::Finished, "").await;

    let early = soon("the end of the watch", early).await.unwrap();
    let sequences: Vec<u64> = early.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, (1..=early.len() as u64).collect::<Vec<_>>());
    assert!(early.len() > usize::try_from(STEPS).unwrap());
    assert_eq!(watch_to_end(&mut jobs, &job.job_id, 0).await, early);
    let half = early.len() / 2;
    assert_eq!(watch_to_end(&mut jobs, &job.job_id, half as u64).await, early[half..]);
    assert!(watch_to_end(&mut jobs, &job.job_id, early.len() as u64).await.is_empty());
    for expected in &early {
        assert_eq!(next_event(&mut slow).await.unwrap().as_ref(), Some(expected));
    }
    assert!(next_event(&mut slow).await.unwrap().is_none());
    coordinator.stop().await;
}

#[tokio::test]
async fn the_coordinators_end_ends_watches_and_sessions() {
    let coordinator = Coordinator::fresh(Options::default()).await;
    let mut jobs = coordinator.jobs().await;
    let worker = coordinator.worker().await;
    let job = create(&mut jobs, long_job(10)).await;
    let request = v1::WatchJobRequest { job_id: job.job_id, after_sequence: job.last_sequence };
    let mut watch = jobs.watch_job(request).await.unwrap().into_inner();
    // Waits until the server and the loop have ended although both streams are open.
    coordinator.stop().await;
    assert_eq!(worker.end().await.unwrap().code(), Code::Unavailable);
    assert_eq!(next_event(&mut watch).await.unwrap_err().code(), Code::Unavailable);
}
