//! The norms against the same formulas on libtorch, and their activations' every input.

use tch::{Device, Kind, Tensor};

/// No handles: nothing is trained.
const FROZEN: [Option<&Tensor>; 2] = [None, None];

/// A norm whose scale and shift are frozen.
fn frozen<'a>([weight, bias]: [&'a Tensor; 2], groups: i64, silu: bool) -> GroupNormArguments<'a> {
    GroupNormArguments { weight, bias, ends: FROZEN, groups, epsilon: 1e-5, silu }
}

use super::tests::{assert_near, assert_near_in, kinds, random, refusal, with_gradients};
use super::*;
use crate::stable_diffusion::to_vec;

fn side_by_side(tensors: &[Tensor], dimension: i64) -> Tensor {
    Tensor::cat(tensors, dimension)
}

fn floats(tensors: [&Tensor; 2]) -> [Tensor; 2] {
    tensors.map(|tensor| tensor.to_kind(Kind::Float))
}

fn doubles(tensors: [&Tensor; 2]) -> [Tensor; 2] {
    tensors.map(|tensor| tensor.to_kind(Kind::Double))
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
            let norm = frozen([&weight, &bias], groups, silu);
            let exact = with_gradients(&[x.shallow_clone()], Kind::Double, |inputs| {
                let shift = added.map_or(Tensor::from(0f64), |added| {
                    added.to_kind(Kind::Double).unsqueeze(-1).unsqueeze(-1)
                });
                let [weight, bias] = doubles([&weight, &bias]);
                let y = (&inputs[0] + shift).group_norm(groups, Some(weight), Some(bias), 1e-5, false);
                if silu { y.silu() } else { y }
            });
            for kind in kinds() {
                let [weight, bias] = [&weight, &bias].map(|tensor| tensor.to_kind(kind));
                let norm = GroupNormArguments { weight: &weight, bias: &bias, ..norm };
                let fused = with_gradients(&[x.shallow_clone()], kind, |inputs| {
                    group_norm(&inputs[0], added, norm).unwrap()
                });
                assert_near(&fused[..1], &exact[..1], "group norm");
                // A group of a few values has almost no gradient left: what remains is rounding.
                if height > 1 {
                    assert_near(&fused[1..], &exact[1..], "group norm's gradient");
                }
            }
        }
    }
}

/// The squares' sum and the mean's square are large there, and their difference is small: libtorch's own, channels last, is off by 3.3e-5
/// and 1.5e-3.
#[test]
fn a_group_norm_far_from_zero_is_that_of_the_formula_in_fp32() {
    for (shape, offset, allowed) in [([1, 32, 8, 8], 30.0, 1e-5), ([2, 64, 33, 31], 100.0, 5e-5)] {
        let x = random(&shape, 5).to_kind(Kind::Float) + offset;
        let weight = random(&[shape[1]], 6).to_kind(Kind::Float);
        let norm = frozen([&weight, &weight], 8, false);
        let y = group_norm(&x, None, norm).unwrap();
        let [x, weight] = doubles([&x, &weight]);
        let exact = x.group_norm(8, Some(&weight), Some(&weight), 1e-5, false);
        let distance = (y - &exact).norm() / exact.norm();
        assert!(distance.double_value(&[]) < allowed, "{offset}: {distance}");
    }
}

#[test]
fn geglu_is_that_of_the_formula() {
    let x = random(&[3, 5, 40], 5) * 3.0;
    let exact = with_gradients(&[x.shallow_clone()], Kind::Double, |inputs| {
        let halves = inputs[0].chunk(2, -1);
        &halves[0] * halves[1].gelu("none")
    });
    for kind in kinds() {
        let fused = with_gradients(&[x.shallow_clone()], kind, |inputs| geglu(&inputs[0]).unwrap());
        assert_near(&fused, &exact, "geglu");
    }
}

