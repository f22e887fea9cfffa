//! Running the cases of one golden file, block by block, in both number formats.

use std::collections::BTreeMap;

use ringtune_model::model_files::ModelFiles;
use ringtune_model::{ModelOptions, Precision, Runtime};
use tch::{Kind, Tensor};

use crate::precisions::precisions;
use crate::support::{Golden, GoldenFile, Values, golden_folder, relative_error};

/// The largest relative error in fp32.
const MAX_FP32_ERROR: f64 = 1e-4;
/// The largest distance from fp32 in bf16, in terms of the reference's own.
const MAX_BF16_RATIO: f64 = 2.0;

/// The models that golden.py makes: the shapes of SD 1.x and SD 2.x.
pub(crate) const CHECKPOINTS: [&str; 2] = ["tiny15", "tiny2"];

/// Opens a model of the golden folder, with libtorch set up.
pub(crate) fn open_checkpoint(name: &str) -> ModelFiles {
    Runtime::initialise(1).unwrap();
    ModelFiles::read(&golden_folder().join(name), &ModelOptions::default()).unwrap()
}

/// One recorded call of a block, or of a whole network ("model").
#[derive(Debug, Clone, serde::Deserialize)]
pub(crate) struct Case {
    /// Where its tensors are in the file.
    pub(crate) case: String,
    /// Its class in diffusers or transformers.
    pub(crate) kind: String,
    /// Its place in the network, which is its weights' prefix too.
    pub(crate) path: String,
}

/// A case's inputs in one precision.
pub(crate) struct Inputs<'a> {
    file: &'a GoldenFile,
    /// The case they belong to.
    pub(crate) case: &'a Case,
    /// The kind that weights and activations of UNet and VAE have in this run.
    pub(crate) kind: Kind,
}

impl Inputs<'_> {
    /// The input `name` as it was recorded.
    pub(crate) fn recorded(&self, name: &str) -> Tensor {
        to_tensor(self.file.get(&format!("{}/in/{name}", self.case.case)))
    }

    /// The input `name` in the run's kind.
    pub(crate) fn tensor(&self, name: &str) -> Tensor {
        self.recorded(name).to_kind(self.kind)
    }

    /// The input `name` in the run's kind, if the block was given one.
    pub(crate) fn find(&self, name: &str) -> Option<Tensor> {
        let key = format!("{}/in/{name}", self.case.case);
        self.file.find(&key).map(|golden| to_tensor(golden).to_kind(self.kind))
    }

    /// The tensors of the tuple `name`, in order.
    pub(crate) fn tuple(&self, name: &str) -> Vec<Tensor> {
        match self.find(name) {
            Some(only) => vec![only],
            None => (0..).map_while(|index| self.find(&format!("{name}.{index}"))).collect(),
        }
    }

    /// A tensor of another case of the same file.
    pub(crate) fn elsewhere(&self, key: &str) -> Tensor {
        to_tensor(self.file.get(key))
    }

    /// The shape of the reference's output `name`.
    pub(crate) fn output_shape(&self, name: &str) -> Vec<i64> {
        to_tensor(self.file.get(&format!("{}/fp32/{name}", self.case.case))).size()
    }
}

/// A golden tensor as libtorch's.
pub(crate) fn to_tensor(golden: &Golden) -> Tensor {
    let shape: Vec<i64> = golden.shape.iter().map(|side| *side as i64).collect();
    match &golden.values {
        Values::Floats(values) => Tensor::from_slice(values).view(&shape[..]),
        Values::Integers(values) => Tensor::from_slice(values).view(&shape[..]),
        Values::Bytes(values) => Tensor::from_slice(values).view(&shape[..]),
    }
}

/// All values of a tensor as fp32.
pub(crate) fn to_floats(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.to_kind(Kind::Float).contiguous().view([-1])).unwrap()
}

/// A block's outputs by the names that golden.py gives them.
pub(crate) type Outputs = Vec<(String, Tensor)>;

/// The one output "out".
pub(crate) fn out(tensor: ringtune_model::Result<Tensor>) -> Option<Outputs> {
    Some(vec![("out".to_string(), tensor.unwrap())])
}

/// Runs every case of `file_name` in both precisions and compares every output.
///
/// `run` gives a block's outputs, or None for a kind it does not know, which fails the test.
/// Returns how many cases there were of each kind.
pub(crate) fn check_cases(
    file_name: &str,
    run: impl Fn(&Inputs) -> Option<Outputs>,
) -> BTreeMap<String, usize> {
    let file = GoldenFile::open(file_name);
    let precisions = precisions();
    let cases: Vec<Case> = serde_json::from_value(file.metadata("cases").clone()).unwrap();
    let mut counts = BTreeMap::new();
    let mut failures = Vec::new();
    let mut worst: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for case in &cases {
        *counts.entry(case.kind.clone()).or_insert(0) += 1;
        let worst = worst.entry(&case.kind).or_insert((0.0, 0.0));
        for precision in &precisions {
            let kind = if *precision == Precision::Fp32 { Kind::Float } else { Kind::BFloat16 };
            let inputs = Inputs { file: &file, case, kind };
            let outputs = run(&inputs).unwrap_or_else(|| panic!("no test of {case:?}"));
            let expected = file.keys_below(&format!("{}/fp32", case.case));
            let mut found: Vec<&str> = outputs.iter().map(|(name, _)| name.as_str()).collect();
            found.sort_unstable();
            assert_eq!(found, expected, "outputs of {case:?}");
            for (name, output) in &outputs {
                let reference = file.floats(&format!("{}/fp32/{name}", case.case));
                let shape = inputs.output_shape(name);
                assert_eq!(output.size(), shape, "shape of {name} of {case:?}");
                let error = relative_error(&to_floats(output), reference);
                if kind == Kind::Float {
                    worst.0 = worst.0.max(error);
                    if error > MAX_FP32_ERROR {
                        failures.push(format!("{} {} {name}: fp32 error {error:.2e}", case.case, case.kind));
                    }
                } else if file.find(&format!("{}/bf16/{name}", case.case)).is_some() {
                    let own = relative_error(file.floats(&format!("{}/bf16/{name}", case.case)), reference);
                    worst.1 = worst.1.max(error / own);
                    if error > MAX_BF16_RATIO * own {
                        let what = format!("bf16 error {error:.2e}, the reference's own {own:.2e}");
                        failures.push(format!("{} {} {name}: {what}", case.case, case.kind));
                    }
                }
            }
        }
    }
    for (kind, (error, ratio)) in worst {
        println!("{file_name} {kind}: {} cases, fp32 error {error:.1e}, bf16 ratio {ratio:.2}", counts[kind]);
    }
    assert!(failures.is_empty(), "{} outputs are off:\n{}", failures.len(), failures.join("\n"));
    counts
}

/// Fails unless each of `kinds` was among the cases.
pub(crate) fn assert_covers(counts: &BTreeMap<String, usize>, kinds: &[&str]) {
    for kind in kinds {
        assert!(counts.contains_key(*kind), "no golden case of {kind}: {counts:?}");
    }
}
