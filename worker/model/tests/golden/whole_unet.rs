//! Loss and gradients of a UNet's own weights, against those of diffusers.

use std::fs;
use std::path::{Path, PathBuf};

use ringtune_model::{
    Attention, EmbeddingRows, FirstValues, GenerateRequest, Microbatch, ModelOptions, OpenUnet,
    OptimizerStep, ParametersInfo, PassSummary, Precision, Runtime, SamplerKind, Shows, StableDiffusion,
};

use crate::blocks::CHECKPOINTS;
use crate::lora::{Gradients, Kept, SMALL, median, microbatch};
use crate::precisions::{precisions, skips_bf16};
use crate::support::{GoldenFile, golden_folder, relative_error};

const CASES: [&str; 2] = ["plain", "snr"];
const HOW: [Attention; 3] = [Attention::Fused, Attention::Plain, Attention::Sliced];

/// A model whose UNet is trained, and its gradients' buckets.
struct Opened {
    model: StableDiffusion,
    info: ParametersInfo,
    kept: Kept,
}

/// All that is not of a case.
fn request(trained: Vec<String>) -> OpenUnet {
    OpenUnet {
        trained,
        first: FirstValues::Stored,
        buckets: SMALL,
        average: false,
        rounds: false,
        checkpointing: false,
        attention: Attention::Fused,
        folder: None,
    }
}

impl Opened {
    fn new(checkpoint: &str, precision: Precision, change: impl FnOnce(OpenUnet) -> OpenUnet) -> Self {
        let mut model = StableDiffusion::open(&golden_folder().join(checkpoint), precision).unwrap();
        let names = model.unet_tensors().unwrap().into_iter().map(|(name, _)| name).collect();
        let info = model.open_unet(&change(request(names))).unwrap();
        Opened { kept: Kept::new(&info), model, info }
    }

    fn gradient(&mut self, microbatch: &Microbatch, add: bool) -> (PassSummary, Gradients) {
        let pass = self.model.picture_gradient(microbatch, add, &mut self.kept).unwrap();
        (pass, self.kept.gradients(&self.info))
    }

    /// A step with what the buckets hold.
    fn step(&mut self, average_decay: Option<f64>) {
        let step = OptimizerStep {
            number: 1,
            learning_rate: 1e-2,
            other_rates: [0.0; 2],
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 1e-2,
            max_grad_norm: Some(1.0),
            divide_by: 1,
            average_decay,
        };
        let parameters = self.model.trained().unwrap();
        assert!(!parameters.apply(&step, &EmbeddingRows::default(), &mut self.kept.0).unwrap().skipped);
    }

    /// All of the state.
    fn state(&mut self) -> Vec<Vec<u8>> {
        let parameters = self.model.trained().unwrap();
        let read = |tensor: ringtune_model::StateTensor| {
            let mut bytes = vec![0; 4 * tensor.shape.iter().product::<usize>()];
            parameters.read_state(&tensor.name, 0, &mut bytes).unwrap();
            bytes
        };
        parameters.state_tensors().into_iter().map(read).collect()
    }
}

fn golden(checkpoint: &str) -> GoldenFile {
    GoldenFile::open(&format!("{checkpoint}-whole.safetensors"))
}

#[test]
fn fp32_loss_and_gradients_are_those_of_diffusers() {
    Runtime::initialise(2).unwrap();
    for checkpoint in CHECKPOINTS {
        let golden = golden(checkpoint);
        for (attention, case) in HOW.into_iter().flat_map(|how| CASES.map(|case| (how, case))) {
            let mut opened =
                Opened::new(checkpoint, Precision::Fp32, |request| OpenUnet { attention, ..request });
            assert!(opened.info.plan.buckets.len() > 1);
            let inputs = microbatch(&golden, case);
            let (pass, gradients) = opened.gradient(&inputs, false);
            let loss = relative_error(&[pass.loss], golden.floats(&format!("{case}/fp32/loss")));
            assert!(pass.finite && loss <= 1e-5, "{checkpoint} {case}: loss error {loss:.2e}");
            assert_eq!(gradients.len(), golden.keys_below(&format!("{case}/fp32/grad")).len());
            for (name, gradient) in &gradients {
                let reference = golden.floats(&format!("{case}/fp32/grad/{name}"));
                let largest = reference.iter().fold(0f32, |largest, value| largest.max(value.abs()));
                let differences = gradient.iter().zip(reference).map(|(one, other)| (one - other).abs());
                let error = differences.fold(0f32, f32::max) / largest;
                assert!(largest > 0.0 && error <= 1e-4, "{checkpoint} {case} {name}: {error:.2e}");
            }
            // A loss alone has the same bits; what is added is added to what is there.
            let alone = opened.model.picture_loss(&inputs).unwrap();
            assert_eq!(alone.to_bits(), pass.loss.to_bits(), "{checkpoint} {case}");
            let (_, doubled) = opened.gradient(&inputs, true);
            let doubles = gradients.values().flatten().map(|value| value * 2.0);
            assert!(doubled.values().flatten().copied().eq(doubles), "{checkpoint} {case}");
        }
    }
}

