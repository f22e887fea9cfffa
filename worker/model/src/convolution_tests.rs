use safetensors::tensor::{Dtype, TensorView};
use tch::{Device, Kind, Tensor};

use super::{Conv2d, Conv2dConfig, ConvolutionWeights};
use crate::mapped_file::Stored;
use crate::native::{self, PlainConvolution, set_threads};
use crate::runtime::Runtime;
use crate::weights::Weights;

fn draw(shape: &[i64], scale: f64) -> Tensor {
    let values = Tensor::randn(shape, (Kind::Float, Device::Cpu)) * scale;
    let values = values.to_kind(Kind::BFloat16);
    if shape.len() == 4 { native::channels_last(&values).unwrap() } else { values }
}

/// A convolution's frozen weights, and the layers that are made of them.
struct Filter {
    weight: Tensor,
    bias: Tensor,
    config: Conv2dConfig,
}

impl Filter {
    fn draw(config: Conv2dConfig) -> Self {
        let weight = draw(&[config.outputs, config.inputs, config.kernel, config.kernel], 0.1);
        Filter { weight, bias: draw(&[config.outputs], 1.0), config }
    }

    fn packing(&self) -> Conv2d {
        assert!(self.config.packed(Kind::BFloat16));
        Conv2d::stored(Stored::of(&self.weight), self.bias.shallow_clone(), self.config)
    }

    fn plain(&self) -> Conv2d {
        self.unpacked(Kind::BFloat16)
    }

    fn exact(&self) -> Conv2d {
        self.unpacked(Kind::Float)
    }

    fn unpacked(&self, kind: Kind) -> Conv2d {
        Conv2d::plain(&self.weight.to_kind(kind), self.bias.to_kind(kind), self.config).unwrap()
    }

    /// Whether the layer has weights of the way back.
    fn both_ways(layer: &Conv2d) -> bool {
        match &layer.weights {
            ConvolutionWeights::Packed { packed, .. } => packed.both_ways(),
            ConvolutionWeights::Plain(_) | ConvolutionWeights::Trained { .. } => false,
        }
    }

    fn output(&self, batch: i64, height: i64, width: i64) -> [i64; 4] {
        [batch, self.config.outputs, self.config.places(height), self.config.places(width)]
    }
}

/// Output and the input's gradient for a given output gradient.
fn run(convolution: &Conv2d, x: &Tensor, gradient: &Tensor) -> [Tensor; 2] {
    let leaf = x.detach().set_requires_grad(true);
    let output = convolution.forward(&leaf).unwrap();
    let loss = (&output * gradient).sum(Kind::Float);
    let gradients = Tensor::run_backward(&[loss], &[&leaf], false, false);
    [output.detach(), gradients[0].shallow_clone()]
}

fn error(result: &Tensor, reference: &Tensor) -> f64 {
    let norm = |tensor: &Tensor| tensor.norm().double_value(&[]);
    norm(&(result.to_kind(Kind::Float) - reference)) / norm(reference)
}

/// As many channels as fill blocks, and not; one; and all steps and zeros that layers have.
fn configs() -> Vec<(i64, Conv2dConfig)> {
    let same = Conv2dConfig::same_3x3;
    let halving = |inputs, outputs, padding| Conv2dConfig { stride: 2, padding, ..same(inputs, outputs) };
    vec![
        (1, same(64, 96)),
        (2, same(40, 24)),
        (1, Conv2dConfig::pointwise(96, 33)),
        (1, same(4, 32)),
        (3, same(1, 1)),
        (1, halving(64, 64, 1)),
        (3, halving(24, 40, 1)),
        (2, halving(33, 1, 1)),
        (1, halving(64, 32, 0)),
        (2, halving(24, 24, 0)),
    ]
}

