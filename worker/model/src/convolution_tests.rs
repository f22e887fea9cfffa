use std::cell::RefCell;

use tch::{Device, Kind, Tensor};

use super::{Conv2d, ConvolutionWeights};
use crate::native;
use crate::runtime::Runtime;

fn draw(shape: &[i64], scale: f64) -> Tensor {
    let values = Tensor::randn(shape, (Kind::Float, Device::Cpu)) * scale;
    let values = values.to_kind(Kind::BFloat16);
    if shape.len() == 4 { native::channels_last(&values).unwrap() } else { values }
}

fn convolution(weight: &Tensor, bias: &Tensor, packable: bool) -> Conv2d {
    Conv2d {
        weights: RefCell::new(ConvolutionWeights::ChannelsLast(weight.shallow_clone())),
        bias: bias.shallow_clone(),
        stride: 1,
        padding: weight.size()[2] / 2,
        packable,
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

#[test]
fn packed_convolutions_are_as_exact_as_plain_ones() {
    Runtime::initialise(2).unwrap();
    tch::manual_seed(7);
    for (batch, inputs, outputs, kernel, side) in
        [(1, 64, 96, 3, 8), (2, 40, 24, 3, 5), (1, 96, 33, 1, 7), (1, 4, 32, 3, 16)]
    {
        let weight = draw(&[outputs, inputs, kernel, kernel], 0.1);
        let bias = draw(&[outputs], 1.0);
        let packed = convolution(&weight, &bias, true);
        let plain = convolution(&weight, &bias, false);
        // The second size goes through weights that were packed for the first.
        for side in [side, side + 3] {
            let x = draw(&[batch, inputs, side, side], 1.0);
            let gradient = draw(&[batch, outputs, side, side], 1.0);
            let exact_convolution =
                convolution(&weight.to_kind(Kind::Float), &bias.to_kind(Kind::Float), false);
            let exact = run(&exact_convolution, &x.to_kind(Kind::Float), &gradient.to_kind(Kind::Float));
            let ours = run(&packed, &x, &gradient);
            let libtorch = run(&plain, &x, &gradient);
            for (index, name) in ["output", "gradient"].iter().enumerate() {
                let own_error = error(&ours[index], &exact[index]);
                let libtorch_error = error(&libtorch[index], &exact[index]);
                assert!(
                    own_error <= libtorch_error * 1.05 + 1e-5,
                    "{inputs} to {outputs} channels, side {side}: {name} {own_error:.2e} {libtorch_error:.2e}"
                );
            }
            assert_eq!(ours[0].stride(), libtorch[0].stride());
        }
        assert!(matches!(&*packed.weights.borrow(), ConvolutionWeights::Packed { .. }));
        assert!(matches!(&*plain.weights.borrow(), ConvolutionWeights::ChannelsLast(_)));
        // Without a gradient the packed weights serve too.
        let x = draw(&[batch, inputs, 9, 9], 1.0);
        let (with, without) = (packed.forward(&x).unwrap(), plain.forward(&x).unwrap());
        assert!(error(&with, &without.to_kind(Kind::Float)) < 1e-2);
    }
}
