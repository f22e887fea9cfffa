//! Sweeps: several jobs that are asked for at once.

use ringtune_proto::v1::{self, JobReason, JobState, create_sweep_request::PointRequest};
use ringtune_shared::version::RE_FORM;
use tonic::{Code, Status};

use crate::{
    coordinator::Coordinator,
    jobs::spec,
    queue::queue,
    requests::fields,
    worker::{Worker, hello},
};

async fn create(coordinator: &Coordinator, request: v1::CreateSweepRequest) -> Result<v1::Sweep, Status> {
    Ok(coordinator.jobs().create_sweep(request).await?.into_inner().sweep.unwrap())
}

async fn get(coordinator: &Coordinator, sweep: &str) -> Result<v1::Sweep, Status> {
    let request = v1::GetSweepRequest { sweep_id: sweep.to_owned() };
    Ok(coordinator.jobs().get_sweep(request).await?.into_inner().sweep.unwrap())
}

async fn listed(coordinator: &Coordinator, filter: &str) -> Vec<v1::Job> {
    let request = v1::ListJobsRequest {
        filter: filter.to_owned(),
        order_by: "create_time".to_owned(),
        ..Default::default()
    };
    coordinator.jobs().list_jobs(request).await.unwrap().into_inner().jobs
}

/// One job for each of these seeds.
fn seeds(seeds: &[i64], request_id: &str) -> v1::CreateSweepRequest {
    let point = |seed: &i64| {
        let mut spec = spec(1);
        let train = spec.train.as_mut().unwrap();
        (train.seed, train.validation_loss_steps) = (Some(*seed), Some(1));
        let settings = [("train.seed".to_owned(), seed.to_string())].into();
        PointRequest { spec: Some(spec), queue: Some(queue("ada", 3, &[])), settings }
    };
    let points = seeds.iter().map(point).collect();
    v1::CreateSweepRequest { points, request_id: request_id.to_owned(), ..Default::default() }
}

#[tokio::test]
async fn a_sweep_shows_its_jobs_is_made_once_and_survives_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(state.path()).await;
    let sweep = create(&coordinator, seeds(&[7, 8, 9], "once")).await.unwrap();
    let shown: Vec<(i32, &str, JobState)> = sweep
        .points
        .iter()
        .map(|point| (point.point, point.settings["train.seed"].as_str(), point.state()))
        .collect();
    let queued = JobState::Queued;
    assert_eq!(shown, [(1, "7", queued), (2, "8", queued), (3, "9", queued)]);
    assert_eq!((sweep.owner.as_str(), sweep.rungs.len(), sweep.best_job_id.as_str()), ("ada", 0, ""));
    let again = create(&coordinator, seeds(&[7, 8, 9], "once")).await.unwrap();
    assert_eq!(again.sweep_id, sweep.sweep_id);
    let other = create(&coordinator, seeds(&[7, 8], "once")).await.unwrap_err();
    assert_eq!(other.code(), Code::AlreadyExists);
    // A job of its own is in no sweep.
    coordinator.create(1).await;
    coordinator.stop().await;

    let coordinator = Coordinator::start(state.path()).await;
    assert_eq!(get(&coordinator, &sweep.sweep_id).await.unwrap(), sweep);
    let jobs = listed(&coordinator, &format!("sweep=\"{}\"", sweep.sweep_id)).await;
    let points: Vec<i32> = jobs.iter().map(|job| job.sweep.as_ref().unwrap().point).collect();
    assert_eq!((points, listed(&coordinator, "").await.len()), (vec![1, 2, 3], 4));
    let seeds: Vec<Option<i64>> = jobs.into_iter().map(|job| job.spec?.train?.seed).collect();
    assert_eq!(seeds, [Some(7), Some(8), Some(9)]);
    // One of them ends; then the others are cancelled, and again.
    coordinator.cancel(&sweep.points[1].job_id).await.unwrap();
    for _ in 0..2 {
        let request =
            v1::CancelSweepRequest { sweep_id: sweep.sweep_id.clone(), reason: "no more".to_owned() };
        let cancelled = coordinator.jobs().cancel_sweep(request).await.unwrap().into_inner().sweep.unwrap();
        let reasons: Vec<&str> = cancelled.points.iter().map(|point| point.state_reason.as_str()).collect();
        assert_eq!(reasons, ["no more", "enough", "no more"]);
    }
    // It is there as long as one of its jobs is.
    for (number, point) in sweep.points.iter().enumerate() {
        assert_eq!(get(&coordinator, &sweep.sweep_id).await.unwrap().points.len(), 3 - number);
        let request = v1::DeleteJobRequest { job_id: point.job_id.clone() };
        coordinator.jobs().delete_job(request).await.unwrap();
    }
    assert_eq!(get(&coordinator, &sweep.sweep_id).await.unwrap_err().code(), Code::NotFound);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_sweep_that_cannot_be_is_refused_as_a_whole() {
    let coordinator = Coordinator::fresh_with(|settings| settings.limits.queued_jobs = 2).await;
    let two = || seeds(&[1, 2], "");
    let changed = |change: fn(&mut v1::CreateSweepRequest)| {
        let mut request = two();
        change(&mut request);
        request
    };
    for (request, field, part) in [
        (v1::CreateSweepRequest::default(), "points", "0 jobs; allowed: 2 to 256"),
        (seeds(&[1], ""), "points", "1 jobs"),
        (seeds(&[1; 257], ""), "points", "257 jobs"),
        (changed(|sweep| sweep.points[1].spec = None), "spec.kind", "points[1]: "),
        (
            changed(|sweep| sweep.points[1].queue = Some(queue("bob", 0, &[]))),
            "queue.owner",
            "allowed: that of the first",
        ),
        (
            changed(|sweep| drop(sweep.points[0].settings.insert("a\n".to_owned(), String::new()))),
            "settings",
            "points[0]: ",
        ),
        (
            changed(|sweep| {
                sweep.halving = true;
                for point in &mut sweep.points {
                    point.spec.as_mut().unwrap().train.as_mut().unwrap().validation_loss_steps = None;
                }
            }),
            "spec.sweep.halving",
            "train.validation_loss_steps",
        ),
        (changed(|sweep| sweep.job_file = "a".to_owned()), "job_file", "one or the other"),
        (
            v1::CreateSweepRequest { job_file: "[sweep]\n".to_owned(), ..Default::default() },
            "sweep",
            "0 jobs",
        ),
    ] {
        let refused = create(&coordinator, request).await.unwrap_err();
        assert!(refused.message().contains(part), "{refused:?}");
        let given = tonic_types::StatusExt::get_details_bad_request(&refused).expect("BadRequest details");
        assert_eq!(given.field_violations[0].field, field, "{refused:?}");
    }
    let full = create(&coordinator, seeds(&[1, 2, 3], "")).await.unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    assert!(listed(&coordinator, "").await.is_empty(), "a part of a sweep was made");
    create(&coordinator, two()).await.unwrap();
    // Ids that are none, and that nobody has.
    assert_eq!(fields(&get(&coordinator, "x").await.unwrap_err()), ["sweep_id"]);
    let unknown = ringtune_shared::ids::SweepId::new().to_string();
    assert_eq!(get(&coordinator, &unknown).await.unwrap_err().code(), Code::NotFound);
    let request = v1::CancelSweepRequest { sweep_id: unknown, ..Default::default() };
    assert_eq!(coordinator.jobs().cancel_sweep(request).await.unwrap_err().code(), Code::NotFound);
    coordinator.stop().await;
}

