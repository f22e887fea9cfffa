//! The golden tensors that tests/reference/golden.py makes with diffusers, for any test that wants them.
//!
//! Names no libtorch type, so that a test of another crate can include this file too. What the files hold is
//! written at the top of golden.py.

#![allow(dead_code, reason = "each test binary that includes this module uses its own part of it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use safetensors::{Dtype, SafeTensors};

/// The root of the repository, found upwards from the crate that is tested.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .find(|folder| folder.join("tests/reference/ensure.sh").is_file())
        .expect("tests/reference/ensure.sh lies in a folder above the crate")
}

/// The folder of goldens, made by tests/reference/ensure.sh when it is missing (once for each machine).
pub(crate) fn golden_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let script = repository().join("tests/reference/ensure.sh");
        let output = Command::new(&script).stderr(Stdio::inherit()).output().expect("ensure.sh starts");
        assert!(output.status.success(), "{} failed: {}", script.display(), output.status);
        let printed = String::from_utf8(output.stdout).expect("ensure.sh prints UTF-8");
        PathBuf::from(printed.lines().last().expect("ensure.sh prints the folder"))
    })
}

/// The trained toy model that is part of the repository.
pub(crate) fn toy_checkpoint() -> PathBuf {
    repository().join("tests/fixtures/toy-sd")
}

/// One tensor of a golden file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Golden {
    /// Its sides.
    pub(crate) shape: Vec<usize>,
    /// Its values, row by row.
    pub(crate) values: Values,
}

/// The values of a golden tensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Values {
    /// fp32, also where the reference computed in bf16.
    Floats(Vec<f32>),
    /// Token ids and timesteps.
    Integers(Vec<i64>),
    /// Pictures.
    Bytes(Vec<u8>),
}

/// One safetensors file of the golden folder, read whole.
#[derive(Debug)]
pub(crate) struct GoldenFile {
    path: PathBuf,
    tensors: BTreeMap<String, Golden>,
    metadata: BTreeMap<String, serde_json::Value>,
}

impl GoldenFile {
    /// Reads `name` (such as "adamw.safetensors") of the golden folder.
    pub(crate) fn open(name: &str) -> Self {
        let path = golden_folder().join(name);
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("a safetensors header");
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let metadata = header.metadata().clone().unwrap_or_default();
        GoldenFile {
            tensors: file.tensors().into_iter().map(|(name, view)| (name, read(&view))).collect(),
            metadata: metadata
                .into_iter()
                .filter(|(key, _)| key != "format")
                .map(|(key, text)| (key, serde_json::from_str(&text).expect("JSON metadata")))
                .collect(),
            path,
        }
    }

    /// The JSON value under `key` in the file's metadata.
    pub(crate) fn metadata(&self, key: &str) -> &serde_json::Value {
        self.metadata.get(key).unwrap_or_else(|| panic!("{} has no metadata {key}", self.path.display()))
    }

    /// The tensor `key`.
    pub(crate) fn get(&self, key: &str) -> &Golden {
        self.find(key).unwrap_or_else(|| panic!("{} has no tensor {key}", self.path.display()))
    }

    /// The tensor `key`, if there is one.
    pub(crate) fn find(&self, key: &str) -> Option<&Golden> {
        self.tensors.get(key)
    }

    /// The values of a tensor of floats.
    pub(crate) fn floats(&self, key: &str) -> &[f32] {
        match &self.get(key).values {
            Values::Floats(values) => values,
            other => panic!("{key} in {} is not of floats: {other:?}", self.path.display()),
        }
    }

    /// The values of a tensor of integers.
    pub(crate) fn integers(&self, key: &str) -> &[i64] {
        match &self.get(key).values {
            Values::Integers(values) => values,
            other => panic!("{key} in {} is not of integers: {other:?}", self.path.display()),
        }
    }

    /// The keys below `prefix`/ in order, without it: of a tuple NAME.0, NAME.1, or of a single tensor NAME.
    pub(crate) fn keys_below(&self, prefix: &str) -> Vec<&str> {
        let prefix = format!("{prefix}/");
        self.tensors.keys().filter_map(|key| key.strip_prefix(prefix.as_str())).collect()
    }
}

fn read(view: &safetensors::tensor::TensorView) -> Golden {
    let bytes = view.data();
    let values = match view.dtype() {
        Dtype::F32 => {
            Values::Floats(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect())
        }
        Dtype::I64 => Values::Integers(
            bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect(),
        ),
        Dtype::U8 => Values::Bytes(bytes.to_vec()),
        other => panic!("goldens hold no {other:?}"),
    };
    Golden { shape: view.shape().to_vec(), values }
}

/// L2 norm of the difference over the L2 norm of the reference; 0 where both are zero, infinite (and so above
/// any bound) where a value is not finite or the lengths differ.
pub(crate) fn relative_error(ours: &[f32], reference: &[f32]) -> f64 {
    if ours.len() != reference.len() || ours.iter().any(|value| !value.is_finite()) {
        return f64::INFINITY;
    }
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut ours.iter().zip(reference).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let scale = norm(&mut reference.iter().map(|value| f64::from(*value)));
    if difference == 0.0 { 0.0 } else { difference / scale }
}

/// Cosine of the angle between two vectors.
pub(crate) fn cosine(ours: &[f32], reference: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(ours, reference) / (dot(ours, ours) * dot(reference, reference)).sqrt()
}
