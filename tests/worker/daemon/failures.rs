//! Every failure ends the rank with a reason that names what is wrong; the worker lives on.

use ringtune_fake_engine::FakeScript;
use ringtune_proto::v1::{self, RankFault, RankPhase};
use ringtune_shared::{ids::JobId, job::JobSpec};

use crate::{
    coordinator::Coordinator,
    worker::{Alone, Worker, fixture, job},
};

/// Runs a job that must fail; returns the reason and whose fault it is. Then a good one must get ready on the same worker.
async fn reason_of(
    script: FakeScript,
    change: impl FnOnce(&Coordinator, &mut JobSpec),
) -> (String, RankFault) {
    let fails_to_load = script.fail_load.is_some();
    let Alone { coordinator, worker, mut session } = Alone::start(script).await;
    let mut spec = job(&coordinator, 30, 1);
    let good = spec.clone();
    change(&coordinator, &mut spec);
    let id = JobId::new();
    session.assign_alone(id, &spec).await;
    session.start(id).await;
    let report = loop {
        use ringtune_proto::v1::session_request::Message as Up;
        match session.next().await.unwrap() {
            Up::RankReport(report) if report.phase() == RankPhase::Ready => session.start(id).await,
            Up::RankReport(report) if report.phase() == RankPhase::Failed => break report,
            Up::RankReport(report) => assert_ne!(report.phase(), RankPhase::Finished),
            _ => (),
        }
    };
    session.stop(id, false).await;
    if !fails_to_load {
        let images = job(&coordinator, 1, 1).textual_inversion().unwrap().data.clone();
        let mut good = good;
        good.textual_inversion_mut().unwrap().data = images;
        session.assign_alone(JobId::new(), &good).await;
        session.until(RankPhase::Ready).await;
    }
    worker.end().await.unwrap();
    (report.reason.clone(), report.fault())
}

/// Fails over the job itself.
async fn assert_reason(script: FakeScript, change: impl FnOnce(&Coordinator, &mut JobSpec), words: &[&str]) {
    assert_failure(script, change, words, RankFault::Job).await;
}

async fn assert_failure(
    script: FakeScript,
    change: impl FnOnce(&Coordinator, &mut JobSpec),
    words: &[&str],
    expected: RankFault,
) {
    let (reason, fault) = Box::pin(reason_of(script, change)).await;
    assert_eq!(fault, expected, "{reason}");
    for word in words {
        assert!(reason.contains(word), "{word:?} is missing of {reason:?}");
    }
}

