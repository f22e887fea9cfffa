//! The fused operations against the same formulas in fp32 on libtorch, values and gradients.

use tch::{Device, Kind, Tensor};

use super::*;
use crate::stable_diffusion::to_vec;

pub(super) fn random(shape: &[i64], seed: i64) -> Tensor {
    tch::manual_seed(seed);
    Tensor::f_randn(shape, (Kind::Float, Device::Cpu)).unwrap().to_kind(Kind::BFloat16)
}

fn relative_error(found: &Tensor, expected: &Tensor) -> f64 {
    let (found, expected) = (to_vec(found).unwrap(), to_vec(expected).unwrap());
    let norm = |values: Vec<f32>| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    norm(found.iter().zip(&expected).map(|(a, b)| a - b).collect()) / norm(expected)
}

/// The result of `operation` on `inputs` as leaves, and the gradients for a random gradient of the result.
pub(super) fn with_gradients(
    inputs: &[Tensor],
    kind: Kind,
    operation: impl Fn(&[Tensor]) -> Tensor,
) -> Vec<Tensor> {
    let leaves: Vec<Tensor> =
        inputs.iter().map(|input| input.detach().to_kind(kind).copy().set_requires_grad(true)).collect();
    let output = operation(&leaves);
    let weight = random(&output.size(), 99).to_kind(kind);
    let total = (&output * weight).to_kind(Kind::Float).sum(Kind::Float);
    let mut all = vec![output.detach()];
    all.extend(Tensor::f_run_backward(&[total], &leaves, false, false).unwrap());
    all
}

/// What norms and GEGLU are tested in: fp32, by our own kernels where there are any, and bf16 where the processor has it.
pub(super) fn kinds() -> Vec<Kind> {
    let _own = crate::runtime::skips_own_fp32();
    let kinds = [Kind::Float, Kind::BFloat16];
    kinds.into_iter().filter(|kind| *kind == Kind::Float || !crate::runtime::skips_bf16()).collect()
}

pub(super) fn assert_near(fused: &[Tensor], exact: &[Tensor], what: &str) {
    assert_near_in(Tensor::kind, fused, exact, what);
}

/// `rounded_to`: the type that a tensor's values were rounded to, where it is not the tensor's own.
pub(super) fn assert_near_in(
    rounded_to: impl Fn(&Tensor) -> Kind,
    fused: &[Tensor],
    exact: &[Tensor],
    what: &str,
) {
    assert_eq!(fused.len(), exact.len());
    for (index, (fused, exact)) in fused.iter().zip(exact).enumerate() {
        assert_eq!(fused.size(), exact.size(), "{what} {index}");
        let (kind, error) = (rounded_to(fused), relative_error(fused, exact));
        // One rounding to bf16 is 2^-9 at most, about 0.0017 in the mean square.
        let allowed = if kind == Kind::BFloat16 { 0.0025 } else { 4e-6 };
        assert!(error <= allowed, "{what} {index}, {kind:?}: {error:.2e}");
    }
}

/// Both packings of a linear layer's weights.
fn packed_both_ways(weight: &Tensor) -> (Tensor, Tensor) {
    (pack_linear(weight, false).unwrap(), pack_linear(weight, true).unwrap())
}

#[test]
fn packed_linear_is_that_of_the_formula() {
    if crate::runtime::skips_bf16() {
        return;
    }
    // Rows, features in and out: those of blocks, one less and more, and single ones.
    for (rows, inputs, outputs) in
        [(14, 24, 40), (1, 64, 64), (77, 31, 65), (200, 1, 3), (33, 80, 1), (150, 352, 96), (1, 64, 704)]
    {
        let (x, residual) = (random(&[2, rows, inputs], 6), random(&[2, rows, outputs], 7));
        let (weight, bias) = (random(&[outputs, inputs], 8), random(&[outputs], 9));
        let (forward, backward) = packed_both_ways(&weight);
        for (bias, added) in [(None, true), (Some(&bias), true), (None, false), (Some(&bias), false)] {
            let inputs = [x.shallow_clone(), residual.shallow_clone()];
            let inputs = if added { &inputs[..] } else { &inputs[..1] };
            let layer = PackedLinear { forward: &forward, backward: Some(&backward), bias };
            let packed = with_gradients(inputs, Kind::BFloat16, |inputs| {
                packed_linear(&inputs[0], layer, inputs.get(1)).unwrap()
            });
            let exact = with_gradients(inputs, Kind::Float, |inputs| {
                let (weight, bias) =
                    (weight.to_kind(Kind::Float), bias.map(|bias| bias.to_kind(Kind::Float)));
                let y = inputs[0].linear(&weight, bias.as_ref());
                inputs.get(1).map_or(y.shallow_clone(), |residual| y + residual)
            });
            assert_near(&packed, &exact, "linear");
        }
    }
}

