//! Making text with GPT-2s that are drawn here: the training's model says the same, and what cannot be fed is refused.

#![allow(clippy::unwrap_used, reason = "a test ends where something is missing")]

#[path = "support/precisions.rs"]
mod precisions;

#[path = "support/saved.rs"]
mod saved;

use precisions::precisions;
use ringtune_model::{
    BucketSizes, Error, FeedTokens, Gpt2, Gpt2Text, LanguageModelSource, NewLanguageModel, OpenLanguageModel,
    OpenTextModel, Precision, Runtime, TokenBatch,
};
use saved::save;

const NEW: NewLanguageModel = NewLanguageModel {
    vocab_size: 29,
    n_positions: 8,
    n_layer: 2,
    n_head: 2,
    n_embd: 12,
    bias: true,
    seed: 5,
};

fn open(source: LanguageModelSource, precision: Precision) -> Gpt2Text {
    Runtime::initialise(1).unwrap();
    Gpt2Text::open(&OpenTextModel { source, precision, threads: 1 }).unwrap()
}

fn trained(new: NewLanguageModel, precision: Precision) -> Gpt2 {
    Runtime::initialise(1).unwrap();
    let (source, buckets) = (LanguageModelSource::New(new), BucketSizes::default());
    Gpt2::open(&OpenLanguageModel { source, precision, threads: 1, buckets }).unwrap()
}

fn feed(keep: usize, tokens: &[i64]) -> FeedTokens {
    FeedTokens { keep, tokens: tokens.to_vec() }
}

const TEXT: [i64; 9] = [3, 28, 0, 3, 3, 17, 9, 1, 20];

/// Loss of the next token, in nats.
fn loss_of(logits: &[f32], next: i64) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    sum.ln() - f64::from(logits[next as usize] - most)
}

#[test]
fn the_training_s_loss_is_that_of_the_logits() {
    // Widths that fill no vector, and one that fills two and a part.
    for (n_embd, n_head, bias) in [(12, 2, true), (12, 3, false), (40, 1, true), (96, 2, false)] {
        let new = NewLanguageModel { n_embd, n_head, bias, ..NEW };
        for precision in precisions() {
            let most = if precision == Precision::Fp32 { 2e-6 } else { 2e-3 };
            let batch = TokenBatch {
                batch: 1,
                block: 8,
                inputs: TEXT[..8].to_vec(),
                targets: TEXT[1..].to_vec(),
                ..TokenBatch::default()
            };
            let expected = f64::from(trained(new, precision).loss(&batch).unwrap());
            let mut model = open(LanguageModelSource::New(new), precision);
            let losses = (0..8).map(|place| {
                let logits = model.next_logits(&feed(place, &TEXT[place..=place])).unwrap();
                assert_eq!(logits.len(), new.vocab_size);
                loss_of(&logits, TEXT[place + 1])
            });
            let loss = losses.sum::<f64>() / 8.0;
            assert!((loss / expected - 1.0).abs() <= most, "{n_embd} {precision}: {loss} and {expected}");
        }
    }
}

#[test]
fn a_saved_model_makes_the_same_text() {
    let folder = tempfile::tempdir().unwrap();
    save(&trained(NEW, Precision::Fp32), folder.path());
    for precision in precisions() {
        let logits = |source: LanguageModelSource| {
            let mut model = open(source, precision);
            let first = model.next_logits(&feed(0, &TEXT[..5])).unwrap();
            [first, model.next_logits(&feed(5, &TEXT[5..6])).unwrap()]
        };
        let read = logits(LanguageModelSource::folder(folder.path()));
        assert_eq!(read, logits(LanguageModelSource::New(NEW)), "{precision}");
        assert_ne!(read[0], read[1]);
    }
}

#[test]
fn a_copy_of_a_trained_model_makes_the_text_of_the_saved_one() {
    for precision in precisions() {
        let mut model = trained(NEW, precision);
        let logits = |model: &Gpt2| {
            let mut text = Gpt2Text::of_trained(model).unwrap();
            text.next_logits(&feed(0, &TEXT[..5])).unwrap()
        };
        let before = logits(&model);
        let info = model.info();
        let bias =
            info.parameters.list.iter().find(|parameter| parameter.name.ends_with("ln_f.bias")).unwrap();
        model.parameters.write_state(&format!("model.{}", bias.name), 0, &[0x3f; 4 * 12]).unwrap();
        let after = logits(&model);
        assert_ne!(before, after, "{precision}");
        let folder = tempfile::tempdir().unwrap();
        save(&model, folder.path());
        let mut saved = open(LanguageModelSource::folder(folder.path()), precision);
        assert_eq!(saved.next_logits(&feed(0, &TEXT[..5])).unwrap(), after, "{precision}");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_its_field_and_changes_nothing() {
    let mut model = open(LanguageModelSource::New(NEW), Precision::Fp32);
    assert_eq!((model.info().vocab_size, model.info().n_positions), (29, 8));
    let wrong = |model: &mut Gpt2Text, feed: FeedTokens, expected: &str| {
        let error = model.next_logits(&feed).unwrap_err();
        assert!(matches!(&error, Error::Argument { field, .. } if *field == expected), "{error}");
    };
    wrong(&mut model, feed(1, &[0]), "keep");
    model.next_logits(&feed(0, &TEXT[..6])).unwrap();
    let next = model.next_logits(&feed(6, &[4])).unwrap();
    wrong(&mut model, feed(8, &[0]), "keep");
    wrong(&mut model, feed(usize::MAX, &[0]), "keep");
    for tokens in [&[][..], &[0; 9], &[29], &[-1], &[i64::MAX]] {
        wrong(&mut model, feed(0, tokens), "tokens");
    }
    wrong(&mut model, feed(7, &[1, 2]), "tokens");
    assert_eq!(model.next_logits(&feed(6, &[4])).unwrap(), next);
    // All positions, but no more.
    model.next_logits(&feed(7, &[1])).unwrap();
    wrong(&mut model, feed(8, &[1]), "tokens");
}

#[test]
fn what_is_no_model_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    Runtime::initialise(1).unwrap();
    let open = |source| Gpt2Text::open(&OpenTextModel { source, precision: Precision::Fp32, threads: 1 });
    let error = open(LanguageModelSource::folder(folder.path())).unwrap_err();
    assert!(matches!(error, Error::NotAModel { .. }), "{error}");
    let error = open(LanguageModelSource::New(NewLanguageModel { n_head: 5, ..NEW })).unwrap_err();
    assert!(matches!(error, Error::Argument { field: "n_head", .. }), "{error}");
    save(&trained(NEW, Precision::Fp32), folder.path());
    let file = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 40]).unwrap();
    assert!(open(LanguageModelSource::folder(folder.path())).is_err());
}
