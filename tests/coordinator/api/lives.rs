//! Jobs whose workers stay: to the end, to a cancellation, to a rank's error.

use ringtune_proto::v1::{
    self, JobState, RankPhase, download_request::Source, job_event::Event, session_request::Message as Up,
    session_response::Message as Down,
};
use ringtune_shared::ids::ContentHash;

use crate::{
    coordinator::Coordinator,
    jobs::{STEPS, states},
    uploads::{chunk, header},
    worker::{Worker, training},
};

#[tokio::test]
async fn a_job_goes_from_the_queue_to_its_artifacts() {
    let coordinator = Coordinator::fresh().await;
    let mut worker = Worker::start(&coordinator, "host-a").await;
    let job = coordinator.create(1).await;
    let id = job.job_id.as_str();
    let live = coordinator.watch(id, 0).await;

    // 1. It is prepared.
    let assignment = worker.take_rank().await;
    assert_eq!((assignment.threads_per_rank, assignment.precision.as_str()), (2, "no"));
    let train = assignment.spec.unwrap().train.unwrap();
    assert_eq!(train.learning_rate, Some(1e-4), "the worker is given every default");
    worker.progress(v1::ProgressStage::Load, 1, 2).await;
    worker.report(RankPhase::Ready, "").await;

    // 2. It trains; a step that is sent again is stored once.
    worker.train().await;
    worker.step(1).await;
    worker.step(1).await;
    let line = v1::LogLine { level: v1::LogLevel::Info.into(), rank: Some(0), message: "warm".to_owned() };
    worker.say(Up::RankLog(v1::RankLog { job_id: id.to_owned(), line: Some(line), epoch: 1 })).await;
    for step in 2..=STEPS {
        worker.step(step).await;
    }
    let running = coordinator.job(id).await;
    assert_eq!((running.state(), running.step, running.loss), (JobState::Running, STEPS, Some(0.2)));
    let ring = running.ring.unwrap();
    let member = v1::ring::Member {
        rank: 0,
        worker_id: worker.hello.worker_id.clone(),
        address: worker.hello.address.clone(),
        host_name: worker.hello.host_name.clone(),
        phase: RankPhase::Training.into(),
    };
    assert_eq!((ring.epoch, ring.members), (1, vec![member]));
    assert_eq!(v1::JobReason::try_from(running.reason_code), Ok(v1::JobReason::Training));

    // 3. It leaves its artifact.
    let mut upload = header(b"embedding");
    upload.job_id = id.to_owned();
    upload.name = "learned_embeds.safetensors".to_owned();
    coordinator.upload(upload, vec![chunk(b"embedding")]).await.unwrap();
    worker.report(RankPhase::Finished, "").await;
    worker.stopped(false).await;
    let done = coordinator.end(id).await;
    assert_eq!((done.state(), done.reason_code()), (JobState::Succeeded, v1::JobReason::Completed));
    assert_eq!(done.ring, None);
    assert!(done.create_time.is_some() && done.start_time.is_some() && done.end_time.is_some());

    // 4. The history has all of it, whether watched live, later, or from the middle on.
    let events = live.rest().await;
    let wanted = [JobState::Queued, JobState::Preparing, JobState::Running, JobState::Succeeded];
    assert_eq!(states(&events), wanted);
    let steps: Vec<i64> = events.iter().filter_map(step_of).collect();
    assert_eq!(steps, (1..=STEPS).collect::<Vec<_>>());
    let warm =
        |event: &Event| matches!(event, Event::Log(line) if line.message == "warm" && line.rank == Some(0));
    assert!(events.iter().any(warm));
    assert_eq!(done.last_sequence, events.len() as u64);
    assert_eq!(coordinator.watch(id, 0).await.rest().await, events);
    for after in [1, 4, done.last_sequence] {
        let rest = coordinator.watch(id, after).await.rest().await;
        assert_eq!(rest, events[after as usize..]);
    }
    check_step_pages(&coordinator, id).await;
    check_artifacts(&coordinator, id).await;
    coordinator.stop().await;
}

fn step_of(event: &Event) -> Option<i64> {
    if let Event::Step(step) = event { Some(step.step) } else { None }
}

async fn check_step_pages(coordinator: &Coordinator, id: &str) {
    let mut request =
        v1::ListStepsRequest { job_id: id.to_owned(), after_step: 1, page_size: 2, ..Default::default() };
    let mut pages = Vec::new();
    loop {
        let page = coordinator.jobs().list_steps(request.clone()).await.unwrap().into_inner();
        pages.push(page.steps.iter().map(|step| step.step).collect::<Vec<_>>());
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(pages, [vec![2, 3], vec![4, 5]]);
    request.page_token = "made up".to_owned();
    let refused = coordinator.jobs().list_steps(request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
}

async fn check_artifacts(coordinator: &Coordinator, id: &str) {
    let request = v1::ListArtifactsRequest { job_id: id.to_owned(), ..Default::default() };
    let listed = coordinator.artifacts().list_artifacts(request).await.unwrap().into_inner().artifacts;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].uri, ContentHash::of(b"embedding").uri());
    let file = v1::JobFile { job_id: id.to_owned(), name: "learned_embeds.safetensors".to_owned() };
    let request = v1::DownloadRequest { source: Some(Source::JobFile(file)), ..Default::default() };
    let (artifact, bytes) = coordinator.download(request).await.unwrap();
    assert_eq!((artifact, bytes.as_slice()), (listed[0].clone(), b"embedding".as_slice()));
}