#[test]
fn linear_is_that_of_the_formula_wherever_its_weights_lie() {
    for (rows, inputs, outputs) in [(14, 24, 40), (1, 64, 64), (77, 31, 65), (200, 1, 3), (77, 768, 96)] {
        let [x, weight, bias] = [&[2, rows, inputs][..], &[outputs, inputs], &[outputs]]
            .map(|shape| random(shape, 6).to_kind(Kind::Float));
        let exact = with_gradients(&[x.shallow_clone()], Kind::Double, |inputs| {
            inputs[0].linear(&weight.to_kind(Kind::Double), Some(&bias.to_kind(Kind::Double)))
        });
        let mut first: Option<Vec<Tensor>> = None;
        for floats_away in 0..16 {
            let elsewhere = Tensor::zeros([16 + outputs * inputs], (Kind::Float, Device::Cpu));
            let mut elsewhere = elsewhere.narrow(0, floats_away, outputs * inputs).view([outputs, inputs]);
            elsewhere.copy_(&weight);
            let own = with_gradients(&[x.shallow_clone()], Kind::Float, |inputs| {
                linear(&inputs[0], &elsewhere, Some(&bias), Products::Exact).unwrap()
            });
            for (own, exact) in own.iter().zip(&exact) {
                let error = relative_error(own, exact);
                // 1.1e-6 for the longest with AVX2, whose sums have fewer parts.
                assert!(error <= 2e-6, "{rows} x {inputs} x {outputs}: {error:.2e}");
            }
            assert!(first.as_ref().is_none_or(|first| *first == own), "{floats_away} floats away");
            first = Some(own);
        }
    }
}

#[test]
fn packed_weights_are_the_plain_ones_in_another_order() {
    if crate::runtime::skips_bf16() {
        return;
    }
    // Below, at and above the sides of a tile.
    for (outputs, inputs) in [(40, 24), (65, 31), (1, 7), (32, 64), (100, 33), (96, 352)] {
        let weight = random(&[outputs, inputs], 1);
        let (forward, backward) = packed_both_ways(&weight);
        // What becomes of single ones, each by itself.
        let dense = |packed: &Tensor, from: i64| {
            let ones = Tensor::eye(from, (Kind::BFloat16, Device::Cpu));
            let layer = PackedLinear { forward: packed, backward: None, bias: None };
            packed_linear(&ones, layer, None).unwrap()
        };
        assert!(dense(&forward, inputs).equal(&weight.tr()), "{outputs} x {inputs}");
        assert!(dense(&backward, outputs).equal(&weight), "{outputs} x {inputs}");
        for side in [1, 3] {
            let weight = random(&[outputs, inputs, side, side], 2);
            let geometry = ConvolutionGeometry { stride: 1, padding: side / 2, transposed: false };
            let pack = |channels, backward| {
                let packed = pack_convolution(&weight, &[1, channels, 9, 5], geometry, backward).unwrap();
                // One in the middle gives the kernel, turned; each channel by itself.
                let ones = Tensor::zeros([channels, channels, side, side], (Kind::BFloat16, Device::Cpu));
                let mut middle = ones.select(3, side / 2).select(2, side / 2);
                middle.copy_(&Tensor::eye(channels, (Kind::BFloat16, Device::Cpu)));
                let bias = Tensor::zeros([inputs + outputs - channels], (Kind::BFloat16, Device::Cpu));
                let (forward, bias) = (&packed, &bias);
                let arguments =
                    ConvolutionArguments { forward, backward: None, bias, residual: None, geometry };
                let x = channels_last(&ones).unwrap();
                packed_convolution(&x, arguments).unwrap().flip([2, 3]).transpose(0, 1)
            };
            assert!(pack(inputs, false).equal(&weight), "{outputs} x {inputs} x {side}");
            let turned = weight.flip([2, 3]).transpose(0, 1);
            assert!(pack(outputs, true).equal(&turned), "{outputs} x {inputs} x {side}");
        }
    }
}