#[test]
fn layer_norm_is_that_of_the_formula() {
    // Widths that fill no vector, and one that fills several; one row; more rows than are one task; far from zero.
    for (shape, offset) in
        [(vec![3, 5, 40], 0.0), (vec![1, 337], 2.0), (vec![2, 65, 320], 3.0), (vec![3, 7, 33], 0.0)]
    {
        let width = shape[shape.len() - 1];
        let x = random(&shape, 21) + offset;
        let (weight, bias) = (random(&[width], 22), random(&[width], 23));
        for goes_on in [false, true] {
            let together = |y: Tensor, x: Tensor| if goes_on { side_by_side(&[y, x], -1) } else { y };
            let exact = with_gradients(&[x.shallow_clone()], Kind::Double, |inputs| {
                let [weight, bias] = doubles([&weight, &bias]);
                let y = inputs[0].layer_norm([width], Some(&weight), Some(&bias), 1e-5, false);
                together(y, inputs[0].shallow_clone())
            });
            for kind in kinds() {
                let [weight, bias] = [&weight, &bias].map(|tensor| tensor.to_kind(kind));
                let fused = with_gradients(&[x.shallow_clone()], kind, |inputs| {
                    let [y, x] = layer_norm(&inputs[0], [&weight, &bias], FROZEN, 1e-5).unwrap();
                    together(y, x)
                });
                assert_near(&fused, &exact, "layer norm");
            }
        }
    }
}

#[test]
fn a_layer_norm_of_one_value_is_its_shift() {
    let x = random(&[3, 4, 1], 24);
    let (weight, bias) = (random(&[1], 25), random(&[1], 26));
    let all = with_gradients(&[x], Kind::BFloat16, |inputs| {
        let [y, _] = layer_norm(&inputs[0], [&weight, &bias], FROZEN, 1e-5).unwrap();
        y
    });
    assert!(to_vec(&all[0]).unwrap().iter().all(|value| *value == to_vec(&bias).unwrap()[0]));
    // 0 but for rounding: a deviation of 0 and the epsilon make a factor of 316.
    assert!(to_vec(&all[1]).unwrap().iter().all(|value| value.abs() < 1e-3));
}

#[test]
fn a_group_norm_of_two_is_that_of_both_together() {
    // Groups that have channels of both; vectors that no part fills; one channel each; odd sides and batches; pictures of one line, one
    // column and one place.
    for (batch, parts, groups, height, width) in [
        (3, [5, 19], 3, 7, 9),
        (1, [64, 32], 32, 16, 16),
        (2, [1, 1], 1, 3, 5),
        (1, [40, 17], 19, 1, 67),
        (3, [40, 24], 8, 1, 7),
        (3, [40, 24], 8, 7, 1),
        (3, [40, 24], 8, 1, 1),
    ] {
        let [x, skip] = [31, 32].map(|seed| random(&[batch, parts[seed as usize - 31], height, width], seed));
        let skip = skip + 1.0;
        let channels = parts[0] + parts[1];
        let (weight, bias) = (random(&[channels], 33), random(&[channels], 34));
        for (silu, goes_on) in [(true, true), (true, false), (false, true)] {
            let norm = frozen([&weight, &bias], groups, silu);
            let inputs = [x.shallow_clone(), skip.shallow_clone()];
            let exact = with_gradients(&inputs, Kind::Double, |inputs| {
                let [weight, bias] = doubles([&weight, &bias]);
                let both = Tensor::cat(inputs, 1);
                let y = both.group_norm(groups, Some(weight), Some(bias), 1e-5, false);
                let y = if silu { y.silu() } else { y };
                if goes_on { side_by_side(&[both, y], 1) } else { y }
            });
            for kind in kinds() {
                let [weight, bias] = [&weight, &bias].map(|tensor| tensor.to_kind(kind));
                let norm = GroupNormArguments { weight: &weight, bias: &bias, ..norm };
                let fused = with_gradients(&inputs, kind, |inputs| {
                    let [y, x, skip] = group_norm_of_two(&inputs[0], &inputs[1], norm).unwrap();
                    // Put together first, as a residual block's shortcut does.
                    if goes_on { side_by_side(&[side_by_side(&[x, skip], 1), y], 1) } else { y }
                });
                assert_near(&fused, &exact, "group norm of two");
            }
        }
    }
}

