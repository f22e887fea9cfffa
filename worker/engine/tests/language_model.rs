//! Training a language model through the engine's handle, with the fake engine behind it.

#![allow(clippy::unwrap_used, reason = "a test ends where something is missing")]

use ringtune_engine::{
    AlignedFloats, BucketPlan, Buckets, EngineError, EngineHandle, LanguageModelInfo, OptimizerStep,
    TokenBatch,
};
use ringtune_fake_engine::{FakeEngine, FakeScript};

/// Keeps the buckets where they are; remembers in which order they were taken and came back.
#[derive(Default)]
struct Kept {
    buckets: Vec<AlignedFloats>,
    taken: Vec<usize>,
    given: Vec<usize>,
    /// The bucket that is refused.
    refused: Option<usize>,
}

impl Kept {
    fn new(plan: &BucketPlan) -> Self {
        let buckets = plan.buckets.iter().map(|bucket| AlignedFloats::zeros(bucket.length)).collect();
        Self { buckets, ..Self::default() }
    }
}

impl Buckets for Kept {
    fn take(&mut self, bucket: usize) -> Result<AlignedFloats, EngineError> {
        if self.refused == Some(bucket) {
            return Err(EngineError::Unwanted);
        }
        self.taken.push(bucket);
        Ok(std::mem::take(&mut self.buckets[bucket]))
    }

    fn give(&mut self, bucket: usize, memory: AlignedFloats) -> Result<(), EngineError> {
        self.buckets[bucket] = memory;
        self.given.push(bucket);
        Ok(())
    }
}

fn batch() -> TokenBatch {
    let inputs = vec![1, 5, 22, 5, 0, 7];
    let targets = vec![5, 22, 5, 0, 7, 1];
    TokenBatch { batch: 2, block: 3, inputs, targets, add: false, dropout: None }
}

const STEP: OptimizerStep = OptimizerStep {
    number: 1,
    learning_rate: 0.05,
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
    weight_decay: 0.0,
    max_grad_norm: Some(1.0),
    divide_by: 1,
};

async fn opened(script: FakeScript) -> (EngineHandle, LanguageModelInfo) {
    let engine = EngineHandle::start(move || Ok(FakeEngine::new(script))).unwrap();
    let refused = engine.language_loss(batch()).await;
    assert!(matches!(refused, Err(EngineError::NothingLoaded)));
    let info = engine.open_language_model(FakeEngine::any_language_model()).await.unwrap();
    (engine, info)
}

#[tokio::test]
async fn buckets_come_back_in_order_and_steps_make_the_loss_smaller() {
    let (engine, info) = opened(FakeScript::default()).await;
    assert!(info.plan.buckets.len() > 2);
    let before = engine.language_loss(batch()).await.unwrap();
    let mut kept = Kept::new(&info.plan);
    for number in 1..=50 {
        let (made, back) = engine.language_gradient(batch(), kept).await.unwrap();
        assert!(made.finite);
        assert_eq!(back.given, (0..info.plan.buckets.len()).collect::<Vec<_>>());
        // The table's are taken before the first one, as a real model takes them.
        assert_eq!(back.taken, (1..info.plan.buckets.len()).chain([0]).collect::<Vec<_>>());
        let step = OptimizerStep { number, ..STEP };
        let (applied, buckets) = engine.apply(step, back.buckets).await.unwrap();
        assert!(!applied.skipped && applied.grad_norm > 0.0);
        kept = Kept { buckets, ..Kept::default() };
    }
    let after = engine.language_loss(batch()).await.unwrap();
    assert!(after < before / 4.0, "{before} to {after}");
}