/// The largest layers are left as they are. What differs is at most where sums of bf16 products begin, which on AMX the
/// order of the weights decides.
#[test]
fn linear_layers_are_the_same_packed_and_not() {
    if crate::runtime::skips_bf16() {
        return;
    }
    for (rows, inputs, outputs) in [(33, 1280, 10240), (7, 40, 24), (64, 65, 31)] {
        let (weight, bias) = (random(&[outputs, inputs], 3), random(&[outputs], 4));
        let (forward, backward) = packed_both_ways(&weight);
        let layer = PackedLinear { forward: &forward, backward: Some(&backward), bias: Some(&bias) };
        let x = random(&[1, rows, inputs], 5);
        let packed = with_gradients(&[x.shallow_clone()], Kind::BFloat16, |inputs| {
            packed_linear(&inputs[0], layer, None).unwrap()
        });
        let plain = with_gradients(&[x], Kind::BFloat16, |inputs| {
            linear(&inputs[0], &weight, Some(&bias), Products::Exact).unwrap()
        });
        for (packed, plain) in packed.iter().zip(&plain) {
            let [packed, plain] = [packed, plain].map(|tensor| tensor.to_kind(Kind::Double));
            let distance = ((&packed - &plain).norm() / plain.norm()).double_value(&[]);
            // A rounding of bf16, in the few values whose sums fall to its other side.
            assert!(distance < 5e-4, "{rows} x {inputs} x {outputs}: {distance:.2e}");
        }
    }
}

