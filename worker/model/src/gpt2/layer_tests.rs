//! Each layer alone, forward and back, against transformers' own: tests/reference/goldens/gpt2.py.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use ringtune_engine::{
    AlignedFloats, BucketSizes, Buckets, EngineError, LanguageModelSource, OpenLanguageModel, Precision,
};
use tch::{Kind, Tensor};

use super::{Gpt2, backward, forward};
use crate::Runtime;
use crate::stable_diffusion::to_vec;
use crate::support::{GoldenFile, golden_folder, relative_error};

/// Buckets that nobody wants to keep.
struct Fresh(Vec<usize>);

impl Buckets for Fresh {
    fn take(&mut self, bucket: usize) -> Result<AlignedFloats, EngineError> {
        Ok(AlignedFloats::zeros(self.0[bucket]))
    }

    fn give(&mut self, _: usize, _: AlignedFloats) -> Result<(), EngineError> {
        Ok(())
    }
}

fn open(name: &str, precision: Precision) -> Gpt2 {
    Runtime::initialise(1).unwrap();
    let source = LanguageModelSource::folder(golden_folder().join(name));
    Gpt2::open(&OpenLanguageModel { source, precision, threads: 1, buckets: BucketSizes::default() }).unwrap()
}

/// Calls `check` with what each layer has, ours and its golden's key, in every case.
fn each_layer(precision: Precision, mut check: impl FnMut(&GoldenFile, &str, &[f32])) {
    for name in ["gpt2-tiny", "gpt2-odd"] {
        let golden = GoldenFile::open(&format!("{name}.safetensors"));
        let model = open(name, precision);
        let width = model.config.n_embd;
        for case in golden.metadata("cases").as_array().unwrap() {
            let key = |rest: String| format!("{}/{precision}/{rest}", case["case"].as_str().unwrap());
            let ids = golden.integers(&format!("{}/in/inputs", case["case"].as_str().unwrap()));
            let ids = Tensor::from_slice(ids).view([case["batch"].as_i64().unwrap(), -1]);
            let floats = |key: &str| Tensor::from_slice(golden.floats(key)).view([-1, width]);
            let activations = forward::forward(&model, &ids, None, true).unwrap();
            for (number, layer) in activations.layers.into_iter().enumerate() {
                // 1. What goes in, and with the layer behind it what comes out.
                let into = key(format!("h.{number}/in"));
                check(&golden, &into, &to_vec(&layer.first.x).unwrap());
                if number > 0 {
                    check(&golden, &key(format!("h.{}/out", number - 1)), &to_vec(&layer.first.x).unwrap());
                }
                // 2. The way back alone, from the golden's own gradient.
                let mut residual = floats(&key(format!("h.{number}/grad_out")));
                let kind = layer.first.y.kind();
                let slope = residual.to_kind(kind).copy();
                let mut fresh =
                    Fresh(model.parameters.info().plan.buckets.iter().map(|bucket| bucket.length).collect());
                let mut gradients = model.parameters.gradients(&mut fresh, false);
                let place = (number, None);
                let back = backward::layer_back(&model, place, layer, slope, &mut residual, &mut gradients);
                let back = back.unwrap().to_kind(Kind::Float);
                let wanted = key(format!("h.{number}/grad_in"));
                check(&golden, &wanted, &to_vec(&residual).unwrap());
                assert!(relative_error(&to_vec(&back).unwrap(), &to_vec(&residual).unwrap()) < 4e-3);
            }
        }
    }
}

#[test]
fn every_layer_in_fp32_is_transformers_own_forward_and_back() {
    let mut checked = 0;
    each_layer(Precision::Fp32, |golden, key, ours| {
        let error = relative_error(ours, golden.floats(key));
        assert!(error <= 2e-6, "{key}: {error:.2e}");
        checked += 1;
    });
    assert!(checked >= 30, "{checked}");
}

#[test]
fn every_layer_in_bf16_is_as_near_to_fp32_as_under_autocast() {
    if crate::runtime::skips_bf16() {
        return;
    }
    let (mut errors, mut others) = (0.0, 0.0);
    each_layer(Precision::Bf16, |golden, key, ours| {
        let exact = golden.floats(&key.replace("/bf16/", "/fp32/"));
        let (own, other) = (relative_error(ours, exact), relative_error(golden.floats(key), exact));
        assert!(own <= 0.03 || own <= 1.5 * other, "{key}: {own:.2e}, autocast {other:.2e}");
        errors += own;
        others += other;
    });
    assert!(errors > 0.0 && errors <= 1.2 * others, "{errors:.3} of {others:.3} in sum");
}
