//! Causal attention on our tiles beside libtorch's own in fp32.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tch::{Device, Kind, Tensor};

use super::native::{causal_attention, causal_attention_backward};
use crate::Runtime;
use crate::attention::AttentionKernel;
use crate::stable_diffusion::to_vec;

/// Batch, tokens, heads, width: less than a block, whole blocks of queries and keys, and what is neither.
const SIZES: [[i64; 4]; 9] = [
    [1, 1, 1, 64],
    [2, 19, 5, 7],
    [1, 64, 2, 16],
    [1, 96, 1, 64],
    [2, 97, 3, 64],
    [1, 192, 2, 40],
    [1, 193, 2, 64],
    [2, 600, 3, 64],
    [1, 1024, 12, 64],
];

fn error(ours: &Tensor, exact: &Tensor) -> f64 {
    let norm = |tensor: &Tensor| {
        to_vec(tensor).unwrap().iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
    };
    norm(&(ours.to_kind(Kind::Float) - exact)) / norm(exact)
}

/// Output and gradient of bf16 values on one kernel, and in fp32.
fn run(together: &Tensor, gradient: &Tensor, kernel: AttentionKernel) -> [Tensor; 2] {
    let [output, kept] = causal_attention(together, kernel).unwrap();
    let back = causal_attention_backward(together, [&output, &kept], gradient, kernel).unwrap();
    [output, back]
}

#[test]
fn tiles_are_as_near_to_fp32_as_bf16_is() {
    let kernel = AttentionKernel::best();
    if kernel == AttentionKernel::Libtorch {
        return;
    }
    Runtime::initialise(2).unwrap();
    for [batch, tokens, heads, width] in SIZES {
        tch::manual_seed(tokens);
        let together = Tensor::randn([batch, tokens, 3, heads, width], (Kind::Float, Device::Cpu));
        let gradient = Tensor::randn([batch, tokens, heads, width], (Kind::Float, Device::Cpu));
        let [together, gradient] = [together, gradient].map(|tensor| tensor.to_kind(Kind::BFloat16));
        let [output, back] = run(&together, &gradient, kernel);
        let exact =
            run(&together.to_kind(Kind::Float), &gradient.to_kind(Kind::Float), AttentionKernel::Libtorch);
        let others = run(&together, &gradient, AttentionKernel::Libtorch);
        for (what, ours, exact, other) in
            [("output", &output, &exact[0], &others[0]), ("gradient", &back, &exact[1], &others[1])]
        {
            // With one token the gradient of queries and keys is zero but for rounding.
            let (ours, other) = (error(ours, exact), error(other, exact));
            let most = (1.3 * other).max(4e-3);
            assert!(
                ours <= most,
                "{batch}x{tokens}, {heads}x{width}, {what}: {ours:.4}, libtorch {other:.4}"
            );
        }
    }
}

#[test]
fn the_threads_move_no_bit() {
    let together = Tensor::randn([2, 333, 3, 5, 48], (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
    let gradient = together.select(2, 0).contiguous();
    let bits = |threads: usize| {
        Runtime::initialise(threads).unwrap();
        run(&together, &gradient, AttentionKernel::best()).map(|tensor| to_vec(&tensor).unwrap())
    };
    assert!(bits(1) == bits(2) && bits(2) == bits(3));
}

#[test]
fn what_comes_later_changes_nothing() {
    Runtime::initialise(2).unwrap();
    let kernel = AttentionKernel::best();
    let together = Tensor::randn([1, 300, 3, 2, 64], (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
    let [output, _] = causal_attention(&together, kernel).unwrap();
    let changed = Tensor::cat(&[together.narrow(1, 0, 200), together.narrow(1, 200, 100) * 3.0], 1);
    let [other, _] = causal_attention(&changed.contiguous(), kernel).unwrap();
    assert!(output.narrow(1, 0, 200).equal(&other.narrow(1, 0, 200)));
    assert!(!output.equal(&other));
}
