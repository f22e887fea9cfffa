use std::path::PathBuf;
use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::{GrowingConv2d, doubled_taps};
use crate::adapters::Place;
use crate::convolution::Conv2dConfig;
use crate::mapped_file::Stored;
use crate::native;
use crate::packed_weights::PackedWeights;
use crate::runtime::Runtime;
use crate::stable_diffusion::to_vec;

/// Weights in a file, as a checkpoint has them, fp32.
struct Filter {
    weight: Tensor,
    bias: Tensor,
    file: tempfile::NamedTempFile,
}

impl Filter {
    fn draw(channels: i64) -> Self {
        let weight = Tensor::randn([channels, channels, 3, 3], (Kind::Float, Device::Cpu)) * 0.1;
        let file = tempfile::NamedTempFile::new().unwrap();
        // A tensor does not begin where its file does.
        let mut bytes = vec![0xff; 24];
        bytes.extend(to_vec(&weight).unwrap().iter().flat_map(|value| value.to_le_bytes()));
        std::fs::write(file.path(), bytes).unwrap();
        Filter { weight, bias: Tensor::randn([channels], (Kind::Float, Device::Cpu)), file }
    }

    fn layer(&self) -> GrowingConv2d {
        let channels = self.bias.size()[0];
        let stored = Stored {
            path: PathBuf::from("weights"),
            file: Arc::new(self.file.reopen().unwrap()),
            start: 24,
            shape: self.weight.size(),
            kind: Kind::Float,
        };
        GrowingConv2d {
            stored: Some(stored),
            bias: self.bias.to_kind(Kind::BFloat16),
            doubling: PackedWeights::default(),
            plain: None.into(),
            adapter: Place::default(),
            config: Conv2dConfig::same_3x3(channels, channels),
            kind: Kind::BFloat16,
        }
    }
}

fn draw(shape: &[i64]) -> Tensor {
    let values = Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
    native::channels_last(&values).unwrap()
}

/// Output and the input's gradient for a given output gradient.
fn run(x: &Tensor, gradient: &Tensor, operation: impl Fn(&Tensor) -> Tensor) -> [Tensor; 2] {
    let leaf = x.detach().set_requires_grad(true);
    let output = operation(&leaf);
    let loss = (&output * gradient).sum(Kind::Float);
    let gradients = Tensor::run_backward(&[loss], &[&leaf], false, false);
    [output.detach(), gradients[0].shallow_clone()]
}

/// Growing and convolving one after the other, in the kind of what it is given.
fn one_by_one(x: &Tensor, filter: &Filter, size: (i64, i64)) -> Tensor {
    let (weight, bias) = (filter.weight.to_kind(x.kind()), filter.bias.to_kind(x.kind()));
    x.upsample_nearest2d([size.0, size.1], None, None).conv2d(&weight, Some(&bias), 1, 1, 1, 1)
}

fn error(result: &Tensor, reference: &Tensor) -> f64 {
    let norm = |tensor: &Tensor| tensor.norm().double_value(&[]);
    norm(&(result.to_kind(Kind::Float) - reference)) / norm(reference)
}

#[test]
fn summed_taps_are_the_convolution_of_a_doubled_picture() {
    tch::manual_seed(1);
    let x = Tensor::randn([2, 3, 5, 4], (Kind::Double, Device::Cpu));
    let weight = Tensor::randn([6, 3, 3, 3], (Kind::Double, Device::Cpu));
    let no_bias: Option<&Tensor> = None;
    let expected = x.upsample_nearest2d([10, 8], None, None).conv2d(&weight, no_bias, 1, 1, 1, 1);
    let taps = doubled_taps(&weight).unwrap().transpose(0, 1);
    let found = x.conv_transpose2d(&taps, no_bias, 2, 1, 0, 1, 1);
    assert_eq!(found.size(), expected.size());
    assert!((found - expected).abs().max().double_value(&[]) < 1e-12);
}

