//! Jobs that compute steps of other jobs again.

use ringtune_proto::v1::{
    self, JobReason, JobState, RankPhase, session_request::Message as Up, session_response::Message as Down,
};
use ringtune_shared::{
    ids::{ContentHash, JobId},
    version::{RE_FORM, VERIFY},
};
use tonic::{Code, Status};

use crate::{
    coordinator::Coordinator,
    jobs::{STEPS, spec},
    requests::fields,
    worker::{Worker, hello},
};

/// The state after a step, unless something went wrong.
fn state(step: i64) -> ContentHash {
    ContentHash::of(format!("state {step}").as_bytes())
}

/// A worker that can verify.
fn able(host: &str) -> v1::Hello {
    v1::Hello { features: vec![RE_FORM.to_owned(), VERIFY.to_owned()], ..hello(host) }
}

impl Worker {
    /// Says that a step came to this state.
    async fn say_state(&self, step: i64, state: Option<ContentHash>) {
        let report = v1::StepReport {
            step,
            world_size: 1,
            state_sha256: state.map(|state| state.to_string()).unwrap_or_default(),
            ..v1::StepReport::default()
        };
        let (job_id, epoch) = (self.held.job_id.clone(), self.held.epoch);
        self.say(Up::RankStep(v1::RankStep { job_id, epoch, step: Some(report) })).await;
    }

    /// As above, and waits until it is stored.
    async fn step_to(&mut self, step: i64, state: Option<ContentHash>) {
        self.say_state(step, state).await;
        let Down::StepsStored(stored) = self.hear().await.unwrap() else { panic!("not stored") };
        assert_eq!(stored.step, step);
        self.held.step = step;
    }

    /// Does all steps of the job that it is given next.
    async fn do_a_job(&mut self, coordinator: &Coordinator) -> String {
        let job = coordinator.create(1).await.job_id;
        self.prepare().await;
        for step in 1..=STEPS {
            self.step_to(step, Some(state(step))).await;
        }
        self.report(RankPhase::Finished, "").await;
        self.let_go().await;
        job
    }

    async fn let_go(&mut self) {
        self.stopped(false).await;
        self.heartbeat(Vec::new()).await;
    }
}

async fn verify(coordinator: &Coordinator, job: &str, first: i64, last: i64) -> Result<v1::Job, Status> {
    request(coordinator, job, first, last, "").await
}

async fn request(
    coordinator: &Coordinator,
    job: &str,
    first_step: i64,
    last_step: i64,
    request_id: &str,
) -> Result<v1::Job, Status> {
    let (job_id, request_id) = (job.to_owned(), request_id.to_owned());
    let request = v1::VerifyJobRequest { job_id, first_step, last_step, request_id };
    Ok(coordinator.jobs().verify_job(request).await?.into_inner().job.unwrap())
}