#[test]
fn bf16_gradients_are_as_near_to_fp32_as_those_of_diffusers() {
    if skips_bf16() {
        return;
    }
    Runtime::initialise(2).unwrap();
    for checkpoint in CHECKPOINTS {
        let golden = golden(checkpoint);
        let mut opened = Opened::new(checkpoint, Precision::Bf16, |request| request);
        let mut ratios = Vec::new();
        for case in CASES {
            let (pass, gradients) = opened.gradient(&microbatch(&golden, case), false);
            assert!(pass.finite);
            for (name, gradient) in &gradients {
                let exact = golden.floats(&format!("{case}/fp32/grad/{name}"));
                let own = relative_error(golden.floats(&format!("{case}/bf16/grad/{name}")), exact);
                ratios.push(relative_error(gradient, exact) / own);
            }
        }
        let median = median(&ratios);
        println!("{checkpoint}: median ratio {median:.2}");
        assert!(median <= 1.0, "{checkpoint}: median ratio {median:.2} of the reference's own error");
    }
}

#[test]
fn checkpointing_and_mapped_files_change_no_bit() {
    Runtime::initialise(2).unwrap();
    let golden = golden("tiny15");
    let inputs = microbatch(&golden, "plain");
    let folder = tempfile::tempdir().unwrap();
    let folder = |of_file: bool| of_file.then(|| PathBuf::from(folder.path()));
    for precision in precisions() {
        let after = [(false, false), (true, false), (true, true)].map(|(checkpointing, of_file)| {
            let change =
                |request| OpenUnet { checkpointing, average: true, folder: folder(of_file), ..request };
            let mut opened = Opened::new("tiny15", precision, change);
            let (first, gradients) = opened.gradient(&inputs, false);
            opened.step(Some(0.25));
            let (second, _) = opened.gradient(&inputs, false);
            assert_ne!(first.loss, second.loss, "nothing was learned");
            ([first.loss.to_bits(), second.loss.to_bits()], gradients, opened.state())
        });
        assert!(after[0] == after[1] && after[1] == after[2], "{precision}");
    }
}

/// Layers keep what they made of their weights: not beyond a step, another state or the average.
#[test]
fn what_is_computed_goes_by_the_values_of_now() {
    Runtime::initialise(2).unwrap();
    let golden = golden("tiny2");
    let inputs = microbatch(&golden, "plain");
    let (tokens, info) = (inputs.input_ids.len() / inputs.batch, open_info("tiny2"));
    let side = 8 * info.vae_factor;
    let picture = GenerateRequest {
        batch: 1,
        height: side,
        width: side,
        prompt_ids: &inputs.input_ids[..tokens],
        negative_ids: &inputs.input_ids[tokens..],
        rows: &[],
        sampler: SamplerKind::Ddim,
        steps: 2,
        guidance: 7.5,
        noise: &vec![0.5; info.latent_channels * 8 * 8],
        step_noise: &[],
    };
    for precision in precisions() {
        let open = || Opened::new("tiny2", precision, |request| OpenUnet { average: true, ..request });
        let mut opened = open();
        let drawn = |opened: &mut Opened| opened.model.generate(&picture, |_, _| true).unwrap();
        let (before, frozen) = (opened.model.picture_loss(&inputs).unwrap(), drawn(&mut opened));
        opened.gradient(&inputs, false);
        // The average stays where it was.
        opened.step(Some(1.0));
        let after = opened.model.picture_loss(&inputs).unwrap();
        assert!(after != before && drawn(&mut opened) != frozen, "{precision}");
        opened.model.trained().unwrap().show(Shows::Average).unwrap();
        assert_eq!(opened.model.picture_loss(&inputs).unwrap().to_bits(), before.to_bits(), "{precision}");
        assert!(drawn(&mut opened) == frozen, "{precision}");
        // A gradient is the parameters', and a state that is written is what is computed with.
        assert_eq!(opened.gradient(&inputs, false).0.loss.to_bits(), after.to_bits(), "{precision}");
        let (mut other, state) = (open(), opened.state());
        let parameters = other.model.trained().unwrap();
        for (tensor, bytes) in parameters.state_tensors().iter().zip(&state) {
            parameters.write_state(&tensor.name, 0, bytes).unwrap();
        }
        assert_eq!(other.model.picture_loss(&inputs).unwrap().to_bits(), after.to_bits(), "{precision}");
        assert!(parameters_refuse(&mut other), "{precision}");
    }
}