/// The gradient of what is gone on with comes as libtorch's own operators make it: of pictures of one place they say other strides.
#[test]
fn what_is_gone_on_with_may_be_multiplied_place_by_place() {
    for (height, width) in [(1, 1), (1, 2), (2, 1), (3, 2)] {
        let shape = [3, 64, height, width];
        // Signs alone, which round nothing.
        let (x, [of_result, of_input]) =
            (random(&shape, 111), [112, 113].map(|seed| random(&shape, seed).sign()));
        let (weight, bias) = (random(&[64], 114), random(&[64], 115));
        let norm = frozen([&weight, &bias], 8, false);
        let exact = with_gradients(std::slice::from_ref(&x), Kind::Double, |inputs| {
            let [weight, bias] = doubles([&weight, &bias]);
            let y = inputs[0].group_norm(8, Some(weight), Some(bias), 1e-5, false);
            let [of_result, of_input] = doubles([&of_result, &of_input]);
            y * of_result + &inputs[0] * of_input
        });
        for kind in kinds() {
            let [weight, bias] = [&weight, &bias].map(|tensor| tensor.to_kind(kind));
            let norm = GroupNormArguments { weight: &weight, bias: &bias, ..norm };
            let fused = with_gradients(std::slice::from_ref(&x), kind, |inputs| {
                let [y, x] = group_norm_keeping(&inputs[0], None, norm).unwrap();
                let terms = [(y, &of_result), (x, &of_input)].map(|(term, sign)| term * sign.to_kind(kind));
                let [y, x] = floats([&terms[0], &terms[1]]);
                // Added in fp32, so that in bf16 each term is rounded once.
                y + x
            });
            assert_near_in(|_| kind, &fused, &exact, "group norm of three pictures");
        }
    }
}

#[test]
fn what_is_gone_on_with_lies_as_it_lay() {
    // With one picture libtorch's own views have other strides, and what follows copies them to another order.
    let [x, skip] = [35, 36].map(|seed| {
        let x = channels_last(&random(&[1, 8, 4, 5], seed)).unwrap();
        x.detach().set_requires_grad(true)
    });
    let [weight, bias] = floats([&random(&[16], 37), &random(&[16], 38)]);
    let norm = frozen([&weight, &bias], 4, true);
    let [y, kept, kept_skip] = group_norm_of_two(&x, &skip, norm).unwrap();
    assert_eq!(kept.stride(), x.stride());
    assert_eq!(kept_skip.stride(), x.stride());
    assert!(kept.requires_grad() && kept_skip.requires_grad());
    let both = Tensor::cat(&[kept, kept_skip], 1);
    assert_eq!(both.stride(), y.stride());
}

#[test]
fn a_skip_without_a_gradient_gets_none() {
    for kind in [Kind::BFloat16, Kind::Float] {
        let [x, skip] = [41, 42].map(|seed| random(&[2, 8, 4, 4], seed).to_kind(kind));
        let [weight, bias] = floats([&random(&[16], 43), &random(&[16], 44)]);
        let norm = frozen([&weight, &bias], 4, true);
        let (weight_of_x, leaf) = (random(&[2, 8, 4, 4], 45), x.copy().set_requires_grad(true));
        let gradient = |skip: &Tensor| {
            let [y, x, skip] = group_norm_of_two(&leaf, skip, norm).unwrap();
            let asked = skip.requires_grad();
            let total =
                (y.square().sum(Kind::Float) + (x * &weight_of_x).sum(Kind::Float)).to_kind(Kind::Float);
            let gradient = &Tensor::run_backward(&[total], &[&leaf], false, false)[0];
            (asked, to_vec(gradient).unwrap())
        };
        let (asked, without) = gradient(&skip);
        assert!(!asked);
        let (asked, with) = gradient(&skip.copy().set_requires_grad(true));
        assert!(asked);
        assert_eq!(without, with, "{kind:?}");
    }
}

