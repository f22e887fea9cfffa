//! The fused operations against the same formulas in fp32 on libtorch, values and gradients.

use tch::{Device, Kind, Tensor};

use super::*;
use crate::stable_diffusion::to_vec;

fn random(shape: &[i64], seed: i64) -> Tensor {
    tch::manual_seed(seed);
    Tensor::f_randn(shape, (Kind::Float, Device::Cpu)).unwrap().to_kind(Kind::BFloat16)
}

fn relative_error(found: &Tensor, expected: &Tensor) -> f64 {
    let (found, expected) = (to_vec(found).unwrap(), to_vec(expected).unwrap());
    let norm = |values: Vec<f32>| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    norm(found.iter().zip(&expected).map(|(a, b)| a - b).collect()) / norm(expected)
}

/// The result of `operation` on `inputs` as leaves, and the gradients for a random gradient of the result.
fn with_gradients(inputs: &[Tensor], kind: Kind, operation: impl Fn(&[Tensor]) -> Tensor) -> Vec<Tensor> {
    let leaves: Vec<Tensor> =
        inputs.iter().map(|input| input.detach().to_kind(kind).copy().set_requires_grad(true)).collect();
    let output = operation(&leaves);
    let weight = random(&output.size(), 99).to_kind(kind);
    let total = (&output * weight).to_kind(Kind::Float).sum(Kind::Float);
    let mut all = vec![output.detach()];
    all.extend(Tensor::f_run_backward(&[total], &leaves, false, false).unwrap());
    all
}

fn assert_near(fused: &[Tensor], exact: &[Tensor], what: &str) {
    assert_eq!(fused.len(), exact.len());
    for (index, (fused, exact)) in fused.iter().zip(exact).enumerate() {
        assert_eq!(fused.size(), exact.size(), "{what} {index}");
        let error = relative_error(fused, exact);
        // One rounding to bf16 is 2^-9 at most, about 0.0017 in the mean square.
        assert!(error <= 0.0025, "{what} {index}: {error:.5}");
    }
}

#[test]
fn group_norm_is_that_of_the_formula() {
    // Channels and positions that fill neither vectors nor stretches; one far from zero.
    for (channels, groups, height, width, offset) in
        [(24, 3, 7, 9, 0.0), (64, 32, 16, 16, 3.0), (6, 2, 1, 1, 0.0)]
    {
        let x = random(&[2, channels, height, width], 1) + offset;
        let (weight, bias) = (random(&[channels], 2), random(&[channels], 3));
        let added = random(&[2, channels], 4);
        for (silu, added) in [(false, None), (true, None), (true, Some(&added))] {
            let norm = GroupNormArguments { weight: &weight, bias: &bias, groups, epsilon: 1e-5, silu };
            let fused = with_gradients(&[x.shallow_clone()], Kind::BFloat16, |inputs| {
                group_norm(&inputs[0], added, norm).unwrap()
            });
            let exact = with_gradients(&[x.shallow_clone()], Kind::Float, |inputs| {
                let shift = added.map_or(Tensor::from(0f32), |added| {
                    added.to_kind(Kind::Float).unsqueeze(-1).unsqueeze(-1)
                });
                let (weight, bias) = (weight.to_kind(Kind::Float), bias.to_kind(Kind::Float));
                let y = (&inputs[0] + shift).group_norm(groups, Some(weight), Some(bias), 1e-5, false);
                if silu { y.silu() } else { y }
            });
            assert_near(&fused[..1], &exact[..1], "group norm");
            // A group of a few values has almost no gradient left: what remains is rounding.
            if height > 1 {
                assert_near(&fused[1..], &exact[1..], "group norm's gradient");
            }
        }
    }
}

#[test]
fn geglu_is_that_of_the_formula() {
    let x = random(&[3, 5, 40], 5) * 3.0;
    let fused = with_gradients(&[x.shallow_clone()], Kind::BFloat16, |inputs| geglu(&inputs[0]).unwrap());
    let exact = with_gradients(&[x], Kind::Float, |inputs| {
        let halves = inputs[0].chunk(2, -1);
        &halves[0] * halves[1].gelu("none")
    });
    assert_near(&fused, &exact, "geglu");
}

#[test]
fn linear_add_is_that_of_the_formula() {
    let (x, residual) = (random(&[2, 7, 24], 6), random(&[2, 7, 40], 7));
    let (weight, bias) = (random(&[40, 24], 8), random(&[40], 9));
    for bias in [None, Some(&bias)] {
        let inputs = [x.shallow_clone(), residual.shallow_clone()];
        let fused = with_gradients(&inputs, Kind::BFloat16, |inputs| {
            linear_add(&inputs[0], &weight, bias, &inputs[1]).unwrap()
        });
        let exact = with_gradients(&inputs, Kind::Float, |inputs| {
            let (weight, bias) = (weight.to_kind(Kind::Float), bias.map(|bias| bias.to_kind(Kind::Float)));
            inputs[0].linear(&weight, bias.as_ref()) + &inputs[1]
        });
        assert_near(&fused, &exact, "linear");
    }
}

#[test]
fn threads_and_kept_memory_do_not_change_a_bit() {
    install_allocator().unwrap();
    // Several megabytes, so that blocks are kept and used again.
    let x = random(&[2, 96, 128, 128], 10);
    let (weight, bias) = (random(&[96], 11), random(&[96], 12));
    let norm = GroupNormArguments { weight: &weight, bias: &bias, groups: 8, epsilon: 1e-5, silu: true };
    let bits = |threads: i32| -> Vec<u32> {
        set_threads(threads).unwrap();
        let all = with_gradients(&[x.shallow_clone()], Kind::BFloat16, |inputs| {
            group_norm(&inputs[0], None, norm).unwrap()
        });
        all.iter().flat_map(|tensor| to_vec(tensor).unwrap()).map(f32::to_bits).collect()
    };
    let first = bits(1);
    assert!(first == bits(2), "two threads");
    assert!(first == bits(3), "three threads");
    release_memory().unwrap();
    assert!(first == bits(1), "after a release");
}
