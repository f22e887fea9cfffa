//! Ranks that have GPT-2's optimizer together, beside one that has all of it: the same bits.

use std::ops::Range;

use ringtune_model::{
    AlignedFloats, BucketSizes, EmbeddingRows, Gpt2, LanguageModelSource, NewLanguageModel,
    OpenLanguageModel, OptimizerStep, Precision, Runtime, Shares, TokenBatch,
};

use crate::gpt2::{STEP, gradient, kept};
use crate::precisions::precisions;

/// Some buckets, each of several sums of squares.
fn open(precision: Precision) -> Gpt2 {
    Runtime::initialise(2).unwrap();
    let new = NewLanguageModel {
        vocab_size: 1501,
        n_positions: 16,
        n_layer: 2,
        n_head: 4,
        n_embd: 64,
        bias: true,
        seed: 5,
    };
    let buckets = BucketSizes { first: 200 << 10, others: 300 << 10 };
    let source = LanguageModelSource::New(new);
    Gpt2::open(&OpenLanguageModel { source, precision, threads: 2, buckets }).unwrap()
}

fn batch(step: i64) -> TokenBatch {
    let ids = |first: i64| (0..32).map(|place| (first + 97 * place * step) % 1501).collect::<Vec<_>>();
    let (inputs, targets) = (ids(step), ids(7 * step));
    let looked_up = EmbeddingRows::of(inputs.iter().copied().chain([1500]));
    TokenBatch { batch: 2, block: 16, inputs, targets, looked_up, add: false, dropout: None }
}

fn step(number: u64) -> OptimizerStep {
    OptimizerStep { number, max_grad_norm: Some(0.5), divide_by: 3, ..STEP }
}

/// What rank r of n has: chunk r + 1 and, as a copy, chunk r, which begin at multiples of a part.
fn shares(model: &Gpt2, rank: usize, ranks: usize) -> Shares {
    let info = model.parameters.info();
    let chunk = |number: usize, length: usize| -> Range<usize> {
        let parts = length.div_ceil(info.part);
        let place = |chunk: usize| (chunk * parts / ranks * info.part).min(length);
        place(number % ranks)..place(number % ranks + 1)
    };
    Shares::of(
        info.plan.buckets.iter().map(|bucket| [rank + 1, rank].map(|number| chunk(number, bucket.length))),
    )
}

/// The bits of a tensor of the state.
fn bits(model: &Gpt2, name: &str, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; 4 * length];
    model.parameters.read_state(name, 0, &mut bytes).unwrap();
    bytes
}

