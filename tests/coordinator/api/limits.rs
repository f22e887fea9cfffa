//! Limits: room, connections, idle time, the size of a job.

use std::time::Duration;

use prost::Message as _;
use ringtune_proto::v1::{self, upload_request::Part};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::{
    coordinator::Coordinator,
    soon,
    uploads::{chunk, header},
    worker::training,
};

#[tokio::test]
async fn contents_take_no_more_room_than_they_may() {
    let coordinator = Coordinator::fresh_with(|settings| settings.storage.content_bytes = 10).await;
    coordinator.upload(header(b"123456"), vec![chunk(b"123456")]).await.unwrap();
    let full = coordinator.upload(header(b"abcde"), vec![chunk(b"abcde")]).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    assert!(full.get_details_retry_info().is_some());
    let quota = full.get_details_quota_failure().unwrap();
    assert_eq!(quota.violations[0].subject, "storage.content_bytes");
    // An existing content takes no more room.
    assert!(coordinator.upload(header(b"123456"), vec![chunk(b"123456")]).await.unwrap().complete);
    coordinator.stop().await;

    let coordinator = Coordinator::fresh_with(|settings| settings.storage.free_bytes = u64::MAX / 2).await;
    let full = coordinator.upload(header(b"abcde"), vec![chunk(b"abcde")]).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    assert_eq!(full.get_details_quota_failure().unwrap().violations[0].subject, "storage.free_bytes");
    coordinator.stop().await;
}

#[tokio::test]
async fn an_upload_that_only_drips_loses_its_place() {
    let change = |settings: &mut ringtune_coordinator::settings::Settings| {
        settings.limits.idle_seconds = 0.2;
        settings.limits.uploads = 1;
    };
    let coordinator = Coordinator::fresh_with(change).await;
    let content = vec![1; 1 << 20];
    let (parts, stream) = mpsc::channel(1);
    let mut artifacts = coordinator.artifacts();
    let dripping = tokio::spawn(async move { artifacts.upload(ReceiverStream::new(stream)).await });
    let send = async |part: Part| parts.send(v1::UploadRequest { part: Some(part) }).await;
    send(Part::Header(header(&content))).await.unwrap();
    // It never falls silent for long.
    let dripped = async {
        while send(chunk(&[1])).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("the end of a dripping upload", dripped).await;
    let ended = soon("its answer", dripping).await.unwrap().unwrap_err();
    assert_eq!(ended.code(), Code::DeadlineExceeded);
    // There is a place again.
    assert!(coordinator.upload(header(b"other"), vec![chunk(b"other")]).await.unwrap().complete);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_connection_too_many_is_closed_and_others_are_served() {
    let coordinator = Coordinator::fresh_with(|settings| settings.limits.connections = 1).await;
    coordinator.create(1).await;
    let address = coordinator.address;
    let other = || async move {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
        let channel = endpoint.connect().await.ok()?;
        let mut jobs = v1::job_service_client::JobServiceClient::new(channel);
        jobs.list_jobs(v1::ListJobsRequest::default()).await.ok()
    };
    assert!(soon("an answer or none", other()).await.is_none());
    coordinator.create(1).await;
    coordinator.stop().await;
}

/// A job of so many concepts that takes 120 KB for each.
fn large_spec(concepts: usize) -> v1::JobSpec {
    let concept = |index: usize| v1::ConceptSpec {
        placeholder_token: format!("<{index}>"),
        initializer_token: "a".to_owned(),
        images: "/images".to_owned(),
        ..Default::default()
    };
    let mut spec = crate::jobs::spec(1);
    spec.data = None;
    spec.concepts = (0..concepts).map(concept).collect();
    let train = spec.train.as_mut().unwrap();
    (train.placeholder_token, train.initializer_token) = (String::new(), String::new());
    train.templates = vec![format!("{} {{}}", "x".repeat(400)); 300];
    spec
}

#[tokio::test]
async fn a_job_that_is_too_large_with_its_defaults_is_refused_by_field() {
    let coordinator = Coordinator::fresh().await;
    let request = v1::CreateJobRequest { spec: Some(large_spec(64)), ..Default::default() };
    let refused = coordinator.jobs().create_job(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let violations = refused.get_details_bad_request().unwrap().field_violations;
    assert_eq!(violations[0].field, "spec.train.templates", "{violations:?}");
    coordinator.stop().await;
}

#[tokio::test]
async fn a_page_of_large_jobs_is_a_message_that_clients_take() {
    let coordinator = Coordinator::fresh().await;
    let mut created = Vec::new();
    for number in 0..9 {
        let request = v1::CreateJobRequest { spec: Some(large_spec(7)), ..Default::default() };
        created.push(coordinator.jobs().create_job(request).await.unwrap().into_inner().job.unwrap().job_id);
        if number % 2 == 0 {
            created.push(coordinator.create(1).await.job_id);
        }
    }
    created.reverse();
    let (mut listed, mut pages) = (Vec::new(), 0);
    let mut request = v1::ListJobsRequest { page_size: 500, ..Default::default() };
    loop {
        // A client refuses what is longer than 4 MiB.
        let page = coordinator.jobs().list_jobs(request.clone()).await.unwrap().into_inner();
        assert!(page.encoded_len() <= (3 << 20) + 1024, "{} bytes", page.encoded_len());
        listed.extend(page.jobs.into_iter().map(|job| job.job_id));
        pages += 1;
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(listed, created);
    assert!((2..=4).contains(&pages), "{pages} pages");
    coordinator.stop().await;
}

#[tokio::test]
async fn a_disk_with_too_little_room_is_an_alarm() {
    for (kept, low) in [(0, 0), (i64::MAX.unsigned_abs(), 1)] {
        let coordinator = Coordinator::fresh_with(|settings| settings.storage.free_bytes = kept).await;
        // The first answer that there is tells of the disk, and all of it.
        let metrics = coordinator.http_get("/metrics").await;
        let value = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().parse::<u64>().unwrap()
        };
        assert!(value("ringtune_disk_free_bytes ") > 0);
        assert_eq!((value("ringtune_disk_low "), value("ringtune_store_failing ")), (low, 0));
        coordinator.stop().await;
    }
}

#[tokio::test]
async fn a_watch_that_nobody_reads_loses_its_place() {
    let (coordinator, mut worker, job) = training(|settings| settings.limits.idle_seconds = 0.2).await;
    let id = job.job_id;
    for _ in 0..3 {
        coordinator.create(1).await;
    }
    // There is no room for a single byte of an answer.
    let endpoint =
        tonic::transport::Endpoint::from_shared(format!("http://{}", coordinator.address)).unwrap();
    let channel = endpoint.initial_stream_window_size(0).connect().await.unwrap();
    let mut deaf = v1::job_service_client::JobServiceClient::new(channel);
    let all = deaf.watch_jobs(v1::WatchJobsRequest::default()).await.unwrap();
    let one = v1::WatchJobRequest { job_id: id.clone(), after_sequence: 0 };
    let one = deaf.watch_job(one).await.unwrap();
    // A watcher that reads everything keeps its stream, however long nothing comes.
    let mut reader = coordinator.watch(&id, 0).await;
    reader.until(v1::JobState::Running).await;
    soon("the places of those that do not read", async {
        while !coordinator.http_get("/metrics").await.contains("\nringtune_watches 1\n") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    worker.finish().await;
    reader.until(v1::JobState::Succeeded).await;
    drop((all, one));
    coordinator.stop().await;
}
