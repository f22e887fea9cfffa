//! The engine's thread, with the fake engine on it.

#![allow(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ringtune_engine::{EngineError, EngineHandle, Pixels};
use ringtune_fake_engine::{FakeEngine, FakeScript};
use tokio::time::timeout;

fn pixels() -> Pixels {
    Pixels { height: 4, width: 4, data: vec![0.5; 48] }
}

/// An engine with a model loaded.
async fn loaded(script: FakeScript) -> EngineHandle {
    let engine = EngineHandle::start(move || Ok(FakeEngine::new(script))).unwrap();
    engine.load(FakeEngine::any_model()).await.unwrap();
    engine
}

#[tokio::test]
async fn answers_come_back_and_a_panic_is_an_error_of_one_call() {
    let script = FakeScript { panic_on_gradient: Some(1), ..FakeScript::default() };
    let engine = EngineHandle::start(move || Ok(FakeEngine::new(script))).unwrap();
    assert!(matches!(engine.token_row(0).await, Err(EngineError::NothingLoaded)));
    engine.load(FakeEngine::any_model()).await.unwrap();
    assert_eq!(engine.token_row(3).await.unwrap().len(), FakeEngine::TEXT_WIDTH);
    let microbatch = FakeEngine::any_microbatch();
    assert!(matches!(engine.gradient(microbatch.clone()).await, Err(EngineError::Panicked(_))));
    assert!(engine.gradient(microbatch).await.unwrap().finite);
}

/// Several calls as one work: nothing of anybody else comes between them.
#[tokio::test]
async fn a_closure_runs_on_the_engines_thread_and_gives_its_own_answer() {
    let engine = loaded(FakeScript::default()).await;
    let here = std::thread::current().id();
    let rows: Vec<Vec<f32>> = engine
        .run(move |engine, wanted| {
            assert!(wanted.still() && std::thread::current().id() != here);
            [3, 5].map(|id| engine.token_row(id)).into_iter().collect()
        })
        .await
        .unwrap();
    assert_eq!(rows, [engine.token_row(3).await.unwrap(), engine.token_row(5).await.unwrap()]);
    let failed = engine.run(|_, _| Err::<(), _>(EngineError::OfJob("no".into()))).await;
    assert!(matches!(failed, Err(EngineError::OfJob(error)) if error.to_string() == "no"));
    let panicked = engine.run(|_, _| -> Result<(), _> { panic!("this work") }).await;
    assert!(matches!(panicked, Err(EngineError::Panicked(text)) if text == "this work"));
}

/// What draws would else keep the engine from whoever comes next.
#[tokio::test]
async fn pictures_that_nobody_waits_for_are_not_drawn_to_the_end() {
    let engine = loaded(FakeScript { endless_pictures: true, ..FakeScript::default() }).await;
    let drawing = engine.generate(FakeEngine::any_request());
    assert!(timeout(Duration::from_millis(20), drawing).await.is_err());
    assert_eq!(engine.token_row(3).await.unwrap().len(), FakeEngine::TEXT_WIDTH);
}

/// Work that waited behind another one, and whose asker left meanwhile.
#[tokio::test]
async fn what_nobody_waits_for_any_more_is_not_computed() {
    let script = FakeScript { endless_pictures: true, ..FakeScript::default() };
    let (encoded, dropped) = (Arc::clone(&script.encoded), Arc::clone(&script.dropped));
    let engine = loaded(script).await;
    // 1. The engine is busy, and will be as long as somebody waits for its pictures.
    let mut drawing = Box::pin(engine.generate(FakeEngine::any_request()));
    assert!(timeout(Duration::ZERO, &mut drawing).await.is_err());
    // 2. Behind them stand two whose askers leave, and one whose asker stays.
    assert!(timeout(Duration::ZERO, engine.encode_image(pixels())).await.is_err());
    assert!(timeout(Duration::ZERO, engine.drop_vae()).await.is_err());
    let mut wanted = Box::pin(engine.encode_image(pixels()));
    assert!(timeout(Duration::ZERO, &mut wanted).await.is_err());
    drop(drawing);
    wanted.await.unwrap();
    assert_eq!(encoded.load(Ordering::Relaxed), 1);
    // Memory is given back all the same.
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_failure_to_build_the_engine_is_the_answer_to_start() {
    let started = EngineHandle::start(|| Err::<FakeEngine, _>(EngineError::OfNode("no libtorch".into())));
    assert!(matches!(started, Err(error) if error.to_string() == "no libtorch"));
}

#[tokio::test]
async fn the_thread_ends_with_the_last_handle() {
    let engine = loaded(FakeScript::default()).await;
    let (ended, another) = (engine.ended(), engine.clone());
    drop(engine);
    another.token_row(1).await.unwrap();
    assert!(!ended.is_cancelled());
    drop(another);
    ended.cancelled().await;
}
