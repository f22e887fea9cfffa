//! Loss and gradients of adapters (LoRA) beside the frozen layers, against those of diffusers and PEFT.

use std::collections::BTreeMap;

use ringtune_model::{
    Adapter, AlignedFloats, BucketSizes, Buckets, EngineError, Extras, GenerateRequest, Microbatch,
    NO_EXTRAS, OpenAdapters, ParametersInfo, PassSummary, Precision, Runtime, SamplerKind, StableDiffusion,
};

use crate::blocks::CHECKPOINTS;
use crate::precisions::{precisions, skips_bf16};
use crate::support::{GoldenFile, golden_folder, relative_error};

/// Gradients by the parameters' names.
pub(crate) type Gradients = BTreeMap<String, Vec<f32>>;

/// Several buckets, some of which end within a tensor.
pub(crate) const SMALL: BucketSizes = BucketSizes { first: 1 << 10, others: 4 << 10 };

/// Keeps all buckets in memory.
pub(crate) struct Kept(pub(crate) Vec<AlignedFloats>);

impl Kept {
    /// Buckets with numbers that nobody made.
    pub(crate) fn new(info: &ParametersInfo) -> Self {
        let filled = |length| {
            let mut memory = AlignedFloats::zeros(length);
            memory.fill(7.5);
            memory
        };
        Kept(info.plan.buckets.iter().map(|bucket| bucket.length).chain([0]).map(filled).collect())
    }

    /// What they hold.
    pub(crate) fn gradients(&self, info: &ParametersInfo) -> Gradients {
        let mut gradients = Gradients::new();
        for (number, parameter) in info.list.iter().enumerate() {
            let of = |(bucket, piece): (usize, ringtune_model::Piece)| {
                self.0[bucket][piece.offset..piece.offset + piece.count].to_vec()
            };
            gradients.insert(parameter.name.clone(), info.plan.pieces_of(number).flat_map(of).collect());
        }
        gradients
    }
}

impl Buckets for Kept {
    fn take(&mut self, bucket: usize) -> Result<AlignedFloats, EngineError> {
        Ok(std::mem::take(&mut self.0[bucket]))
    }

    fn give(&mut self, bucket: usize, memory: AlignedFloats) -> Result<(), EngineError> {
        self.0[bucket] = memory;
        Ok(())
    }
}

/// Adapters without an average or dropout.
fn request(adapters: Vec<Adapter>, seed: u64) -> OpenAdapters {
    OpenAdapters {
        adapters,
        seed,
        buckets: SMALL,
        average: false,
        shows_given: false,
        dropout: 0.0,
        rank_dropout: 0.0,
        rows: Vec::new(),
    }
}

/// A model with the adapters of a golden case.
struct Adapted {
    model: StableDiffusion,
    info: ParametersInfo,
    kept: Kept,
}

impl Adapted {
    fn open(checkpoint: &str, golden: &GoldenFile, case: &str, precision: Precision) -> Self {
        let mut model = StableDiffusion::open(&golden_folder().join(checkpoint), precision).unwrap();
        let about = &golden.metadata("cases")[case];
        let (rank, alpha) = (about["rank"].as_u64().unwrap() as usize, about["alpha"].as_f64().unwrap());
        let factors = golden.keys_below(&format!("{case}/factors"));
        let dora = about["dora"].as_bool().unwrap_or_default();
        let layers = factors.iter().filter_map(|name| name.strip_suffix(".lora_A.weight"));
        let adapter = |layer: &str| Adapter { layer: layer.to_owned(), rank, alpha, dora, rate: 0 };
        let info = model.open_adapters(&request(layers.map(adapter).collect(), 7)).unwrap();
        assert_eq!(info.list.len(), factors.len());
        assert!(info.plan.buckets.len() > 1);
        for parameter in &info.list {
            let factor = golden.get(&format!("{case}/factors/{}", parameter.name));
            // A 1x1 convolution's factors are convolutions there.
            let sides = factor.shape.len() - usize::from(factor.shape.ends_with(&[1, 1])) * 2;
            let wanted = if parameter.name.contains("magnitude") {
                vec![factor.shape.iter().product()]
            } else {
                factor.shape[..sides].to_vec()
            };
            assert_eq!(wanted, parameter.shape, "{}", parameter.name);
            let numbers = golden.floats(&format!("{case}/factors/{}", parameter.name));
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            model.trained().unwrap().write_state(&format!("model.{}", parameter.name), 0, &bytes).unwrap();
        }
        Adapted { kept: Kept::new(&info), model, info }
    }

    fn gradient(&mut self, microbatch: &Microbatch, add: bool) -> (PassSummary, Gradients) {
        let pass = self.model.picture_gradient(microbatch, add, &mut self.kept).unwrap();
        (pass, self.kept.gradients(&self.info))
    }
}