#[tokio::test]
async fn steps_are_computed_again_also_over_a_restart_of_the_coordinator() {
    let folder = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(folder.path()).await;
    let mut worker = Worker::open(&coordinator, able("host-a")).await.unwrap();
    let original = worker.do_a_job(&coordinator).await;

    // 1. It is a job of its own, with the spec of the other one.
    let made = request(&coordinator, &original, 2, 4, "mine").await.unwrap();
    assert_ne!(made.job_id, original);
    assert_eq!((made.total_steps, &made.spec), (4, &coordinator.job(&original).await.spec));
    let expected =
        v1::Verification { job_id: original.clone(), first_step: 2, last_step: 4, ..Default::default() };
    assert_eq!(made.verification, Some(expected.clone()));
    let assignment = worker.take_rank().await;
    assert_eq!(assignment.proof, Some(v1::Proof { last_step: 4 }));
    worker.report(RankPhase::Ready, "").await;
    worker.train().await;
    worker.step_to(1, Some(state(1))).await;
    worker.step_to(2, Some(state(2))).await;
    let running = coordinator.job(&made.job_id).await;
    assert_eq!((running.state(), running.reason_code()), (JobState::Running, JobReason::Verifying));
    assert_eq!(running.verification, Some(v1::Verification { compared: 2, ..expected.clone() }));

    // 2. The coordinator and the worker's session come back, and it goes on.
    let gone = worker.hang_up();
    coordinator.stop().await;
    let coordinator = Coordinator::start(folder.path()).await;
    let mut worker = Worker::come_back(&coordinator, gone).await;
    worker.step_to(3, Some(state(3))).await;
    worker.step_to(4, Some(state(4))).await;
    worker.report(RankPhase::Finished, "").await;
    worker.let_go().await;
    let ended = coordinator.end(&made.job_id).await;
    assert_eq!(ended.state_reason, format!("same: steps 2 to 4 of {original}"));
    assert_eq!((ended.state(), ended.reason_code()), (JobState::Succeeded, JobReason::Completed));
    assert_eq!(ended.verification, Some(v1::Verification { compared: 4, ..expected }));

    // 3. The same request is the same verification, whether or not it could be made now.
    worker.hang_up();
    let again = request(&coordinator, &original, 2, 4, "mine").await.unwrap();
    assert_eq!(again.job_id, made.job_id);
    let other = request(&coordinator, &original, 2, 3, "mine").await.unwrap_err();
    assert_eq!(other.code(), Code::AlreadyExists, "{other}");
    coordinator.stop().await;
}

#[tokio::test]
async fn a_step_that_differs_is_named_and_stays_so() {
    let folder = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(folder.path()).await;
    let mut worker = Worker::open(&coordinator, able("host-a")).await.unwrap();
    let original = worker.do_a_job(&coordinator).await;
    let made = verify(&coordinator, &original, 0, 0).await.unwrap();
    worker.prepare().await;
    for step in 1..=2 {
        worker.step_to(step, Some(state(step))).await;
    }
    worker.say_state(3, Some(ContentHash::of(b"another"))).await;
    worker.let_go().await;
    let ended = coordinator.end(&made.job_id).await;
    assert_eq!((ended.state(), ended.reason_code()), (JobState::Failed, JobReason::Differs));
    let difference = v1::StateDifference {
        step: 3,
        stored_sha256: state(3).to_string(),
        computed_sha256: ContentHash::of(b"another").to_string(),
    };
    let found = ended.verification.clone().unwrap();
    assert_eq!((found.first_step, found.last_step, found.compared), (1, STEPS, 2));
    assert_eq!(found.difference, Some(difference));
    coordinator.stop().await;
    let coordinator = Coordinator::start(folder.path()).await;
    assert_eq!(coordinator.job(&made.job_id).await.verification, Some(found));
    coordinator.stop().await;
}

