//! The loop against a store that fails or stalls. Time stands still but for what waits for it.

use ringtune_traces::Tracer;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::Ordering;

use ringtune_shared::ids::{ContentHash, Epoch, JobId};

use super::*;
use crate::core::{
    Capabilities, Down, HeldRank, Hello, Input, Limits, NewJob, Phase, RankReport, Refusal, RequestKey,
    StepRecord, testing,
};
use crate::faulty_store::FaultyStore;
use crate::store::conformance::queued_job;

async fn started() -> (Arc<FaultyStore>, Handle, JoinHandle<()>) {
    started_with(Metrics::new().unwrap()).await
}

async fn started_with(metrics: Metrics) -> (Arc<FaultyStore>, Handle, JoinHandle<()>) {
    watched(metrics, Notifier::default()).await
}

async fn watched(metrics: Metrics, notifier: Notifier) -> (Arc<FaultyStore>, Handle, JoinHandle<()>) {
    let store = Arc::new(FaultyStore::new());
    let options = Options::default();
    let (handle, service) =
        start(Settings { options, store: store.clone(), metrics, notifier, tracer: Tracer::off() })
            .await
            .unwrap();
    (store, handle, service)
}

fn new_job(request: Option<&str>) -> NewJob {
    let request = request.map(|id| RequestKey { id: id.to_owned(), fingerprint: ContentHash::of(b"spec") });
    NewJob { request, ..testing::new_job(JobId::new(), queued_job(1).spec.clone()) }
}

fn hello(number: u64) -> Hello {
    let version = ringtune_shared::version::VERSION.to_owned();
    let capabilities = Capabilities { version, threads: 1, ..Capabilities::default() };
    Hello { capabilities: Arc::new(capabilities), ..testing::hello(number) }
}

