//! Several workers in one ring.

use ringtune_fake_engine::FakeScript;
use ringtune_proto::v1::{self, RankPhase};
use ringtune_shared::{ids::JobId, job::JobSpec};
use ringtune_worker::settings::Settings;

use crate::{
    coordinator::{Coordinator, Rank, Session},
    worker::{Worker, job},
};

pub struct Ring {
    pub coordinator: Coordinator,
    pub workers: Vec<Worker>,
    pub sessions: Vec<Session>,
    pub members: Vec<v1::RingMember>,
}

pub async fn ring(scripts: Vec<FakeScript>) -> Ring {
    ring_at(Coordinator::start().await, scripts).await
}

pub async fn ring_at(coordinator: Coordinator, scripts: Vec<FakeScript>) -> Ring {
    ring_with(coordinator, scripts, |_| ()).await
}

pub async fn ring_with(
    mut coordinator: Coordinator,
    scripts: Vec<FakeScript>,
    change: impl Fn(&mut Settings),
) -> Ring {
    let (mut workers, mut sessions) = (Vec::new(), Vec::new());
    for script in scripts {
        workers.push(Worker::start_with(&coordinator, script, &change));
        sessions.push(coordinator.accept().await);
    }
    let members = sessions.iter().map(Session::member).collect();
    Ring { coordinator, workers, sessions, members }
}

/// Assigns and starts a job on all of them.
pub async fn begin(ring: &mut Ring, spec: &JobSpec) -> JobId {
    let id = JobId::new();
    begin_as(ring, id, spec).await;
    id
}

/// The same of a job that somebody else is given too.
pub async fn begin_as(ring: &mut Ring, id: JobId, spec: &JobSpec) {
    for (rank, session) in ring.sessions.iter().enumerate() {
        session.assign(Rank { job: id, epoch: 1, members: &ring.members, rank, spec }).await;
    }
    for session in &mut ring.sessions {
        session.until(RankPhase::Ready).await;
    }
    for session in &ring.sessions {
        session.start(id).await;
    }
}

/// The files that depend on the job alone, one after the other.
pub fn results(coordinator: &Coordinator, job: JobId) -> Vec<u8> {
    ["learned_embeds.safetensors", "learned_embeds-emb_params.safetensors", "README.md"]
        .map(|name| coordinator.kept(job, name).unwrap())
        .concat()
}

/// Those of a job of twelve steps.
async fn learned(workers: usize) -> Vec<u8> {
    let mut ring = ring(vec![FakeScript::default(); workers]).await;
    let spec = job(&ring.coordinator, 12, 4);
    let id = begin(&mut ring, &spec).await;
    let mut steps = Vec::new();
    for session in &mut ring.sessions {
        let (report, reported) = session.until(RankPhase::Finished).await;
        assert!(report.rank == 0 || reported.is_empty(), "only rank 0 reports steps");
        steps.extend(reported);
    }
    assert_eq!(steps.len(), 12);
    assert!(steps.iter().all(|step| step.world_size as usize == workers));
    let results = results(&ring.coordinator, id);
    for worker in ring.workers {
        worker.end().await.unwrap();
    }
    results
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_two_three_and_four_workers_learn_the_same_bytes() {
    let alone = learned(1).await;
    for workers in [2, 3, 4] {
        assert!(learned(workers).await == alone, "{workers} workers learn something else than one");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_fails_says_why_and_the_others_wait_to_be_ended() {
    let fails = FakeScript { fail_on_gradient: Some(3), ..FakeScript::default() };
    let mut ring = ring(vec![FakeScript::default(), fails, FakeScript::default()]).await;
    let spec = job(&ring.coordinator, 1000, 3);
    let id = begin(&mut ring, &spec).await;
    let (report, _) = ring.sessions[1].until(RankPhase::Failed).await;
    assert!(report.reason.contains("gradient 3") && !report.neighbour_lost, "{report:?}");
    // What a coordinator does then; nobody blames a neighbour meanwhile.
    for session in &mut ring.sessions {
        session.let_go(id).await;
    }
}

/// The one that fails still uploads what it has; until it has said why, it holds its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_fails_is_not_missed_before_it_has_said_why() {
    let fails = FakeScript { fail_on_gradient: Some(9), ..FakeScript::default() };
    let mut ring = ring(vec![fails, FakeScript::default()]).await;
    let spec = job(&ring.coordinator, 1000, 2);
    ring.coordinator.hold_uploads(true);
    let id = begin(&mut ring, &spec).await;
    // 1. Its reason is in its log; its files wait. A neighbour that misses it says so within 3 s.
    ring.sessions[0].until_error().await;
    // Heartbeats from before it began may still be on their way on a busy machine.
    while ring.sessions[1].until_beat().await[0].phase() == RankPhase::Ready {}
    for _ in 0..50 {
        let held = ring.sessions[1].until_beat().await;
        assert_eq!(held[0].phase(), RankPhase::Training, "{held:?}");
    }
    // 2. The files are there, and it says why.
    ring.coordinator.hold_uploads(false);
    let (report, _) = ring.sessions[0].until(RankPhase::Failed).await;
    assert!(report.reason.contains("gradient 9") && !report.neighbour_lost, "{report:?}");
    assert!(ring.coordinator.kept(id, "learned_embeds.safetensors").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_disappears_ends_the_ring_with_its_rank_named() {
    let mut ring = ring(vec![FakeScript::default(); 3]).await;
    let spec = job(&ring.coordinator, 1_000_000, 3);
    begin(&mut ring, &spec).await;
    ring.sessions[0].until_step().await;
    // Hard, as the second signal: nothing is said any more.
    ring.workers[1].shutdown.hard.cancel();
    let (report, _) = ring.sessions[2].until(RankPhase::Failed).await;
    assert!(report.reason.contains("rank") && report.neighbour_lost, "{report:?}");
    ring.sessions[0].until(RankPhase::Failed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_with_different_pictures_do_not_start() {
    let mut ring = ring(vec![FakeScript::default(); 2]).await;
    let id = JobId::new();
    let spec = job(&ring.coordinator, 5, 2);
    let mut other = spec.clone();
    let picture = crate::worker::pictures(1).remove(0).1;
    other.textual_inversion_mut().unwrap().data.images =
        ring.coordinator.add_images(&[("other.png", picture)]);
    for (rank, spec) in [&spec, &other].into_iter().enumerate() {
        ring.sessions[rank].assign(Rank { job: id, epoch: 1, members: &ring.members, rank, spec }).await;
    }
    for session in &mut ring.sessions {
        session.until(RankPhase::Ready).await;
    }
    for session in &ring.sessions {
        session.start(id).await;
    }
    let (report, _) = ring.sessions[0].until(RankPhase::Failed).await;
    assert!(report.reason.contains("data.images") && report.reason.contains("rank 1"), "{}", report.reason);
}
