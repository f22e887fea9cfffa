//! Rings that lose members, take others in, and go on.

use ringtune_proto::v1::{
    self, JobReason, JobState, RankPhase, ring_trouble::Kind, session_request::Message as Up,
    session_response::Message as Down,
};
use ringtune_shared::{ids::WorkerId, version::RE_FORM};
use tonic::Code;

use crate::{
    coordinator::Coordinator,
    jobs::STEPS,
    worker::{Worker, all_train, hello},
};

/// A worker whose rings go on without it.
async fn start(coordinator: &Coordinator, host: &str) -> Worker {
    let hello = v1::Hello { features: vec![RE_FORM.to_owned()], ..hello(host) };
    Worker::open(coordinator, hello).await.unwrap()
}

/// A job on two ranks that train.
async fn training(coordinator: &Coordinator) -> (Worker, Worker, v1::Job) {
    let mut workers = [start(coordinator, "host-a").await, start(coordinator, "host-b").await];
    let job = coordinator.create_of(2, 1).await;
    all_train(&mut workers).await;
    let [first, second] = workers;
    (first, second, job)
}

async fn told_to_enter(worker: &mut Worker) -> v1::EnterRing {
    let Down::EnterRing(told) = worker.hear().await.unwrap() else {
        panic!("it is not told to enter a ring")
    };
    let ring = told.ring.as_ref().unwrap();
    assert_eq!(ring.job_id, worker.held.job_id);
    (worker.held.epoch, worker.held.rank) = (ring.epoch, told.rank);
    told
}

#[tokio::test]
async fn a_ring_goes_on_without_a_member_and_with_it_again() {
    let coordinator = Coordinator::fresh().await;
    let (mut first, second, job) = Box::pin(training(&coordinator)).await;
    first.step(1).await;
    let mut live = coordinator.watch(&job.job_id, 0).await;

    // 1. The connection of rank 1 breaks, and with it the ring.
    let (gone, _) = second.hang_up();
    live.until_log("connection lost").await;
    let text = "rank 1 closed the connection".to_owned();
    first.held.trouble = Some(v1::RingTrouble { kind: Kind::Closed.into(), rank: 1, text });
    first.report(RankPhase::Waiting, "").await;
    let told = told_to_enter(&mut first).await;
    assert_eq!((told.rank, told.after_step, told.reason.as_str()), (0, false, "rank 1 on host-b was lost"));
    assert_eq!(told.ring.unwrap().members.len(), 1);
    let running = coordinator.job(&job.job_id).await;
    assert_eq!((running.state(), running.reason_code()), (JobState::Running, JobReason::Reforming));
    first.held.trouble = None;
    first.report(RankPhase::Training, "").await;
    first.step(2).await;
    live.until_log("re-formed: epoch 2, 1 of 2 ranks, after").await;
    assert_eq!(coordinator.job(&job.job_id).await.reason_code(), JobReason::Training);

    // 2. It is there again, prepares, and comes in at the end of a step.
    let again = v1::Hello { incarnation: 2, ..gone };
    let mut second = Worker::open(&coordinator, again).await.unwrap();
    let Down::Assignment(given) = second.hear().await.unwrap() else { panic!("no assignment") };
    assert!(given.joins && given.rank == -1 && given.resume_from.is_empty());
    let ring = given.ring.unwrap();
    second.held = v1::HeldRank { job_id: ring.job_id, epoch: ring.epoch, rank: -1, ..Default::default() };
    let listed = coordinator.cluster().list_workers(v1::ListWorkersRequest::default()).await.unwrap();
    let joiner = listed.into_inner().workers.into_iter().find(|one| one.host_name == "host-b").unwrap();
    assert_eq!((joiner.job_id.as_str(), joiner.rank), (job.job_id.as_str(), None));
    second.report(RankPhase::Ready, "").await;
    for (rank, worker) in [(0, &mut first), (1, &mut second)] {
        let told = told_to_enter(worker).await;
        assert_eq!((told.rank, told.after_step, told.ring.unwrap().epoch), (rank, true, 3));
        worker.report(RankPhase::Training, "").await;
    }
    first.step(3).await;
    live.until_log("re-formed: epoch 3, 2 of 2 ranks, after").await;

    // 3. Rank 1 waits until rank 0 has sent the files.
    for step in 4..=STEPS {
        first.step(step).await;
    }
    second.report(RankPhase::Done, "").await;
    first.report(RankPhase::Finished, "").await;
    live.until(JobState::Succeeded).await;
    second.stopped(false).await;
    coordinator.stop().await;
}

#[tokio::test]
async fn a_step_with_another_state_fails_the_job_and_the_state_is_shown() {
    let coordinator = Coordinator::fresh().await;
    let (first, _second, job) = Box::pin(training(&coordinator)).await;
    let say = async |epoch, state: &str| {
        let report = v1::StepReport { step: 1, epoch, state_sha256: state.repeat(32), ..Default::default() };
        let (job_id, step) = (job.job_id.clone(), Some(report));
        first.say(Up::RankStep(v1::RankStep { job_id, epoch: 1, step })).await;
    };
    say(0, "ab").await;
    say(0, "ab").await;
    say(0, "cd").await;
    let ended = coordinator.end(&job.job_id).await;
    assert_eq!((ended.state(), ended.reason_code()), (JobState::Failed, JobReason::Diverged));
    assert!(ended.state_reason.starts_with("step 1 was done again"), "{}", ended.state_reason);
    let request = v1::ListStepsRequest { job_id: job.job_id.clone(), ..Default::default() };
    let steps = coordinator.jobs().list_steps(request).await.unwrap().into_inner().steps;
    let shown: Vec<_> = steps.iter().map(|step| (step.step, step.state_sha256.as_str())).collect();
    assert_eq!(shown, [(1, "ab".repeat(32).as_str())]);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_drained_worker_leaves_its_ring_and_stays_out_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(folder.path()).await;
    let (mut first, mut second, _job) = Box::pin(training(&coordinator)).await;
    let worker_id = first.hello.worker_id.clone();
    for _ in 0..2 {
        let request = v1::DrainWorkerRequest { worker_id: worker_id.clone() };
        let drained = coordinator.cluster().drain_worker(request).await.unwrap().into_inner().worker.unwrap();
        assert!(drained.draining);
    }
    let told = told_to_enter(&mut second).await;
    assert_eq!((told.rank, told.after_step), (0, true));
    assert_eq!(told_to_enter(&mut first).await.rank, -1);
    let nobody = WorkerId::new().to_string();
    let request = v1::DrainWorkerRequest { worker_id: nobody.clone() };
    let unknown = coordinator.cluster().drain_worker(request).await.unwrap_err();
    assert_eq!((unknown.code(), unknown.message().contains(&nobody)), (Code::NotFound, true));
    coordinator.stop().await;

    let coordinator = Coordinator::start(folder.path()).await;
    let _first = Worker::open(&coordinator, first.hello.clone()).await.unwrap();
    let request = v1::GetWorkerRequest { worker_id: worker_id.clone() };
    let worker = coordinator.cluster().get_worker(request).await.unwrap().into_inner().worker.unwrap();
    assert!(worker.draining);
    let request = v1::UndrainWorkerRequest { worker_id };
    let back = coordinator.cluster().undrain_worker(request).await.unwrap().into_inner().worker.unwrap();
    assert!(!back.draining);
    coordinator.stop().await;
}
