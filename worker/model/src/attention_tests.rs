use tch::{Device, Kind, Tensor};

use super::{AttentionKernel, scaled_dot_product, scaled_dot_product_on, self_attention, self_attention_on};
use crate::runtime::Runtime;

/// Output, then the gradients of query, key and value, in fp64.
type Results = [Tensor; 4];

struct Case {
    batch: i64,
    heads: i64,
    queries: i64,
    keys: i64,
    width: i64,
    query_scale: f64,
}

impl Case {
    fn new(batch: i64, heads: i64, queries: i64, keys: i64, width: i64) -> Self {
        Self { batch, heads, queries, keys, width, query_scale: 1.0 }
    }

    /// Query, key, value and the output's gradient, exactly representable in bf16.
    fn inputs(&self) -> [Tensor; 4] {
        tch::manual_seed(self.queries * 31 + self.keys * 7 + self.width);
        let draw = |tokens: i64, scale: f64| {
            let shape = [self.batch, tokens, self.heads, self.width];
            (Tensor::randn(shape, (Kind::Float, Device::Cpu)) * scale).to_kind(Kind::BFloat16)
        };
        [
            draw(self.queries, self.query_scale),
            draw(self.keys, 1.0),
            draw(self.keys, 1.0),
            draw(self.queries, 1.0),
        ]
    }
}

/// The kernels that may be used here and are not libtorch's.
fn tiled_kernels() -> Vec<AttentionKernel> {
    let mut kernels = match AttentionKernel::best() {
        AttentionKernel::Libtorch | AttentionKernel::Floats => Vec::new(),
        AttentionKernel::Avx512 => vec![AttentionKernel::Avx512],
        AttentionKernel::Amx => vec![AttentionKernel::Avx512, AttentionKernel::Amx],
    };
    kernels.extend((!crate::runtime::skips_own_fp32()).then_some(AttentionKernel::Floats));
    kernels
}

/// What a kernel of ours computes in.
fn kind_of(kernel: AttentionKernel) -> Kind {
    if kernel == AttentionKernel::Floats { Kind::Float } else { Kind::BFloat16 }
}

fn results(inputs: &[Tensor; 4], kind: Kind, attend: impl Fn(&[Tensor; 3]) -> Tensor) -> Results {
    let leaves: [Tensor; 3] =
        std::array::from_fn(|index| inputs[index].to_kind(kind).detach().set_requires_grad(true));
    let output = attend(&leaves);
    let loss = (&output * inputs[3].to_kind(kind)).sum(Kind::Double);
    let gradients = Tensor::run_backward(&[loss], &leaves, false, false);
    [
        output.detach().to_kind(Kind::Double),
        gradients[0].to_kind(Kind::Double),
        gradients[1].to_kind(Kind::Double),
        gradients[2].to_kind(Kind::Double),
    ]
}

/// The formula itself, in fp64.
fn exact(inputs: &[Tensor; 4]) -> Results {
    results(inputs, Kind::Double, |[query, key, value]| {
        let [query, key, value] = [query, key, value].map(|tensor| tensor.transpose(1, 2));
        let scores = query.matmul(&key.transpose(2, 3)) / (query.size()[3] as f64).sqrt();
        scores.softmax(-1, Kind::Double).matmul(&value).transpose(1, 2)
    })
}

fn on_kernel(inputs: &[Tensor; 4], kernel: AttentionKernel) -> Results {
    in_kind(inputs, kind_of(kernel), kernel)
}

fn in_kind(inputs: &[Tensor; 4], kind: Kind, kernel: AttentionKernel) -> Results {
    results(inputs, kind, |[query, key, value]| scaled_dot_product_on(kernel, query, key, value).unwrap())
}

/// |result - reference| / |reference|, or plain |result| where the reference is (as good as) zero.
fn error(result: &Tensor, reference: &Tensor) -> f64 {
    let norm = |tensor: &Tensor| tensor.norm().double_value(&[]);
    let scale = norm(reference);
    norm(&(result - reference)) / if scale > 1e-6 { scale } else { 1.0 }
}

#[test]
fn is_as_near_to_the_formula_as_libtorch() {
    Runtime::initialise(2).unwrap();
    let mut cases = vec![
        Case::new(1, 8, 1024, 1024, 40),
        Case::new(1, 8, 500, 77, 40),
        Case::new(2, 3, 77, 77, 64),
        Case::new(1, 2, 333, 517, 80),
        Case::new(1, 1, 200, 800, 160),
        Case::new(1, 1, 130, 140, 512),
        Case::new(2, 2, 5, 3, 7),
        Case::new(1, 2, 97, 193, 33),
        Case::new(1, 2, 65, 1, 24),
        Case::new(1, 1, 1, 1, 1),
    ];
    cases.push(Case { query_scale: 20.0, ..Case::new(1, 4, 400, 400, 40) });
    cases.push(Case { query_scale: 300.0, ..Case::new(1, 4, 400, 400, 40) });
    for case in cases {
        let inputs = case.inputs();
        let reference = exact(&inputs);
        for kernel in tiled_kernels() {
            let libtorch = in_kind(&inputs, kind_of(kernel), AttentionKernel::Libtorch);
            let ours = on_kernel(&inputs, kernel);
            // In fp32 the maximum and the order of sums are others, and which of the two is nearer is chance.
            let more = if kernel == AttentionKernel::Floats { 1e-6 } else { 1e-5 };
            for (index, name) in ["output", "grad query", "grad key", "grad value"].iter().enumerate() {
                let own_error = error(&ours[index], &reference[index]);
                let libtorch_error = error(&libtorch[index], &reference[index]);
                assert!(
                    own_error <= libtorch_error * 1.05 + more,
                    "{kernel}, {}x{} of width {}: {name} is off by {own_error:.2e}, libtorch's by {libtorch_error:.2e}",
                    case.queries,
                    case.keys,
                    case.width,
                );
            }
        }
    }
}

