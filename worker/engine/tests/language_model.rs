//! Training a language model through the engine's handle, with the fake engine behind it.

#![allow(clippy::unwrap_used, reason = "a test ends where something is missing")]

use ringtune_engine::{
    AlignedFloats, Buckets, EmbeddingRows, EngineError, EngineHandle, FeedTokens, LanguageModelInfo,
    OptimizerStep, TokenBatch,
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
    fn new(info: &LanguageModelInfo) -> Self {
        let lengths = info.parameters.plan.buckets.iter().map(|bucket| bucket.length);
        let lengths = lengths.chain([info.parameters.looked_up_length(&batch().looked_up)]);
        Self { buckets: lengths.map(AlignedFloats::zeros).collect(), ..Self::default() }
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
    // Another microbatch of the step has id 9.
    let looked_up = EmbeddingRows::of(inputs.iter().copied().chain([9]));
    TokenBatch { batch: 2, block: 3, inputs, targets, looked_up, add: false, dropout: None }
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
    other_rates: [0.0; 2],
    average_decay: None,
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
    let count = info.parameters.plan.buckets.len();
    assert!(count > 2);
    let before = engine.language_loss(batch()).await.unwrap();
    let mut kept = Kept::new(&info);
    for number in 1..=50 {
        let (made, back) = engine.language_gradient(batch(), kept).await.unwrap();
        assert!(made.finite);
        // That of what was looked up is the last one.
        assert_eq!((&back.given, &back.taken), (&(0..=count).collect(), &(0..=count).collect()));
        let step = OptimizerStep { number, ..STEP };
        let (applied, buckets) = engine.apply(step, batch().looked_up, back.buckets).await.unwrap();
        assert!(!applied.skipped && applied.grad_norm > 0.0);
        kept = Kept { buckets, ..Kept::default() };
    }
    let after = engine.language_loss(batch()).await.unwrap();
    assert!(after < before / 4.0, "{before} to {after}");
}

#[tokio::test]
async fn a_text_is_made_with_what_is_learned_until_the_next_gradient() {
    let (engine, info) = opened(FakeScript::default()).await;
    let feed = || FeedTokens { keep: 0, tokens: vec![1, 5] };
    let read = engine.open_trained_text().await.unwrap();
    assert_eq!((read.vocab_size, read.n_positions), (info.vocab_size, info.n_positions));
    let before = engine.next_logits(feed()).await.unwrap();
    let (_, kept) = engine.language_gradient(batch(), Kept::new(&info)).await.unwrap();
    assert!(matches!(engine.next_logits(feed()).await, Err(EngineError::NothingLoaded)));
    engine.apply(STEP, batch().looked_up, kept.buckets).await.unwrap();
    engine.open_trained_text().await.unwrap();
    assert_ne!(engine.next_logits(feed()).await.unwrap(), before);
}

#[tokio::test]
async fn gradients_add_up_and_a_halved_sum_moves_like_one() {
    let moved = |adds: bool| async move {
        let (engine, info) = opened(FakeScript::default()).await;
        let (one, kept) = engine.language_gradient(batch(), Kept::new(&info)).await.unwrap();
        let mut step = STEP;
        let mut buckets = kept.buckets;
        if adds {
            let again = TokenBatch { add: true, ..batch() };
            let kept = Kept { buckets, ..Kept::default() };
            let (two, kept) = engine.language_gradient(again, kept).await.unwrap();
            assert_eq!(one.loss.to_bits(), two.loss.to_bits());
            (buckets, step.divide_by) = (kept.buckets, 2);
        }
        let (applied, _) = engine.apply(step, batch().looked_up, buckets).await.unwrap();
        (applied, engine.language_loss(batch()).await.unwrap())
    };
    assert_eq!(moved(false).await, moved(true).await);
}

#[tokio::test]
async fn what_is_not_finite_moves_nothing_and_wrong_input_is_named() {
    let script = FakeScript { not_finite: Some((1, 1)), ..FakeScript::default() };
    let (engine, info) = opened(script).await;
    let before = engine.language_loss(batch()).await.unwrap();
    let (made, kept) = engine.language_gradient(batch(), Kept::new(&info)).await.unwrap();
    assert!(!made.finite);
    let (applied, buckets) = engine.apply(STEP, batch().looked_up, kept.buckets).await.unwrap();
    assert!(applied.skipped);
    assert_eq!(engine.language_loss(batch()).await.unwrap(), before);
    for (batch, field) in [
        (TokenBatch { block: 17, ..batch() }, "block"),
        (TokenBatch { inputs: vec![23; 6], ..batch() }, "inputs"),
        (TokenBatch { targets: vec![0; 5], ..batch() }, "targets"),
    ] {
        let error = engine.language_loss(batch).await.unwrap_err();
        assert!(matches!(error, EngineError::OfJob(_)) && error.to_string().starts_with(field), "{error}");
    }
    let step = OptimizerStep { divide_by: 0, ..STEP };
    let applied = |applied: (_, Vec<AlignedFloats>)| applied.0;
    let error = engine.apply(step, batch().looked_up, buckets).await.map(applied).unwrap_err();
    assert!(error.to_string().starts_with("divide_by"), "{error}");
}

#[tokio::test]
async fn both_parts_of_the_tables_gradient_move_it_and_rows_that_do_not_fit_are_refused() {
    let table = "model.transformer.wte.weight";
    let (engine, info) = opened(FakeScript::default()).await;
    let read = |engine: EngineHandle, bytes: usize| async move {
        let read = engine.run(move |engine, _| {
            let mut read = vec![0; bytes];
            engine.read_state(table, 0, &mut read)?;
            Ok(read)
        });
        read.await.unwrap()
    };
    let bytes = 4 * info.vocab_size * info.parameters.width;
    let before = read(engine.clone(), bytes).await;
    let (_, kept) = engine.language_gradient(batch(), Kept::new(&info)).await.unwrap();
    engine.apply(STEP, batch().looked_up, kept.buckets).await.unwrap();
    let after = read(engine.clone(), bytes).await;
    // Without decay a number moves that has a gradient: columns of both parts, and no row that is not an input.
    let moved: Vec<usize> =
        (0..bytes / 4).filter(|number| before[number * 4..][..4] != after[number * 4..][..4]).collect();
    let rows: std::collections::BTreeSet<i64> =
        moved.iter().map(|number| (number / info.parameters.width) as i64).collect();
    assert_eq!(rows, batch().inputs.into_iter().collect());
    assert!(
        (0..info.parameters.width)
            .all(|column| moved.iter().any(|number| number % info.parameters.width == column)),
        "{moved:?}"
    );
    // One id fewer, one that is no input of the list, one that the model does not have.
    let few = TokenBatch { looked_up: EmbeddingRows::of([1, 5, 22, 0]), ..batch() };
    let error =
        engine.language_gradient(few.clone(), Kept::new(&info)).await.map(|(made, _)| made).unwrap_err();
    assert!(
        matches!(error, EngineError::OfJob(_)) && error.to_string().starts_with("looked_up has no id 7"),
        "{error}"
    );
    let beyond = EmbeddingRows::of([0, 1, 5, 7, 22, 23]);
    for (looked_up, field) in [(few.looked_up, "buckets"), (beyond, "looked_up")] {
        let error =
            engine.apply(STEP, looked_up, Kept::new(&info).buckets).await.map(|(one, _)| one).unwrap_err();
        assert!(matches!(error, EngineError::OfJob(_)) && error.to_string().starts_with(field), "{error}");
    }
    assert!(read(engine, bytes).await == after);
}

#[tokio::test]
async fn whoever_refuses_a_bucket_ends_the_pass() {
    let (engine, info) = opened(FakeScript::default()).await;
    for refused in [1, info.parameters.plan.buckets.len()] {
        let kept = Kept { refused: Some(refused), ..Kept::new(&info) };
        let ended = engine.language_gradient(batch(), kept).await.map(|(made, _)| made);
        assert!(matches!(ended, Err(EngineError::Unwanted)));
    }
}

#[tokio::test]
async fn a_state_that_is_read_and_written_in_chunks_goes_on_alike() {
    let (engine, info) = opened(FakeScript::default()).await;
    let (_, kept) = engine.language_gradient(batch(), Kept::new(&info)).await.unwrap();
    engine.apply(STEP, batch().looked_up, kept.buckets).await.unwrap();
    let tensors = engine.state_tensors().await.unwrap();
    assert_eq!(tensors.len(), 3 * info.parameters.list.len());
    let trained = engine.language_loss(batch()).await.unwrap();
    let (other, _) = opened(FakeScript::default()).await;
    assert_ne!(other.language_loss(batch()).await.unwrap(), trained);
    for tensor in tensors {
        let bytes = 4 * tensor.shape.iter().product::<usize>();
        for first in (0..bytes).step_by(28) {
            let (mut chunk, name) = (vec![0; 28.min(bytes - first)], tensor.name.clone());
            let chunk = engine
                .run(move |engine, _| {
                    engine.read_state(&name, first as u64, &mut chunk)?;
                    Ok(chunk)
                })
                .await
                .unwrap();
            let name = tensor.name.clone();
            let write = other.run(move |engine, _| engine.write_state(&name, first as u64, &chunk));
            write.await.unwrap();
        }
    }
    assert_eq!(other.language_loss(batch()).await.unwrap(), trained);
    let beyond = other.run(|engine, _| engine.read_state("model.x", 0, &mut [0; 4])).await;
    assert!(beyond.unwrap_err().to_string().contains("model.x"));
}
