//! GPT-2's loss, gradients and optimizer steps, against those of transformers and torch.

use std::collections::BTreeMap;
use std::process::Command;

use ringtune_model::{
    AlignedFloats, Applied, BucketSizes, Buckets, Dropout, EmbeddingRows, EngineError, Gpt2,
    LanguageModelSource, OpenLanguageModel, OptimizerStep, PassSummary, Precision, Runtime, TokenBatch,
};

use crate::precisions::{precisions, skips_bf16};
use crate::saved::save;
use crate::support::{GoldenFile, golden_folder, relative_error, repository};

/// Keeps all buckets in memory.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) buckets: Vec<AlignedFloats>,
    given: Vec<usize>,
    /// The ids whose rows the last one has.
    looked_up: EmbeddingRows,
}

impl Buckets for Kept {
    fn take(&mut self, bucket: usize) -> Result<AlignedFloats, EngineError> {
        let taken = std::mem::take(&mut self.buckets[bucket]);
        assert!(!taken.is_empty(), "bucket {bucket} is taken twice");
        Ok(taken)
    }

    fn give(&mut self, bucket: usize, memory: AlignedFloats) -> Result<(), EngineError> {
        self.buckets[bucket] = memory;
        self.given.push(bucket);
        Ok(())
    }
}

/// Buckets so small that every table is in several of them, and some whole layers in one.
const SMALL: BucketSizes = BucketSizes { first: 1 << 10, others: 20 << 10 };

pub(crate) const STEP: OptimizerStep = OptimizerStep {
    number: 1,
    learning_rate: 1e-3,
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
    weight_decay: 0.1,
    max_grad_norm: Some(1.0),
    divide_by: 1,
    other_rates: [0.0; 2],
    average_decay: None,
};

pub(crate) fn open(folder: &str, precision: Precision, threads: usize) -> Gpt2 {
    Runtime::initialise(threads).unwrap();
    let source = LanguageModelSource::folder(golden_folder().join(folder));
    Gpt2::open(&OpenLanguageModel { source, precision, threads, buckets: SMALL }).unwrap()
}

pub(crate) fn kept(model: &Gpt2) -> Kept {
    let mut buckets: Vec<AlignedFloats> =
        model.parameters.info().plan.buckets.iter().map(|bucket| filled(bucket.length)).collect();
    buckets.push(AlignedFloats::default());
    Kept { buckets, ..Kept::default() }
}

/// Memory in which something was before, which must not show.
fn filled(length: usize) -> AlignedFloats {
    let mut memory = AlignedFloats::zeros(length);
    memory.fill(7.5);
    memory
}

/// One microbatch's gradient, in buckets.
pub(crate) fn gradient(model: &mut Gpt2, batch: &TokenBatch, kept: &mut Kept) -> PassSummary {
    kept.given.clear();
    if !batch.add {
        kept.looked_up = batch.looked_up.clone();
        if let Some(rows) = kept.buckets.last_mut() {
            *rows = filled(model.parameters.info().looked_up_length(&batch.looked_up));
        }
    }
    let made = model.gradient(batch, kept).unwrap();
    assert_eq!(kept.given, (0..kept.buckets.len()).collect::<Vec<_>>());
    made
}

/// One step with what the buckets hold.
fn apply(model: &mut Gpt2, step: &OptimizerStep, kept: &mut Kept) -> Applied {
    model.parameters.apply(step, &kept.looked_up, &mut kept.buckets).unwrap()
}

/// The gradients by the parameters' names, out of the buckets; the token table's of both its parts.
pub(crate) fn by_name(model: &Gpt2, kept: &Kept) -> BTreeMap<String, Vec<f32>> {
    let info = model.parameters.info();
    let whole = |number: usize| {
        let pieces = info.plan.pieces_of(number);
        pieces
            .flat_map(|(bucket, piece)| kept.buckets[bucket][piece.offset..][..piece.count].to_vec())
            .collect()
    };
    let names = info.list.iter().map(|one| one.name.clone());
    let mut all: BTreeMap<String, Vec<f32>> = names.zip((0..info.list.len()).map(whole)).collect();
    let table = all.get_mut("transformer.wte.weight").unwrap();
    let rows = kept.buckets.last().unwrap().chunks_exact(info.width);
    assert_eq!(rows.len(), kept.looked_up.count());
    for (id, row) in kept.looked_up.ids().iter().zip(rows) {
        let of_table = &mut table[*id as usize * info.width..][..info.width];
        of_table.iter_mut().zip(row).for_each(|(sum, number)| *sum += number);
    }
    all
}

