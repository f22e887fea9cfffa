//! Making text through the engine's handle, with the fake engine behind it.

#![allow(clippy::unwrap_used, reason = "a test ends where something is missing")]

use ringtune_engine::{EngineError, EngineHandle, FeedTokens, TextContext};
use ringtune_fake_engine::{FakeEngine, FakeScript};

/// The next `count` tokens, each the most likely one.
async fn go_on(engine: &EngineHandle, context: &mut TextContext, count: usize) {
    for _ in 0..count {
        let logits = engine.next_logits(context.feed()).await.unwrap();
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        context.push(best as i64);
    }
}

#[tokio::test]
async fn what_is_kept_gives_the_logits_of_the_whole_text() {
    let engine = EngineHandle::start(|| Ok(FakeEngine::new(FakeScript::default()))).unwrap();
    assert!(matches!(engine.next_logits(FeedTokens::default()).await, Err(EngineError::NothingLoaded)));
    let info = engine.open_text_model(FakeEngine::any_text_model()).await.unwrap();
    let mut context = TextContext::new(vec![3, 1, 4], info.n_positions);
    // Further than the model has positions, so that the text is cropped too.
    go_on(&engine, &mut context, 40).await;
    for length in 3..context.tokens().len() {
        let text = &context.tokens()[..length];
        let seen = text[length.saturating_sub(info.n_positions)..].to_vec();
        let logits = engine.next_logits(FeedTokens { keep: 0, tokens: seen }).await.unwrap();
        let next = context.tokens()[length] as usize;
        assert!(logits.iter().all(|logit| *logit <= logits[next]), "token {length}");
    }
}

#[tokio::test]
async fn what_cannot_be_fed_is_refused_by_its_field() {
    let engine = EngineHandle::start(|| Ok(FakeEngine::new(FakeScript::default()))).unwrap();
    let info = engine.open_text_model(FakeEngine::any_text_model()).await.unwrap();
    let most = info.n_positions;
    for (keep, tokens, field) in [
        (1, vec![0], "keep"),
        (0, vec![], "tokens"),
        (0, vec![0; most + 1], "tokens"),
        (0, vec![info.vocab_size as i64], "tokens"),
        (0, vec![-1], "tokens"),
    ] {
        let error = engine.next_logits(FeedTokens { keep, tokens }).await.unwrap_err();
        assert!(matches!(error, EngineError::OfJob(_)) && error.to_string().starts_with(field), "{error}");
    }
    engine.next_logits(FeedTokens { keep: 0, tokens: vec![0; most] }).await.unwrap();
}
