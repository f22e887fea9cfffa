//! Jobs and their owners.

use ringtune_proto::v1::{
    self, artifact_service_client::ArtifactServiceClient, cluster_service_client::ClusterServiceClient,
    download_request::Source, job_service_client::JobServiceClient, watch_jobs_response::Response,
};
use ringtune_security::Role;
use tonic::{Code, Status};

use crate::{
    soon,
    stage::{Client, Stage, spec},
};

type Jobs = JobServiceClient<Client>;

async fn create(jobs: &mut Jobs, owner: &str, request_id: &str) -> Result<v1::Job, Status> {
    let queue = Some(v1::QueueSpec { owner: owner.to_owned(), ..Default::default() });
    let request = v1::CreateJobRequest {
        spec: Some(spec()),
        request_id: request_id.to_owned(),
        queue,
        ..Default::default()
    };
    Ok(jobs.create_job(request).await?.into_inner().job.unwrap())
}

async fn listed(jobs: &mut Jobs, filter: &str) -> Vec<String> {
    let request = v1::ListJobsRequest { filter: filter.to_owned(), ..Default::default() };
    let found = jobs.list_jobs(request).await.unwrap().into_inner().jobs;
    found.into_iter().map(|job| job.job_id).collect()
}

fn owner(job: &v1::Job) -> String {
    job.queue.clone().unwrap_or_default().owner
}

#[tokio::test]
async fn only_an_admin_gives_a_job_any_priority() {
    let stage = Stage::new().await;
    let mut ada = stage.jobs(Role::Submitter, "ada").await;
    let mut admin = stage.jobs(Role::Admin, "root").await;
    let of = |priority| v1::CreateJobRequest {
        spec: Some(spec()),
        queue: Some(v1::QueueSpec { priority, ..Default::default() }),
        ..Default::default()
    };
    ada.create_job(of(99)).await.unwrap();
    let denied = ada.create_job(of(100)).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
    for part in ["queue.priority: got 100", "0 to 99", "queue.submitter_priority", "submitter ada"] {
        assert!(denied.message().contains(part), "{denied}");
    }
    assert_eq!(stage.denied("role"), 1);
    admin.create_job(of(1000)).await.unwrap();
}