#[tokio::test]
async fn a_queued_job_says_what_it_waits_for_and_is_cancelled_at_once() {
    let coordinator = Coordinator::fresh().await;
    let _worker = Worker::start(&coordinator, "host-a").await;
    let job = coordinator.create(2).await;
    assert_eq!(job.state(), JobState::Queued);
    assert_eq!(job.state_reason, "waiting for workers: 1 free, 2 needed");
    let live = coordinator.watch(&job.job_id, 0).await;
    let cancelled = coordinator.cancel(&job.job_id).await.unwrap();
    assert_eq!((cancelled.state(), cancelled.state_reason.as_str()), (JobState::Cancelled, "enough"));
    assert_eq!(states(&live.rest().await), [JobState::Queued, JobState::Cancelled]);
    let again = coordinator.cancel(&job.job_id).await.unwrap();
    assert_eq!(again, cancelled, "to cancel twice changes nothing");
    coordinator.stop().await;
}

#[tokio::test]
async fn a_running_job_is_cancelled_once_its_ranks_have_stopped() {
    let (coordinator, mut worker, job) = training(|_| ()).await;
    worker.step(1).await;
    let asked = coordinator.cancel(&job.job_id).await.unwrap();
    assert_eq!((asked.state(), asked.state_reason.as_str()), (JobState::Running, "cancelling: enough"));
    assert_eq!(worker.stopped(true).await, "enough");
    let mut upload = header(b"so far");
    upload.job_id = job.job_id.clone();
    upload.name = "metrics.csv".to_owned();
    coordinator.upload(upload.clone(), vec![chunk(b"so far")]).await.unwrap();
    worker.report(RankPhase::Stopped, "").await;
    worker.stopped(false).await;
    let ended = coordinator.end(&job.job_id).await;
    assert_eq!((ended.state(), ended.state_reason.as_str(), ended.step), (JobState::Cancelled, "enough", 1));
    // Ended jobs do not change.
    let late = coordinator.upload(upload, vec![chunk(b"so far")]).await.unwrap_err();
    assert_eq!(late.code(), tonic::Code::FailedPrecondition);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_rank_that_fails_ends_its_job_and_lets_the_other_one_go() {
    let coordinator = Coordinator::fresh().await;
    let mut workers = Worker::pair(&coordinator).await;
    let job = coordinator.create(2).await;
    for worker in &mut workers {
        worker.take_rank().await;
    }
    workers.sort_by_key(|worker| worker.held.rank);
    let [mut first, mut second] = workers;
    first.report(RankPhase::Ready, "").await;
    second.report(RankPhase::Failed, "no such image").await;
    let reason = format!("rank 1 on {}: no such image", second.hello.host_name);
    assert_eq!(first.stopped(false).await, reason);
    assert_eq!(second.stopped(false).await, reason);
    let ended = coordinator.end(&job.job_id).await;
    assert_eq!((ended.state(), ended.state_reason), (JobState::Failed, reason));
    let refused = coordinator.cancel(&job.job_id).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);

    // They get no other rank before they said that this one is gone.
    let next = coordinator.create(2).await;
    assert_eq!(next.state(), JobState::Queued);
    first.heartbeat(Vec::new()).await;
    second.heartbeat(Vec::new()).await;
    for worker in [&mut first, &mut second] {
        assert_eq!(worker.take_rank().await.ring.unwrap().job_id, next.job_id);
    }
    coordinator.stop().await;
}

#[tokio::test]
async fn a_worker_lets_go_of_a_rank_that_nobody_knows() {
    let coordinator = Coordinator::fresh().await;
    let mut hello = crate::worker::hello("host-a");
    let job_id = ringtune_shared::ids::JobId::new().to_string();
    let phase = RankPhase::Training.into();
    hello.held = vec![v1::HeldRank { job_id: job_id.clone(), epoch: 1, phase, ..Default::default() }];
    let mut worker = Worker::open(&coordinator, hello).await.unwrap();
    let Down::StopRank(stop) = worker.hear().await.unwrap() else { panic!("not told to stop") };
    assert_eq!((stop.job_id, stop.keep_artifacts), (job_id, false));
    coordinator.stop().await;
}