pub(crate) fn batch_of(golden: &GoldenFile, prefix: &str, add: bool) -> TokenBatch {
    let inputs = golden.get(&format!("{prefix}/inputs"));
    let ids = |name: &str| golden.integers(&format!("{prefix}/{name}")).to_vec();
    TokenBatch {
        batch: inputs.shape[0],
        block: inputs.shape[1],
        inputs: ids("inputs"),
        targets: ids("targets"),
        looked_up: EmbeddingRows::of(ids("inputs")),
        add,
        dropout: None,
    }
}

/// The names of a file's cases.
pub(crate) fn cases(golden: &GoldenFile) -> Vec<String> {
    let cases = golden.metadata("cases").as_array().unwrap();
    cases.iter().map(|case| case["case"].as_str().unwrap().to_owned()).collect()
}

/// Checks every case of a file for both models, with dropout or without.
pub(crate) fn fp32_is_as_the_reference(suffix: &str, dropout: impl Fn(&GoldenFile) -> Option<Dropout>) {
    for name in ["gpt2-tiny", "gpt2-odd"] {
        let golden = GoldenFile::open(&format!("{name}{suffix}.safetensors"));
        let mut model = open(name, Precision::Fp32, 1);
        assert!(model.parameters.info().plan.buckets.len() > 5);
        for case in cases(&golden) {
            let mut batch = batch_of(&golden, &format!("{case}/in"), false);
            batch.dropout = dropout(&golden);
            let mut kept = kept(&model);
            let made = gradient(&mut model, &batch, &mut kept);
            assert!(made.finite);
            let loss = golden.floats(&format!("{case}/fp32/loss"));
            assert!(relative_error(&[made.loss], loss) <= 1e-6, "{name} {case}: {} and {loss:?}", made.loss);
            // Nothing is dropped where the loss alone is wanted.
            let loss = model.loss(&batch).unwrap();
            assert_eq!(loss.to_bits() == made.loss.to_bits(), batch.dropout.is_none());
            let names = golden.keys_below(&format!("{case}/fp32/grad"));
            let ours = by_name(&model, &kept);
            assert_eq!(names.len(), ours.len());
            for (key, ours) in ours {
                let error = relative_error(&ours, golden.floats(&format!("{case}/fp32/grad/{key}")));
                assert!(error <= 5e-6, "{name} {case} {key}: {error:.2e}");
            }
        }
    }
}

#[test]
fn fp32_loss_and_every_gradient_are_those_of_transformers() {
    fp32_is_as_the_reference("", |_| None);
}

#[test]
fn bf16_is_as_near_to_fp32_as_autocast() {
    bf16_is_as_near_as_autocast("", |_| None);
}

/// Checks every case of a file for both models, with dropout or without.
pub(crate) fn bf16_is_as_near_as_autocast(suffix: &str, dropout: impl Fn(&GoldenFile) -> Option<Dropout>) {
    if skips_bf16() {
        return;
    }
    let mut ratios = Vec::new();
    for name in ["gpt2-tiny", "gpt2-odd"] {
        let golden = GoldenFile::open(&format!("{name}{suffix}.safetensors"));
        let mut model = open(name, Precision::Bf16, 1);
        for case in cases(&golden) {
            let mut batch = batch_of(&golden, &format!("{case}/in"), false);
            batch.dropout = dropout(&golden);
            let mut kept = kept(&model);
            let made = gradient(&mut model, &batch, &mut kept);
            let exact = golden.floats(&format!("{case}/fp32/loss"));
            assert!(
                relative_error(&[made.loss], exact) <= 1e-2,
                "{name} {case}: {} and {exact:?}",
                made.loss
            );
            let [mut all, mut others, mut exact] = [const { Vec::new() }; 3];
            for (key, ours) in by_name(&model, &kept) {
                let floats = |precision: &str| golden.floats(&format!("{case}/{precision}/grad/{key}"));
                all.extend(&ours);
                others.extend(floats("bf16"));
                exact.extend(floats("fp32"));
                ratios.push(
                    relative_error(&ours, floats("fp32")) / relative_error(floats("bf16"), floats("fp32")),
                );
            }
            let (error, own) = (relative_error(&all, &exact), relative_error(&others, &exact));
            println!("{name} {case}: {error:.4}, autocast {own:.4}, ratio {:.2}", error / own);
            assert!(error <= 1.2 * own, "{name} {case}: {error:.4}, autocast {own:.4}");
        }
    }
    ratios.sort_by(f64::total_cmp);
    let (median, last) = (ratios[ratios.len() / 2], ratios[ratios.len() * 98 / 100]);
    println!(
        "of single tensors: median {median:.2}, 98 of 100 below {last:.2}, worst {:.2}",
        ratios[ratios.len() - 1]
    );
    assert!(median <= 1.1 && last <= 1.6 && ratios[ratios.len() - 1] <= 2.0, "{ratios:.2?}");
}