/// A directional derivative of `loss` at `x`, by differences, along the unit vector of `direction`.
fn derivative(loss: impl Fn(&Tensor) -> f64, x: &Tensor, direction: &Tensor) -> f64 {
    let step = 1e-4 * direction / direction.norm();
    (loss(&(x + &step)) - loss(&(x - &step))) / 2e-4
}

#[test]
fn gradients_are_those_of_small_steps() {
    let double = |tensor: &Tensor| tensor.to_kind(Kind::Double);
    // y of rows that lie along the last dimension.
    let normal = |rows: &Tensor, weight: &Tensor, bias: &Tensor| {
        let centred = rows - rows.mean_dim(-1, true, Kind::Double);
        let deviation = (centred.square().mean_dim(-1, true, Kind::Double) + 1e-5).sqrt();
        centred / deviation * double(weight) + double(bias)
    };
    // 1. Layer norm, with its input gone on with.
    let (x, weight, bias) = (random(&[3, 5, 24], 51), random(&[24], 52), random(&[24], 53));
    let weights = [random(&[3, 5, 24], 54), random(&[3, 5, 24], 55)];
    let loss = |x: &Tensor| {
        let parts = [normal(x, &weight, &bias), x.shallow_clone()];
        parts
            .iter()
            .zip(&weights)
            .map(|(part, weight)| (part * double(weight)).sum(Kind::Double))
            .sum::<Tensor>()
    };
    let leaf = x.copy().set_requires_grad(true);
    let [y, kept] = layer_norm(&leaf, [&weight, &bias], FROZEN, 1e-5).unwrap();
    let total = (y * &weights[0]).sum(Kind::Float) + (kept * &weights[1]).sum(Kind::Float);
    let gradient = double(&Tensor::run_backward(&[total], &[&leaf], false, false)[0]);
    let found = derivative(|x| loss(x).double_value(&[]), &double(&x), &gradient);
    let length = gradient.norm().double_value(&[]);
    assert!((found / length - 1.0).abs() < 1e-3, "{found} {length}");
    // 2. Group norm of two: 2 pictures, 4 groups of 6 channels each, of which the second has channels of both.
    let [x, skip] = [56, 57].map(|seed| random(&[2, if seed == 56 { 9 } else { 15 }, 3, 3], seed));
    let weights = random(&[2, 24, 3, 3], 58);
    let loss = |both: &Tensor| {
        let one = Tensor::ones([54], (Kind::Double, Device::Cpu));
        let y = normal(&both.reshape([2, 4, 54]), &one, &(&one * 0.0)).reshape([2, 24, 3, 3]);
        let by_channel = |tensor: &Tensor| double(tensor).reshape([1, 24, 1, 1]);
        ((y * by_channel(&weight) + by_channel(&bias)).silu() * double(&weights)).sum(Kind::Double)
    };
    let norm = frozen([&weight, &bias], 4, true);
    let leaves = [&x, &skip].map(|tensor| tensor.copy().set_requires_grad(true));
    let [y, _, _] = group_norm_of_two(&leaves[0], &leaves[1], norm).unwrap();
    let total = (y * &weights).sum(Kind::Float);
    let gradients = Tensor::run_backward(&[total], &leaves, false, false);
    let gradient = double(&Tensor::cat(&gradients, 1));
    let found =
        derivative(|both| loss(both).double_value(&[]), &double(&Tensor::cat(&[x, skip], 1)), &gradient);
    let length = gradient.norm().double_value(&[]);
    assert!((found / length - 1.0).abs() < 1e-3, "{found} {length}");
}