/// Against fp32 with the same stored weights, and against growing and convolving one after the other in bf16.
#[test]
fn a_grown_convolution_is_as_exact_as_one_after_the_other() {
    if crate::runtime::skips_bf16() {
        return;
    }
    Runtime::initialise(2).unwrap();
    tch::manual_seed(2);
    for (batch, channels) in [(1, 64), (3, 24), (2, 33), (1, 1), (1, 130)] {
        let filter = Filter::draw(channels);
        let layer = filter.layer();
        // Doubled; one row or column less than doubled, as odd sides ask for; and as small as can be.
        for (side, size) in
            [((8, 8), (16, 16)), ((5, 7), (10, 14)), ((5, 7), (9, 13)), ((4, 6), (8, 11)), ((1, 3), (2, 6))]
        {
            let x = draw(&[batch, channels, side.0, side.1]);
            let gradient = draw(&[batch, channels, size.0, size.1]);
            let exact = run(&x.to_kind(Kind::Float), &gradient.to_kind(Kind::Float), |x| {
                one_by_one(x, &filter, size)
            });
            let ours = run(&x, &gradient, |x| layer.forward(x, size).unwrap());
            let libtorch = run(&x, &gradient, |x| one_by_one(x, &filter, size));
            for (index, name) in ["output", "gradient"].iter().enumerate() {
                let own_error = error(&ours[index], &exact[index]);
                let libtorch_error = error(&libtorch[index], &exact[index]);
                assert!(
                    own_error <= libtorch_error * 1.1 + 5e-4,
                    "{channels} channels, {side:?} to {size:?}: {name} {own_error:.2e} {libtorch_error:.2e}"
                );
            }
        }
        assert!(layer.doubling.both_ways());
    }
}

/// It is linear, so that a difference is its gradient at any distance.
#[test]
fn the_gradient_is_that_of_differences() {
    if crate::runtime::skips_bf16() {
        return;
    }
    tch::manual_seed(3);
    let layer = Filter::draw(40).layer();
    let (x, gradient) = (draw(&[2, 40, 6, 9]), draw(&[2, 40, 12, 18]));
    let [at, slope] = run(&x, &gradient, |x| layer.forward(x, (12, 18)).unwrap());
    let product = |a: &Tensor, b: &Tensor| {
        (a.to_kind(Kind::Float) * b.to_kind(Kind::Float)).sum(Kind::Float).double_value(&[])
    };
    for seed in 0..4 {
        tch::manual_seed(seed);
        let step = draw(&[2, 40, 6, 9]);
        let moved = layer.forward(&(&x + &step), (12, 18)).unwrap();
        let difference = product(&(moved.to_kind(Kind::Float) - at.to_kind(Kind::Float)), &gradient);
        // What was really added, after rounding.
        let expected = product(&((&x + &step).to_kind(Kind::Float) - x.to_kind(Kind::Float)), &slope);
        let scale = (product(&slope, &slope) * product(&step, &step)).sqrt();
        assert!((difference - expected).abs() < 0.01 * scale, "{difference} {expected} of {scale}");
    }
}

#[test]
fn no_bit_depends_on_what_was_computed_before() {
    if crate::runtime::skips_bf16() {
        return;
    }
    Runtime::initialise(2).unwrap();
    tch::manual_seed(4);
    let filter = Filter::draw(48);
    let sizes = [(1, 8), (2, 16), (1, 5), (3, 32)];
    let bits = |layer: &GrowingConv2d, (batch, side): (i64, i64), wanted: bool| -> Vec<f32> {
        tch::manual_seed(side);
        let (x, gradient) = (draw(&[batch, 48, side, side]), draw(&[batch, 48, 2 * side, 2 * side]));
        let size = (2 * side, 2 * side);
        let mut all = vec![layer.forward(&x, size).unwrap()];
        if wanted {
            all.extend(run(&x, &gradient, |x| layer.forward(x, size).unwrap()));
        }
        all.iter().flat_map(|tensor| to_vec(tensor).unwrap()).collect()
    };
    let alone: Vec<Vec<f32>> = sizes.iter().map(|size| bits(&filter.layer(), *size, true)).collect();
    for first in sizes {
        let layer = filter.layer();
        bits(&layer, first, false);
        assert!(!layer.doubling.both_ways());
        for (size, alone) in sizes.iter().zip(&alone) {
            let without = bits(&layer, *size, false);
            assert!(without[..] == alone[..without.len()], "{size:?} after {first:?}");
            assert!(bits(&layer, *size, true) == *alone, "{size:?} after {first:?}");
        }
    }
}

#[test]
fn a_file_that_was_cut_short_is_an_error() {
    let filter = Filter::draw(24);
    let layer = filter.layer();
    filter.file.as_file().set_len(1000).unwrap();
    assert!(layer.forward(&draw(&[1, 24, 4, 4]), (8, 8)).is_err());
    assert!(layer.forward(&draw(&[1, 24, 4, 4]), (7, 7)).is_err());
}
