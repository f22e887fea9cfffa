//! Attention in the widths and lengths of full-size networks, forward and backward.

use ringtune_model::unet::CrossAttention;
use ringtune_model::weights::Weights;
use ringtune_model::{Precision, Runtime};
use tch::{Kind, Tensor};

use crate::blocks::{to_floats, to_tensor};
use crate::precisions::{precisions, skips_bf16};
use crate::support::{GoldenFile, golden_folder, relative_error};

/// The output and the gradients of the inputs by golden name, for one case.
fn run(golden: &GoldenFile, weights: &Weights, case: &str, precision: Precision) -> Vec<(String, Vec<f32>)> {
    let kind = if precision == Precision::Fp32 { Kind::Float } else { Kind::BFloat16 };
    let shape = &golden.metadata("cases")[case];
    let [channels, heads, context_width] =
        ["channels", "heads", "context_width"].map(|key| shape[key].as_i64().unwrap());
    let input =
        |name: &str| golden.find(&format!("{case}/in/{name}")).map(|one| to_tensor(one).to_kind(kind));
    let x = input("x").unwrap().set_requires_grad(true);
    let context = input("context").map(|context| context.set_requires_grad(true));
    let width = context.as_ref().map(|_| context_width);
    let attention = CrossAttention::new(&weights.root().sub(case), channels, heads, width, kind).unwrap();
    let output = attention.forward(&x, context.as_ref().unwrap_or(&x)).unwrap();
    // The gradient of output · out_grad is what out_grad at the output makes of the inputs.
    let weighted = (&output * input("out_grad").unwrap()).sum(Kind::Float);
    let leaves: Vec<(&str, &Tensor)> =
        std::iter::once(("grad_x", &x)).chain(context.as_ref().map(|one| ("grad_context", one))).collect();
    let inputs: Vec<&Tensor> = leaves.iter().map(|(_, leaf)| *leaf).collect();
    let gradients = Tensor::run_backward(&[weighted], &inputs, false, false);
    let mut results = vec![("out".to_string(), to_floats(&output.detach()))];
    let names = leaves.iter().map(|(name, _)| name.to_string());
    results.extend(names.zip(gradients.iter().map(to_floats)));
    results
}

fn check(precision: Precision, threads: usize) {
    Runtime::initialise(threads).unwrap();
    let golden = GoldenFile::open("attention.safetensors");
    let weights = Weights::open_file(&golden_folder().join("attention-weights.safetensors"), |name| {
        Some(name.to_string())
    })
    .unwrap();
    let cases = golden.metadata("cases").as_object().unwrap();
    assert!(cases.len() >= 10, "{} cases", cases.len());
    for case in cases.keys() {
        for (name, ours) in run(&golden, &weights, case, precision) {
            let reference = golden.floats(&format!("{case}/fp32/{name}"));
            let own = relative_error(golden.floats(&format!("{case}/bf16/{name}")), reference);
            let error = relative_error(&ours, reference);
            println!("{case} {precision} {name}: error {error:.2e}, diffusers' own bf16 {own:.2e}");
            let bound = if precision == Precision::Fp32 { 1e-4 } else { 2.0 * own };
            assert!(error <= bound, "{case} {precision} {name}: {error:.2e}, allowed {bound:.2e}");
        }
    }
}

#[test]
fn fp32_attention_of_full_size_heads_is_that_of_diffusers() {
    check(Precision::Fp32, 1);
}

#[test]
fn bf16_attention_of_full_size_heads_is_as_near_to_fp32_as_that_of_diffusers() {
    if !skips_bf16() {
        check(Precision::Bf16, 1);
    }
}

#[test]
fn attention_on_two_threads_is_that_of_diffusers_too() {
    precisions().into_iter().for_each(|precision| check(precision, 2));
}