#[test]
fn ranks_that_have_the_optimizer_together_leave_the_bits_of_one_that_has_all() {
    Runtime::initialise(2).unwrap();
    for (precision, ranks) in precisions().into_iter().flat_map(|one| [1, 2, 3].map(|ranks| (one, ranks))) {
        let mut whole = open(precision);
        let mut of_ranks: Vec<Gpt2> = (0..ranks).map(|_| open(precision)).collect();
        let info = whole.parameters.info().clone();
        assert!(info.plan.buckets.len() > 2 && info.plan.buckets[0].length > 3 * info.part);
        for (rank, model) in of_ranks.iter_mut().enumerate() {
            let shares = shares(model, rank, ranks);
            model.parameters.keep_moments(&shares).unwrap();
        }
        for number in 1..=3 {
            // The third is not finite, and moves nothing.
            let (batch, step) = (batch(number as i64), step(number));
            let spoil = |buckets: &mut [AlignedFloats]| {
                if number == 3 {
                    buckets[1][7] = f32::INFINITY;
                }
            };
            // 1. As one rank has it.
            let mut buckets = kept(&whole);
            gradient(&mut whole, &batch, &mut buckets);
            spoil(&mut buckets.buckets);
            let applied = whole.parameters.apply(&step, &batch.looked_up, &mut buckets.buckets).unwrap();
            assert_eq!(applied.skipped, number == 3);
            // 2. As the ranks have it: sums of squares from each, in the order of their places.
            let mut made = Vec::new();
            for (rank, model) in of_ranks.iter_mut().enumerate() {
                let mut buckets = kept(model);
                gradient(model, &batch, &mut buckets);
                spoil(&mut buckets.buckets);
                let shares = shares(model, rank, ranks);
                let parts = model
                    .parameters
                    .squared_norm_parts(&batch.looked_up, &mut buckets.buckets, &shares)
                    .unwrap();
                made.push((buckets.buckets, shares, parts.into_iter()));
            }
            let mut squares = 0.0;
            for (number, bucket) in info.plan.buckets.iter().enumerate() {
                let mut in_order: Vec<usize> = (0..ranks).collect();
                in_order.sort_by_key(|rank| made[*rank].1.own(number).start);
                let mut of_bucket = Vec::new();
                for rank in in_order {
                    let (_, shares, parts) = &mut made[rank];
                    of_bucket.extend(parts.by_ref().take(shares.own(number).len().div_ceil(info.part)));
                }
                assert_eq!(of_bucket.len(), bucket.length.div_ceil(info.part));
                squares += of_bucket.iter().sum::<f64>();
            }
            for ((buckets, shares, _), model) in made.iter_mut().zip(&mut of_ranks) {
                let share = model.parameters.apply_share(&step, squares, buckets, shares).unwrap();
                assert_eq!(
                    (share.skipped, share.grad_norm.to_bits()),
                    (applied.skipped, applied.grad_norm.to_bits())
                );
            }
            if applied.skipped {
                continue;
            }
            // 3. Each parameter from whoever has it, also from the copy.
            let mut together: Vec<AlignedFloats> =
                info.plan.buckets.iter().map(|bucket| AlignedFloats::zeros(bucket.length)).collect();
            for (number, into) in together.iter_mut().enumerate() {
                for (buckets, shares, _) in &made {
                    for held in shares.held(number) {
                        into[held.clone()].copy_from_slice(&buckets[number][held]);
                    }
                }
            }
            for ((_, shares, _), model) in made.iter().zip(&mut of_ranks) {
                model.parameters.take_parameters(&together, shares, None).unwrap();
            }
        }
        for (rank, model) in of_ranks.iter_mut().enumerate() {
            let shares = shares(model, rank, ranks);
            for (number, parameter) in info.list.iter().enumerate() {
                let (name, length) = (&parameter.name, parameter.elements());
                let both = |kind: &str| {
                    [&whole, &*model].map(|model| bits(model, &format!("{kind}.{name}"), length))
                };
                let [one, other] = both("model");
                assert!(one == other, "{precision:?}, {ranks} ranks: {name} of rank {rank}");
                for kind in ["adamw.mean", "adamw.square"] {
                    let [one, other] = both(kind);
                    for (bucket, piece) in info.plan.pieces_of(number) {
                        for place in 0..piece.count {
                            let is_held =
                                shares.held(bucket).any(|held| held.contains(&(piece.offset + place)));
                            let byte = 4 * (piece.first + place);
                            let (one, other) = (&one[byte..byte + 4], &other[byte..byte + 4]);
                            assert_eq!(
                                other,
                                if is_held { one } else { &[0; 4] },
                                "{kind}.{name} of rank {rank}"
                            );
                        }
                    }
                }
            }
            // What is computed with is what was taken.
            let [one, other] = [whole.loss(&batch(9)).unwrap(), model.loss(&batch(9)).unwrap()];
            assert_eq!(one.to_bits(), other.to_bits());
        }
    }
}

#[test]
fn shares_of_another_plan_and_a_state_that_is_held_are_refused() {
    let mut model = open(Precision::Fp32);
    let good = shares(&model, 0, 2);
    let lengths: Vec<usize> =
        model.parameters.info().plan.buckets.iter().map(|bucket| bucket.length).collect();
    let part = model.parameters.info().part;
    let of = |own: Range<usize>| Shares::of(lengths.iter().map(|length| [own.clone(), *length..*length]));
    for wrong in [Shares::of([]), of(0..usize::MAX / 2), of(1..part), of(0..part - 1)] {
        let refused = model.parameters.keep_moments(&wrong).unwrap_err().to_string();
        assert!(refused.starts_with("shares is ") && refused.contains("parts of"), "{refused}");
    }
    let mut buckets: Vec<AlignedFloats> =
        lengths.iter().map(|length| AlignedFloats::zeros(*length)).collect();
    let held = model.parameters.hold_state().unwrap();
    assert!(
        model.parameters.keep_moments(&good).is_err()
            && model.parameters.take_parameters(&buckets, &good, None).is_err()
    );
    assert!(model.parameters.apply_share(&step(1), 1.0, &mut buckets, &good).is_err());
    drop(held);
    model.parameters.apply_share(&step(1), 1.0, &mut buckets, &good).unwrap();
    buckets.pop();
    assert!(model.parameters.take_parameters(&buckets, &good, None).is_err());
}