#[test]
fn packed_convolutions_are_as_exact_as_plain_ones() {
    if crate::runtime::skips_bf16() {
        return;
    }
    Runtime::initialise(2).unwrap();
    tch::manual_seed(7);
    for (batch, config) in configs() {
        let filter = Filter::draw(config);
        let (packed, plain, exact) = (filter.packing(), filter.plain(), filter.exact());
        // All sizes but the first go through weights that were packed for the first.
        for (height, width) in [(8, 8), (16, 16), (5, 7), (3, 12)] {
            let x = draw(&[batch, config.inputs, height, width], 1.0);
            let gradient = draw(&filter.output(batch, height, width), 1.0);
            let exact = run(&exact, &x.to_kind(Kind::Float), &gradient.to_kind(Kind::Float));
            let ours = run(&packed, &x, &gradient);
            let libtorch = run(&plain, &x, &gradient);
            for (index, name) in ["output", "gradient"].iter().enumerate() {
                let own_error = error(&ours[index], &exact[index]);
                let libtorch_error = error(&libtorch[index], &exact[index]);
                assert!(
                    own_error <= libtorch_error * 1.05 + 1e-5,
                    "{config:?}, {height} x {width}: {name} {own_error:.2e} {libtorch_error:.2e}"
                );
                assert_eq!(ours[index].size(), libtorch[index].size());
            }
            assert!(ours[0].is_contiguous() || ours[0].stride() == libtorch[0].stride());
        }
        assert!(Filter::both_ways(&packed) && !Filter::both_ways(&plain));
    }
}

/// One place, a single row, one column of inputs or of results.
#[test]
fn a_width_of_one_works() {
    if crate::runtime::skips_bf16() {
        return;
    }
    tch::manual_seed(8);
    for config in
        [Conv2dConfig::same_3x3(24, 16), Conv2dConfig { stride: 2, ..Conv2dConfig::same_3x3(24, 16) }]
    {
        let filter = Filter::draw(config);
        for (height, width) in [(1, 1), (1, 9), (9, 1), (18, 2), (3, 2)] {
            let x = draw(&[3, 24, height, width], 1.0);
            let gradient = draw(&filter.output(3, height, width), 1.0);
            let exact = run(&filter.exact(), &x.to_kind(Kind::Float), &gradient.to_kind(Kind::Float));
            let ours = run(&filter.packing(), &x, &gradient);
            for (index, name) in ["output", "gradient"].iter().enumerate() {
                let own_error = error(&ours[index], &exact[index]);
                assert!(own_error < 4e-3, "{config:?}, {height} x {width}: {name} {own_error:.2e}");
            }
        }
    }
}

/// Channels that fill tiles, in pictures whose lines do and do not: AMX multiplies these by kernels of its own.
#[test]
fn whole_tiles_are_that_of_the_formula() {
    if crate::runtime::skips_bf16() {
        return;
    }
    tch::manual_seed(10);
    for (inputs, outputs) in [(32, 64), (96, 32), (352, 64), (1024, 32)] {
        for config in [Conv2dConfig::same_3x3(inputs, outputs), Conv2dConfig::pointwise(inputs, outputs)] {
            let filter = Filter::draw(config);
            let (packing, exact) = (filter.packing(), filter.exact());
            for (batch, height, width) in [
                (2, 8, 8),
                (1, 16, 16),
                (3, 5, 7),
                (1, 1, 1),
                (2, 24, 24),
                (1, 3, 48),
                (2, 1, 33),
                (1, 19, 2),
            ] {
                let x = draw(&[batch, inputs, height, width], 1.0);
                let gradient = draw(&filter.output(batch, height, width), 1.0);
                let residual = draw(&filter.output(batch, height, width), 1.0);
                let exactly = run(&exact, &x.to_kind(Kind::Float), &gradient.to_kind(Kind::Float));
                let [output, back] = run(&packing, &x, &gradient);
                let ours = [output, back, packing.forward_added(&x, &residual).unwrap()];
                let added = &exactly[0] + residual.to_kind(Kind::Float);
                let references = [&exactly[0], &exactly[1], &added];
                for (own, reference) in ours.iter().zip(references) {
                    let own_error = error(own, reference);
                    assert!(own_error < 4e-3, "{config:?}, {batch} of {height} x {width}: {own_error:.2e}");
                    assert_eq!(own.size(), reference.size());
                }
            }
        }
    }
}