#[tokio::test]
async fn what_cannot_be_verified_is_refused_by_its_field() {
    let coordinator = Coordinator::fresh().await;
    let unknown = verify(&coordinator, &JobId::new().to_string(), 0, 0).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound, "{unknown}");
    let refused = async |job: &str, first, last| verify(&coordinator, job, first, last).await.unwrap_err();
    assert_eq!(fields(&refused("dicoo", 0, 0).await), ["job_id"]);

    // 1. Jobs without steps.
    let waiting = coordinator.create(1).await.job_id;
    let none = refused(&waiting, 0, 0).await;
    assert_eq!(fields(&none), ["job_id"]);
    assert!(none.message().contains("no step yet"), "{none}");
    coordinator.cancel(&waiting).await.unwrap();
    let generate = v1::JobSpec {
        kind: "generate".to_owned(),
        data: None,
        train: None,
        generate: Some(v1::GenerateSpec { prompts: vec!["a".to_owned()], ..Default::default() }),
        ..spec(1)
    };
    let request = v1::CreateJobRequest { spec: Some(generate), ..Default::default() };
    let drawing = coordinator.jobs().create_job(request).await.unwrap().into_inner().job.unwrap().job_id;
    let none = refused(&drawing, 0, 0).await;
    assert!(fields(&none) == ["job_id"] && none.message().contains("\"generate\""), "{none}");
    coordinator.cancel(&drawing).await.unwrap();
    // A verification's ring has one rank, and other sums.
    let gpt2 = v1::Gpt2FinetuneSpec {
        tokens: "/t".to_owned(),
        exchange: Some("fast".to_owned()),
        ..v1::Gpt2FinetuneSpec::default()
    };
    let fast = v1::JobSpec {
        kind: "gpt2_finetune".to_owned(),
        data: None,
        train: None,
        gpt2: Some(Box::new(gpt2)),
        ..spec(2)
    };
    let request = v1::CreateJobRequest { spec: Some(fast), ..Default::default() };
    let fast = coordinator.jobs().create_job(request).await.unwrap().into_inner().job.unwrap().job_id;
    let other = refused(&fast, 0, 0).await;
    assert!(fields(&other) == ["job_id"] && other.message().contains("gpt2.exchange"), "{other}");
    coordinator.cancel(&fast).await.unwrap();

    // 2. Steps that never were.
    let mut worker = Worker::open(&coordinator, able("host-a")).await.unwrap();
    let job = worker.do_a_job(&coordinator).await;
    for (first, last, field) in
        [(-1, 0, "first_step"), (6, 0, "first_step"), (1, 6, "last_step"), (4, 3, "first_step")]
    {
        let error = refused(&job, first, last).await;
        assert_eq!(fields(&error), [field], "{first} to {last}: {error}");
        assert!(first < 0 || error.message().contains("allowed: 1 to 5"), "{error}");
    }

    // 3. A verification.
    let verification = verify(&coordinator, &job, 0, 0).await.unwrap().job_id;
    let twice = refused(&verification, 0, 0).await;
    assert!(fields(&twice) == ["job_id"] && twice.message().contains(&job), "{twice}");
    worker.take_rank().await;
    coordinator.cancel(&verification).await.unwrap();
    worker.stopped(true).await;
    worker.report(RankPhase::Stopped, "").await;
    worker.let_go().await;

    // 4. Steps of an older release, which have no hashes.
    let older = coordinator.create(1).await.job_id;
    worker.prepare().await;
    worker.step_to(1, None).await;
    worker.step_to(2, Some(state(2))).await;
    let without = refused(&older, 0, 0).await;
    assert!(fields(&without) == ["job_id"] && without.message().contains("release 0.2.0"), "{without}");
    // The job still runs; what it has stored by now can be verified.
    assert!(verify(&coordinator, &older, 2, 0).await.is_ok());
    coordinator.stop().await;
}

#[tokio::test]
async fn no_worker_of_the_class_is_said_before_anything_starts() {
    let coordinator = Coordinator::fresh().await;
    let mut worker = Worker::open(&coordinator, able("host-a")).await.unwrap();
    let job = worker.do_a_job(&coordinator).await;
    let refused = async || {
        let status = verify(&coordinator, &job, 0, 0).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        status.message().to_owned()
    };
    let mut live = coordinator.cluster();
    worker.hang_up();
    let connected = async |live: &mut v1::cluster_service_client::ClusterServiceClient<_>, wanted: usize| loop {
        let workers =
            live.list_workers(v1::ListWorkersRequest::default()).await.unwrap().into_inner().workers;
        if workers.iter().filter(|worker| worker.state() != v1::WorkerState::Lost).count() == wanted {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    crate::soon("the worker's end", connected(&mut live, 0)).await;
    let text = refused().await;
    assert!(text.contains("numerics class one") && text.contains("no worker is connected"), "{text}");

    let mut other = able("host-b");
    other.capabilities.as_mut().unwrap().numerics_class = "two".to_owned();
    let other = Worker::open(&coordinator, other).await.unwrap();
    let text = refused().await;
    assert!(text.starts_with("job_id: ") && text.ends_with("connected are two"), "{text}");

    let older = Worker::open(&coordinator, hello("host-c")).await.unwrap();
    let text = refused().await;
    assert!(text.contains("older release that cannot verify"), "{text}");
    drop((other, older));
    coordinator.stop().await;
}