#[tokio::test]
async fn a_job_is_its_callers_and_for_other_submitters_it_is_not_there() {
    let stage = Stage::new().await;
    let (mut ada, mut bob) =
        (stage.jobs(Role::Submitter, "ada").await, stage.jobs(Role::Submitter, "bob").await);
    let hers = create(&mut ada, "", "").await.unwrap();
    assert_eq!(owner(&hers), "ada");
    assert_eq!(owner(&create(&mut ada, "ada", "").await.unwrap()), "ada");
    let denied = create(&mut ada, "bob", "").await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
    assert!(denied.message().contains("queue.owner"), "{denied}");
    assert_eq!(stage.denied("owner"), 1);
    let his = create(&mut bob, "", "").await.unwrap();

    // 1. Whatever bob asks of hers, it is as if there were no such job.
    let id = hers.job_id.clone();
    let absent = |job_id: &str| format!("there is no job {job_id}");
    let other = ringtune_shared::ids::JobId::new().to_string();
    for (job_id, jobs) in [(&id, &mut bob), (&other, &mut ada)] {
        let job_id = job_id.clone();
        let said = [
            jobs.get_job(v1::GetJobRequest { job_id: job_id.clone(), ..Default::default() }).await.map(drop),
            jobs.cancel_job(v1::CancelJobRequest { job_id: job_id.clone(), ..Default::default() })
                .await
                .map(drop),
            jobs.delete_job(v1::DeleteJobRequest { job_id: job_id.clone() }).await.map(drop),
            jobs.verify_job(v1::VerifyJobRequest { job_id: job_id.clone(), ..Default::default() })
                .await
                .map(drop),
            jobs.watch_job(v1::WatchJobRequest { job_id: job_id.clone(), ..Default::default() })
                .await
                .map(drop),
            jobs.watch_jobs(v1::WatchJobsRequest { job_ids: vec![job_id.clone()] }).await.map(drop),
            jobs.list_steps(v1::ListStepsRequest { job_id: job_id.clone(), ..Default::default() })
                .await
                .map(drop),
            jobs.list_events(v1::ListEventsRequest { job_id: job_id.clone(), ..Default::default() })
                .await
                .map(drop),
        ];
        for (number, said) in said.into_iter().enumerate() {
            let status = said.unwrap_err();
            assert_eq!(
                (status.code(), status.message()),
                (Code::NotFound, absent(&job_id).as_str()),
                "{number}"
            );
        }
    }
    let mut files = ArtifactServiceClient::new(stage.known(Role::Submitter, "bob").await);
    let request = v1::ListArtifactsRequest { job_id: id.clone(), ..Default::default() };
    assert_eq!(files.list_artifacts(request).await.unwrap_err().code(), Code::NotFound);
    let request = v1::DeleteArtifactRequest { job_id: id.clone(), name: "a".to_owned(), epoch: None };
    assert_eq!(files.delete_artifact(request).await.unwrap_err().code(), Code::NotFound);
    let source = Source::JobFile(v1::JobFile { job_id: id.clone(), name: "a".to_owned() });
    let request = v1::DownloadRequest { source: Some(source), ..Default::default() };
    assert_eq!(files.download(request).await.unwrap_err().code(), Code::NotFound);

    // 2. Lists show one's own, whatever one filters by.
    assert_eq!(listed(&mut bob, "").await, std::slice::from_ref(&his.job_id));
    assert!(listed(&mut bob, "owner=ada").await.is_empty());
    assert_eq!(listed(&mut bob, "owner=bob").await, std::slice::from_ref(&his.job_id));
    assert_eq!(listed(&mut ada, "").await.len(), 2);

    // 3. Observers and admins see all; an admin submits for others and stops what is theirs.
    let mut observer = stage.jobs(Role::Observer, "olga").await;
    let mut admin = stage.jobs(Role::Admin, "root").await;
    for jobs in [&mut observer, &mut admin] {
        assert_eq!(listed(jobs, "").await.len(), 3);
        assert!(jobs.get_job(v1::GetJobRequest { job_id: id.clone(), ..Default::default() }).await.is_ok());
    }
    let cancel = v1::CancelJobRequest { job_id: id.clone(), ..Default::default() };
    assert_eq!(observer.cancel_job(cancel.clone()).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(owner(&create(&mut admin, "bob", "").await.unwrap()), "bob");
    assert_eq!(owner(&create(&mut admin, "", "").await.unwrap()), "root");
    assert_eq!(listed(&mut bob, "").await.len(), 2);
    assert!(admin.cancel_job(cancel).await.is_ok());

    // 4. One that has ended is hers alone, too.
    assert_eq!(
        bob.delete_job(v1::DeleteJobRequest { job_id: id.clone() }).await.unwrap_err().code(),
        Code::NotFound
    );
    assert!(ada.get_job(v1::GetJobRequest { job_id: id.clone(), ..Default::default() }).await.is_ok());
    assert!(ada.delete_job(v1::DeleteJobRequest { job_id: id }).await.is_ok());
    stage.stop().await;
}

#[tokio::test]
async fn the_name_of_a_request_is_its_callers_own() {
    let stage = Stage::new().await;
    let (mut ada, mut bob) =
        (stage.jobs(Role::Submitter, "ada").await, stage.jobs(Role::Submitter, "bob").await);
    let hers = create(&mut ada, "", "nightly").await.unwrap();
    assert_eq!(create(&mut ada, "", "nightly").await.unwrap().job_id, hers.job_id);
    let his = create(&mut bob, "", "nightly").await.unwrap();
    assert_ne!(his.job_id, hers.job_id);
    assert_eq!(owner(&his), "bob");
    // Another request of the same name: the answer names one's own.
    let spec = v1::JobSpec { name: "another".to_owned(), ..spec() };
    let request =
        v1::CreateJobRequest { spec: Some(spec), request_id: "nightly".to_owned(), ..Default::default() };
    let reused = bob.create_job(request).await.unwrap_err();
    assert_eq!(reused.code(), Code::AlreadyExists);
    assert!(reused.message().contains("request_id \"nightly\""), "{reused}");
    assert!(reused.message().contains(&his.job_id) && !reused.message().contains(&hers.job_id), "{reused}");
    stage.stop().await;
}

#[tokio::test]
async fn who_watches_all_is_told_of_their_own() {
    let stage = Stage::new().await;
    let (mut ada, mut bob) =
        (stage.jobs(Role::Submitter, "ada").await, stage.jobs(Role::Submitter, "bob").await);
    let first = create(&mut ada, "", "").await.unwrap();
    let before = create(&mut bob, "", "").await.unwrap();
    let mut watch = bob.watch_jobs(v1::WatchJobsRequest::default()).await.unwrap().into_inner();
    let second = create(&mut ada, "", "").await.unwrap();
    for id in [&first.job_id, &second.job_id] {
        ada.cancel_job(v1::CancelJobRequest { job_id: id.clone(), ..Default::default() }).await.unwrap();
    }
    let after = create(&mut bob, "", "").await.unwrap();
    // A job that waits behind another one's says so, and no more.
    assert!(!before.state_reason.contains(&first.job_id) && !after.state_reason.contains(&second.job_id));
    let mut told = Vec::new();
    while !told.contains(&after.job_id) {
        let news = soon("news", watch.message()).await.unwrap().unwrap();
        match news.response.unwrap() {
            Response::Job(job) => {
                assert!(!job.state_reason.contains(&first.job_id), "{}", job.state_reason);
                told.push(job.job_id);
            }
            Response::Event(event) => told.push(event.job_id),
            Response::Deleted(job) => panic!("nobody deletes {job:?}"),
            Response::Alive(_) => {}
        }
    }
    told.dedup();
    assert_eq!(told, [before.job_id, after.job_id]);
    stage.stop().await;
}

#[tokio::test]
async fn a_submitter_sees_workers_without_the_jobs_of_others() {
    let stage = Stage::new().await;
    let mut worker = crate::workers::Worker::start(&stage).await;
    let mut ada = stage.jobs(Role::Submitter, "ada").await;
    let hers = create(&mut ada, "", "").await.unwrap();
    worker.assigned(&hers.job_id).await;
    for (role, name, sees) in
        [(Role::Submitter, "ada", true), (Role::Submitter, "bob", false), (Role::Observer, "olga", true)]
    {
        let mut cluster = ClusterServiceClient::new(stage.known(role, name).await);
        let shown =
            cluster.list_workers(v1::ListWorkersRequest::default()).await.unwrap().into_inner().workers;
        assert_eq!(shown[0].job_id == hers.job_id, sees, "{role} {name}");
        assert_eq!(shown[0].rank.is_some(), sees);
        assert_eq!(shown[0].state(), v1::WorkerState::Busy);
        let filter = format!("job_id={}", hers.job_id);
        let request = v1::ListWorkersRequest { filter, ..Default::default() };
        let found = cluster.list_workers(request).await.unwrap().into_inner().workers;
        assert_eq!(found.len(), usize::from(sees));
        let request = v1::GetWorkerRequest { worker_id: shown[0].worker_id.clone() };
        let one = cluster.get_worker(request).await.unwrap().into_inner().worker.unwrap();
        assert_eq!(one.job_id == hers.job_id, sees);
    }
    stage.stop().await;
}