/// A case's inputs.
pub(crate) fn microbatch<'a>(golden: &'a GoldenFile, case: &str) -> Microbatch<'a> {
    microbatch_with(golden, case, &NO_EXTRAS)
}

/// What else a case has.
fn extras(golden: &GoldenFile, case: &str) -> Extras {
    let listed = golden.keys_below(&format!("{case}/in"));
    let floats = |key: &str| match listed.contains(&key) {
        true => golden.floats(&format!("{case}/in/{key}")).to_vec(),
        false => Vec::new(),
    };
    let (perturbation, loss_mask) = (floats("perturbation"), floats("loss_mask"));
    Extras { place: None, perturbation, loss_mask, sample_weights: floats("sample_weights") }
}

fn microbatch_with<'a>(golden: &'a GoldenFile, case: &str, extras: &'a Extras) -> Microbatch<'a> {
    let input = |key: &str| format!("{case}/in/{key}");
    let latents = golden.get(&input("latents"));
    let gamma = golden.metadata("cases")[case]["snr_gamma"].as_f64();
    Microbatch {
        batch: latents.shape[0],
        latent_height: latents.shape[2],
        latent_width: latents.shape[3],
        latents: golden.floats(&input("latents")),
        noise: golden.floats(&input("noise")),
        timesteps: golden.integers(&input("timesteps")),
        input_ids: golden.integers(&input("input_ids")),
        rows: &[],
        snr_gamma: gamma.filter(|gamma| *gamma > 0.0),
        extras,
    }
}

fn cases(golden: &GoldenFile) -> Vec<String> {
    let cases: Vec<String> = golden.metadata("cases").as_object().unwrap().keys().cloned().collect();
    assert!(cases.len() >= 5, "{cases:?}");
    cases
}

#[test]
fn fp32_loss_and_gradients_are_those_of_peft() {
    Runtime::initialise(2).unwrap();
    for checkpoint in CHECKPOINTS {
        let golden = GoldenFile::open(&format!("{checkpoint}-lora.safetensors"));
        for case in cases(&golden) {
            let mut adapted = Adapted::open(checkpoint, &golden, &case, Precision::Fp32);
            let extras = extras(&golden, &case);
            let inputs = microbatch_with(&golden, &case, &extras);
            let (pass, gradients) = adapted.gradient(&inputs, false);
            let loss = relative_error(&[pass.loss], golden.floats(&format!("{case}/fp32/loss")));
            assert!(pass.finite && loss <= 1e-5, "{checkpoint} {case}: loss error {loss:.2e}");
            for (name, gradient) in &gradients {
                let reference = golden.floats(&format!("{case}/fp32/grad/{name}"));
                let largest = reference.iter().fold(0f32, |largest, value| largest.max(value.abs()));
                let differences = gradient.iter().zip(reference).map(|(one, other)| (one - other).abs());
                let error = differences.fold(0f32, f32::max) / largest;
                assert!(largest > 0.0 && error <= 1e-4, "{checkpoint} {case} {name}: {error:.2e}");
            }
            // A loss alone has the same bits; what is added is added to what is there.
            let alone = adapted.model.picture_loss(&inputs).unwrap();
            assert_eq!(alone.to_bits(), pass.loss.to_bits(), "{checkpoint} {case}");
            let (_, doubled) = adapted.gradient(&inputs, true);
            let doubles = gradients.values().flatten().map(|value| value * 2.0);
            assert!(doubled.values().flatten().copied().eq(doubles), "{checkpoint} {case}");
        }
    }
}

#[test]
fn bf16_gradients_are_as_near_to_fp32_as_those_of_peft() {
    if skips_bf16() {
        return;
    }
    Runtime::initialise(2).unwrap();
    for checkpoint in CHECKPOINTS {
        let golden = GoldenFile::open(&format!("{checkpoint}-lora.safetensors"));
        let mut ratios = Vec::new();
        for case in cases(&golden) {
            let mut adapted = Adapted::open(checkpoint, &golden, &case, Precision::Bf16);
            let extras = extras(&golden, &case);
            let (pass, gradients) = adapted.gradient(&microbatch_with(&golden, &case, &extras), false);
            assert!(pass.finite);
            let of_case = ratios.len();
            for (name, gradient) in &gradients {
                let exact = golden.floats(&format!("{case}/fp32/grad/{name}"));
                let own = relative_error(golden.floats(&format!("{case}/bf16/grad/{name}")), exact);
                ratios.push(relative_error(gradient, exact) / own);
            }
            println!("{checkpoint} {case}: median ratio {:.2}", median(&ratios[of_case..]));
        }
        let median = median(&ratios);
        assert!(median <= 1.0, "{checkpoint}: median ratio {median:.2} of the reference's own error");
    }
}

