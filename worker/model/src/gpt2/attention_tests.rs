//! Causal attention on our tiles beside libtorch's own in fp32.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ringtune_engine::Dropout;
use tch::{Device, Kind, Tensor};

use super::native::{causal_attention, causal_attention_backward};
use crate::Runtime;
use crate::attention::AttentionKernel;
use crate::dropout::{self, Mask, Masks, Site};
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

/// Output and gradient on one kernel.
fn run(together: &Tensor, gradient: &Tensor, kernel: AttentionKernel) -> [Tensor; 2] {
    run_dropped(together, gradient, None, kernel)
}

fn run_dropped(
    together: &Tensor,
    gradient: &Tensor,
    mask: Option<&Mask>,
    kernel: AttentionKernel,
) -> [Tensor; 2] {
    let [output, kept] = causal_attention(together, mask, kernel).unwrap();
    let back = causal_attention_backward(together, [&output, &kept], gradient, mask, kernel).unwrap();
    [output, back]
}

fn mask_of(samples: i64) -> Mask {
    let dropout = Dropout { rate: 0.25, seed: 3, step: 9, first_sample: 2 };
    Masks::new(Some(dropout), samples as usize).unwrap().unwrap().of(Site::Attention, 1)
}

/// The same as a formula, by autograd in double precision.
fn formula(together: &Tensor, gradient: &Tensor, mask: &Mask) -> [Tensor; 2] {
    let together = together.to_kind(Kind::Double).set_requires_grad(true);
    let [batch, tokens, _, heads, width] = together.size()[..] else { panic!("{:?}", together.size()) };
    let part = |number: i64| together.select(2, number).transpose(1, 2);
    // Rows are queries of a head, and their numbers keys.
    let mut factors = Tensor::ones([batch * heads * tokens, tokens], (Kind::Float, Device::Cpu));
    dropout::drop(&mut factors, mask).unwrap();
    let factors = factors.view([batch, heads, tokens, tokens]).to_kind(Kind::Double);
    let hidden = Tensor::ones([tokens, tokens], (Kind::Bool, Device::Cpu)).triu(1);
    let scores = part(0).matmul(&part(1).transpose(2, 3)) / (width as f64).sqrt();
    let kept = scores.masked_fill(&hidden, f64::NEG_INFINITY).softmax(-1, Kind::Double) * factors;
    let output = kept.matmul(&part(2)).transpose(1, 2).contiguous();
    (&output * gradient.to_kind(Kind::Double)).sum(Kind::Double).backward();
    [output.detach().to_kind(Kind::Float), together.grad().to_kind(Kind::Float)]
}

#[test]
fn dropped_probabilities_are_those_of_the_formula_forward_and_back() {
    Runtime::initialise(2).unwrap();
    let best = AttentionKernel::best();
    for [batch, tokens, heads, width] in SIZES.into_iter().filter(|size| size[1] <= 600) {
        tch::manual_seed(tokens);
        let together = Tensor::randn([batch, tokens, 3, heads, width], (Kind::Float, Device::Cpu));
        let gradient = Tensor::randn([batch, tokens, heads, width], (Kind::Float, Device::Cpu));
        let low = [&together, &gradient].map(|tensor| tensor.to_kind(Kind::BFloat16));
        let mask = mask_of(batch);
        let exact = formula(&together, &gradient, &mask);
        let ours = run_dropped(&together, &gradient, Some(&mask), best);
        // What bf16 loses without dropout, which the test above has beside libtorch's own.
        let [rounded, same] = [&low[0], &low[1]].map(|tensor| tensor.to_kind(Kind::Float));
        let of_low = formula(&rounded, &same, &mask);
        let ours_low = run_dropped(&low[0], &low[1], Some(&mask), best);
        for (what, number) in [("output", 0), ("gradient", 1)] {
            let size = format!("{batch}x{tokens}, {heads}x{width}, {what}");
            let far = error(&ours[number], &exact[number]);
            assert!(far < 1e-6, "{size}: {far:.2e} in fp32");
            let far = error(&ours_low[number], &of_low[number]);
            assert!(far < 6e-3, "{size}: {far:.2e} in bf16");
        }
    }
}

#[test]
fn tiles_are_as_near_to_fp32_as_bf16_is() {
    let kernel = AttentionKernel::best();
    if matches!(kernel, AttentionKernel::Libtorch | AttentionKernel::Floats) {
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
    // Of libtorch's own kernels nobody promises that: MKL's products of bf16 with AVX2 have other bits with other threads.
    if !matches!(AttentionKernel::best(), AttentionKernel::Avx512 | AttentionKernel::Amx) {
        return;
    }
    let together = Tensor::randn([2, 333, 3, 5, 48], (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
    let gradient = together.select(2, 0).contiguous();
    let mask = mask_of(2);
    for mask in [None, Some(&mask)] {
        let bits = |threads: usize| {
            Runtime::initialise(threads).unwrap();
            let made = run_dropped(&together, &gradient, mask, AttentionKernel::best());
            made.map(|tensor| to_vec(&tensor).unwrap())
        };
        assert!(bits(1) == bits(2) && bits(2) == bits(3));
    }
}

#[test]
fn what_comes_later_changes_nothing() {
    Runtime::initialise(2).unwrap();
    let kernel = AttentionKernel::best();
    let together = Tensor::randn([1, 300, 3, 2, 64], (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
    let [output, _] = causal_attention(&together, None, kernel).unwrap();
    let changed = Tensor::cat(&[together.narrow(1, 0, 200), together.narrow(1, 200, 100) * 3.0], 1);
    let [other, _] = causal_attention(&changed.contiguous(), None, kernel).unwrap();
    assert!(output.narrow(1, 0, 200).equal(&other.narrow(1, 0, 200)));
    assert!(!output.equal(&other));
}
