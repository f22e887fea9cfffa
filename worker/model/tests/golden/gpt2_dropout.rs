//! GPT-2 with dropout, against transformers' own modules that drop by the same masks: tests/reference/goldens/dropout.py.

use ringtune_model::{Dropout, EmbeddingRows, Precision, TokenBatch};

use crate::gpt2::{
    batch_of, bf16_is_as_near_as_autocast, by_name, five_steps_are_torchs, fp32_is_as_the_reference,
    gradient, kept, open,
};
use crate::precisions::precisions;
use crate::support::GoldenFile;

/// What the goldens were dropped by.
fn dropout_of(golden: &GoldenFile) -> Dropout {
    let said = golden.metadata("dropout");
    let number = |key: &str| said[key].as_u64().unwrap();
    let first_sample = number("first_sample") as u32;
    Dropout { rate: said["rate"].as_f64().unwrap(), seed: number("seed"), step: number("step"), first_sample }
}

#[test]
fn fp32_loss_and_every_gradient_are_those_of_transformers_with_the_same_masks() {
    fp32_is_as_the_reference("-dropout", |golden| Some(dropout_of(golden)));
}

#[test]
fn bf16_with_dropout_is_as_near_to_fp32_as_autocast() {
    bf16_is_as_near_as_autocast("-dropout", |golden| Some(dropout_of(golden)));
}

#[test]
fn five_steps_with_dropout_leave_the_state_that_torch_leaves() {
    five_steps_are_torchs("gpt2-dropout-steps.safetensors", |golden, [step, part]| {
        Some(Dropout { step: u64::from(step), first_sample: 2 * part, ..dropout_of(golden) })
    });
}

/// A microbatch that long rows of attention, several stretches and a last one that is not full come together in.
fn long(dropout: Dropout) -> TokenBatch {
    let ids = |from: usize| (0..3 * 19).map(|place| ((place * place * 5 + from) % 103) as i64).collect();
    let (inputs, targets): (Vec<i64>, Vec<i64>) = (ids(0), ids(1));
    let looked_up = EmbeddingRows::of(inputs.iter().copied());
    TokenBatch { batch: 3, block: 19, inputs, targets, looked_up, add: false, dropout: Some(dropout) }
}

/// The masks of both ways are the same: the slope of the loss that is dropped is the gradient.
#[test]
fn the_gradient_with_dropout_is_the_slope_of_the_loss_with_the_same_masks() {
    let batch = long(Dropout { rate: 0.3, seed: 11, step: 5, first_sample: 3 });
    let mut model = open("gpt2-odd", Precision::Fp32, 1);
    let mut buckets = kept(&model);
    gradient(&mut model, &batch, &mut buckets);
    let gradients = by_name(&model, &buckets);
    for name in
        ["wte.weight", "wpe.weight", "h.0.attn.c_attn.weight", "h.2.mlp.c_proj.weight", "h.1.ln_2.weight"]
    {
        let gradient = &gradients[&format!("transformer.{name}")];
        let tensor = format!("model.transformer.{name}");
        let norm = gradient.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        let mut before = vec![0; gradient.len() * 4];
        model.parameters.read_state(&tensor, 0, &mut before).unwrap();
        let mut loss_at = |far: f64| {
            let moved = before.chunks_exact(4).zip(gradient).flat_map(|(four, slope)| {
                let value = f64::from(f32::from_le_bytes(four.try_into().unwrap()));
                ((value + far * f64::from(*slope) / norm) as f32).to_le_bytes()
            });
            model.parameters.write_state(&tensor, 0, &moved.collect::<Vec<u8>>()).unwrap();
            f64::from(crate::gpt2::gradient(&mut model, &batch, &mut buckets).loss)
        };
        let far = 2e-2;
        let slope = (loss_at(far) - loss_at(-far)) / (2.0 * far);
        loss_at(0.0);
        assert!((slope / norm - 1.0).abs() < 5e-3, "{name}: {slope} and {norm}");
    }
}

/// Whoever computes a microbatch, with however many threads, drops the same of it; and of another step something else.
#[test]
fn what_is_dropped_depends_on_the_place_alone() {
    let dropout = Dropout { rate: 0.3, seed: 11, step: 5, first_sample: 3 };
    for precision in precisions() {
        let bits = |dropout: Dropout, threads: usize| -> Vec<u32> {
            let mut model = open("gpt2-odd", precision, threads);
            let mut buckets = kept(&model);
            let made = gradient(&mut model, &long(dropout), &mut buckets);
            gradients_and_loss(&by_name(&model, &buckets), made.loss)
        };
        let one = bits(dropout, 1);
        assert!(one == bits(dropout, 1));
        for other in [
            Dropout { step: 6, ..dropout },
            Dropout { seed: 12, ..dropout },
            Dropout { first_sample: 4, ..dropout },
            Dropout { rate: 0.29, ..dropout },
        ] {
            assert!(one != bits(other, 1), "{other:?}");
        }
        let loss = |threads: usize| f32::from_bits(bits(dropout, threads)[0]);
        assert!((loss(1) - loss(3)).abs() < 1e-5 * loss(1), "{precision}: {} and {}", loss(1), loss(3));
    }
    // And without any, nothing is.
    let golden = GoldenFile::open("gpt2-odd.safetensors");
    let batch = batch_of(&golden, "batch-3-block-7/in", false);
    for precision in precisions() {
        let mut model = open("gpt2-odd", precision, 1);
        let mut buckets = kept(&model);
        let loss = gradient(&mut model, &batch, &mut buckets).loss;
        let none = TokenBatch { dropout: Some(Dropout { rate: 0.0, ..dropout }), ..batch.clone() };
        assert_eq!(gradient(&mut model, &none, &mut buckets).loss.to_bits(), loss.to_bits());
    }
}

fn gradients_and_loss(gradients: &std::collections::BTreeMap<String, Vec<f32>>, loss: f32) -> Vec<u32> {
    [loss].iter().chain(gradients.values().flatten()).map(|value| value.to_bits()).collect()
}