pub(crate) fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Captions' hidden states are kept, weights are laid out for one size, and pictures are drawn in between.
#[test]
fn a_gradient_has_the_same_bits_whatever_was_computed_before() {
    Runtime::initialise(2).unwrap();
    let golden = GoldenFile::open("tiny15-lora.safetensors");
    for precision in precisions() {
        for case in ["queries", "all", "dora", "convolutions"] {
            let both = microbatch(&golden, case);
            let open = || Adapted::open("tiny15", &golden, case, precision);
            let (first, alone) = open().gradient(&both, false);
            let mut busy = open();
            let tokens = both.input_ids.len() / both.batch;
            busy.model.lay_out(1, 16, 16).unwrap();
            let request = GenerateRequest {
                batch: 1,
                height: 64,
                width: 64,
                prompt_ids: &both.input_ids[..tokens],
                negative_ids: &both.input_ids[tokens..],
                rows: &[],
                sampler: SamplerKind::Ddim,
                steps: 2,
                guidance: 7.5,
                noise: &vec![0.5; 4 * 8 * 8],
                step_noise: &[],
            };
            let drawn = busy.model.generate(&request, |_, _| true).unwrap();
            busy.model.picture_loss(&both).unwrap();
            let (second, again) = busy.gradient(&both, false);
            assert!(first.loss.to_bits() == second.loss.to_bits() && alone == again, "{precision} {case}");
            // What is drawn is drawn with the adapters, and without them as if none had been there.
            busy.model.remove_adapters();
            let plain = busy.model.generate(&request, |_, _| true).unwrap();
            let mut fresh = StableDiffusion::open(&golden_folder().join("tiny15"), precision).unwrap();
            assert!(plain != drawn && plain == fresh.generate(&request, |_, _| true).unwrap());
        }
    }
}

#[test]
fn fresh_adapters_change_nothing_and_are_drawn_alike_whatever_others_there_are() {
    Runtime::initialise(1).unwrap();
    let golden = GoldenFile::open("tiny15-lora.safetensors");
    let mut model = StableDiffusion::open(&golden_folder().join("tiny15"), Precision::Fp32).unwrap();
    let layers = model.adaptable_layers();
    let adapter =
        |layer: &str| Adapter { layer: layer.to_owned(), rank: 2, alpha: 2.0, dora: false, rate: 0 };
    let open = |model: &mut StableDiffusion, layers: &[&str], seed: u64| {
        let adapters = layers.iter().map(|layer| adapter(layer)).collect();
        model.open_adapters(&request(adapters, seed))
    };
    let first_of = |model: &mut StableDiffusion, layer: &str| {
        let mut bytes = vec![0; 4 * 2];
        let name = format!("model.{}", adapter(layer).down());
        model.trained().unwrap().read_state(&name, 0, &mut bytes).unwrap();
        bytes
    };
    let [one, other] = ["attn1.to_k", "attn2.to_v"].map(|end| {
        let all = layers.iter().filter(|layer| layer.name.starts_with("unet.mid_block"));
        all.map(|layer| layer.name.as_str()).find(|name| name.ends_with(end)).unwrap()
    });
    // 1. The loss is the frozen model's.
    let inputs = microbatch(&golden, "attention");
    open(&mut model, &[one, other], 5).unwrap();
    let adapted = model.picture_loss(&inputs).unwrap();
    model.remove_adapters();
    let rows = vec![0.0; model.info().text_width];
    assert_eq!(model.loss(&Microbatch { rows: &rows, ..inputs }).unwrap(), adapted);
    // 2. Draws go by the layer and the seed.
    open(&mut model, &[other, one], 5).unwrap();
    let before = [one, other].map(|layer| first_of(&mut model, layer));
    assert_ne!(before[0], before[1]);
    open(&mut model, &[other], 5).unwrap();
    assert_eq!(first_of(&mut model, other), before[1]);
    open(&mut model, &[other], 6).unwrap();
    assert_ne!(first_of(&mut model, other), before[1]);
    // 3. What makes no sense.
    let mut refused =
        |adapters: Vec<Adapter>| model.open_adapters(&request(adapters, 1)).unwrap_err().to_string();
    assert_eq!(refused(vec![]), "adapters is none, allowed is one or more");
    assert_eq!(refused(vec![adapter("unet.x")]), "adapters is unet.x, allowed is layers that the model has");
    assert!(refused(vec![adapter(one), adapter(one)]).ends_with("twice, allowed is each layer once"));
    for wrong in [Adapter { rank: 0, ..adapter(one) }, Adapter { alpha: f64::NAN, ..adapter(one) }] {
        assert!(refused(vec![wrong]).contains("a rank of 1 or more"));
    }
    let nothing = model.picture_loss(&inputs).unwrap_err().to_string();
    assert!(nothing.starts_with("nothing is trained"), "{nothing}");
}
