//! Rings that lose members and get others while their job runs.

use std::time::Duration;

use ringtune_fake_engine::FakeScript;
use ringtune_proto::v1::{
    self, RankPhase, ring_trouble::Kind, session_request::Message as Up, session_response::Message as Down,
};
use ringtune_shared::{
    ids::JobId,
    job::{JobSpec, parse_job_toml},
    version::RING_PROTOCOLS,
};

use crate::{
    coordinator::{Coordinator, Language, Rank, Session},
    rings::{Ring, begin, results, ring, ring_at},
    worker::{Worker, fixture, job, job_on, pictures},
};

/// Far more than a test waits for.
const STEPS: u64 = 60;

/// Slow enough for a test to do something meanwhile.
fn slow() -> FakeScript {
    FakeScript { gradient_takes: Duration::from_millis(5), ..FakeScript::default() }
}

/// Workers of a coordinator that gives running jobs other rings.
async fn ring_of(workers: usize) -> Ring {
    ring_with(vec![slow(); workers]).await
}

async fn ring_with(scripts: Vec<FakeScript>) -> Ring {
    let language = Language { re_forms: true, ..Language::default() };
    ring_at(Coordinator::speaking(language).await, scripts).await
}

/// A job that keeps checkpoints, judges itself and draws pictures.
fn job_of(coordinator: &Coordinator) -> JobSpec {
    let mut spec = job(coordinator, STEPS, 4);
    let train = &mut spec.textual_inversion_mut().unwrap().train;
    train.checkpointing_steps = 20;
    train.validation.validation_loss_steps = 5;
    train.validation.validation_loss_samples = 6;
    train.validation.select_best = true;
    train.previews.validation_prompt = "a <thing>".to_owned();
    train.previews.num_validation_images = 2;
    train.previews.validation_steps = 10;
    spec
}

/// What one worker learns of it that nobody disturbs.
async fn undisturbed() -> (Vec<u8>, Vec<u8>) {
    let mut ring = ring(vec![FakeScript::default()]).await;
    let spec = job_of(&ring.coordinator);
    let id = begin(&mut ring, &spec).await;
    ring.sessions[0].until(RankPhase::Finished).await;
    (results(&ring.coordinator, id), ring.coordinator.kept(id, "checkpoint-40.safetensors").unwrap())
}

pub fn view(job: JobId, epoch: u64, members: &[v1::RingMember]) -> v1::RingView {
    v1::RingView { job_id: job.to_string(), epoch, members: members.to_vec(), protocol: RING_PROTOCOLS.max }
}

pub async fn enter(session: &Session, ring: v1::RingView, rank: i32, after_step: bool) {
    let reason = "a test".to_owned();
    let orders = Vec::new();
    session.say(Down::EnterRing(v1::EnterRing { ring: Some(ring), rank, after_step, reason, orders })).await;
}

/// Starts a worker that prepares to join the ring of `epoch`.
async fn joiner(
    ring: &mut Ring,
    id: JobId,
    spec: &JobSpec,
    epoch: u64,
    members: &[v1::RingMember],
) -> Session {
    ring.workers.push(Worker::start(&ring.coordinator, slow()));
    let mut session = ring.coordinator.accept().await;
    session.join(Rank { job: id, epoch, members, rank: 0, spec }).await;
    session.until(RankPhase::Ready).await;
    session
}

/// Reads on until a step of this epoch was reported.
pub async fn until_step_of(session: &mut Session, epoch: u64) -> v1::StepReport {
    loop {
        if let Up::RankStep(step) = session.next().await.expect("the session ended") {
            let report = step.step.unwrap();
            if report.epoch == epoch {
                return report;
            }
        }
    }
}