fn open_info(checkpoint: &str) -> ringtune_model::ModelInfo {
    ringtune_model::check_folder(&golden_folder().join(checkpoint)).unwrap()
}

fn parameters_refuse(opened: &mut Opened) -> bool {
    opened.model.trained().unwrap().show(Shows::Given).is_err()
}

#[test]
fn a_part_of_the_weights_has_the_gradients_that_it_has_among_all() {
    Runtime::initialise(2).unwrap();
    let golden = golden("tiny15");
    let inputs = microbatch(&golden, "plain");
    for precision in precisions() {
        let (pass, all) = Opened::new("tiny15", precision, |request| request).gradient(&inputs, false);
        for part in [".attn2.", ".to_k.weight", "norm", "conv_out.", "time_emb", "bias", "up_blocks.0."] {
            let wanted = |request: OpenUnet| {
                let trained: Vec<String> =
                    request.trained.into_iter().filter(|name| name.contains(part)).collect();
                assert!(!trained.is_empty(), "{part}");
                OpenUnet { trained, ..request }
            };
            let (own, gradients) = Opened::new("tiny15", precision, wanted).gradient(&inputs, false);
            // Frozen layers may round elsewhere.
            let most: f32 = if precision == Precision::Fp32 { 1e-4 } else { 0.1 };
            assert!((own.loss - pass.loss).abs() <= most * pass.loss, "{precision} {part}");
            for (name, gradient) in &gradients {
                let error = relative_error(gradient, &all[name]);
                assert!(error <= f64::from(most), "{precision} {part} {name}: {error:.2e}");
            }
        }
    }
}

#[test]
fn first_values_are_drawn_by_the_seed_and_what_makes_no_sense_is_refused() {
    Runtime::initialise(1).unwrap();
    let golden = golden("tiny15");
    let inputs = microbatch(&golden, "plain");
    let drawn = |seed| {
        let change = |request| OpenUnet { first: FirstValues::Drawn { seed }, ..request };
        Opened::new("tiny15", Precision::Fp32, change).model.picture_loss(&inputs).unwrap()
    };
    assert!(drawn(1).is_finite() && drawn(1) == drawn(1) && drawn(1) != drawn(2));
    let mut model = StableDiffusion::open(&golden_folder().join("tiny15"), Precision::Fp32).unwrap();
    for (names, reason) in [(vec![], "0 names"), (vec!["conv_in.weight", "x"], "2 names, 1 of them")] {
        let names = names.into_iter().map(str::to_owned).collect();
        let refused = model.open_unet(&request(names)).unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
    }
}

/// A folder whose UNet is a configuration alone.
#[test]
fn a_unet_without_weights_is_drawn_and_nothing_else() {
    Runtime::initialise(1).unwrap();
    let (folder, whole) = (tempfile::tempdir().unwrap(), golden_folder().join("tiny15"));
    for entry in walk(&whole) {
        let to = folder.path().join(entry.strip_prefix(&whole).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        if !entry.ends_with("unet/diffusion_pytorch_model.safetensors") {
            fs::copy(&entry, to).unwrap();
        }
    }
    assert!(StableDiffusion::open(folder.path(), Precision::Fp32).is_err());
    let options = ModelOptions { draws_unet: true, ..ModelOptions::default() };
    let alone = folder.path().to_owned();
    let [with, without] = [&whole, &alone].map(|path| ringtune_model::unet_tensors(path, &options).unwrap());
    assert_eq!(with, without);
    for precision in precisions() {
        let golden = golden("tiny15");
        let inputs = microbatch(&golden, "plain");
        let mut model = StableDiffusion::open_with(folder.path(), precision, &options).unwrap();
        let names: Vec<String> = with.iter().map(|(name, _)| name.clone()).collect();
        let (mut drawn, stored) = (request(names), request(vec!["conv_in.weight".to_owned()]));
        drawn.first = FirstValues::Drawn { seed: 1 };
        let refused = model.open_unet(&stored).unwrap_err().to_string();
        assert!(refused.contains("without weights"), "{refused}");
        let kept = Kept::new(&model.open_unet(&drawn).unwrap());
        let mut here = Opened { info: model.trained().unwrap().info().clone(), model, kept };
        // The same as of the whole model.
        let mut there = Opened::new("tiny15", precision, |_| drawn.clone());
        assert!(here.gradient(&inputs, false).1 == there.gradient(&inputs, false).1, "{precision}");
    }
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}