fn plain() -> FakeScript {
    FakeScript::default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_does_not_load() {
    let script = FakeScript { fail_load: Some("tensor 'conv_in.weight' is missing".to_owned()), ..plain() };
    assert_failure(script, |_, _| (), &["model.base", "conv_in.weight"], RankFault::Node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resolution_that_does_not_fit_the_vae() {
    assert_reason(
        plain(),
        |_, spec| spec.textual_inversion_mut().unwrap().train.resolution = 18,
        &["train.resolution", "18", "16 or 20"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_placeholder_that_is_in_the_vocabulary() {
    let change = |_: &Coordinator, spec: &mut JobSpec| {
        spec.textual_inversion_mut().unwrap().word.placeholder_token = "star</w>".to_owned()
    };
    assert_reason(plain(), change, &["train.placeholder_token", "star"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_initializer_that_is_several_tokens() {
    let change = |_: &Coordinator, spec: &mut JobSpec| {
        spec.textual_inversion_mut().unwrap().word.initializer_token = "one green star".to_owned()
    };
    assert_reason(plain(), change, &["train.initializer_token", "one green star", "num_vectors = 3"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_cannot_be_decoded() {
    let change = |coordinator: &Coordinator, spec: &mut JobSpec| {
        spec.textual_inversion_mut().unwrap().data.images =
            coordinator.add_images(&[("broken.png", b"not a picture".to_vec())]);
    };
    assert_reason(plain(), change, &["broken.png"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_that_is_not_what_its_hash_says() {
    let change = |coordinator: &Coordinator, spec: &mut JobSpec| {
        coordinator.spoil(&spec.textual_inversion().unwrap().data.images)
    };
    assert_failure(plain(), change, &["artifact://sha256/", "hash"], RankFault::Job).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_that_the_coordinator_does_not_have() {
    let change = |_: &Coordinator, spec: &mut JobSpec| {
        spec.textual_inversion_mut().unwrap().data.images = format!("artifact://sha256/{}", "0".repeat(64));
    };
    assert_reason(plain(), change, &["artifact://sha256/000", "no such content"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_without_pictures() {
    let change = |_: &Coordinator, spec: &mut JobSpec| {
        spec.textual_inversion_mut().unwrap().data.images = fixture("toy-sd/tokenizer").display().to_string();
    };
    assert_reason(plain(), change, &["data.images"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_is_not_there() {
    let change = |_: &Coordinator, spec: &mut JobSpec| {
        spec.textual_inversion_mut().unwrap().data.images = "/nowhere/at/all".to_owned()
    };
    assert_failure(plain(), change, &["data.images", "/nowhere/at/all"], RankFault::Access).await;
}

/// What four such jobs took from everybody for ten minutes, as the node's fault. The name is too long for any file system.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_no_worker_could_open() {
    let mut coordinator = Coordinator::start().await;
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    std::fs::create_dir(&models).unwrap();
    let below = models.display().to_string();
    let worker = Worker::start_with(&coordinator, plain(), |settings| {
        settings.access.model_roots = vec![below.clone()];
    });
    std::os::unix::fs::symlink(fixture("toy-sd"), models.join("link")).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(models.join("pipe.safetensors")).status().unwrap();
    assert!(pipe.success());
    std::fs::write(models.join("file"), b"x").unwrap();
    let mut session = coordinator.accept().await;
    for (name, whole_machine) in [
        ("link", false),
        ("pipe.safetensors", false),
        (&"n".repeat(300)[..], false),
        ("file/below", false),
        ("missing", true),
    ] {
        let mut spec = job(&coordinator, 1, 1);
        spec.common.model.base = format!("{below}/{name}");
        let id = JobId::new();
        session.assign_alone(id, &spec).await;
        let (report, _) = session.until(RankPhase::Failed).await;
        let (fault, blame) = match whole_machine {
            true => (RankFault::Access, v1::RankBlame::Machine),
            false => (RankFault::Job, v1::RankBlame::Unspecified),
        };
        assert_eq!((report.fault(), report.blame()), (fault, blame), "{name}: {}", report.reason);
        assert!(report.reason.starts_with("model.base: "), "{}", report.reason);
        session.stop(id, false).await;
    }
    worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_this_worker_keeps_from_jobs() {
    let mut coordinator = Coordinator::start().await;
    let models = fixture("toy-sd");
    let worker = Worker::start_with(&coordinator, plain(), |settings| {
        settings.access.model_roots = vec![models.display().to_string()];
        settings.access.data_roots = Vec::new();
        settings.access.hubs = vec!["hub.example".to_owned()];
        settings.access.buckets = vec!["s3://models".to_owned()];
    });
    let mut session = coordinator.accept().await;
    let good = job(&coordinator, 1, 1);
    let out = models.join("../toy-sd").display().to_string();
    for (base, images, parts) in [
        ("/etc/ssl", "", &["model.base", "\"/etc/ssl\"", "toy-sd", "access.model_roots"][..]),
        (&out, "", &["model.base", "..", "access.model_roots"]),
        ("hf://org/name", "", &["model.base", "hf://org/name", "hub.example", "access.hubs"]),
        (
            "s3://models-evil/sd",
            "",
            &["model.base", "s3://models-evil/sd", "is: s3://models/ (access.buckets)"],
        ),
        ("", "/home", &["data.images", "\"/home\"", "access.data_roots"]),
    ] {
        let mut spec = good.clone();
        if !base.is_empty() {
            base.clone_into(&mut spec.common.model.base);
        }
        if !images.is_empty() {
            images.clone_into(&mut spec.textual_inversion_mut().unwrap().data.images);
        }
        let id = JobId::new();
        session.assign_alone(id, &spec).await;
        let (report, _) = session.until(RankPhase::Failed).await;
        assert_eq!(report.fault(), RankFault::Access, "another worker may let it: {}", report.reason);
        for part in parts {
            assert!(report.reason.contains(part), "{part}: {}", report.reason);
        }
        session.stop(id, false).await;
    }
    // A model below its roots is loaded, by its files and not by their names.
    session.assign_alone(JobId::new(), &good).await;
    session.until(RankPhase::Ready).await;
    let views = worker.state.path().join("views");
    assert_eq!(std::fs::read_dir(views).unwrap().count(), 1);
    worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_that_this_worker_does_not_allow() {
    let change = |_: &Coordinator, spec: &mut JobSpec| spec.common.debug.trace_dir = "/tmp/trace".to_owned();
    let words = ["debug.trace_dir", "allow_trace_dir"];
    assert_failure(plain(), change, &words, RankFault::Access).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_fails_in_the_middle() {
    let script = FakeScript { fail_on_gradient: Some(7), ..plain() };
    assert_failure(script, |_, _| (), &["gradient 7"], RankFault::Node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_panics_in_the_middle() {
    let script = FakeScript { panic_on_gradient: Some(7), ..plain() };
    assert_failure(script, |_, _| (), &["gradient 7 panics"], RankFault::Node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_that_are_not_finite_ten_times_in_a_row() {
    let script = FakeScript { not_finite: Some((5, 14)), ..plain() };
    assert_reason(script, |_, _| (), &["step 14", "not finite", "10"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn learned_numbers_that_are_not_finite() {
    let script = FakeScript { token_rows_not_finite: true, ..plain() };
    let change =
        |_: &Coordinator, spec: &mut JobSpec| spec.textual_inversion_mut().unwrap().train.max_train_steps = 1;
    assert_reason(script, change, &["learned_embeds.safetensors", "16 of 16 learned numbers are not finite"])
        .await;
}