/// The tensors of a state, by name.
fn state(model: &Gpt2) -> BTreeMap<String, Vec<f32>> {
    let read = |name: &str, length: usize| {
        let mut bytes = vec![0; 4 * length];
        for (number, chunk) in bytes.chunks_mut(1000).enumerate() {
            model.parameters.read_state(name, number as u64 * 1000, chunk).unwrap();
        }
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
    };
    let tensors = model.parameters.state_tensors();
    tensors.iter().map(|one| (one.name.clone(), read(&one.name, one.shape.iter().product()))).collect()
}

/// Without the offsets of keys: softmax does not see them, so that their gradient is rounding alone, of which the
/// optimizer makes steps as large as all others.
fn seen<'a>(name: &str, values: &'a [f32]) -> &'a [f32] {
    if name.ends_with("c_attn.bias") { &values[..values.len() / 3] } else { values }
}

#[test]
fn five_steps_by_nanogpts_recipe_leave_the_state_that_torch_leaves() {
    five_steps_are_torchs("gpt2-steps.safetensors", |_, _| None);
}

/// Checks the steps of a file; `dropout`: of a step, from 1, and its microbatch.
pub(crate) fn five_steps_are_torchs(file: &str, dropout: impl Fn(&GoldenFile, [u32; 2]) -> Option<Dropout>) {
    let golden = GoldenFile::open(file);
    let recipe = golden.metadata("recipe");
    let number = |key: &str| recipe[key].as_f64().unwrap();
    for precision in precisions() {
        let mut model = open("gpt2-tiny", precision, 2);
        let mut kept = kept(&model);
        for (index, rate) in recipe["learning_rates"].as_array().unwrap().iter().enumerate() {
            let key = format!("{precision}/step-{}", index + 1);
            // Of both microbatches: each has rows that are none of the other's.
            let inputs = (0..2).flat_map(|part| batch_of(&golden, &format!("{key}/{part}"), false).inputs);
            let looked_up = EmbeddingRows::of(inputs);
            for part in 0..2 {
                let mut batch = batch_of(&golden, &format!("{key}/{part}"), part > 0);
                batch.dropout = dropout(&golden, [index as u32 + 1, part]);
                batch.looked_up = looked_up.clone();
                let made = gradient(&mut model, &batch, &mut kept);
                let loss = golden.floats(&format!("{key}/{part}/loss"));
                let most = if precision == Precision::Fp32 { 1e-6 } else { 1e-2 };
                assert!(relative_error(&[made.loss], loss) <= most, "{key}: {} and {loss:?}", made.loss);
            }
            let step = OptimizerStep {
                number: index as u64 + 1,
                learning_rate: rate.as_f64().unwrap(),
                beta1: recipe["betas"][0].as_f64().unwrap(),
                beta2: recipe["betas"][1].as_f64().unwrap(),
                epsilon: number("epsilon"),
                weight_decay: number("weight_decay"),
                max_grad_norm: Some(number("max_grad_norm")),
                divide_by: 2,
                other_rates: [0.0; 2],
                average_decay: None,
            };
            let applied = apply(&mut model, &step, &mut kept);
            let norm = golden.floats(&format!("{key}/norm"));
            let most = if precision == Precision::Fp32 { 1e-6 } else { 2e-2 };
            assert!(relative_error(&[applied.grad_norm as f32], norm) <= most, "{key}: {applied:?} {norm:?}");
            assert!(!applied.skipped && applied.grad_norm > 1.0, "clipped: {applied:?}");
            // Per kind of tensor: all of ours, autocast's and torch's fp32, one behind the other.
            let mut sums: BTreeMap<String, [Vec<f32>; 3]> = BTreeMap::new();
            for (name, ours) in state(&model) {
                let exact = seen(&name, golden.floats(&format!("fp32/step-{}/{name}", index + 1)));
                let (ours, other) =
                    (seen(&name, &ours), seen(&name, golden.floats(&format!("{key}/{name}"))));
                let error = relative_error(ours, exact);
                assert!(precision == Precision::Bf16 || error <= 2e-5, "{key} {name}: {error:.2e}");
                let kind = name.split(".transformer").next().unwrap_or_default().to_owned();
                for (sum, values) in sums.entry(kind).or_default().iter_mut().zip([ours, other, exact]) {
                    sum.extend(values);
                }
            }
            assert_eq!(sums.len(), 3);
            for (kind, [ours, other, exact]) in sums {
                let (error, own) = (relative_error(&ours, &exact), relative_error(&other, &exact));
                println!("{key} {kind}: {error:.2e}, autocast {own:.2e}");
                assert!(
                    precision == Precision::Fp32 || error <= 1.2 * own,
                    "{key} {kind}: {error:.2e}, {own:.2e}"
                );
            }
        }
    }
}