/// A worker draws pictures before, between and after its steps, of other sizes than it trains with.
#[test]
fn no_bit_depends_on_what_was_computed_before() {
    if crate::runtime::skips_bf16() {
        return;
    }
    Runtime::initialise(2).unwrap();
    tch::manual_seed(9);
    let sizes = [(1, 8, 8), (2, 16, 16), (1, 32, 32), (2, 5, 7), (1, 12, 20)];
    for (_, config) in configs() {
        let filter = Filter::draw(config);
        let bits = |layer: &Conv2d, size: (i64, i64, i64), wanted: bool| -> Vec<f32> {
            tch::manual_seed(size.1);
            let (batch, height, width) = size;
            let x = draw(&[batch, config.inputs, height, width], 1.0);
            let gradient = draw(&filter.output(batch, height, width), 1.0);
            let mut all = vec![layer.forward_added(&x, &gradient).unwrap()];
            if wanted {
                all.extend(run(layer, &x, &gradient));
            }
            all.iter().flat_map(|tensor| crate::stable_diffusion::to_vec(tensor).unwrap()).collect()
        };
        let alone: Vec<Vec<f32>> = sizes.iter().map(|size| bits(&filter.packing(), *size, true)).collect();
        for first in sizes {
            let layer = filter.packing();
            // Nothing but outputs are wanted first.
            bits(&layer, first, false);
            assert!(!Filter::both_ways(&layer));
            for (size, alone) in sizes.iter().zip(&alone) {
                let without = bits(&layer, *size, false);
                assert!(without[..] == alone[..without.len()], "{config:?}: {size:?} after {first:?}");
                assert!(bits(&layer, *size, true) == *alone, "{config:?}: {size:?} after {first:?}");
            }
        }
    }
}

/// How work is cut follows from the number of threads, and which rows or tiles are side by side from the batch. Channels are
/// those that kernels of our own take.
#[test]
fn no_bit_depends_on_threads_or_on_the_rest_of_a_batch() {
    if crate::runtime::skips_bf16() {
        return;
    }
    Runtime::initialise(2).unwrap();
    tch::manual_seed(11);
    for config in [Conv2dConfig::same_3x3(64, 160), Conv2dConfig::pointwise(1312, 96)] {
        let filter = Filter::draw(config);
        depends_on_nothing_else(&filter, &filter.packing(), Kind::BFloat16);
    }
}

/// The same in fp32 by kernels of our own.
#[test]
fn no_bit_in_fp32_depends_on_threads_or_on_the_rest_of_a_batch() {
    if crate::runtime::skips_own_fp32() {
        return;
    }
    Runtime::initialise(2).unwrap();
    tch::manual_seed(12);
    for config in [Conv2dConfig::same_3x3(160, 192), Conv2dConfig::pointwise(352, 96)] {
        let filter = Filter::draw(config);
        depends_on_nothing_else(&filter, &filter.exact(), Kind::Float);
    }
}

fn depends_on_nothing_else(filter: &Filter, layer: &Conv2d, kind: Kind) {
    let config = filter.config;
    for (height, width) in [(24, 24), (8, 8), (5, 7), (1, 1), (40, 18)] {
        let x = draw(&[3, config.inputs, height, width], 1.0).to_kind(kind);
        let gradient = draw(&filter.output(3, height, width), 1.0).to_kind(kind);
        let all = run(layer, &x, &gradient);
        for threads in [1, 3, 16] {
            set_threads(threads).unwrap();
            assert_eq!(run(layer, &x, &gradient), all, "{config:?}, {height} x {width}, {threads} threads");
        }
        set_threads(2).unwrap();
        for sample in 0..3 {
            let alone = run(layer, &x.narrow(0, sample, 1), &gradient.narrow(0, sample, 1));
            for (alone, all) in alone.iter().zip(&all) {
                let among = all.narrow(0, sample, 1);
                assert_eq!(*alone, among, "{config:?}, {height} x {width}, sample {sample}");
            }
        }
    }
}

/// Channels that our own kernels take and that they leave to libtorch, and tiles that reach over the picture's end, against
/// libtorch's convolution in double precision. Its own in fp32 is off by 1e-7, ours by up to 5e-7.
#[test]
fn fp32_is_that_of_the_formula() {
    Runtime::initialise(2).unwrap();
    tch::manual_seed(13);
    let pairs = [(16, 16), (64, 160), (336, 48), (40, 24), (4, 32)];
    let kernels = [Conv2dConfig::same_3x3, Conv2dConfig::pointwise];
    for config in pairs.iter().flat_map(|(inputs, outputs)| kernels.map(|kernel| kernel(*inputs, *outputs))) {
        let filter = Filter::draw(config);
        let layer = filter.exact();
        let [weight, bias] = [&filter.weight, &filter.bias].map(|tensor| tensor.to_kind(Kind::Double));
        for (batch, height, width) in [(2, 8, 8), (3, 5, 7), (1, 1, 1), (2, 1, 33), (1, 19, 2), (1, 24, 24)] {
            let x = draw(&[batch, config.inputs, height, width], 1.0).to_kind(Kind::Float);
            let gradient = draw(&filter.output(batch, height, width), 1.0).to_kind(Kind::Float);
            let residual = draw(&filter.output(batch, height, width), 1.0).to_kind(Kind::Float);
            let leaves =
                |kind| [&x, &residual].map(|leaf| leaf.to_kind(kind).detach().set_requires_grad(true));
            let own = leaves(Kind::Float);
            let result = layer.forward_added(&own[0], &own[1]).unwrap();
            let ours = with_gradients(&result, &own, &gradient);
            let exact = leaves(Kind::Double);
            let result = exact[0].conv2d(&weight, Some(&bias), [1; 2], [config.padding; 2], [1; 2], 1);
            let exact = with_gradients(&(result + &exact[1]), &exact, &gradient.to_kind(Kind::Double));
            for (ours, exact) in ours.iter().zip(&exact) {
                let distance = (ours.to_kind(Kind::Double) - exact).norm() / exact.norm();
                let distance = distance.double_value(&[]);
                assert!(distance < 1e-6, "{config:?}, {batch} of {height} x {width}: {distance:.2e}");
                assert_eq!(ours.size(), exact.size());
            }
        }
    }
}

