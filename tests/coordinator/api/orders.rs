//! What users order of jobs, where jobs may run and by when they have to be done: accepted, shown, refused.

use ringtune_proto::v1::{self, JobReason, JobState, order::What};
use tonic::{Code, Status};

use crate::{
    coordinator::Coordinator,
    jobs::spec,
    requests::fields,
    worker::{Worker, hello},
};

async fn order(coordinator: &Coordinator, job: &str, order: Option<v1::Order>) -> Result<v1::Job, Status> {
    let request = v1::OrderJobRequest { job_id: job.to_owned(), order };
    let answer = coordinator.jobs().order_job(request).await?.into_inner();
    let job = answer.job.unwrap();
    assert_eq!(job.orders.last().unwrap().number, answer.number);
    Ok(job)
}

fn what(what: What, after_step: i64) -> Option<v1::Order> {
    Some(v1::Order { after_step, what: Some(what) })
}

async fn create(
    coordinator: &Coordinator,
    cluster: v1::ClusterSpec,
    queue: v1::QueueSpec,
) -> Result<v1::Job, Status> {
    let spec = v1::JobSpec { cluster: Some(cluster), ..spec(1) };
    let request = v1::CreateJobRequest { spec: Some(spec), queue: Some(queue), ..Default::default() };
    Ok(coordinator.jobs().create_job(request).await?.into_inner().job.unwrap())
}

#[tokio::test]
async fn orders_of_a_waiting_job_become_part_of_it_and_survive_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(state.path()).await;
    let job = coordinator.create(1).await.job_id;
    order(&coordinator, &job, what(What::LearningRate(0.25), 0)).await.unwrap();
    order(&coordinator, &job, what(What::Snapshot(true), 2)).await.unwrap();
    let ordered = order(&coordinator, &job, what(What::Stop(true), 2)).await.unwrap();
    let settled: Vec<Option<i64>> = ordered.orders.iter().map(|order| order.settled_step).collect();
    assert_eq!(settled, [Some(0), Some(2), Some(2)]);
    let orders = ordered.spec.as_ref().unwrap().orders.clone().unwrap();
    assert_eq!((orders.learning_rate["0"], orders.stop_after, ordered.total_steps), (0.25, Some(2), 2));
    coordinator.stop().await;

    let coordinator = Coordinator::start(state.path()).await;
    let again = coordinator.job(&job).await;
    assert_eq!((again.spec, again.orders), (ordered.spec, ordered.orders));
    coordinator.stop().await;
}

#[tokio::test]
async fn what_cannot_be_ordered_is_refused_with_the_field() {
    let coordinator = Coordinator::fresh().await;
    let job = coordinator.create(1).await.job_id;
    for (given, field) in [
        (None, "order"),
        (Some(v1::Order::default()), "order"),
        (what(What::Stop(false), 0), "order"),
        (what(What::LearningRate(f64::NAN), 0), "order.learning_rate"),
        (what(What::LearningRate(0.0), 0), "order.learning_rate"),
        (what(What::Prompt(" ".to_owned()), 0), "order.prompt"),
        (what(What::Snapshot(true), -1), "order.after_step"),
        (what(What::Snapshot(true), 1_000_000), "order.after_step"),
        (what(What::Stop(true), i64::MAX), "order.after_step"),
    ] {
        let refused = order(&coordinator, &job, given.clone()).await.unwrap_err();
        assert_eq!(fields(&refused), [field], "{given:?}");
    }
    let drawing = v1::JobSpec {
        kind: "generate".to_owned(),
        model: spec(1).model,
        generate: Some(v1::GenerateSpec { prompts: vec!["a".to_owned()], ..Default::default() }),
        ..v1::JobSpec::default()
    };
    let request = v1::CreateJobRequest { spec: Some(drawing), ..Default::default() };
    let drawing = coordinator.jobs().create_job(request).await.unwrap().into_inner().job.unwrap();
    let refused = order(&coordinator, &drawing.job_id, what(What::Snapshot(true), 0)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("it learns nothing"), "{refused}");
    coordinator.cancel(&job).await.unwrap();
    let refused = order(&coordinator, &job, what(What::Snapshot(true), 0)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let unknown = ringtune_shared::ids::JobId::new().to_string();
    let refused = order(&coordinator, &unknown, what(What::Snapshot(true), 0)).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_job_runs_where_its_constraints_allow_it_and_is_refused_where_nobody_fits() {
    let coordinator = Coordinator::fresh().await;
    let wants = |constraints: &[&str]| v1::ClusterSpec {
        constraints: constraints.iter().map(|text| (*text).to_owned()).collect(),
        ..v1::ClusterSpec::default()
    };
    // Nobody is known: it waits for whoever comes.
    let early = create(&coordinator, wants(&["pool=blue"]), v1::QueueSpec::default()).await.unwrap();
    let mut red = hello("host-a");
    red.labels = [("pool".to_owned(), "red".to_owned())].into();
    let _red = Worker::open(&coordinator, red).await.unwrap();
    let waiting = coordinator.job(&early.job_id).await;
    assert_eq!(waiting.state_reason, "waiting for workers: 0 free, 1 needed; 0 of 1 workers have pool=blue");
    let waits = waiting.waiting.unwrap();
    assert_eq!((waits.needed, waits.free, waits.usable, waits.ahead), (1, 0, 0, 0));
    let refused = create(&coordinator, wants(&["pool=bleu"]), v1::QueueSpec::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let said =
        "no worker has what cluster.constraints asks for: pool=bleu; labels that workers have: pool=red";
    assert_eq!(refused.message(), said);
    let wrong = create(&coordinator, wants(&["a b"]), v1::QueueSpec::default()).await.unwrap_err();
    assert_eq!(fields(&wrong), ["spec.cluster.constraints"]);
    // One that fits takes it, and is told nothing of the constraints.
    let mut blue = hello("host-b");
    blue.labels = [("pool".to_owned(), "blue".to_owned())].into();
    let mut blue = Worker::open(&coordinator, blue).await.unwrap();
    let given = blue.take_rank().await;
    assert_eq!(given.ring.unwrap().job_id, early.job_id);
    assert!(given.spec.unwrap().cluster.unwrap().constraints.is_empty());
    let mut labels = hello("host-c");
    labels.labels = [("Pool".to_owned(), "blue".to_owned())].into();
    let refused = Worker::open(&coordinator, labels).await.err().unwrap();
    assert!(refused.message().contains("hello.labels.Pool"), "{refused}");
    coordinator.stop().await;
}

#[tokio::test]
async fn a_job_that_is_not_done_in_time_fails() {
    let coordinator = Coordinator::fresh().await;
    let by = |deadline: String| v1::QueueSpec { deadline, ..v1::QueueSpec::default() };
    let cluster = v1::ClusterSpec::default;
    let over = create(&coordinator, cluster(), by("2026-01-01T00:00:00Z".to_owned())).await.unwrap_err();
    assert_eq!(fields(&over), ["queue.deadline"]);
    let wrong = create(&coordinator, cluster(), by("tomorrow".to_owned())).await.unwrap_err();
    assert_eq!(fields(&wrong), ["queue.deadline"]);
    let soon = std::time::SystemTime::now() + std::time::Duration::from_millis(1500);
    let deadline = prost_types::Timestamp::from(soon).to_string();
    let job = create(&coordinator, cluster(), by(deadline)).await.unwrap();
    let ended = coordinator.end(&job.job_id).await;
    assert_eq!((ended.state(), ended.reason_code()), (JobState::Failed, JobReason::OutOfTime), "{ended:?}");
    coordinator.stop().await;
}