#[test]
fn threads_do_not_change_a_bit_of_a_norm() {
    let [x, skip] = [61, 62].map(|seed| random(&[2, 48, 23, 17], seed));
    let (weight, bias) = (random(&[96], 63), random(&[96], 64));
    let norm = frozen([&weight, &bias], 8, true);
    let bits = |threads: i32, kind: Kind| -> Vec<u32> {
        set_threads(threads).unwrap();
        let [weight, bias] = [&weight, &bias].map(|tensor| tensor.to_kind(kind));
        let norm = GroupNormArguments { weight: &weight, bias: &bias, ..norm };
        let all = with_gradients(&[x.shallow_clone(), skip.shallow_clone()], kind, |inputs| {
            let [y, x, _] = group_norm_of_two(&inputs[0], &inputs[1], norm).unwrap();
            let rows = y.permute([0, 2, 3, 1]);
            let [z, _] = layer_norm(&rows, [&weight, &bias], FROZEN, 1e-5).unwrap();
            side_by_side(&[z.permute([0, 3, 1, 2]), x], 1)
        });
        all.iter().flat_map(|tensor| to_vec(tensor).unwrap()).map(f32::to_bits).collect()
    };
    // libtorch's own in fp32 do.
    let own = |kind: &Kind| *kind != Kind::Float || !crate::runtime::skips_own_fp32();
    for kind in kinds().into_iter().filter(own) {
        let first = bits(1, kind);
        assert!(first == bits(2, kind), "two threads, {kind:?}");
        assert!(first == bits(3, kind), "three threads, {kind:?}");
    }
}

/// Every finite bf16, [values], as fp32.
fn all_finite() -> Tensor {
    let values: Vec<f32> = (0..=u16::MAX)
        .map(|bits| f32::from_bits(u32::from(bits) << 16))
        .filter(|value| value.is_finite())
        .collect();
    Tensor::from_slice(&values)
}

/// `found` in bf16 is `exact` rounded: of those that are `counted` all but one in ten thousand, where `exact` is nearly
/// between two; and nowhere is it further off than that and `least`.
fn assert_rounded(found: &Tensor, exact: &Tensor, counted: &Tensor, least: &Tensor, what: &str) {
    let found = found.to_kind(Kind::Double);
    let distance = (&found - exact).abs() - exact.abs() * (1.01 / 256.0) - least;
    let worst = distance.max().double_value(&[]);
    assert!(worst <= 0.0, "{what}: {worst:e}");
    let rounded = exact.to_kind(Kind::Float).to_kind(Kind::BFloat16).to_kind(Kind::Double);
    let others = found.ne_tensor(&rounded).masked_select(counted).to_kind(Kind::Double);
    assert!(others.size1().unwrap() > 10_000, "{what}: {others:?}");
    let share = others.mean(Kind::Double).double_value(&[]);
    assert!(share <= 1e-4, "{what}: {share:.6} of the values");
}

#[test]
fn silu_of_every_input_is_exact() {
    // With a weight of 0 the norm of anything is its shift.
    let values = all_finite();
    let count = values.size1().unwrap();
    let weight = values.zeros_like();
    let norm = frozen([&weight, &values], 1, true);
    let y = group_norm(&random(&[1, count, 1, 1], 71), None, norm).unwrap().reshape([count]);
    let x = values.to_kind(Kind::Double);
    // Below -87, where the true value is less than 1e-35, it may be 0.
    let least = Tensor::full([count], 1e-35, (Kind::Double, Device::Cpu));
    let exact = &x * x.sigmoid();
    assert_rounded(&y, &exact, &exact.abs().gt(1e-30), &least, "SiLU");
}