/// A result and the gradients of leaves, given that of the result.
fn with_gradients(result: &Tensor, leaves: &[Tensor; 2], gradient: &Tensor) -> [Tensor; 3] {
    let gradients =
        Tensor::run_backward(&[(result * gradient).sum(result.kind())], &leaves.each_ref(), false, false);
    [result.detach(), gradients[0].shallow_clone(), gradients[1].shallow_clone()]
}

#[test]
fn operands_that_do_not_fit_a_plain_convolution_are_refused() {
    let refused = |result: crate::error::Result<Tensor>, word: &str| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(word), "{text}");
    };
    let draw = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
    let weight = draw(&[32, 16, 3, 3]);
    let (x, bias, residual) = (draw(&[1, 16, 4, 4]), draw(&[32]), draw(&[1, 32, 4, 4]));
    let fitting =
        PlainConvolution { weight: &weight, bias: &bias, residual: Some(&residual), stride: 1, padding: 1 };
    assert_eq!(native::convolution(&x, fitting).unwrap().size(), [1, 32, 4, 4]);
    refused(native::convolution(&draw(&[1, 32, 4, 4]), fitting), "cannot take");
    refused(native::convolution(&x.to_kind(Kind::Double), fitting), "cannot take");
    refused(
        native::convolution(&x, PlainConvolution { bias: &draw(&[16]), ..fitting }),
        "cannot have a bias",
    );
    let narrow = draw(&[1, 32, 4, 3]);
    refused(native::convolution(&x, PlainConvolution { residual: Some(&narrow), ..fitting }), "cannot add");
    refused(native::convolution(&x, PlainConvolution { stride: 0, ..fitting }), "of stride 0");
    let wanted = weight.detach().set_requires_grad(true);
    refused(
        native::convolution(&x, PlainConvolution { weight: &wanted, ..fitting }),
        "no gradient for its weights",
    );
}

/// Gigabytes of a model that are not copied, and that all workers of a machine share.
#[test]
fn fp32_weights_that_our_kernels_read_stay_in_their_file() {
    if crate::runtime::skips_own_fp32() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layer.safetensors");
    let bytes = vec![0u8; 4 * 32 * 96 * 9];
    let view = |shape: &[usize]| {
        let length = 4 * shape.iter().product::<usize>();
        TensorView::new(Dtype::F32, shape.to_vec(), &bytes[..length]).unwrap()
    };
    let tensors = [("weight", view(&[32, 96, 3, 3])), ("bias", view(&[32]))];
    safetensors::serialize_to_file(tensors, None, &file).unwrap();
    let weights = Weights::open_file(&file, |name| Some(name.to_owned())).unwrap();
    let weight = |config| match Conv2d::new(&weights.root(), config, Kind::Float).unwrap().weights {
        ConvolutionWeights::Plain(weight) => weight,
        _ => panic!("fp32 is not packed, and nothing is trained"),
    };
    let config = Conv2dConfig::same_3x3(96, 32);
    // All at once, so that no copy lies where another one was.
    let [one, other] = [weight(config), weight(config)];
    let halving = weight(Conv2dConfig { stride: 2, ..config });
    assert_eq!(one.data_ptr(), other.data_ptr());
    // libtorch wants them in another order.
    assert_ne!(halving.data_ptr(), one.data_ptr());
}