#[test]
fn fp32_is_near_the_formula() {
    Runtime::initialise(2).unwrap();
    let inputs = Case::new(2, 2, 50, 30, 40).inputs();
    let reference = exact(&inputs);
    let ours =
        results(&inputs, Kind::Float, |[query, key, value]| scaled_dot_product(query, key, value).unwrap());
    for (result, expected) in ours.iter().zip(&reference) {
        assert!(error(result, expected) < 1e-5);
    }
}

#[test]
fn strided_inputs_give_the_bits_of_contiguous_ones() {
    Runtime::initialise(2).unwrap();
    let [query, key, value, gradient] = Case::new(2, 3, 150, 210, 40).inputs();
    // Other strides between tokens and heads; then a width that is not contiguous.
    let by_head = |tensor: &Tensor| tensor.transpose(1, 2).contiguous().transpose(1, 2);
    let by_width = |tensor: &Tensor| tensor.transpose(1, 3).contiguous().transpose(1, 3);
    for kernel in tiled_kernels() {
        let plain = [&query, &key, &value, &gradient].map(Tensor::shallow_clone);
        let strided = [by_head(&query), by_width(&key), by_head(&value), gradient.shallow_clone()];
        for (left, right) in on_kernel(&plain, kernel).iter().zip(&on_kernel(&strided, kernel)) {
            assert_eq!(left, right);
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    Runtime::initialise(2).unwrap();
    for case in [Case::new(1, 3, 700, 900, 40), Case::new(2, 2, 300, 77, 64)] {
        let inputs = case.inputs();
        for kernel in tiled_kernels() {
            let runs = [1, 2, 3].map(|threads| {
                crate::native::set_threads(threads).unwrap();
                on_kernel(&inputs, kernel)
            });
            for run in &runs[1..] {
                for (left, right) in run.iter().zip(&runs[0]) {
                    assert_eq!(left, right, "{kernel}");
                }
            }
        }
    }
}

#[test]
fn only_the_wanted_gradients_are_made() {
    Runtime::initialise(2).unwrap();
    let inputs = Case::new(1, 2, 100, 77, 40).inputs();
    for kernel in tiled_kernels() {
        let all = on_kernel(&inputs, kernel);
        let inputs = inputs.each_ref().map(|input| input.to_kind(kind_of(kernel)));
        for wanted in 0..3 {
            let leaves: [Tensor; 3] =
                std::array::from_fn(|index| inputs[index].detach().set_requires_grad(index == wanted));
            let output = scaled_dot_product_on(kernel, &leaves[0], &leaves[1], &leaves[2]).unwrap();
            let loss = (output * &inputs[3]).sum(Kind::Double);
            let gradient = Tensor::run_backward(&[loss], &[&leaves[wanted]], false, false);
            assert_eq!(gradient[0].to_kind(Kind::Double), all[wanted + 1]);
        }
    }
}

#[test]
fn queries_keys_and_values_that_lie_together_give_the_same_bits() {
    Runtime::initialise(2).unwrap();
    for (heads, tokens, width) in [(2, 200, 40), (1, 77, 24), (3, 65, 80), (1, 1, 1)] {
        let inputs = Case::new(2, heads, tokens, tokens, width).inputs();
        for kernel in tiled_kernels().into_iter().chain([AttentionKernel::Libtorch]) {
            let apart = on_kernel(&inputs, kernel);
            let together = Tensor::stack(&inputs[..3], 2).to_kind(kind_of(kernel)).set_requires_grad(true);
            let output = self_attention_on(kernel, &together).unwrap();
            let loss = (&output * inputs[3].to_kind(kind_of(kernel))).sum(Kind::Double);
            let gradients = Tensor::run_backward(&[loss], &[&together], false, false);
            let parts = gradients[0].to_kind(Kind::Double).unbind(2);
            assert_eq!(output.detach().to_kind(Kind::Double), apart[0], "{kernel}");
            assert_eq!(parts, apart[1..], "{kernel}");
        }
    }
}

#[test]
fn values_that_are_not_finite_reach_the_output_and_nothing_else() {
    Runtime::initialise(2).unwrap();
    for kernel in tiled_kernels() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let inputs = Case::new(1, 2, 100, 130, 40).inputs();
            let _filled = inputs[0].select(1, 5).select(1, 1).fill_(bad);
            let [output, grad_query, ..] = on_kernel(&inputs, kernel);
            let finite = |tensor: Tensor| bool::try_from(tensor.isfinite().all()).unwrap();
            assert!(!finite(output.select(1, 5).select(1, 1)));
            assert!(finite(output.select(2, 0)));
            assert!(finite(output.select(1, 6)));
            assert!(!finite(grad_query));
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    Runtime::initialise(2).unwrap();
    let [query, key, value, _] = Case::new(1, 2, 10, 12, 16).inputs();
    assert!(scaled_dot_product(&query, &key, &value.narrow(1, 0, 11)).is_err());
    assert!(scaled_dot_product(&query, &key.narrow(3, 0, 8), &value.narrow(3, 0, 8)).is_err());
    assert!(scaled_dot_product(&query.select(0, 0), &key, &value).is_err());
    let together = |shape: &[i64]| Tensor::zeros(shape, (Kind::BFloat16, Device::Cpu));
    assert!(self_attention(&together(&[1, 10, 2, 2, 16])).is_err());
    assert!(self_attention(&together(&[10, 3, 2, 16])).is_err());
}
