//! A rank's whole life on one worker.

use ringtune_proto::v1::{ProgressStage, RankFault, RankPhase, session_request::Message as Up};
use ringtune_shared::ids::JobId;
use safetensors::SafeTensors;
use tonic::Status;

use crate::worker::{Alone, job};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_prepared_trained_and_uploaded() {
    let (Alone { coordinator, worker, mut session }, id) = Alone::with_job(5, 2).await;
    let capabilities = session.hello.capabilities.clone().unwrap();
    assert!(capabilities.numerics_class.starts_with("libtorch-none/") && capabilities.threads >= 1);
    assert!(session.hello.held.is_empty() && session.hello.incarnation == 1);
    // 1. Preparation says how far it is.
    let mut stages = Vec::new();
    loop {
        match session.next().await.unwrap() {
            Up::RankReport(report) if report.phase() == RankPhase::Ready => break,
            Up::RankReport(report) => stages.extend(report.progress.map(|p| (p.stage(), p.done, p.total))),
            _ => (),
        }
    }
    assert!(stages.contains(&(ProgressStage::Fetch, 3, 3)), "{stages:?}");
    assert!(stages.contains(&(ProgressStage::Load, 2, 2)));
    // Looked up.
    assert!(stages.contains(&(ProgressStage::Encode, 3, 3)), "{stages:?}");
    // 2. The pictures are encoded; then every step is reported once, in order.
    session.start(id).await;
    loop {
        if let Up::RankReport(report) = session.next().await.unwrap()
            && let Some(progress) = report.progress
        {
            // Of three pictures, one also mirrored.
            assert_eq!((progress.stage(), progress.total), (ProgressStage::Encode, 4));
            if progress.done == 4 {
                break;
            }
        }
    }
    let (_, steps) = session.until(RankPhase::Finished).await;
    assert_eq!(steps.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert!(steps.iter().all(|step| step.loss.is_finite() && step.world_size == 1 && !step.skipped));
    // 3. Everything is there before the rank says that it is done.
    assert_eq!(
        coordinator.kept_names(id),
        [
            "README.md",
            "events.out.tfevents.ringtune",
            "job.log",
            "job.toml",
            "learned_embeds-emb_params.safetensors",
            "learned_embeds-steps-2.safetensors",
            "learned_embeds-steps-4.safetensors",
            "learned_embeds.safetensors",
            "metrics.csv"
        ]
    );
    let embeds = coordinator.kept(id, "learned_embeds.safetensors").unwrap();
    let tensors = SafeTensors::deserialize(&embeds).unwrap();
    assert_eq!(tensors.tensor("<thing>").unwrap().shape(), [2, 8]);
    let other = coordinator.kept(id, "learned_embeds-emb_params.safetensors").unwrap();
    let other = SafeTensors::deserialize(&other).unwrap();
    assert_eq!(other.tensor("emb_params").unwrap(), tensors.tensor("<thing>").unwrap());
    let card = String::from_utf8(coordinator.kept(id, "README.md").unwrap()).unwrap();
    assert!(card.contains("`<thing>`") && card.contains("after step 5 of 5"), "{card}");
    let metrics = String::from_utf8(coordinator.kept(id, "metrics.csv").unwrap()).unwrap();
    assert_eq!(metrics.lines().count(), 6);
    let log = String::from_utf8(coordinator.kept(id, "job.log").unwrap()).unwrap();
    assert!(log.contains("rank 0 of 1") && log.contains("training is done"), "{log}");
    // 4. The rank is held until it is let go.
    session.let_go(id).await;
    worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_job_leaves_what_it_has() {
    let (Alone { coordinator, worker, mut session }, id) = Alone::with_job(1_000_000, 1).await;
    session.start_when_ready(id).await;
    session.until_step().await;
    session.stop(id, true).await;
    session.until(RankPhase::Stopped).await;
    let names = coordinator.kept_names(id);
    let results = ["learned_embeds.safetensors", "learned_embeds-emb_params.safetensors", "README.md"];
    for name in results.into_iter().chain(["metrics.csv", "job.toml", "job.log"]) {
        assert!(names.iter().any(|kept| kept == name), "{name} is missing of {names:?}");
    }
    session.let_go(id).await;
    // The worker takes the next job.
    session.assign_alone(JobId::new(), &job(&coordinator, 1, 1)).await;
    session.until(RankPhase::Ready).await;
    worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_nobody_wants_any_more_leaves_nothing() {
    let (Alone { coordinator, worker, mut session }, id) = Alone::with_job(1_000_000, 1).await;
    session.until(RankPhase::Ready).await;
    session.let_go(id).await;
    assert!(coordinator.kept_names(id).is_empty());
    assert_eq!(std::fs::read_dir(worker.state.path().join("work")).unwrap().count(), 0);
    worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_told_to_end_says_so_of_its_rank() {
    let (Alone { coordinator, worker, mut session }, id) = Alone::with_job(1_000_000, 1).await;
    session.start_when_ready(id).await;
    session.until_step().await;
    worker.shutdown.soft.cancel();
    let (report, _) = session.until(RankPhase::Failed).await;
    assert!(report.reason.contains("shutting down"), "{}", report.reason);
    assert_eq!(report.fault(), RankFault::Node);
    // It has learned something, which is not lost with it.
    for name in ["learned_embeds.safetensors", "metrics.csv", "job.log"] {
        assert!(coordinator.kept(id, name).is_some(), "{name} is missing");
    }
    worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_told_to_end_does_not_wait_for_a_coordinator_that_takes_no_files() {
    let (Alone { coordinator, worker, mut session }, id) = Alone::with_job(1_000_000, 1).await;
    session.start_when_ready(id).await;
    session.until_step().await;
    coordinator.hold_uploads(true);
    worker.shutdown.soft.cancel();
    // It says so before the time to end is over.
    let (report, _) = session.until(RankPhase::Failed).await;
    assert!(report.reason.contains("shutting down"), "{}", report.reason);
    worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_refused_for_good_ends_the_job_at_once_with_the_reason() {
    let (Alone { coordinator, worker, mut session }, id) = Alone::with_job(1_000_000, 1).await;
    coordinator.refuse("steps-4", Status::failed_precondition("the job has enough files"));
    session.start_when_ready(id).await;
    let (report, _) = session.until(RankPhase::Failed).await;
    assert!(report.reason.contains("learned_embeds-steps-4"), "{}", report.reason);
    assert!(report.reason.contains("the job has enough files"), "{}", report.reason);
    assert_eq!(report.fault(), RankFault::Job);
    // What is not refused is kept all the same.
    assert!(coordinator.kept(id, "learned_embeds.safetensors").is_some());
    worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_asks_again_where_to_go_on() {
    let (Alone { coordinator, worker, mut session }, id) = Alone::with_job(2, 1).await;
    coordinator.move_offsets();
    session.start_when_ready(id).await;
    session.until(RankPhase::Finished).await;
    assert!(coordinator.kept(id, "learned_embeds.safetensors").is_some());
    worker.end().await.unwrap();
}
