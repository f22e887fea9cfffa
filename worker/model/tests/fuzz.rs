//! Throws broken weights files at their reader, as the worker's fuzz tests do with all else that is read from elsewhere:
//! see worker/tests/fuzz/main.rs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test ends where something is missing")]

#[path = "../../tests/fuzz/archive.rs"]
#[allow(dead_code, reason = "the tests of the worker use the rest of it")]
mod archive;

#[path = "support/saved.rs"]
mod saved;

use std::fs;

use archive::mend_safetensors;
use ringtune_fuzzing::{Path, as_it_is};
use ringtune_model::weights::Weights;
use ringtune_model::{
    BucketSizes, Error, Gpt2, LanguageModelSource, NewLanguageModel, OpenLanguageModel, Precision,
};
use safetensors::tensor::{Dtype, TensorView};

const MEBIBYTE: u64 = 1 << 20;

/// A file of such tensors, each number one half.
fn file(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let halves: Vec<Vec<u8>> =
        tensors.iter().map(|(_, shape)| 0.5f32.to_le_bytes().repeat(shape.iter().product())).collect();
    let views = tensors
        .iter()
        .zip(&halves)
        .map(|((name, shape), bytes)| (*name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap()));
    let about = [("format".to_owned(), "pt".to_owned())].into();
    safetensors::serialize(views, Some(about)).unwrap()
}

#[test]
fn safetensors_header() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("model.safetensors");
    let words =
        ["F32", "F64", "BF16", "I64", "BOOL", "F4", "dtype", "shape", "data_offsets", "__metadata__", "<a>"];
    Path {
        name: "safetensors-header",
        words: words.map(str::to_owned).to_vec(),
        valid: vec![file(&[("<a>", &[2, 8])]), file(&[("a.weight", &[4]), ("b", &[2, 1, 3])])],
        mend: mend_safetensors,
        most_bytes: 64 * MEBIBYTE,
        read: Box::new(move |bytes| {
            fs::write(&place, bytes).unwrap();
            let Ok(weights) = Weights::open_file(&place, |name| Some(name.to_owned())) else { return false };
            // The numbers themselves, wherever the header says that they are.
            for (name, shape) in [("<a>", &[2, 8][..]), ("a.weight", &[4]), ("b", &[2, 1, 3])] {
                if let Ok(tensor) = weights.root().stored_tensor(name, shape) {
                    assert_eq!(tensor.size(), shape);
                    // Reads every number.
                    assert_eq!(tensor.f_sum(tensor.kind()).unwrap().numel(), 1);
                }
            }
            true
        }),
    }
    .fuzz(env!("CARGO_TARGET_TMPDIR"));
}

#[test]
fn gpt2_config() {
    let folder = tempfile::tempdir().unwrap();
    let (vocab_size, n_positions, n_layer, n_head, n_embd) = (29, 8, 2, 2, 12);
    let new = NewLanguageModel { vocab_size, n_positions, n_layer, n_head, n_embd, bias: true, seed: 5 };
    let open = |source| {
        let buckets = BucketSizes::default();
        Gpt2::open(&OpenLanguageModel { source, precision: Precision::Fp32, threads: 1, buckets })
    };
    saved::save(&open(LanguageModelSource::New(new)).unwrap(), folder.path());
    let config = folder.path().join("config.json");
    let words = [
        "n_inner",
        "n_embd",
        "n_layer",
        "n_head",
        "vocab_size",
        "n_positions",
        "layer_norm_epsilon",
        "null",
        "true",
        "1e300",
        "-1",
        "1048576",
        "gelu_new",
        "scale_attn_weights",
        "add_cross_attention",
        "model_type",
    ];
    Path {
        name: "gpt2-config",
        words: words.map(str::to_owned).to_vec(),
        valid: vec![fs::read(&config).unwrap()],
        mend: as_it_is,
        most_bytes: 64 * MEBIBYTE,
        read: Box::new(|bytes| {
            fs::write(&config, bytes).unwrap();
            match open(LanguageModelSource::folder(folder.path())) {
                // The tensors are all there: what else is said of them is wrong.
                Ok(read) => {
                    let (info, parameters) = (read.info(), read.parameters.info());
                    assert_eq!((info.vocab_size, parameters.width, parameters.list.len()), (29, 12, 28));
                    true
                }
                Err(error) => {
                    assert!(!matches!(error, Error::Torch(_)) && !error.to_string().is_empty(), "{error}");
                    false
                }
            }
        }),
    }
    .fuzz(env!("CARGO_TARGET_TMPDIR"));
}