/// Says that it lives every two seconds, as workers do; waits while the loop is busy.
async fn beat(handle: Handle, sender: Sender) {
    let mut interval = tokio::time::interval(Duration::from_secs(2));
    loop {
        interval.tick().await;
        if handle.said(sender, Input::Heartbeat(sender, Vec::new())).await.is_err() {
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stall_ends_no_session_that_spoke() {
    let (store, handle, _service) = started().await;
    let mut streams = Vec::new();
    for number in 0..20 {
        let (out, told) = mpsc::channel(64);
        let sender = handle.hello(hello(number), out).await.unwrap();
        tokio::spawn(beat(handle.clone(), sender));
        streams.push(told);
    }
    // The channel is full long before the stall is over: words also wait in connections.
    let (out, _told) = mpsc::channel(64);
    let flood = handle.hello(hello(99), out).await.unwrap();
    for stall in [16_000, 20_000, 60_000] {
        store.next_commit.store(stall, Ordering::Relaxed);
        handle.create_job(new_job(None)).await.unwrap();
        let flooding = handle.clone();
        let flooded = tokio::spawn(async move {
            for _ in 0..3 * WAITING {
                let _ = flooding.said(flood, Input::Heartbeat(flood, Vec::new())).await;
            }
        });
        store.next_commit.store(stall, Ordering::Relaxed);
        handle.create_job(new_job(None)).await.unwrap();
        flooded.await.unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
        for told in &mut streams {
            while let Ok(out) = told.try_recv() {
                assert!(!matches!(out, Out::End(_)), "{stall} ms: {out:?}");
            }
        }
    }
    // Who says nothing is lost all the same.
    let cluster = handle.cluster();
    let flooded = cluster.worker(flood.worker).unwrap();
    assert_eq!(cluster.worker_state(flooded), crate::core::WorkerState::Lost);
    assert_eq!(handle.cluster().count_workers(WorkerState::Lost), 1);
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_is_waited_for_and_another_failure_ends_the_loop() {
    let (store, handle, service) = started().await;
    store.set_full(true);
    handle.create_job(new_job(None)).await.unwrap_err();
    store.set_full(false);
    tokio::time::sleep(3 * STORE_PATIENCE).await;
    assert!(!service.is_finished());
    let job = handle.create_job(new_job(None)).await.unwrap();
    // 1. Full, for a quarter of an hour: it says so, and goes on.
    store.set_full(true);
    handle.create_job(new_job(None)).await.unwrap_err();
    tokio::time::sleep(Duration::from_secs(900)).await;
    assert!(!service.is_finished());
    let reason = handle.job(job.id).await.unwrap().reason;
    assert!(reason.starts_with("waiting: the coordinator stores nothing: the disk that holds"), "{reason}");
    store.set_full(false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(handle.job(job.id).await.unwrap().reason, "waiting for workers: 0 free, 1 needed");
    handle.create_job(new_job(None)).await.unwrap();
    // 2. Broken, even if nobody asks for anything.
    store.broken.store(true, Ordering::Relaxed);
    handle.create_job(new_job(None)).await.unwrap_err();
    tokio::time::sleep(STORE_PATIENCE - Duration::from_secs(1)).await;
    assert!(!service.is_finished());
    tokio::time::timeout(Duration::from_secs(3), service).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn nobody_is_lost_who_could_not_be_heard_while_the_disk_was_full() {
    let (store, handle, _service) = started().await;
    let (out, _told) = mpsc::channel(64);
    let worker = hello(1);
    let sender = handle.hello(worker.clone(), out).await.unwrap();
    let job = handle.create_job(new_job(None)).await.unwrap().id;
    let held = HeldRank { phase: Phase::Preparing, ..HeldRank::of(job, Epoch(1), Some(0)) };
    let report = RankReport { held: held.clone(), progress: None };
    handle.said(sender, Input::RankReport(sender, report)).await.unwrap();
    // 1. For two minutes nothing is stored. What the worker says meanwhile is lost, its session too.
    store.set_full(true);
    handle.create_job(new_job(None)).await.unwrap_err();
    handle.said(sender, Input::Heartbeat(sender, vec![held.clone()])).await.unwrap();
    for _ in 0..24 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let (out, _told) = mpsc::channel(64);
        handle.hello(Hello { held: vec![held.clone()], ..worker.clone() }, out).await.unwrap_err();
    }
    // 2. There is room again. The worker is back within the time that it takes to dial.
    store.set_full(false);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (out, _told) = mpsc::channel(64);
    let sender = handle.hello(Hello { held: vec![held.clone()], ..worker }, out).await.unwrap();
    handle.cluster().check_indexes().unwrap();
    let report = RankReport { held: HeldRank { phase: Phase::Ready, ..held }, progress: None };
    handle.said(sender, Input::RankReport(sender, report)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let job = handle.job(job).await.unwrap();
    assert_eq!((job.state, job.rings, job.tries), (JobState::Running, 1, 1), "{}", job.reason);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_shown_until_it_works_again() {
    let metrics = Metrics::new().unwrap();
    let (store, handle, _service) = started_with(metrics.clone()).await;
    let failing = || metrics.text().unwrap().contains("ringtune_store_failing 1\n");
    assert!(!failing());
    store.set_full(true);
    handle.create_job(new_job(None)).await.unwrap_err();
    assert!(failing());
    // Nobody has to ask for anything.
    store.set_full(false);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!failing());
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_fails_leaves_no_trace() {
    let (store, handle, _service) = started().await;
    let before = handle.create_job(new_job(Some("kept"))).await.unwrap();
    store.set_full(true);
    handle.create_job(new_job(Some("lost"))).await.unwrap_err();
    handle.cancel_job(before.id, String::new()).await.unwrap_err();
    store.set_full(false);
    let cluster = handle.cluster();
    cluster.check_indexes().unwrap();
    assert_eq!(cluster.jobs().map(|job| job.id).collect::<Vec<_>>(), [before.id]);
    let again = handle.create_job(new_job(Some("lost"))).await.unwrap();
    assert_eq!(again.number, before.number + 1);
}

#[tokio::test(start_paused = true)]
async fn the_loop_goes_on_while_readers_hang() {
    let (store, handle, _service) = started().await;
    let job = handle.create_job(new_job(None)).await.unwrap().id;
    store.readers_hang.store(true, Ordering::Relaxed);
    // All of these wait for a reader.
    let waits = [
        tokio::spawn({
            let handle = handle.clone();
            async move { handle.create_job(new_job(Some("once"))).await.map(drop) }
        }),
        tokio::spawn({
            let handle = handle.clone();
            async move { handle.drop_artifact(job, "a".to_owned(), None).await.map(drop) }
        }),
        tokio::spawn({
            let handle = handle.clone();
            async move { handle.cancel_job(JobId::new(), String::new()).await.map(drop) }
        }),
        tokio::spawn({
            let handle = handle.clone();
            async move { handle.delete_job(job).await.map(drop) }
        }),
    ];
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    let created = handle.create_job(new_job(None));
    tokio::time::timeout(Duration::from_secs(1), created).await.unwrap().unwrap();
    waits.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_looked_up_too_early_still_makes_one_job() {
    let (store, handle, _service) = started().await;
    let first = handle.create_job(new_job(Some("once"))).await.unwrap();
    handle.cancel_job(first.id, String::new()).await.unwrap();
    // As if both had been looked up before there was a job: the store is not asked.
    let ask = |new| handle.ask(|reply| super::super::handle::Command::Make(Input::CreateJob(new), reply));
    let (id, job) = ask(new_job(Some("once"))).await.unwrap();
    assert_eq!((id, job), (first.id, None));
    let mut other = new_job(Some("once"));
    other.request.as_mut().unwrap().fingerprint = ContentHash::of(b"another");
    let refused = ask(other).await.unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::RequestReused { .. })), "{refused}");
    // Once the job is deleted, the name is free.
    handle.delete_job(first.id).await.unwrap();
    assert_ne!(handle.create_job(new_job(Some("once"))).await.unwrap().id, first.id);
    assert_eq!(store.commits.load(Ordering::Relaxed), 3);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_job_says_what_it_waits_for_now_and_no_row_is_written_for_it() {
    let (store, handle, _service) = started().await;
    let first = handle.create_job(new_job(None)).await.unwrap();
    assert_eq!(first.reason, "waiting for workers: 0 free, 1 needed");
    let commits = store.commits.load(Ordering::Relaxed);
    let (out, _told) = mpsc::channel(64);
    let mut other = hello(1);
    other.capabilities =
        Arc::new(Capabilities { numerics_class: "b".to_owned(), ..(*other.capabilities).clone() });
    handle.hello(other, out).await.unwrap();
    let job = handle.job(first.id).await.unwrap();
    assert_eq!(job.state, JobState::Preparing);
    let second = handle.create_job(new_job(None)).await.unwrap();
    assert_eq!(store.commits.load(Ordering::Relaxed), commits + 2);
    assert_eq!(handle.job(second.id).await.unwrap().reason, "waiting for workers: 0 free, 1 needed");
}

/// Signs of progress that have come since the last look.
fn signs(manager: &UnixDatagram) -> usize {
    let mut buffer = [0u8; 256];
    std::iter::from_fn(|| manager.recv(&mut buffer).ok()).count()
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_is_stuck_gives_no_sign_of_progress_and_a_busy_one_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_nonblocking(true).unwrap();
    // Every pass of the loop is told.
    let notifier = Notifier::to(&path, Some(Duration::ZERO));
    let (store, handle, _service) = watched(Metrics::new().unwrap(), notifier).await;
    let second = || tokio::time::sleep(Duration::from_secs(1));
    second().await;
    assert!(signs(&manager) >= 3, "an idle loop ticks");
    // Each commit takes a while, one after the other.
    for _ in 0..5 {
        store.next_commit.store(5_000, Ordering::Relaxed);
        handle.create_job(new_job(None)).await.unwrap();
        second().await;
        assert!(signs(&manager) >= 1, "slow, and alive");
    }
    // One that does not return.
    store.next_commit.store(3_600_000, Ordering::Relaxed);
    let hanging = tokio::spawn({
        let handle = handle.clone();
        async move { handle.create_job(new_job(None)).await }
    });
    second().await;
    signs(&manager);
    tokio::time::sleep(Duration::from_secs(3000)).await;
    assert_eq!(signs(&manager), 0, "a commit hangs");
    hanging.await.unwrap().unwrap();
    second().await;
    assert!(signs(&manager) >= 1, "it goes on");
}

#[tokio::test(start_paused = true)]
async fn limits_change_while_the_loop_runs_and_keep_it_from_no_end() {
    let (_store, handle, service) = started().await;
    let limits = handle.limits();
    limits.set(Limits { queued_jobs: 1, ..Limits::default() }).await;
    handle.create_job(new_job(None)).await.unwrap();
    let refused = handle.create_job(new_job(None)).await.unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::QueueFull { limit: 1 })), "{refused}");
    limits.set(Limits { queued_jobs: 2, ..Limits::default() }).await;
    handle.create_job(new_job(None)).await.unwrap();
    drop(handle);
    service.await.unwrap();
    limits.set(Limits::default()).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_comes_with_a_backlog_of_steps_keeps_its_session() {
    const STEPS: u64 = 500;
    let (store, handle, _service) = started().await;
    let (out, mut told) = mpsc::channel(8);
    let sender = handle.hello(hello(1), out).await.unwrap();
    let job = handle.create_job(new_job(None)).await.unwrap().id;
    let held = |phase| HeldRank { phase, ..HeldRank::of(job, Epoch(1), Some(0)) };
    for phase in [Phase::Ready, Phase::Training] {
        let report = RankReport { held: held(phase), progress: None };
        handle.said(sender, Input::RankReport(sender, report)).await.unwrap();
    }
    // All of them wait for one commit, and are in the next.
    store.next_commit.store(1000, Ordering::Relaxed);
    let waiting = tokio::spawn({
        let handle = handle.clone();
        async move { handle.create_job(new_job(None)).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    for step in 1..=STEPS {
        let step = StepRecord { step, epoch: Epoch(1), ..crate::store::conformance::step(step) };
        handle.said(sender, Input::RankStep(sender, job, Epoch(1), step)).await.unwrap();
    }
    waiting.await.unwrap().unwrap();
    let mut messages = Vec::new();
    while !messages.iter().any(|one| matches!(one, Down::StepsStored(_, _, STEPS))) {
        match told.recv().await {
            Some(Out::Message(message)) => messages.push(message),
            other => panic!("the session ended: {other:?}"),
        }
    }
    assert!(messages.len() < 8, "{messages:?}");
    assert!(handle.cluster().worker(sender.worker).unwrap().session.is_some());
}
