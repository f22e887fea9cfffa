//! Our own kernels in fp32 beside libtorch's, in turns: which of them `csrc/float_layers.h` should use with AVX-512.

use std::time::Instant;

use ringtune_engine::InstructionSet;
use tch::{Device, Kind, Tensor};

use crate::attention::scaled_dot_product;
use crate::convolution::{Conv2d, Conv2dConfig};
use crate::error::Result;
use crate::layers::Products;
use crate::native::{self, GroupNormArguments};

/// What one thing takes, forward and backward.
#[derive(Debug, Clone)]
pub struct FloatRate {
    /// Of `csrc/float_layers.h`.
    pub family: &'static str,
    /// What was computed.
    pub what: String,
    /// Seconds of ours, and of libtorch's: the medians of all rounds.
    pub seconds: [f64; 2],
}

/// By ours, or by libtorch.
type Forward = Box<dyn Fn(&Tensor, bool) -> Result<Tensor>>;

struct Case {
    family: &'static str,
    what: String,
    input: Tensor,
    forward: Forward,
}

/// Times layers of Stable Diffusion 1.5 at 512 pixels with the threads of the calling thread: in each round ours, at the set
/// that this process is limited to, and then libtorch's. Nothing else computes meanwhile.
pub fn float_rates(rounds: usize) -> Result<Vec<FloatRate>> {
    cases()?.into_iter().map(|case| rate(case, rounds)).collect()
}

fn rate(case: Case, rounds: usize) -> Result<FloatRate> {
    let mut all = [Vec::new(), Vec::new()];
    // The first round counts for nothing.
    for round in 0..=rounds {
        for (ours, seconds) in [true, false].into_iter().zip(&mut all) {
            let taken = with_kernels(ours, || timed(&case, ours))?;
            seconds.extend((round > 0).then_some(taken));
        }
    }
    let seconds = all.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN)
    });
    Ok(FloatRate { family: case.family, what: case.what, seconds })
}

/// libtorch's own set stays what it is.
fn with_kernels<T>(ours: bool, work: impl FnOnce() -> Result<T>) -> Result<T> {
    native::limit_instructions(if ours { InstructionSet::limit() } else { InstructionSet::Portable });
    native::use_floats_with_avx512(ours);
    let result = work();
    native::limit_instructions(InstructionSet::limit());
    native::use_floats_with_avx512(false);
    result
}

fn timed(case: &Case, ours: bool) -> Result<f64> {
    let input = case.input.f_detach()?.f_set_requires_grad(true)?;
    let started = Instant::now();
    let total = (case.forward)(&input, ours)?.f_sum(Kind::Float)?;
    Tensor::f_run_backward(&[total], &[&input], false, false)?;
    Ok(started.elapsed().as_secs_f64())
}

fn drawn(shape: &[i64]) -> Result<Tensor> {
    Ok(Tensor::f_randn(shape, (Kind::Float, Device::Cpu))?)
}

fn image(channels: i64, side: i64) -> Result<Tensor> {
    native::channels_last(&drawn(&[1, channels, side, side])?)
}

fn cases() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for [rows, inputs, outputs] in [[4096, 320, 320], [1024, 640, 5120], [256, 1280, 1280], [77, 768, 320]] {
        let (weight, bias) = (drawn(&[outputs, inputs])?, drawn(&[outputs])?);
        cases.push(Case {
            family: "Products",
            what: format!("{rows} x {inputs} -> {outputs}"),
            input: drawn(&[rows, inputs])?,
            forward: Box::new(move |x, _| native::linear(x, &weight, Some(&bias), Products::Exact)),
        });
    }
    for [channels, side] in [[320, 64], [640, 32], [1280, 16], [1280, 8]] {
        let (weight, bias) = (drawn(&[channels, channels, 3, 3])?, drawn(&[channels])?);
        let config = Conv2dConfig::same_3x3(channels, channels);
        // Their weights lie in different orders.
        let layer = |ours| with_kernels(ours, || Conv2d::plain(&weight, bias.shallow_clone(), config));
        let (own, other) = (layer(true)?, layer(false)?);
        cases.push(Case {
            family: "Convolutions",
            what: format!("{channels} at {side} x {side}"),
            input: image(channels, side)?,
            forward: Box::new(move |x, ours| if ours { own.forward(x) } else { other.forward(x) }),
        });
    }
    for [queries, keys, width] in [[4096, 4096, 40], [4096, 77, 40], [1024, 1024, 80], [256, 256, 160]] {
        let key = drawn(&[1, keys, 8, width])?;
        cases.push(Case {
            family: "Attention",
            what: format!("{queries} x {keys}, 8 heads of {width}"),
            input: drawn(&[1, queries, 8, width])?,
            forward: Box::new(move |query, _| scaled_dot_product(query, &key, &key)),
        });
    }
    let (weight, bias) = (drawn(&[320])?, drawn(&[320])?);
    let (own_weight, own_bias) = (weight.shallow_clone(), bias.shallow_clone());
    let mut sweep = |what: &str, input, forward: Forward| {
        cases.push(Case { family: "Sweeps", what: what.to_owned(), input, forward });
    };
    sweep(
        "group norm and SiLU",
        image(320, 64)?,
        Box::new(move |x, _| {
            let (weight, bias) = (&weight, &bias);
            native::group_norm(
                x,
                None,
                GroupNormArguments {
                    weight,
                    bias,
                    ends: [None, None],
                    groups: 32,
                    epsilon: 1e-5,
                    silu: true,
                },
            )
        }),
    );
    sweep(
        "layer norm",
        drawn(&[4096, 320])?,
        Box::new(move |x, _| {
            native::layer_norm(x, [&own_weight, &own_bias], [None, None], 1e-5).map(|[y, _]| y)
        }),
    );
    sweep("GEGLU", drawn(&[4096, 2560])?, Box::new(|x, _| native::geglu(x)));
    Ok(cases)
}
