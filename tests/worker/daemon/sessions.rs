//! What a worker does when its coordinator goes away, comes back, or is another one than it should be.

use std::time::Duration;

use ringtune_fake_engine::{FakeEngine, FakeScript};
use ringtune_proto::v1::{RankPhase, session_request::Message as Up};
use ringtune_shared::{
    daemon::{listen::Launch, state_lock::StateLockError},
    ids::JobId,
    version::WORKER_PROTOCOLS,
};
use ringtune_worker::{
    daemon::{Error, run_with},
    engine::EngineHandle,
    state_folder::StateFolderError,
};

use crate::{
    coordinator::{Coordinator, Language},
    worker::{Alone, Worker, job, settings},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn training_goes_on_while_the_coordinator_is_away() {
    let (Alone { coordinator, worker, mut session }, id) = Alone::with_job(40, 1).await;
    session.start_when_ready(id).await;
    // 1. Three steps are safe when the coordinator dies.
    let mut seen = 0;
    while seen < 3 {
        seen = session.until_step().await;
    }
    session.stored(id, 3).await;
    drop(session);
    let mut coordinator = coordinator.restart().await;
    // 2. The same start of the same worker comes back with the rank, and says all that is not safe.
    let mut session = coordinator.accept().await;
    assert_eq!((session.hello.incarnation, session.hello.held.len()), (1, 1));
    assert_eq!(session.hello.held[0].phase(), RankPhase::Training);
    let (_, steps) = session.until(RankPhase::Finished).await;
    let numbers: Vec<i64> = steps.iter().map(|step| step.step).collect();
    assert!(numbers[0] <= 4 && numbers.last() == Some(&40), "{numbers:?}");
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
    // 3. The artifacts found the new one.
    assert!(coordinator.kept(id, "learned_embeds.safetensors").is_some());
    worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_rank_is_said_again_until_it_is_let_go() {
    let (Alone { coordinator, worker, mut session }, id) = Alone::with_job(2, 1).await;
    session.start_when_ready(id).await;
    session.until(RankPhase::Finished).await;
    session.stored(id, 2).await;
    loop {
        if let Up::Heartbeat(beat) = session.next().await.unwrap() {
            assert_eq!(beat.held[0].phase(), RankPhase::Finished);
            break;
        }
    }
    drop(session);
    let mut coordinator = coordinator.restart().await;
    let mut session = coordinator.accept().await;
    assert_eq!(session.hello.held[0].phase(), RankPhase::Finished);
    session.let_go(id).await;
    worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_chose_another_protocol_is_not_worked_for() {
    // One newer than this worker; and release 0.1.0, which chose nothing.
    for (version, protocol) in [("99.0.0", WORKER_PROTOCOLS.max + 1), ("0.1.0", 0)] {
        let language = Language { version: version.to_owned(), protocol, ..Language::default() };
        let mut coordinator = Coordinator::speaking(language).await;
        let worker = Worker::start(&coordinator, FakeScript::default());
        let mut session = coordinator.accept().await;
        assert_eq!(session.hello.protocol_min, WORKER_PROTOCOLS.min);
        assert_eq!(session.hello.protocol_max, WORKER_PROTOCOLS.max);
        assert!(session.next().await.is_none(), "the worker stays in a session that it does not understand");
        worker.end().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_coordinator_that_speaks_this_protocol_is_worked_for_whatever_else_it_says() {
    let newer = Language { version: "99.0.0".to_owned(), heartbeat_seconds: 60.0, ..Language::default() };
    let mut coordinator = Coordinator::speaking(newer).await;
    let worker = Worker::start(&coordinator, FakeScript::default());
    let mut session = coordinator.accept().await;
    session.say_something_unknown().await;
    let (id, spec) = (JobId::new(), job(&coordinator, 2, 1));
    session.assign_alone(id, &spec).await;
    session.say_something_unknown().await;
    session.start_when_ready(id).await;
    session.until(RankPhase::Finished).await;
    // Long before the next heartbeat that is due.
    tokio::time::timeout(Duration::from_secs(30), session.let_go(id)).await.expect("it is said at once");
    worker.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_worker_on_a_state_folder_is_refused_and_a_restart_counts() {
    let mut coordinator = Coordinator::start().await;
    let worker = Worker::start(&coordinator, FakeScript::default());
    let first = coordinator.accept().await.hello;
    let settings = settings(&coordinator, &worker.state);
    let start = || {
        run_with(settings.clone(), Launch::default(), worker.shutdown.clone(), || {
            EngineHandle::start(|| Ok(FakeEngine::new(FakeScript::default())))
        })
    };
    let second = Box::pin(start()).await;
    assert!(
        matches!(&second, Err(error @ Error::StateFolder(StateFolderError::Lock(StateLockError::Taken { .. }))) if error.is_usage())
    );
    worker.shutdown.soft.cancel();
    let state = tempfile::tempdir().unwrap();
    for name in ["worker-id", "incarnation"] {
        std::fs::copy(worker.state.path().join(name), state.path().join(name)).unwrap();
    }
    let again = Worker::start_with(&coordinator, FakeScript::default(), |settings| {
        settings.storage.state_dir = state.path().to_owned();
    });
    let hello = coordinator.accept().await.hello;
    assert_eq!((hello.worker_id, hello.incarnation), (first.worker_id, first.incarnation + 1));
    again.end().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_waits_for_a_coordinator_that_is_not_there_and_still_ends_at_once() {
    let coordinator = Coordinator::start().await;
    let worker = Worker::start_with(&coordinator, FakeScript::default(), |settings| {
        settings.coordinator.url = "http://127.0.0.1:1".to_owned();
    });
    tokio::task::yield_now().await;
    worker.end().await.unwrap();
}