#[test]
fn the_same_input_gives_the_same_bits_whatever_was_computed_before() {
    let golden = GoldenFile::open("gpt2-tiny.safetensors");
    let batches: Vec<TokenBatch> =
        cases(&golden).iter().map(|case| batch_of(&golden, &format!("{case}/in"), false)).collect();
    for precision in precisions() {
        for threads in [1, 2] {
            let bits = |model: &mut Gpt2, batch: &TokenBatch| -> Vec<u32> {
                let mut kept = kept(model);
                let loss = gradient(model, batch, &mut kept).loss;
                let all = kept.buckets.iter().flat_map(|bucket| bucket.iter());
                all.chain([&loss]).map(|value| value.to_bits()).collect()
            };
            let alone: Vec<_> =
                batches.iter().map(|batch| bits(&mut open("gpt2-tiny", precision, threads), batch)).collect();
            let mut model = open("gpt2-tiny", precision, threads);
            for number in [2, 0, 1, 1, 2, 0] {
                model.loss(&batches[(number + 1) % 3]).unwrap();
                assert!(
                    bits(&mut model, &batches[number]) == alone[number],
                    "{precision}, {threads}: {number}"
                );
            }
            assert_ne!(alone[0], alone[1]);
        }
    }
}

/// A training that goes on from a saved state has the bits of one that was never interrupted: also those of the copies,
/// which a step rounds by itself, and a state that comes in otherwise.
#[test]
fn a_state_that_is_written_back_goes_on_with_the_same_bits() {
    let golden = GoldenFile::open("gpt2-steps.safetensors");
    for precision in precisions() {
        let mut model = open("gpt2-tiny", precision, 1);
        let step = |model: &mut Gpt2, number: u64| -> Vec<u32> {
            let mut kept = kept(model);
            let made =
                gradient(model, &batch_of(&golden, &format!("fp32/step-{number}/0"), false), &mut kept);
            let step = OptimizerStep { number, learning_rate: 3e-3, ..STEP };
            apply(model, &step, &mut kept);
            let all = kept.buckets.iter().flat_map(|bucket| bucket.iter());
            all.chain([&made.loss]).map(|value| value.to_bits()).collect()
        };
        step(&mut model, 1);
        step(&mut model, 2);
        let mut other = open("gpt2-tiny", precision, 1);
        for (name, values) in state(&model) {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            for (number, chunk) in bytes.chunks(1000).enumerate() {
                other.parameters.write_state(&name, number as u64 * 1000, chunk).unwrap();
            }
        }
        for number in [3, 4] {
            assert!(step(&mut model, number) == step(&mut other, number), "{precision}: step {number}");
        }
        let bits = |model: &Gpt2| state(model).into_values().flatten().map(f32::to_bits).collect::<Vec<_>>();
        assert!(bits(&model) == bits(&other), "{precision}");
    }
}