#[test]
fn geglu_of_every_gate_is_exact() {
    let gates = all_finite();
    let count = gates.size1().unwrap();
    let leaf = Tensor::stack(&[gates.ones_like(), gates.shallow_clone()], -1)
        .to_kind(Kind::BFloat16)
        .set_requires_grad(true);
    let y = geglu(&leaf).unwrap();
    let gradient = Tensor::run_backward(&[y.to_kind(Kind::Float).sum(Kind::Float)], &[&leaf], false, false);
    let x = gates.to_kind(Kind::Double);
    let below = (-&x / 2f64.sqrt()).erfc() / 2.0;
    let exact = &x * &below;
    // The formula of the error function is exact to 1.5e-7, which counts where gates are far below 0.
    let least = x.abs().clamp_max(6.0) * 1e-6 + 1e-30;
    assert_rounded(&y.detach().reshape([count]), &exact, &exact.gt(1e-30), &least, "GEGLU");
    // Of gates that are not so large that their squares are infinite.
    let some = x.abs().lt(1e15);
    let density = (-x.square() / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let slope = (below + &x * density).masked_select(&some);
    let found = gradient[0].select(-1, 1).masked_select(&some);
    let least = slope.ones_like() * 1e-6;
    assert_rounded(&found, &slope, &slope.gt(0.01), &least, "GEGLU's gradient");
}

#[test]
fn what_is_not_finite_stays_so() {
    for (value, kind) in [f32::NAN, f32::INFINITY]
        .into_iter()
        .flat_map(|value| kinds().into_iter().map(move |kind| (value, kind)))
    {
        let gates = Tensor::from_slice(&[1.0, value]).to_kind(kind);
        assert!(!to_vec(&geglu(&gates).unwrap()).unwrap()[0].is_finite(), "{value}");
        let x = Tensor::from_slice(&[1.0, value, 2.0, 3.0]).to_kind(kind);
        let (weight, bias) = (x.ones_like(), x.zeros_like());
        let [y, _] = layer_norm(
            &x,
            [&weight.nan_to_num(1.0, 1.0, 1.0), &bias.nan_to_num(0.0, 0.0, 0.0)],
            FROZEN,
            1e-5,
        )
        .unwrap();
        assert!(to_vec(&y).unwrap().iter().all(|value| value.is_nan()), "{value}");
    }
}

#[test]
fn norms_refuse_what_does_not_fit() {
    let refused = |text: String, word: &str| assert!(text.contains(word), "{text}");
    for kind in [Kind::BFloat16, Kind::Float] {
        // 1. Layer norm.
        let x = random(&[2, 3, 8], 81).to_kind(kind);
        let affine =
            |weight: i64, bias: i64| [weight, bias].map(|count| random(&[count], 82).to_kind(Kind::Float));
        let norm =
            |[weight, bias]: [Tensor; 2]| layer_norm(&x, [&weight, &bias], FROZEN, 1e-5).map(|[y, _]| y);
        let _ = norm(affine(8, 8)).unwrap();
        refused(refusal(norm(affine(4, 8))), "as many weights and biases");
        refused(refusal(norm(affine(8, 3))), "as many weights and biases");
        let [weight, bias] = affine(8, 8);
        refused(refusal(norm([weight.set_requires_grad(true), bias])), "has no gradient for its weight");
        let [weight, bias] = affine(8, 8);
        refused(refusal(norm([weight, bias.set_requires_grad(true)])), "has no gradient for its bias");
        // 2. Group norm of two.
        let two = |skip: &[i64], channels: i64| {
            let [weight, bias] = affine(channels, channels);
            let norm = frozen([&weight, &bias], 4, true);
            let x = random(&[2, 8, 3, 5], 83).to_kind(kind);
            group_norm_of_two(&x, &random(skip, 84).to_kind(kind), norm).map(|[y, _, _]| y)
        };
        let _ = two(&[2, 4, 3, 5], 12).unwrap();
        for skip in [&[1i64, 4, 3, 5][..], &[2, 4, 5, 3], &[2, 4, 3], &[2, 4]] {
            refused(refusal(two(skip, 12)), "differ in channels alone");
        }
        refused(refusal(two(&[2, 4, 3, 5], 8)), "as many weights and biases");
        refused(refusal(two(&[2, 3, 3, 5], 11)), "groups");
    }
}
