//! Products beside libtorch's own in fp32, and what is said of gradients that are put.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tch::{Device, Kind, Tensor};

use super::head::product_of_columns;
use super::native::{self, rows_apart, times, times_turned};
use crate::Runtime;
use crate::parameters::native::put;
use crate::parameters::product;
use crate::stable_diffusion::to_vec;

/// Rows, inputs, outputs: on both sides of where weights are put in order, and of any number.
const SIZES: [[i64; 3]; 8] = [
    [1, 64, 192],
    [5, 1, 1],
    [150, 83, 96],
    [3071, 40, 72],
    [3072, 40, 72],
    [3073, 97, 33],
    [3100, 7, 130],
    [4096, 768, 64],
];

fn drawn(shape: &[i64], kind: Kind) -> Tensor {
    Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind)
}

fn error(ours: &Tensor, exact: &Tensor) -> f64 {
    let norm = |tensor: &Tensor| tensor.to_kind(Kind::Double).norm().double_value(&[]);
    norm(&(ours.to_kind(Kind::Float) - exact)) / norm(exact)
}

#[test]
fn products_err_no_more_than_libtorch_s() {
    Runtime::initialise(1).unwrap();
    tch::manual_seed(5);
    for [rows, inputs, outputs] in SIZES {
        let low = Kind::BFloat16;
        let (x, weight) = (drawn(&[rows, inputs], low), drawn(&[inputs, outputs], low));
        let (bias, slope) = (drawn(&[outputs], low), drawn(&[rows, outputs], low));
        let [of_x, of_weight, of_bias, of_slope] =
            [&x, &weight, &bias, &slope].map(|one| one.to_kind(Kind::Float));
        let turned = of_weight.tr();
        let cases = [
            (
                "x W + b",
                times(&x, &weight, Some(&bias)),
                bias.addmm(&x, &weight),
                of_bias.addmm(&of_x, &of_weight),
            ),
            ("x W", times(&x, &weight, None), x.mm(&weight), of_x.mm(&of_weight)),
            ("y Wt", times_turned(&slope, &weight), slope.mm(&weight.tr()), of_slope.mm(&turned)),
        ];
        for (what, ours, theirs, exact) in cases {
            let (ours, theirs) = (error(&ours.unwrap(), &exact), error(&theirs, &exact));
            assert!(
                ours <= theirs * 1.02 + 1e-6,
                "{what} of {rows} rows, {inputs} to {outputs}: {ours:e}, libtorch's {theirs:e}"
            );
        }
        // In fp32 it is libtorch's own.
        let ours = times(&of_x, &of_weight, Some(&of_bias)).unwrap();
        assert!(ours == of_bias.addmm(&of_x, &of_weight), "fp32 of {rows} rows");
        assert!(
            times_turned(&of_slope, &of_weight).unwrap() == of_slope.mm(&turned),
            "fp32 back of {rows} rows"
        );
    }
}

#[test]
fn weights_that_do_not_fit_are_refused() {
    Runtime::initialise(1).unwrap();
    let (x, weight) = (drawn(&[4, 3], Kind::BFloat16), drawn(&[5, 2], Kind::BFloat16));
    let text = times(&x, &weight, None).unwrap_err().to_string();
    assert!(text.contains("x is of [4, 3] for weights of [5, 2]"), "{text}");
    let text =
        times(&drawn(&[4, 5], Kind::BFloat16), &weight, Some(&drawn(&[3], Kind::BFloat16))).unwrap_err();
    assert!(text.to_string().contains("bias"), "{text}");
    let text = times(&drawn(&[4, 5], Kind::Float), &weight, None).unwrap_err().to_string();
    assert!(text.contains("weights"), "{text}");
    let text = times_turned(&x, &weight).unwrap_err().to_string();
    assert!(text.contains("x is of [4, 3] for weights of [5, 2]"), "{text}");
}

/// oneDNN's AMX kernels multiply the first number behind a row of odd length by zero, so it must not be NaN.
#[test]
fn zeros_lie_between_rows_that_lie_apart() {
    Runtime::initialise(1).unwrap();
    for kind in [Kind::Float, Kind::BFloat16] {
        let like = drawn(&[1, 1], kind);
        // The memory that comes next was somebody else's.
        let before: Vec<Tensor> = (0..4).map(|_| like.full_like(f64::NAN).repeat([21, 256])).collect();
        drop(before);
        let whole = rows_apart(21, 211, &like).unwrap().as_strided([21, 256], [256, 1], 0);
        assert_eq!(whole.narrow(1, 211, 45).count_nonzero(None).int64_value(&[]), 0, "{kind:?}");
        assert_eq!(rows_apart(3, 128, &like).unwrap().stride(), [128, 1]);
    }
}

/// Whatever puts a gradient says when a number of it is not finite, wherever that is.
#[test]
fn what_is_put_is_said_to_be_finite_or_not() {
    Runtime::initialise(1).unwrap();
    tch::manual_seed(6);
    let (rows, inputs, outputs) = (70, 300, 131);
    for kind in [Kind::Float, Kind::BFloat16] {
        let (left, right) = (drawn(&[rows, inputs], kind), drawn(&[rows, outputs], kind));
        let target = || Tensor::zeros([inputs, outputs], (Kind::Float, Device::Cpu));
        let all = left.tr().mm(&right);
        let turned = all.tr().contiguous();
        assert!(put(&all, false, &mut target()).unwrap());
        assert!(native::put_turned(&turned, false, &mut target()).unwrap());
        assert!(product(&left, &right, true, &mut target()).unwrap());
        assert!(product_of_columns(&left, &right, true, &mut target()).unwrap());
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for (row, column) in [(0, 0), (inputs - 1, outputs - 1), (150, 77)] {
                let at = |tensor: &Tensor, row: i64, column: i64| {
                    let broken = tensor.copy();
                    let _ = broken.get(row).get(column).fill_(bad);
                    broken
                };
                assert!(!put(&at(&all, row, column), false, &mut target()).unwrap(), "{bad}");
                assert!(
                    !native::put_turned(&at(&turned, column, row), true, &mut target()).unwrap(),
                    "{bad}"
                );
                // What was there before counts too.
                assert!(!put(&all, true, &mut at(&target(), row, column)).unwrap(), "{bad}");
                let right = at(&right, row % rows, column);
                assert!(!product(&left, &right, false, &mut target()).unwrap(), "{bad}");
                assert!(!product_of_columns(&left, &right, false, &mut target()).unwrap(), "{bad}");
            }
        }
    }
}

/// The sums that come with GELU's gradient are those of its columns.
#[test]
fn gelu_s_gradient_comes_with_its_sums() {
    Runtime::initialise(1).unwrap();
    tch::manual_seed(7);
    for [rows, width] in [[1, 1], [64, 96], [65, 33], [200, 131]] {
        let (x, mut slope) = (drawn(&[rows, width], Kind::BFloat16), drawn(&[rows, width], Kind::BFloat16));
        let sums = native::gelu_backward(&x, &mut slope).unwrap();
        let mut expected = Tensor::zeros([width], (Kind::Float, Device::Cpu));
        native::column_sums(&slope, false, &mut expected).unwrap();
        assert_eq!(to_vec(&sums).unwrap(), to_vec(&expected).unwrap(), "{rows} x {width}");
    }
}