#[test]
fn the_same_model_in_other_files_gives_the_same_loss() {
    let golden = GoldenFile::open("gpt2-tiny.safetensors");
    let batch = batch_of(&golden, "batch-2-block-19/in", false);
    let loss = |folder: &str| open(folder, Precision::Fp32, 1).loss(&batch).unwrap();
    let whole = loss("gpt2-tiny");
    for folder in ["bare", "shards"] {
        assert_eq!(loss(&format!("gpt2-tiny/{folder}")).to_bits(), whole.to_bits(), "{folder}");
    }
    for (folder, most) in [("fp16", 1e-4), ("bf16", 1e-2)] {
        let error = relative_error(&[loss(&format!("gpt2-tiny/{folder}"))], &[whole]);
        assert!(error > 0.0 && error <= most, "{folder}: {error:.2e}");
    }
}

#[test]
fn what_is_saved_is_what_transformers_loads() {
    let golden = GoldenFile::open("gpt2-tiny.safetensors");
    let batch = batch_of(&golden, "batch-2-block-19/in", false);
    let mut kept = kept(&open("gpt2-tiny", Precision::Fp32, 1));
    let mut model = open("gpt2-tiny", Precision::Fp32, 1);
    gradient(&mut model, &batch, &mut kept);
    let step = OptimizerStep { learning_rate: 1e-2, weight_decay: 0.0, max_grad_norm: None, ..STEP };
    apply(&mut model, &step, &mut kept);
    let folder = tempfile::tempdir().unwrap();
    save(&model, folder.path());
    let reference = repository().join("tests/reference");
    let setup = Command::new(reference.join("setup.sh")).output().unwrap();
    let python = String::from_utf8(setup.stdout).unwrap().lines().last().unwrap().to_owned();
    let ids = |ids: &[i64]| serde_json::to_string(ids).unwrap();
    let run = Command::new(python)
        .arg(reference.join("check_gpt2.py"))
        .arg(folder.path())
        .args([batch.block.to_string(), ids(&batch.inputs), ids(&batch.targets)])
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let loss: f32 = String::from_utf8(run.stdout).unwrap().trim().parse().unwrap();
    let ours = model.loss(&batch).unwrap();
    assert!(relative_error(&[ours], &[loss]) <= 1e-6, "{ours} and {loss}");
}

/// The slope of the loss along one direction, by the loss on both sides of it.
#[test]
fn the_gradient_is_the_slope_of_the_loss() {
    let golden = GoldenFile::open("gpt2-odd.safetensors");
    let batch = batch_of(&golden, "batch-3-block-7/in", false);
    let mut model = open("gpt2-odd", Precision::Fp32, 1);
    let mut kept = kept(&model);
    gradient(&mut model, &batch, &mut kept);
    let gradients = by_name(&model, &kept);
    for name in ["wte.weight", "wpe.weight", "h.0.attn.c_attn.weight", "h.2.mlp.c_fc.bias", "h.1.ln_2.weight"]
    {
        let gradient = &gradients[&format!("transformer.{name}")];
        let tensor = format!("model.transformer.{name}");
        let norm = gradient.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        let mut before = vec![0; gradient.len() * 4];
        model.parameters.read_state(&tensor, 0, &mut before).unwrap();
        let mut loss_at = |far: f64| {
            let moved = before.chunks_exact(4).zip(gradient).flat_map(|(four, slope)| {
                let value = f32::from_le_bytes(four.try_into().unwrap());
                (f64::from(value) + far * f64::from(*slope) / norm).to_le_f32()
            });
            model.parameters.write_state(&tensor, 0, &moved.collect::<Vec<u8>>()).unwrap();
            f64::from(model.loss(&batch).unwrap())
        };
        let far = 2e-2;
        let slope = (loss_at(far) - loss_at(-far)) / (2.0 * far);
        loss_at(0.0);
        assert!((slope / norm - 1.0).abs() < 5e-3, "{name}: {slope} and {norm}");
    }
}

trait Rounded {
    fn to_le_f32(self) -> [u8; 4];
}

impl Rounded for f64 {
    fn to_le_f32(self) -> [u8; 4] {
        (self as f32).to_le_bytes()
    }
}