/// Reads rank 0 to its end. Each step was reported with the hash of its state, and the table has it once.
async fn assert_whole(coordinator: &Coordinator, id: JobId, session: &mut Session) {
    session.until(RankPhase::Finished).await;
    assert_eq!(coordinator.steps.numbers(id), (1..=STEPS as i64).collect::<Vec<_>>());
    let table = String::from_utf8(coordinator.kept(id, "metrics.csv").unwrap()).unwrap();
    let steps: Vec<u64> =
        table.lines().skip(1).map(|line| line.split(',').next().unwrap().parse().unwrap()).collect();
    assert_eq!(steps, (1..=STEPS).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_ranks_become_one_and_two_again_and_learn_the_same_bytes() {
    let expected = undisturbed().await;
    let mut ring = ring_of(2).await;
    let spec = job_of(&ring.coordinator);
    let id = begin(&mut ring, &spec).await;
    until_step_of(&mut ring.sessions[0], 1).await;
    // 1. Rank 1 is gone: rank 0 says so, and keeps what it has.
    ring.workers[1].shutdown.hard.cancel();
    let (report, _) = ring.sessions[0].until(RankPhase::Waiting).await;
    let trouble = report.trouble.unwrap();
    assert_eq!((trouble.kind(), trouble.rank, report.epoch), (Kind::Closed, 1, 1), "{trouble:?}");
    assert!(report.step >= 1);
    // 2. Alone.
    let alone = [ring.members[0].clone()];
    enter(&ring.sessions[0], view(id, 2, &alone), 0, false).await;
    let (entered, _) = ring.sessions[0].until(RankPhase::Training).await;
    assert_eq!((entered.epoch, entered.step), (2, report.step));
    assert_eq!(until_step_of(&mut ring.sessions[0], 2).await.world_size, 1);
    // 3. Another one comes, which has nothing. The ring goes on until the step is done.
    let mut other = joiner(&mut ring, id, &spec, 2, &alone).await;
    let both = [alone[0].clone(), other.member()];
    enter(&ring.sessions[0], view(id, 3, &both), 0, true).await;
    enter(&other, view(id, 3, &both), 1, true).await;
    let step = until_step_of(&mut ring.sessions[0], 3).await;
    assert_eq!((step.world_size, step.state_sha256.len()), (2, 64));
    let (report, _) = other.until(RankPhase::Training).await;
    assert_eq!((report.epoch, report.rank), (3, 1));
    // 4. The same result as ever. The other rank keeps its state until the files are kept.
    assert_whole(&ring.coordinator, id, &mut ring.sessions[0]).await;
    other.until(RankPhase::Done).await;
    assert!(results(&ring.coordinator, id) == expected.0, "another result");
    assert!(ring.coordinator.kept(id, "checkpoint-40.safetensors").unwrap() == expected.1);
    let log = String::from_utf8(ring.coordinator.kept(id, "job.log").unwrap()).unwrap();
    assert!(log.contains("the ring of epoch 1 is broken after step"), "{log}");
    assert!(!log.contains("encoded") || log.matches("rank 0 had").count() == 1, "{log}");
    other.stop_at(id, 3, false).await;
    other.until_free().await;
}

/// A pass takes many steps: when the rings change, some pictures are known to all, and the others to nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_that_nobody_has_yet_are_encoded_in_the_next_ring() {
    let mut undisturbed = ring(vec![FakeScript::default()]).await;
    let spec = job_on(&undisturbed.coordinator, pictures(32), STEPS, 2);
    let id = begin(&mut undisturbed, &spec).await;
    undisturbed.sessions[0].until(RankPhase::Finished).await;
    let expected = results(&undisturbed.coordinator, id);
    let slower = FakeScript { gradient_takes: Duration::from_millis(20), ..FakeScript::default() };
    let mut ring = ring_with(vec![slower; 2]).await;
    job_on(&ring.coordinator, pictures(32), STEPS, 2);
    let id = begin(&mut ring, &spec).await;
    until_step_of(&mut ring.sessions[0], 1).await;
    ring.workers[1].shutdown.hard.cancel();
    ring.sessions[0].until(RankPhase::Waiting).await;
    let alone = [ring.members[0].clone()];
    enter(&ring.sessions[0], view(id, 2, &alone), 0, false).await;
    until_step_of(&mut ring.sessions[0], 2).await;
    let mut other = joiner(&mut ring, id, &spec, 2, &alone).await;
    let both = [alone[0].clone(), other.member()];
    enter(&ring.sessions[0], view(id, 3, &both), 0, true).await;
    enter(&other, view(id, 3, &both), 1, true).await;
    ring.sessions[0].until(RankPhase::Finished).await;
    other.until(RankPhase::Done).await;
    assert!(results(&ring.coordinator, id) == expected, "another result");
}

/// The newest of all enters as rank 0: it has neither state nor files, and the steps are not stored yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_rank_0_takes_state_steps_and_files_over() {
    let expected = undisturbed().await;
    // A worker that starts meanwhile, on a busy machine, is to come before the last step.
    let slower = FakeScript { gradient_takes: Duration::from_millis(30), ..FakeScript::default() };
    let mut ring = ring_with(vec![slower; 2]).await;
    let spec = job_of(&ring.coordinator);
    ring.sessions.iter_mut().for_each(|session| session.stores_steps = false);
    let id = begin(&mut ring, &spec).await;
    while until_step_of(&mut ring.sessions[0], 1).await.step < 8 {}
    ring.sessions[0].stored(id, 5).await;
    while until_step_of(&mut ring.sessions[0], 1).await.step < 21 {}
    ring.workers[0].shutdown.hard.cancel();
    let (report, _) = ring.sessions[1].until(RankPhase::Waiting).await;
    assert_eq!(report.trouble.unwrap().rank, 0);
    // 1. Rank 1 has become rank 0, and says again what it does not know to be stored.
    let alone = [ring.members[1].clone()];
    enter(&ring.sessions[1], view(id, 2, &alone), 0, false).await;
    let (_, _) = ring.sessions[1].until(RankPhase::Training).await;
    let first = ring.sessions[1].until_step().await;
    assert_eq!(first, 6, "what is stored is not said again");
    until_step_of(&mut ring.sessions[1], 2).await;
    // 2. Then one that has nothing takes its place.
    let mut other = joiner(&mut ring, id, &spec, 2, &alone).await;
    other.stores_steps = false;
    let both = [other.member(), alone[0].clone()];
    enter(&ring.sessions[1], view(id, 3, &both), 1, true).await;
    enter(&other, view(id, 3, &both), 0, true).await;
    let first = other.until_step().await;
    assert_eq!(first, 6, "nor by one that was not there");
    other.stores_steps = true;
    assert_whole(&ring.coordinator, id, &mut other).await;
    ring.sessions[1].until(RankPhase::Done).await;
    assert!(results(&ring.coordinator, id) == expected.0, "another result");
    assert!(ring.coordinator.kept(id, "checkpoint-40.safetensors").unwrap() == expected.1);
    let log = String::from_utf8(ring.coordinator.kept(id, "job.log").unwrap()).unwrap();
    assert!(log.contains("took the state after step"), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_ends_is_let_go_after_a_step_and_nothing_breaks() {
    let expected = undisturbed().await;
    let mut ring = ring_of(2).await;
    let spec = job_of(&ring.coordinator);
    let id = begin(&mut ring, &spec).await;
    until_step_of(&mut ring.sessions[0], 1).await;
    // 1. It says that it is leaving, and goes on.
    ring.workers[1].shutdown.soft.cancel();
    let leaving = loop {
        if let Up::RankReport(report) = ring.sessions[1].next().await.unwrap()
            && report.leaving
        {
            break report;
        }
    };
    assert_eq!(leaving.phase(), RankPhase::Training);
    // 2. Both leave the ring after the same step, whoever is told first.
    let alone = [ring.members[0].clone()];
    enter(&ring.sessions[1], view(id, 2, &alone), -1, true).await;
    let (left, _) = ring.sessions[0].until(RankPhase::Waiting).await;
    assert!(left.trouble.is_none(), "{left:?}");
    enter(&ring.sessions[0], view(id, 2, &alone), 0, true).await;
    let (report, _) = ring.sessions[1].until(RankPhase::Stopped).await;
    assert_eq!(report.step, left.step);
    let worker = ring.workers.remove(1);
    worker.end().await.unwrap();
    assert_whole(&ring.coordinator, id, &mut ring.sessions[0]).await;
    assert!(results(&ring.coordinator, id) == expected.0, "another result");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_without_a_ring_that_is_stopped_keeps_a_checkpoint() {
    let mut ring = ring_of(2).await;
    let spec = job_of(&ring.coordinator);
    let id = begin(&mut ring, &spec).await;
    // Rank 0 has no second step before rank 1 has the first, without which there is nothing to keep.
    while until_step_of(&mut ring.sessions[0], 1).await.step < 2 {}
    ring.workers[0].shutdown.hard.cancel();
    let (report, _) = ring.sessions[1].until(RankPhase::Waiting).await;
    ring.sessions[1].stop(id, true).await;
    ring.sessions[1].until(RankPhase::Stopped).await;
    let checkpoint = format!("checkpoint-{}.safetensors", report.step);
    assert!(
        ring.coordinator.kept(id, &checkpoint).is_some(),
        "step {}: {:?}",
        report.step,
        ring.coordinator.kept_names(id)
    );
    // Its log and its table would stand in the place of rank 0's.
    assert!(ring.coordinator.kept(id, "job.log").is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ring_that_is_replaced_before_it_stands_is_given_up_for_the_next_one() {
    let mut ring = ring_of(3).await;
    let spec = job_of(&ring.coordinator);
    let id = begin(&mut ring, &spec).await;
    until_step_of(&mut ring.sessions[0], 1).await;
    ring.workers[2].shutdown.hard.cancel();
    ring.sessions[0].until(RankPhase::Waiting).await;
    ring.sessions[1].until(RankPhase::Waiting).await;
    // Of epoch 2 only rank 0 hears, and cannot connect; then both hear of epoch 3.
    let two = ring.members[..2].to_vec();
    enter(&ring.sessions[0], view(id, 2, &two), 0, false).await;
    for rank in 0..2 {
        enter(&ring.sessions[rank], view(id, 3, &two), rank as i32, false).await;
    }
    let step = until_step_of(&mut ring.sessions[0], 3).await;
    assert_eq!(step.world_size, 2);
    assert_whole(&ring.coordinator, id, &mut ring.sessions[0]).await;
}

/// Rank 1 of two is lost when both have made their share, and nothing of it is kept yet; rank 0 makes all of it.
async fn finished_alone(ring: &mut Ring, spec: &JobSpec) -> JobId {
    ring.coordinator.hold_uploads(true);
    let id = begin(ring, spec).await;
    // Once when it is told to begin, and once when the ring stands.
    for session in &mut ring.sessions {
        session.until(RankPhase::Training).await;
        session.until(RankPhase::Training).await;
    }
    ring.workers[1].shutdown.hard.cancel();
    let (report, _) = ring.sessions[0].until(RankPhase::Waiting).await;
    assert_eq!(report.trouble.unwrap().rank, 1);
    ring.coordinator.hold_uploads(false);
    enter(&ring.sessions[0], view(id, 2, &ring.members[..1]), 0, false).await;
    ring.sessions[0].until(RankPhase::Finished).await;
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_of_a_lost_rank_are_drawn_by_the_others() {
    let mut ring = ring_of(2).await;
    let spec = parse_job_toml(&format!(
        "kind = \"generate\"\nname = \"test\"\n[model]\nbase = \"{}\"\n\
         [generate]\nprompts = [\"a star\", \"two stars\"]\ncount = 3\nbatch = 1\nsteps = 2\nwidth = 64\nheight = 64\n\
         sheet = true\n[cluster]\nworld_size = 2\nmin_world_size = 1\n",
        fixture("toy-sd").display()
    ));
    let id = finished_alone(&mut ring, &spec.unwrap()).await;
    let mut expected: Vec<String> = (1..=6).map(|number| format!("image-{number:04}.png")).collect();
    expected.extend(["job.log", "job.toml", "sheet.png"].map(str::to_owned));
    assert_eq!(ring.coordinator.kept_names(id), expected);
}

/// So are texts: whatever is made again comes out the same, and all are in one file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_of_a_lost_rank_are_made_by_the_others() {
    let mut ring = ring_of(2).await;
    let model = tempfile::tempdir().unwrap();
    for name in ["vocab.json", "merges.txt"] {
        std::fs::copy(fixture("bpe-tokenizer").join(name), model.path().join(name)).unwrap();
    }
    for name in ["config.json", "model.safetensors"] {
        std::fs::write(model.path().join(name), "{}").unwrap();
    }
    let spec = parse_job_toml(&format!(
        "kind = \"generate_text\"\nname = \"test\"\n[model]\nbase = \"{}\"\n\
         [generate_text]\nprompts = [\"a star\", \"\"]\nnum_samples = 3\nmax_new_tokens = 5\n\
         stop_at_end_of_text = false\n[cluster]\nworld_size = 2\nmin_world_size = 1\n",
        model.path().display()
    ));
    let id = finished_alone(&mut ring, &spec.unwrap()).await;
    let texts: Vec<String> = (1..=6).map(|number| format!("text-{number:04}.json")).collect();
    let mut expected = vec!["job.log".to_owned(), "job.toml".to_owned()];
    expected.extend(texts.iter().cloned());
    expected.push("texts.jsonl".to_owned());
    assert_eq!(ring.coordinator.kept_names(id), expected);
    let lines: Vec<Vec<u8>> = texts.iter().map(|name| ring.coordinator.kept(id, name).unwrap()).collect();
    assert_eq!(ring.coordinator.kept(id, "texts.jsonl"), Some(lines.concat()));
    // Each is another one, and begins with its own prompt.
    for (number, line) in lines.iter().enumerate() {
        let text: serde_json::Value = serde_json::from_slice(line).unwrap();
        assert_eq!((&text["prompt_number"], &text["sample"]), (&(number / 3).into(), &(number % 3).into()));
        assert_eq!(text["tokens"].as_array().map(Vec::len), Some(5), "{text}");
        assert!(lines.iter().filter(|other| *other == line).count() == 1, "{text}");
    }
}
