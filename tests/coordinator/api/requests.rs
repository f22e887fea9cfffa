//! Requests that are refused, repeated, or ask for what is not there.

use ringtune_proto::v1::{self, JobState};
use ringtune_shared::ids::{ContentHash, JobId};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::{coordinator::Coordinator, jobs::spec};

pub(crate) fn fields(status: &Status) -> Vec<String> {
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let request = status.get_details_bad_request().expect("BadRequest details");
    for violation in &request.field_violations {
        assert!(!violation.description.is_empty());
        assert!(status.message().contains(&violation.description), "the words tell it, too");
    }
    request.field_violations.into_iter().map(|violation| violation.field).collect()
}

async fn create(coordinator: &Coordinator, spec: v1::JobSpec, request_id: &str) -> Result<v1::Job, Status> {
    let request =
        v1::CreateJobRequest { spec: Some(spec), request_id: request_id.to_owned(), ..Default::default() };
    Ok(coordinator.jobs().create_job(request).await?.into_inner().job.unwrap())
}

#[tokio::test]
async fn a_bad_spec_is_refused_with_every_field() {
    let coordinator = Coordinator::fresh().await;
    let mut bad = spec(0);
    bad.model = Some(v1::ModelSpec { base: "gs://bucket/stable-diffusion".to_owned(), ..Default::default() });
    let train = bad.train.as_mut().unwrap();
    train.num_vectors = Some(-1);
    train.lr_scheduler = Some("steep".to_owned());
    let mut named = fields(&create(&coordinator, bad, "").await.unwrap_err());
    named.sort();
    let wanted =
        ["spec.cluster.world_size", "spec.model.base", "spec.train.lr_scheduler", "spec.train.num_vectors"];
    assert_eq!(named, wanted);

    let nothing = coordinator.jobs().create_job(v1::CreateJobRequest::default()).await.unwrap_err();
    assert!(fields(&nothing).contains(&"spec.kind".to_owned()));
    let long = create(&coordinator, spec(1), &"x".repeat(129)).await.unwrap_err();
    assert_eq!(fields(&long), ["request_id"]);
    let mut absent = spec(1);
    absent.data =
        Some(v1::DataSpec { images: ContentHash::of(b"never uploaded").uri(), ..Default::default() });
    assert_eq!(fields(&create(&coordinator, absent, "").await.unwrap_err()), ["spec.data.images"]);
    let mut relative = spec(1);
    relative.model = Some(v1::ModelSpec { base: "../sd".to_owned(), ..Default::default() });
    let refused = create(&coordinator, relative, "").await.unwrap_err();
    assert_eq!(fields(&refused), ["spec.model.base"]);
    assert!(refused.message().contains("absolute"), "{refused}");
    coordinator.stop().await;
}

#[tokio::test]
async fn a_repeated_request_makes_one_job() {
    let state = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(state.path()).await;
    let job = create(&coordinator, spec(1), "once").await.unwrap();
    assert_eq!(create(&coordinator, spec(1), "once").await.unwrap(), job);
    let other = create(&coordinator, spec(2), "once").await.unwrap_err();
    assert_eq!(other.code(), Code::AlreadyExists);
    assert_eq!(other.get_details_resource_info().unwrap().resource_name, job.job_id);
    // Also when the job has ended, and after a restart.
    let ended = coordinator.cancel(&job.job_id).await.unwrap();
    assert_eq!(create(&coordinator, spec(1), "once").await.unwrap(), ended);
    coordinator.stop().await;
    let coordinator = Coordinator::start(state.path()).await;
    assert_eq!(create(&coordinator, spec(1), "once").await.unwrap(), ended);
    assert_eq!(create(&coordinator, spec(2), "once").await.unwrap_err().code(), Code::AlreadyExists);
    // Without an id every request makes a job.
    let (one, two) = (create(&coordinator, spec(1), "").await, create(&coordinator, spec(1), "").await);
    assert_ne!(one.unwrap().job_id, two.unwrap().job_id);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_full_queue_takes_no_more() {
    let coordinator = Coordinator::fresh_with(|settings| settings.limits.queued_jobs = 1).await;
    coordinator.create(1).await;
    let refused = create(&coordinator, spec(1), "").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.get_details_retry_info().is_some());
    coordinator.stop().await;
}

#[tokio::test]
async fn jobs_are_listed_newest_first_in_pages_and_deleted_once_ended() {
    let coordinator = Coordinator::fresh().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.insert(0, coordinator.create(1).await.job_id);
    }
    coordinator.cancel(&ids[2]).await.unwrap();
    let list = |page_size, page_token: String, states: Vec<JobState>| {
        let states = states.into_iter().map(i32::from).collect();
        let mut jobs = coordinator.jobs();
        async move {
            let request = v1::ListJobsRequest { page_size, page_token, states, ..Default::default() };
            let page = jobs.list_jobs(request).await?.into_inner();
            let found: Vec<String> = page.jobs.into_iter().map(|job| job.job_id).collect();
            Ok::<_, Status>((found, page.next_page_token))
        }
    };
    let (first, token) = list(2, String::new(), vec![]).await.unwrap();
    assert_eq!(first, ids[..2]);
    let (second, end) = list(2, token, vec![]).await.unwrap();
    assert_eq!((second.as_slice(), end.as_str()), (&ids[2..], ""));
    let (queued, _) = list(0, String::new(), vec![JobState::Queued]).await.unwrap();
    assert_eq!(queued, ids[..2]);
    assert_eq!(fields(&list(-1, String::new(), vec![]).await.unwrap_err()), ["page_size"]);
    assert_eq!(fields(&list(0, "made up".to_owned(), vec![]).await.unwrap_err()), ["page_token"]);

    let delete = |job_id: &str| {
        let request = v1::DeleteJobRequest { job_id: job_id.to_owned() };
        let mut jobs = coordinator.jobs();
        async move { jobs.delete_job(request).await.map(|_| ()).map_err(|status| status.code()) }
    };
    assert_eq!(delete(&ids[0]).await, Err(Code::FailedPrecondition));
    assert_eq!(delete(&ids[2]).await, Ok(()));
    assert_eq!(delete(&ids[2]).await, Err(Code::NotFound));
    coordinator.stop().await;
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let coordinator = Coordinator::fresh().await;
    let job_id = JobId::new().to_string();
    let mut jobs = coordinator.jobs();
    let get =
        jobs.get_job(v1::GetJobRequest { job_id: job_id.clone(), ..Default::default() }).await.unwrap_err();
    assert_eq!(get.code(), Code::NotFound);
    assert_eq!(get.get_details_resource_info().unwrap().resource_name, job_id);
    assert_eq!(coordinator.cancel(&job_id).await.unwrap_err().code(), Code::NotFound);
    let watch = v1::WatchJobRequest { job_id, after_sequence: 0 };
    assert_eq!(jobs.watch_job(watch).await.unwrap_err().code(), Code::NotFound);
    let strange = jobs
        .get_job(v1::GetJobRequest { job_id: "seven".to_owned(), ..Default::default() })
        .await
        .unwrap_err();
    assert_eq!(fields(&strange), ["job_id"]);
    coordinator.stop().await;
}