#[tokio::test]
async fn gradients_add_up_and_a_halved_sum_moves_like_one() {
    let moved = |adds: bool| async move {
        let (engine, info) = opened(FakeScript::default()).await;
        let (one, kept) = engine.language_gradient(batch(), Kept::new(&info.plan)).await.unwrap();
        let mut step = STEP;
        let mut buckets = kept.buckets;
        if adds {
            let again = TokenBatch { add: true, ..batch() };
            let kept = Kept { buckets, ..Kept::default() };
            let (two, kept) = engine.language_gradient(again, kept).await.unwrap();
            assert_eq!(one.loss.to_bits(), two.loss.to_bits());
            (buckets, step.divide_by) = (kept.buckets, 2);
        }
        let (applied, _) = engine.apply(step, buckets).await.unwrap();
        (applied, engine.language_loss(batch()).await.unwrap())
    };
    assert_eq!(moved(false).await, moved(true).await);
}

#[tokio::test]
async fn what_is_not_finite_moves_nothing_and_wrong_input_is_named() {
    let script = FakeScript { not_finite: Some((1, 1)), ..FakeScript::default() };
    let (engine, info) = opened(script).await;
    let before = engine.language_loss(batch()).await.unwrap();
    let (made, kept) = engine.language_gradient(batch(), Kept::new(&info.plan)).await.unwrap();
    assert!(!made.finite);
    let (applied, buckets) = engine.apply(STEP, kept.buckets).await.unwrap();
    assert!(applied.skipped);
    assert_eq!(engine.language_loss(batch()).await.unwrap(), before);
    for (batch, field) in [
        (TokenBatch { block: 17, ..batch() }, "block"),
        (TokenBatch { inputs: vec![23; 6], ..batch() }, "inputs"),
        (TokenBatch { targets: vec![0; 5], ..batch() }, "targets"),
    ] {
        let error = engine.language_loss(batch).await.unwrap_err();
        assert!(error.is_of_job() && error.to_string().starts_with(field), "{error}");
    }
    let step = OptimizerStep { divide_by: 0, ..STEP };
    let error = engine.apply(step, buckets).await.map(|(applied, _)| applied).unwrap_err();
    assert!(error.to_string().starts_with("divide_by"), "{error}");
}

#[tokio::test]
async fn whoever_refuses_a_bucket_ends_the_pass() {
    let (engine, info) = opened(FakeScript::default()).await;
    let kept = Kept { refused: Some(1), ..Kept::new(&info.plan) };
    let ended = engine.language_gradient(batch(), kept).await.map(|(made, _)| made);
    assert!(matches!(ended, Err(EngineError::Unwanted)));
}

#[tokio::test]
async fn a_state_that_is_read_and_written_in_chunks_goes_on_alike() {
    let (engine, info) = opened(FakeScript::default()).await;
    let (_, kept) = engine.language_gradient(batch(), Kept::new(&info.plan)).await.unwrap();
    engine.apply(STEP, kept.buckets).await.unwrap();
    let tensors = engine.language_state().await.unwrap();
    assert_eq!(tensors.len(), 3 * info.parameters.len());
    let trained = engine.language_loss(batch()).await.unwrap();
    let (other, _) = opened(FakeScript::default()).await;
    assert_ne!(other.language_loss(batch()).await.unwrap(), trained);
    for tensor in tensors {
        let bytes = 4 * tensor.shape.iter().product::<usize>();
        for first in (0..bytes).step_by(28) {
            let (mut chunk, name) = (vec![0; 28.min(bytes - first)], tensor.name.clone());
            let chunk = engine
                .run(move |engine, _| {
                    engine.read_language_state(&name, first as u64, &mut chunk)?;
                    Ok(chunk)
                })
                .await
                .unwrap();
            let name = tensor.name.clone();
            let write = other.run(move |engine, _| engine.write_language_state(&name, first as u64, &chunk));
            write.await.unwrap();
        }
    }
    assert_eq!(other.language_loss(batch()).await.unwrap(), trained);
    let beyond = other.run(|engine, _| engine.read_language_state("model.x", 0, &mut [0; 4])).await;
    assert!(beyond.unwrap_err().to_string().contains("model.x"));
}
