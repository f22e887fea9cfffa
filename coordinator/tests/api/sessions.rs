//! Workers' sessions.

use ringtune_coordinator::core::Options;
use ringtune_proto::v1::{self, WorkerState, session_request::Message as Up};
use ringtune_shared::ids::WorkerId;
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::support::{Coordinator, hello};

#[tokio::test]
async fn workers_that_do_not_fit_are_told_why() {
    let folder = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(folder.path(), Options::default()).await;
    let good = || hello(WorkerId::new(), 1);
    let protocol = v1::Hello { protocol: 99, ..good() };
    let mut version = good();
    version.capabilities.as_mut().unwrap().version = "99.1.0".to_owned();
    for (words, both) in [(protocol, "99"), (version, "99.1.0")] {
        let status = coordinator.worker_like(words).await.err().unwrap();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.get_details_precondition_failure().is_some());
        assert!(status.message().contains(both), "{status}");
    }
    let nobody = v1::Hello { worker_id: "me".to_owned(), ..good() };
    let status = coordinator.worker_like(nobody).await.err().unwrap();
    assert_eq!(status.get_details_bad_request().unwrap().field_violations[0].field, "hello.worker_id");
    coordinator.stop().await;
}

#[tokio::test]
async fn workers_are_listed_with_what_they_can_do() {
    let folder = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(folder.path(), Options::default()).await;
    let mut cluster = coordinator.cluster().await;
    let workers = [coordinator.worker().await, coordinator.worker().await, coordinator.worker().await];
    let mut request = v1::ListWorkersRequest { page_size: 2, ..Default::default() };
    let page = cluster.list_workers(request.clone()).await.unwrap().into_inner();
    request.page_token = page.next_page_token;
    let rest = cluster.list_workers(request).await.unwrap().into_inner();
    let mut listed: Vec<v1::Worker> = page.workers.into_iter().chain(rest.workers).collect();
    listed.sort_by(|one, other| one.worker_id.cmp(&other.worker_id));
    let mut ids: Vec<String> = workers.iter().map(|worker| worker.hello.worker_id.clone()).collect();
    ids.sort();
    assert_eq!(listed.iter().map(|worker| worker.worker_id.clone()).collect::<Vec<_>>(), ids);
    assert!(listed.iter().all(|worker| worker.state() == WorkerState::Idle));
    assert_eq!(listed[0].capabilities, workers[0].hello.capabilities);
    let summary = cluster.get_cluster(v1::GetClusterRequest {}).await.unwrap().into_inner();
    assert_eq!((summary.workers_idle, summary.workers_lost), (3, 0));
    let missing = v1::GetWorkerRequest { worker_id: WorkerId::new().to_string() };
    assert_eq!(cluster.get_worker(missing).await.unwrap_err().code(), Code::NotFound);
    coordinator.stop().await;
}

#[tokio::test]
async fn the_newest_session_wins_and_silence_or_nonsense_ends_one() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { session_timeout: 1000, ..Options::default() };
    let coordinator = Coordinator::start(folder.path(), options).await;
    let first = coordinator.worker().await;
    let second = coordinator.worker_like(first.hello.clone()).await.unwrap();
    assert_eq!(first.end().await.unwrap().code(), Code::Aborted);
    // Nothing more is heard of the second one.
    assert_eq!(second.end().await.unwrap().code(), Code::Aborted);

    let third = coordinator.worker().await;
    third.say(Up::RankReport(v1::RankReport::default())).await;
    assert_eq!(third.end().await.unwrap().code(), Code::InvalidArgument);
    coordinator.stop().await;
}
