//! The ports: reflection, health, HTTP, and unimplemented calls.

use std::collections::BTreeSet;

use ringtune_proto::v1::{
    self, JobReason, JobState, session_request::Message as Up, session_response::Message as Down,
};
use ringtune_shared::version::METRICS;
use tonic::Code;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use crate::{
    coordinator::Coordinator,
    soon,
    worker::{Worker, hello},
};

const SERVICES: [&str; 4] = [
    "ringtune.v1.ArtifactService",
    "ringtune.v1.ClusterService",
    "ringtune.v1.JobService",
    "ringtune.v1.WorkerService",
];

#[tokio::test]
async fn reflection_describes_and_health_reports_every_service() {
    let coordinator = Coordinator::fresh().await;
    let ask = |request| {
        let mut client = ServerReflectionClient::new(coordinator.channel.clone());
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(request) };
        async move {
            let answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap();
            let answer = soon("reflection", answers.into_inner().message()).await.unwrap().unwrap();
            answer.message_response.unwrap()
        }
    };
    let listed = ask(MessageRequest::ListServices(String::new())).await;
    let MessageResponse::ListServicesResponse(listed) = listed else { panic!("{listed:?}") };
    let names: BTreeSet<String> = listed.service.into_iter().map(|service| service.name).collect();
    let mut health = HealthClient::new(coordinator.channel.clone());
    for service in SERVICES {
        assert!(names.contains(service), "{service} is not among {names:?}");
        let answer = ask(MessageRequest::FileContainingSymbol(service.to_owned())).await;
        assert!(matches!(answer, MessageResponse::FileDescriptorResponse(_)), "{answer:?}");
        let check = HealthCheckRequest { service: service.to_owned() };
        let status = health.check(check).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{service}");
    }
    let whole = health.check(HealthCheckRequest::default()).await.unwrap().into_inner().status();
    assert_eq!(whole, ServingStatus::Serving);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_waiting_job_is_paused_and_resumed_as_often_as_it_is_asked() {
    let coordinator = Coordinator::fresh().await;
    let job_id = coordinator.create(1).await.job_id;
    let mut jobs = coordinator.jobs();
    for _ in 0..2 {
        let request = v1::PauseJobRequest { job_id: job_id.clone() };
        let paused = jobs.pause_job(request).await.unwrap().into_inner().job.unwrap();
        assert_eq!((paused.state(), paused.reason_code()), (JobState::Paused, JobReason::PausedByUser));
        assert_eq!(paused.state_reason, "paused by request");
    }
    for _ in 0..2 {
        let request = v1::ResumeJobRequest { job_id: job_id.clone() };
        let resumed = jobs.resume_job(request).await.unwrap().into_inner().job.unwrap();
        assert_eq!(resumed.state(), JobState::Queued);
    }
    // A paused job can be cancelled; then it is neither paused nor resumed.
    jobs.pause_job(v1::PauseJobRequest { job_id: job_id.clone() }).await.unwrap();
    let request = v1::CancelJobRequest { job_id: job_id.clone(), reason: String::new() };
    let cancelled = jobs.cancel_job(request).await.unwrap().into_inner().job.unwrap();
    assert_eq!(cancelled.state(), JobState::Cancelled);
    let pause = jobs.pause_job(v1::PauseJobRequest { job_id: job_id.clone() }).await.unwrap_err();
    let resume = jobs.resume_job(v1::ResumeJobRequest { job_id }).await.unwrap_err();
    assert_eq!((pause.code(), resume.code()), (Code::FailedPrecondition, Code::FailedPrecondition));
    let unknown = v1::PauseJobRequest { job_id: ringtune_shared::ids::JobId::new().to_string() };
    assert_eq!(jobs.pause_job(unknown).await.unwrap_err().code(), Code::NotFound);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_worker_without_an_id_is_refused() {
    let coordinator = Coordinator::fresh().await;
    let mut nobody = hello("host-a");
    nobody.worker_id = "me".to_owned();
    let refused = Worker::open(&coordinator, nobody).await.err().unwrap();
    assert_eq!(refused.code(), Code::InvalidArgument);
    coordinator.stop().await;
}

#[tokio::test]
async fn the_cluster_is_listed() {
    let coordinator = Coordinator::fresh().await;
    let mut workers = Vec::new();
    for host in ["host-a", "host-b", "host-c"] {
        workers.push(Worker::start(&coordinator, host).await);
    }
    coordinator.create(2).await;
    coordinator.create(9).await;
    let mut cluster = coordinator.cluster();
    let summary = cluster.get_cluster(v1::GetClusterRequest {}).await.unwrap().into_inner();
    assert_eq!((summary.workers_idle, summary.workers_busy, summary.workers_lost), (1, 2, 0));
    assert_eq!((summary.jobs_queued, summary.jobs_active), (1, 1));
    let mut found = BTreeSet::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListWorkersRequest { page_size: 2, page_token, ..Default::default() };
        let page = cluster.list_workers(request).await.unwrap().into_inner();
        found.extend(page.workers.into_iter().map(|worker| worker.worker_id));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(found, workers.iter().map(|worker| worker.hello.worker_id.clone()).collect());
    for worker in &workers {
        let request = v1::GetWorkerRequest { worker_id: worker.hello.worker_id.clone() };
        let known = cluster.get_worker(request).await.unwrap().into_inner().worker.unwrap();
        assert_eq!(known.host_name, worker.hello.host_name);
        assert_eq!(known.capabilities, worker.hello.capabilities);
        assert_eq!(known.job_id.is_empty(), known.state() == v1::WorkerState::Idle);
    }
    coordinator.stop().await;
}

#[tokio::test]
async fn the_http_port_answers_probes_and_counts_calls() {
    let coordinator = Coordinator::fresh().await;
    coordinator.create(1).await;
    for (path, wanted) in [
        ("/healthz", "ok"),
        ("/readyz", "200"),
        ("/metrics", "ringtune_rpcs_total{code=\"OK\",method=\"JobService/CreateJob\"} 1"),
        ("/metrics", "ringtune_jobs{state=\"queued\"} 1"),
        ("/nothing", "404"),
    ] {
        let answer = coordinator.http_get(path).await;
        assert!(answer.contains(wanted), "{path}: {answer}");
    }
    coordinator.stop().await;
}

#[tokio::test]
async fn workers_are_listed_for_prometheus_and_asked_what_they_count() {
    let coordinator = Coordinator::fresh().await;
    let older = Worker::start(&coordinator, "older").await;
    let hello = v1::Hello { features: vec![METRICS.to_owned()], ..hello("vm-1") };
    let mut worker = Worker::open(&coordinator, hello).await.unwrap();
    let id = worker.hello.worker_id.clone();
    // 1. By the name by which the coordinator was called.
    let listed = coordinator.http_get("/sd/workers").await;
    let (_, json) = listed.split_once("\r\n\r\n").unwrap();
    let listed: serde_json::Value = serde_json::from_str(json.trim()).unwrap();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["labels"]["host"]), (1, &"vm-1".into()));
    let path = listed[0]["labels"]["__metrics_path__"].as_str().unwrap().to_owned();
    assert_eq!(path, format!("/metrics/workers/{id}"));
    // 2. It is asked, and answers.
    let says = async {
        let Down::AskMetrics(asked) = worker.hear().await.unwrap() else { panic!("not asked") };
        let text = "ringtune_worker_step 7\n".to_owned();
        worker.say(Up::Metrics(v1::Metrics { number: asked.number, text })).await;
    };
    let (answer, ()) = tokio::join!(coordinator.http_get(&path), says);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("ringtune_worker_step 7"), "{answer}");
    // 3. One that cannot be asked, one that is nobody, and one that is gone, which stays in the list.
    for path in [format!("/metrics/workers/{}", older.hello.worker_id), "/metrics/workers/x".to_owned()] {
        let answer = coordinator.http_get(&path).await;
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    }
    worker.hang_up();
    while !coordinator.http_get(&path).await.starts_with("HTTP/1.1 503") {}
    assert!(coordinator.http_get("/sd/workers").await.contains(&id));
    // 4. More than a worker ever counts ends its session.
    let hello = v1::Hello { features: vec![METRICS.to_owned()], ..crate::worker::hello("vm-2") };
    let mut worker = Worker::open(&coordinator, hello).await.unwrap();
    worker.say(Up::Metrics(v1::Metrics { number: 1, text: "x".repeat((1 << 20) + 1) })).await;
    let status = worker.end().await;
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().starts_with("metrics.text: "), "{status}");
    coordinator.stop().await;
}
