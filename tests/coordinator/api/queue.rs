//! Owner, labels and priority of jobs: accepted, shown, refused.

use std::collections::BTreeMap;

use ringtune_proto::v1::{self, JobReason, JobState};
use tonic::{Code, Status};

use crate::{coordinator::Coordinator, jobs::spec, requests::fields, worker::Worker};

pub(crate) fn queue(owner: &str, priority: i32, labels: &[(&str, &str)]) -> v1::QueueSpec {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    v1::QueueSpec { owner: owner.to_owned(), labels, priority, ..v1::QueueSpec::default() }
}

pub(crate) async fn create(
    coordinator: &Coordinator,
    name: &str,
    queue: v1::QueueSpec,
    request_id: &str,
) -> Result<v1::Job, Status> {
    let request = v1::CreateJobRequest {
        spec: Some(v1::JobSpec { name: name.to_owned(), ..spec(1) }),
        request_id: request_id.to_owned(),
        queue: Some(queue),
        ..Default::default()
    };
    Ok(coordinator.jobs().create_job(request).await?.into_inner().job.unwrap())
}

#[tokio::test]
async fn a_job_shows_whose_it_is_also_after_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(state.path()).await;
    let wanted = queue("ada", 7, &[("project", "dicoo"), ("a.b/c-d_e", "")]);
    let job = create(&coordinator, "star", wanted.clone(), "").await.unwrap();
    assert_eq!(job.queue.as_ref(), Some(&wanted));
    assert_eq!((job.state(), job.reason_code()), (JobState::Queued, JobReason::WaitingForWorkers));
    assert_eq!(job.update_time, job.create_time);
    let nobodys = coordinator.create(1).await;
    assert_eq!(nobodys.queue, Some(v1::QueueSpec::default()));
    coordinator.stop().await;

    let coordinator = Coordinator::start(state.path()).await;
    assert_eq!(coordinator.job(&job.job_id).await, job);
    let cancelled = coordinator.cancel(&job.job_id).await.unwrap();
    assert_eq!((cancelled.reason_code(), cancelled.queue), (JobReason::CancelledByUser, Some(wanted)));
    assert_eq!(cancelled.update_time, cancelled.end_time);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_job_file_is_given_and_taken_in_place_of_spec_and_queue() {
    let coordinator = Coordinator::fresh().await;
    let job = create(&coordinator, "star", queue("ada", 7, &[("project", "dicoo")]), "").await.unwrap();
    let mut jobs = coordinator.jobs();
    let request = v1::GetJobRequest { job_id: job.job_id.clone(), with_job_file: true };
    let job_file = jobs.get_job(request).await.unwrap().into_inner().job_file;
    let request = v1::CreateJobRequest { job_file: job_file.clone(), ..Default::default() };
    let again = jobs.create_job(request.clone()).await.unwrap().into_inner().job.unwrap();
    assert!(again.job_id != job.job_id && again.spec.is_some());
    assert_eq!((again.spec, again.queue), (job.spec, job.queue));

    let both = v1::CreateJobRequest { spec: Some(spec(1)), ..request };
    assert_eq!(fields(&jobs.create_job(both).await.unwrap_err()), ["job_file"]);
    let wrong = v1::CreateJobRequest {
        job_file: job_file.replace("[train]\n", "[train]\nlearning_rat = 1\n"),
        ..Default::default()
    };
    let refused = jobs.create_job(wrong).await.unwrap_err();
    assert_eq!(fields(&refused), ["train.learning_rat"]);
    assert!(refused.message().contains("train.learning_rat: line "), "{refused:?}");
    coordinator.stop().await;
}