#[test]
fn threads_and_kept_memory_do_not_change_a_bit() {
    install_allocator().unwrap();
    // Several megabytes, so that blocks are kept and used again.
    let x = random(&[2, 96, 128, 128], 10);
    let (weight, bias) = (random(&[96], 11), random(&[96], 12));
    let norm = GroupNormArguments {
        weight: &weight,
        bias: &bias,
        ends: [None, None],
        groups: 8,
        epsilon: 1e-5,
        silu: true,
    };
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

/// Allowed processors of this process, or of one of its threads.
fn allowed(status: &str) -> Option<String> {
    let text = std::fs::read_to_string(status).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(|list| list.trim().to_owned())
}

fn threads_allowed(processors: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter(|task| allowed(&format!("{}/status", task.path().display())).as_deref() == Some(processors))
        .count()
}

#[test]
fn threads_stay_on_their_processors_and_no_bit_moves() {
    // A thread of its own: whoever is placed takes what it starts along.
    let placed = std::thread::spawn(|| {
        let before = allowed("/proc/thread-self/status").unwrap();
        let numbers: Vec<usize> = before.split([',', '-']).filter_map(|number| number.parse().ok()).collect();
        let (first, last) = (numbers[0], numbers[numbers.len() - 1]);
        if first == last {
            eprintln!("SKIPPED: one processor");
            return;
        }
        let x = random(&[2, 96, 64, 64], 10);
        let bits =
            || -> Vec<u32> { to_vec(&geglu(&x).unwrap()).unwrap().into_iter().map(f32::to_bits).collect() };
        set_threads(2).unwrap();
        let anywhere = bits();
        assert_eq!(threads_allowed(&first.to_string()), 0);
        // 1. The leader may run on both, as what it starts may; the other thread of its team on its own.
        place_threads(&[last as i32, first as i32]).unwrap();
        let (both, comma) = (format!("{first}-{last}"), format!("{first},{last}"));
        let leader = allowed("/proc/thread-self/status").unwrap();
        assert!(leader == both || leader == comma, "{leader}");
        assert_eq!(threads_allowed(&first.to_string()), 1);
        assert!(bits() == anywhere, "bits depend on places");
        // 2. More threads than places: all run where they did.
        set_threads(3).unwrap();
        settle_threads().unwrap();
        assert_eq!(
            (allowed("/proc/thread-self/status").unwrap(), threads_allowed(&first.to_string())),
            (before, 0)
        );
        // 3. And back.
        set_threads(2).unwrap();
        settle_threads().unwrap();
        assert_eq!(threads_allowed(&first.to_string()), 1);
        // 4. A processor that cannot be is an error, and nothing is tried again.
        assert!(place_threads(&[1 << 20]).is_err());
        settle_threads().unwrap();
    });
    placed.join().unwrap();
}

#[test]
fn blocks_hold_what_was_written_to_them() {
    install_allocator().unwrap();
    // A stream of places, sizes and choices that is the same in every run.
    let mut state = 1u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut live: Vec<(i64, Tensor)> = Vec::new();
    for number in 0..1500 {
        match next(100) {
            0 => release_memory().unwrap(),
            1..=50 if live.len() < 40 => {
                // Small and large blocks, and those that are malloc's.
                let bytes = [1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22][next(5)] + next(1 << 16);
                let block = Tensor::empty([bytes as i64 / 8], (Kind::Int64, Device::Cpu)).fill(number);
                live.push((number, block));
            }
            _ if !live.is_empty() => {
                let (number, block) = live.swap_remove(next(live.len()));
                assert!(
                    bool::try_from(block.eq(number).all()).unwrap(),
                    "block {number} of {:?}",
                    block.size()
                );
            }
            _ => {}
        }
    }
    assert!(live.iter().all(|(number, block)| bool::try_from(block.eq(*number).all()).unwrap()));
}

/// libtorch's message of a refusal.
pub(super) fn refusal(result: Result<Tensor>) -> String {
    result.expect_err("it was not refused").to_string()
}

#[test]
fn weights_that_want_a_gradient_are_refused() {
    if crate::runtime::skips_bf16() {
        return;
    }
    let wanting = |tensor: &Tensor| tensor.detach().copy().set_requires_grad(true);
    let refused = |result: Result<Tensor>, name: &str| {
        let text = refusal(result);
        assert!(text.contains("has no gradient for its") && text.contains(name), "{text}");
    };
    // 1. Packed products.
    let [x, residual, weight, bias] =
        [&[3i64, 8][..], &[3, 16], &[16, 8], &[16]].map(|shape| random(shape, 1));
    refused(pack_linear(&wanting(&weight), false), "weights");
    let (forward, backward) = packed_both_ways(&weight);
    let layer = PackedLinear { forward: &forward, backward: Some(&backward), bias: Some(&bias) };
    let (wanting_bias, wanting_residual) = (wanting(&bias), wanting(&residual));
    let wanting_a_gradient = PackedLinear { bias: Some(&wanting_bias), ..layer };
    refused(packed_linear(&x, wanting_a_gradient, Some(&residual)), "bias");
    let _ = packed_linear(&wanting(&x), layer, Some(&wanting_residual)).unwrap();
    let forward_only = PackedLinear { backward: None, ..layer };
    let _ = packed_linear(&x, forward_only, None).unwrap();
    let text = refusal(packed_linear(&wanting(&x), forward_only, None));
    assert!(text.contains("has no gradient for its input"), "{text}");
    // 2. Norms.
    for kind in [Kind::BFloat16, Kind::Float] {
        let x = random(&[2, 8, 3, 3], 2).to_kind(kind);
        let (weight, bias, added) = (random(&[8], 3), random(&[8], 4), random(&[2, 8], 5));
        let norm = |weight: &Tensor, bias: &Tensor, added: &Tensor| {
            let norm =
                GroupNormArguments { weight, bias, ends: [None, None], groups: 2, epsilon: 1e-5, silu: true };
            group_norm(&x, Some(added), norm)
        };
        refused(norm(&wanting(&weight), &bias, &added), "weight");
        refused(norm(&weight, &wanting(&bias), &added), "bias");
        refused(norm(&weight, &bias, &wanting(&added)), "added values");
    }
    // 3. Packed convolutions.
    let (x, weight, bias) = (random(&[1, 8, 4, 4], 6), random(&[16, 8, 3, 3], 7), random(&[16], 8));
    refused(pack_convolution(&wanting(&weight), &[1, 8, 4, 4], KEEPING, false), "weights");
    let forward = pack_convolution(&weight, &[1, 8, 4, 4], KEEPING, false).unwrap();
    let backward = pack_convolution(&weight, &[1, 16, 4, 4], KEEPING, true).unwrap();
    let residual = random(&[1, 16, 4, 4], 9);
    for residual in [None, Some(&residual)] {
        let (forward, backward, bias) = (&forward, Some(&backward), &wanting(&bias));
        let arguments = ConvolutionArguments { forward, backward, bias, residual, geometry: KEEPING };
        refused(packed_convolution(&x, arguments), "bias");
    }
    // Packed weights of the way forward alone have no way back.
    let arguments = ConvolutionArguments {
        forward: &forward,
        backward: None,
        bias: &bias,
        residual: None,
        geometry: KEEPING,
    };
    let _ = packed_convolution(&x, arguments).unwrap();
    let text = refusal(packed_convolution(&wanting(&x), arguments));
    assert!(text.contains("without backward weights"), "{text}");
}

/// Of 3x3, the size stays.
const KEEPING: ConvolutionGeometry = ConvolutionGeometry { stride: 1, padding: 1, transposed: false };

#[test]
fn shapes_that_do_not_fit_are_refused() {
    if crate::runtime::skips_bf16() {
        return;
    }
    let refused = |result: Result<Tensor>, word: &str| {
        let text = refusal(result);
        assert!(text.contains(word), "{text}");
    };
    // 1. Norms.
    for kind in [Kind::BFloat16, Kind::Float] {
        let norm = |x: &[i64], added: Option<&[i64]>, groups: i64, weights: [i64; 2]| {
            let [weight, bias] = weights.map(|count| random(&[count], 1).to_kind(Kind::Float));
            let added = added.map(|shape| random(shape, 2));
            let norm = GroupNormArguments {
                weight: &weight,
                bias: &bias,
                ends: [None, None],
                groups,
                epsilon: 1e-5,
                silu: false,
            };
            group_norm(&random(x, 3).to_kind(kind), added.as_ref(), norm)
        };
        let _ = norm(&[2, 8, 3, 3], Some(&[2, 8]), 4, [8, 8]).unwrap();
        for groups in [3, 0, -2, 16] {
            refused(norm(&[2, 8, 3, 3], None, groups, [8, 8]), "groups");
        }
        for weights in [[4, 8], [8, 16]] {
            refused(norm(&[2, 8, 3, 3], None, 4, weights), "as many weights and biases");
        }
        for added in [&[1i64, 8][..], &[2, 4], &[16], &[2, 8, 1, 1]] {
            refused(norm(&[2, 8, 3, 3], Some(added), 4, [8, 8]), "adds [batch, channels]");
        }
        refused(norm(&[8], None, 4, [8, 8]), "takes [batch, channels, ...]");
    }
    // 2. Products.
    refused(geglu(&random(&[2, 7], 4)), "GEGLU halves");
    let product = |x: &[i64], weight: &[i64], bias: i64, residual: &[i64]| {
        let (forward, backward) = packed_both_ways(&random(weight, 7));
        let bias = random(&[bias], 5);
        let layer = PackedLinear { forward: &forward, backward: Some(&backward), bias: Some(&bias) };
        packed_linear(&random(x, 6), layer, Some(&random(residual, 8)))
    };
    let _ = product(&[2, 3, 8], &[16, 8], 16, &[2, 3, 16]).unwrap();
    refused(product(&[2, 3, 4], &[16, 8], 16, &[2, 3, 16]), "takes bf16 [.., 8]");
    refused(product(&[2, 3, 8], &[16, 8], 8, &[2, 3, 16]), "cannot have a bias");
    refused(product(&[2, 3, 8], &[16, 8], 16, &[2, 2, 16]), "cannot add");
    // 3. Packed convolutions.
    let weight = random(&[16, 8, 3, 3], 9);
    let forward = pack_convolution(&weight, &[1, 8, 4, 4], KEEPING, false).unwrap();
    let backward = pack_convolution(&weight, &[1, 16, 4, 4], KEEPING, true).unwrap();
    let (x, bias) = (random(&[1, 8, 4, 4], 10), random(&[16], 11));
    let fitting = ConvolutionArguments {
        forward: &forward,
        backward: Some(&backward),
        bias: &bias,
        residual: None,
        geometry: KEEPING,
    };
    let _ = packed_convolution(&x, fitting).unwrap();
    refused(packed_convolution(&random(&[1, 4, 4, 4], 12), fitting), "takes [batch, 8");
    let turned = ConvolutionArguments { backward: Some(&forward), ..fitting };
    refused(packed_convolution(&x, turned), "backward weights");
    let (short, residual) = (random(&[8], 13), random(&[1, 16, 4, 3], 14));
    refused(packed_convolution(&x, ConvolutionArguments { bias: &short, ..fitting }), "a bias of 16");
    let plain = ConvolutionArguments { forward: &weight, backward: Some(&weight), ..fitting };
    refused(packed_convolution(&x, plain), "takes packed weights");
    let adding = ConvolutionArguments { residual: Some(&residual), ..fitting };
    refused(packed_convolution(&x, adding), "cannot add");
    let tight = ConvolutionGeometry { stride: 2, padding: 0, transposed: false };
    let narrow = ConvolutionArguments { geometry: tight, ..fitting };
    refused(packed_convolution(&random(&[1, 8, 4, 2], 15), narrow), "does not fit into");
    let wide = ConvolutionGeometry { stride: 3, padding: 1, transposed: false };
    refused(pack_convolution(&weight, &[1, 8, 4, 4], wide, false), "of stride 3");
}

/// Rows, inputs and outputs that fill neither tiles nor strips nor stretches, and that do; more rows than have sums at once.
#[test]
fn linear_layers_in_fp32_are_that_of_the_formula() {
    for (rows, inputs, outputs) in
        [(77, 768, 1104), (1, 1, 1), (33, 65, 31), (170, 200, 515), (1600, 336, 80)]
    {
        let draw = |shape: &[i64], seed| {
            tch::manual_seed(seed);
            Tensor::randn(shape, (Kind::Float, Device::Cpu))
        };
        let (weight, bias, x) =
            (draw(&[outputs, inputs], 3), draw(&[outputs], 4), draw(&[1, rows, inputs], 5));
        let run = |products| {
            with_gradients(&[x.shallow_clone()], Kind::Float, |leaves| {
                linear(&leaves[0], &weight, Some(&bias), products).unwrap()
            })
        };
        let exact = with_gradients(&[x.to_kind(Kind::Double)], Kind::Double, |leaves| {
            leaves[0].matmul(&weight.to_kind(Kind::Double).tr()) + bias.to_kind(Kind::Double)
        });
        for (products, allowed) in [(Products::Exact, 1e-6), (Products::Halves, 1e-5)] {
            for (own, exact) in run(products).iter().zip(&exact) {
                let distance = ((own.to_kind(Kind::Double) - exact).norm() / exact.norm()).double_value(&[]);
                assert!(distance < allowed, "{rows} x {inputs} x {outputs}, {products:?}: {distance:.2e}");
            }
        }
        set_threads(1).unwrap();
        let one = run(Products::Halves);
        set_threads(2).unwrap();
        assert_eq!(one, run(Products::Halves), "{rows} x {inputs} x {outputs}");
    }
}