#[tokio::test]
async fn a_job_file_with_a_sweep_is_several_jobs_of_which_the_worse_half_ends() {
    let coordinator = Coordinator::fresh().await;
    let job = coordinator.create(1).await;
    let request = v1::GetJobRequest { job_id: job.job_id.clone(), with_job_file: true };
    let job_file = coordinator.jobs().get_job(request).await.unwrap().into_inner().job_file;
    coordinator.cancel(&job.job_id).await.unwrap();
    let sweep =
        "\n[sweep]\n\"train.seed\" = \"1..2\"\nhalving = true\n\"train.validation_loss_steps\" = [1]\n";
    let request = v1::CreateSweepRequest { job_file: job_file.clone() + sweep, ..Default::default() };
    // One job is not several, and several are not one.
    let one = v1::CreateJobRequest { job_file: request.job_file.clone(), ..Default::default() };
    assert_eq!(fields(&coordinator.jobs().create_job(one).await.unwrap_err()), ["sweep"]);
    let alone = v1::CreateSweepRequest { job_file, ..Default::default() };
    assert_eq!(fields(&create(&coordinator, alone).await.unwrap_err()), ["job_file"]);

    let sweep = create(&coordinator, request).await.unwrap();
    assert_eq!(sweep.rungs, [v1::Rung { step: 2, keep: 1 }]);
    let features = vec![RE_FORM.to_owned()];
    let mut worker = Worker::open(&coordinator, v1::Hello { features, ..hello("host-a") }).await.unwrap();
    for (number, loss) in [0.5, 0.25].into_iter().enumerate() {
        worker.prepare().await;
        worker.step(1).await;
        worker.validated(2, loss).await;
        if number == 0 {
            worker.stopped(true).await;
            worker.report(v1::RankPhase::Stopped, "").await;
            worker.stopped(false).await;
            worker.heartbeat(Vec::new()).await;
        }
    }
    // The first one is out; the second goes on where it is.
    coordinator.end(&sweep.points[0].job_id).await;
    let now = get(&coordinator, &sweep.sweep_id).await.unwrap();
    let reasons: Vec<JobReason> = now.points.iter().map(v1::SweepPoint::reason_code).collect();
    assert_eq!(reasons, [JobReason::OutOfSweep, JobReason::Training]);
    assert_eq!(now.best_job_id, now.points[1].job_id);
    let validation = now.points[1].validation.unwrap();
    assert_eq!((validation.step, validation.loss, now.points[1].passed), (2, 0.25, 1));
    coordinator.stop().await;
}