#[tokio::test]
async fn the_worker_is_not_told_whose_the_job_is() {
    let coordinator = Coordinator::fresh().await;
    let mut worker = Worker::start(&coordinator, "host-a").await;
    let plain = create(&coordinator, "star", v1::QueueSpec::default(), "").await.unwrap();
    let spec = worker.take_rank().await.spec;
    coordinator.cancel(&plain.job_id).await.unwrap();
    worker.stopped(true).await;
    worker.report(v1::RankPhase::Stopped, "").await;
    worker.stopped(false).await;
    worker.heartbeat(Vec::new()).await;
    let owned = create(&coordinator, "star", queue("ada", 7, &[("a", "b")]), "").await.unwrap();
    assert_ne!(owned.job_id, plain.job_id);
    assert_eq!(worker.take_rank().await.spec, spec, "what ranks compute from depends on the queue");
    coordinator.stop().await;
}

#[tokio::test]
async fn what_no_job_can_have_is_refused_by_its_field() {
    let coordinator = Coordinator::fresh().await;
    for (wrong, field) in [
        (queue("a\nb", 0, &[]), "queue.owner"),
        (queue("", i32::MAX, &[]), "queue.priority"),
        (queue("", 0, &[("Team", "red")]), "queue.labels.Team"),
    ] {
        let refused = create(&coordinator, "star", wrong, "").await.unwrap_err();
        assert_eq!(fields(&refused), [field]);
        assert!(refused.message().contains("allowed: "), "{refused:?}");
    }
    let jobs = coordinator.jobs().list_jobs(v1::ListJobsRequest::default()).await.unwrap().into_inner();
    assert!(jobs.jobs.is_empty(), "a refused job was made");
    coordinator.stop().await;
}

#[tokio::test]
async fn the_same_request_with_another_queue_is_another_request() {
    let coordinator = Coordinator::fresh().await;
    let labels = [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")];
    let first = create(&coordinator, "star", queue("ada", 7, &labels), "again").await.unwrap();
    for _ in 0..4 {
        // In any order of the map's entries.
        let again = create(&coordinator, "star", queue("ada", 7, &labels), "again").await.unwrap();
        assert_eq!(again.job_id, first.job_id);
    }
    for other in [
        queue("bob", 7, &labels),
        queue("ada", 8, &labels),
        queue("ada", 7, &labels[1..]),
        queue("ada", 7, &[("a", "1b"), ("2", "")]),
        v1::QueueSpec::default(),
    ] {
        let refused = create(&coordinator, "star", other, "again").await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists);
        assert!(refused.message().contains("another spec or queue"), "{refused:?}");
    }
    coordinator.stop().await;
}

#[tokio::test]
async fn an_owner_has_so_many_jobs_in_the_queue_and_no_more_paused_ones_included() {
    let coordinator = Coordinator::fresh_with(|settings| settings.limits.owner_queued_jobs = 2).await;
    let adas = async || create(&coordinator, "star", queue("ada", 0, &[]), "").await;
    let limits = async |owner: &str| {
        let request = v1::GetLimitsRequest { owner: owner.to_owned() };
        let answer = coordinator.cluster().get_limits(request).await.unwrap().into_inner();
        assert_eq!(answer.owner, owner);
        let limit = |limit: v1::Limit| (limit.setting, (limit.used, limit.allowed));
        answer.limits.into_iter().map(limit).collect::<BTreeMap<_, _>>()
    };
    let first = adas().await.unwrap();
    coordinator.jobs().pause_job(v1::PauseJobRequest { job_id: first.job_id.clone() }).await.unwrap();
    adas().await.unwrap();
    create(&coordinator, "star", queue("bob", 0, &[]), "").await.unwrap();
    let refused = adas().await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("limits.owner_queued_jobs"), "{refused:?}");

    let of_ada = limits("ada").await;
    assert_eq!(of_ada["limits.owner_queued_jobs"], (Some(2), Some(2)));
    assert_eq!(of_ada["limits.queued_jobs"], (Some(3), Some(20_000)));
    assert_eq!(of_ada["limits.owner_ranks"], (Some(0), None));
    // Nobody is asked who they are.
    assert_eq!(of_ada["queue.submitter_priority"], (None, Some(1000)));
    assert_eq!(limits("bob").await["limits.owner_queued_jobs"], (Some(1), Some(2)));

    coordinator.cancel(&first.job_id).await.unwrap();
    adas().await.unwrap();
    coordinator.stop().await;
}
