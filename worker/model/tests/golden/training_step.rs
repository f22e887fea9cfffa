//! Loss and gradient of whole microbatches of textual inversion.

use ringtune_model::{
    GenerateRequest, Gradient, Microbatch, NO_EXTRAS, Precision, Runtime, SamplerKind, StableDiffusion,
};

use crate::blocks::CHECKPOINTS;
use crate::precisions::{precisions, skips_bf16};
use crate::support::{GoldenFile, cosine, golden_folder, relative_error};

/// Every case's name and our result for it.
fn gradients(name: &str, golden: &GoldenFile, precision: Precision) -> Vec<(String, Gradient)> {
    weighted_gradients(name, golden, precision, None)
}

/// The same, with min-SNR weights where a gamma is given.
fn weighted_gradients(
    name: &str,
    golden: &GoldenFile,
    precision: Precision,
    snr_gamma: Option<f64>,
) -> Vec<(String, Gradient)> {
    Runtime::initialise(1).unwrap();
    let model = StableDiffusion::open(&golden_folder().join(name), precision).unwrap();
    let cases = golden.metadata("cases").as_array().unwrap();
    assert!(cases.len() >= 8, "{} cases", cases.len());
    let result = |case: &str| {
        let input = |key: &str| format!("{case}/in/{key}");
        let latents = golden.get(&input("latents"));
        let microbatch = Microbatch {
            batch: latents.shape[0],
            latent_height: latents.shape[2],
            latent_width: latents.shape[3],
            latents: golden.floats(&input("latents")),
            noise: golden.floats(&input("noise")),
            timesteps: golden.integers(&input("timesteps")),
            input_ids: golden.integers(&input("input_ids")),
            rows: golden.floats(&input("embeds")),
            snr_gamma,
            extras: &NO_EXTRAS,
        };
        (case.to_string(), model.gradient(&microbatch).unwrap())
    };
    cases.iter().map(|case| result(case.as_str().unwrap())).collect()
}

/// `key`: where the goldens of each case are.
fn fp32_follows_diffusers(key: &str, snr_gamma: Option<f64>) {
    for name in CHECKPOINTS {
        let golden = GoldenFile::open(&format!("{name}-step.safetensors"));
        for (case, ours) in weighted_gradients(name, &golden, Precision::Fp32, snr_gamma) {
            let (loss, grad) =
                (golden.floats(&format!("{case}/{key}/loss")), golden.floats(&format!("{case}/{key}/grad")));
            let loss_error = relative_error(&[ours.loss], loss);
            let grad_error = relative_error(&ours.grad, grad);
            assert!(ours.finite, "{name} {case}");
            assert!(loss_error <= 1e-4, "{name} {case}: loss {} and {loss:?}", ours.loss);
            assert!(grad_error <= 1e-4, "{name} {case}: gradient error {grad_error:.2e}");
            assert!(cosine(&ours.grad, grad) >= 0.99999, "{name} {case}");
        }
    }
}

#[test]
fn fp32_loss_and_gradient_are_those_of_diffusers() {
    fp32_follows_diffusers("fp32", None);
}

#[test]
fn min_snr_loss_and_gradient_are_those_of_diffusers() {
    let golden = GoldenFile::open("tiny15-step.safetensors");
    fp32_follows_diffusers("fp32-snr", golden.metadata("snr_gamma").as_f64());
    // The comparison can fail: the weights matter.
    let (plain, weighted) = (gradients("tiny15", &golden, Precision::Fp32), "fp32-snr/grad");
    let moved = |(case, one): &(String, Gradient)| {
        relative_error(&one.grad, golden.floats(&format!("{case}/{weighted}"))) > 1e-2
    };
    assert!(plain.iter().any(moved));
}

#[test]
fn bf16_gradient_is_as_near_to_fp32_as_that_of_diffusers() {
    if skips_bf16() {
        return;
    }
    for name in CHECKPOINTS {
        let golden = GoldenFile::open(&format!("{name}-step.safetensors"));
        let mut ratios = Vec::new();
        for (case, ours) in gradients(name, &golden, Precision::Bf16) {
            let exact = golden.floats(&format!("{case}/fp32/grad"));
            let own = relative_error(golden.floats(&format!("{case}/bf16/grad")), exact);
            let error = relative_error(&ours.grad, exact);
            println!("{name} {case}: error {error:.4}, diffusers {own:.4}, ratio {:.2}", error / own);
            assert!(cosine(&ours.grad, exact) >= 0.999, "{name} {case}: {}", cosine(&ours.grad, exact));
            let loss_error = relative_error(&[ours.loss], golden.floats(&format!("{case}/fp32/loss")));
            assert!(loss_error <= 1e-2, "{name} {case}: loss error {loss_error:.2e}");
            ratios.push(error / own);
        }
        ratios.sort_by(f64::total_cmp);
        let median = ratios[ratios.len() / 2];
        assert!(median <= 1.3, "{name}: median ratio {median:.2} of {ratios:.2?}");
        let worst = ratios[ratios.len() - 1];
        assert!(worst <= 2.0, "{name}: worst ratio {worst:.2} of {ratios:.2?}");
    }
}

#[test]
fn the_same_input_gives_the_same_bits() {
    let golden = GoldenFile::open("tiny15-step.safetensors");
    for precision in precisions() {
        let bits = |gradients: Vec<(String, Gradient)>| -> Vec<u32> {
            gradients.iter().flat_map(|(_, one)| one.grad.iter().map(|value| value.to_bits())).collect()
        };
        let first = bits(gradients("tiny15", &golden, precision));
        assert_eq!(first, bits(gradients("tiny15", &golden, precision)), "{precision}");
    }
}

/// Jobs with buckets change sizes from microbatch to microbatch, and which rank sees which sizes first is left to
/// chance. Their weights are laid out for one size before the first; here, whatever size that is, every other has the
/// bits that it has alone.
#[test]
fn a_gradient_has_the_same_bits_after_other_sizes() {
    Runtime::initialise(2).unwrap();
    let golden = GoldenFile::open("tiny15-step.safetensors");
    let case = golden.metadata("cases").as_array().unwrap()[0].as_str().unwrap().to_owned();
    let input = |key: &str| golden.floats(&format!("{case}/in/{key}"));
    let values = [input("latents"), input("noise")];
    let tokens = &golden.integers(&format!("{case}/in/input_ids"))[..77];
    for precision in precisions() {
        let open = || StableDiffusion::open(&golden_folder().join("tiny15"), precision).unwrap();
        let gradient = |model: &StableDiffusion, [height, width]: [usize; 2]| -> Vec<u32> {
            let length = model.info().latent_channels * height * width;
            let fill = |values: &[f32]| values.iter().copied().cycle().take(length).collect::<Vec<f32>>();
            let [latents, noise] = values.map(fill);
            let microbatch = Microbatch {
                batch: 1,
                latent_height: height,
                latent_width: width,
                latents: &latents,
                noise: &noise,
                timesteps: &[300],
                input_ids: tokens,
                rows: input("embeds"),
                snr_gamma: None,
                extras: &NO_EXTRAS,
            };
            model.gradient(&microbatch).unwrap().grad.iter().map(|value| value.to_bits()).collect()
        };
        let sizes = [[16, 16], [8, 24], [24, 8], [12, 20], [40, 16], [9, 16]];
        let alone: Vec<Vec<u32>> = sizes.iter().map(|size| gradient(&open(), *size)).collect();
        for first in [0, 1, 4] {
            let model = open();
            let [height, width] = sizes[first];
            model.lay_out(1, height, width).unwrap();
            for (size, alone) in sizes.iter().zip(&alone) {
                assert!(gradient(&model, *size) == *alone, "{precision}: {size:?} after {:?}", sizes[first]);
            }
        }
        assert!(alone.windows(2).all(|pair| pair[0] != pair[1]));
    }
}

/// Losses of validations come before, between and after steps, and so do previews, of another size.
#[test]
fn losses_and_gradients_have_the_same_bits_whatever_was_computed_before() {
    Runtime::initialise(2).unwrap();
    let golden = GoldenFile::open("tiny15-step.safetensors");
    let case = golden.metadata("cases").as_array().unwrap()[0].as_str().unwrap().to_owned();
    let input = |key: &str| golden.floats(&format!("{case}/in/{key}"));
    let tokens = &golden.integers(&format!("{case}/in/input_ids"))[..77];
    let values: Vec<f32> = input("latents").iter().copied().cycle().take(4 * 16 * 16).collect();
    let microbatch = Microbatch {
        batch: 1,
        latent_height: 16,
        latent_width: 16,
        latents: &values,
        noise: &values.iter().rev().copied().collect::<Vec<f32>>(),
        timesteps: &[300],
        input_ids: tokens,
        rows: input("embeds"),
        snr_gamma: None,
        extras: &NO_EXTRAS,
    };
    let draw = |model: &mut StableDiffusion| {
        let request = GenerateRequest {
            batch: 1,
            height: 64,
            width: 128,
            prompt_ids: tokens,
            negative_ids: tokens,
            rows: input("embeds"),
            sampler: SamplerKind::Ddim,
            steps: 2,
            guidance: 7.5,
            noise: &values[..4 * 8 * 16],
            step_noise: &[],
        };
        model.generate(&request, |_, _| true).unwrap().unwrap()
    };
    for precision in precisions() {
        let open = || StableDiffusion::open(&golden_folder().join("tiny15"), precision).unwrap();
        let gradient = |model: &StableDiffusion| {
            let result = model.gradient(&microbatch).unwrap();
            (result.loss.to_bits(), result.grad.iter().map(|value| value.to_bits()).collect::<Vec<u32>>())
        };
        let (mut trained, mut drawn) = (open(), open());
        let alone = gradient(&trained);
        let picture = draw(&mut drawn);
        assert!(draw(&mut trained) == picture, "{precision}: a picture after a step");
        assert_eq!(
            drawn.loss(&microbatch).unwrap().to_bits(),
            alone.0,
            "{precision}: a loss after a picture"
        );
        assert!(gradient(&drawn) == alone, "{precision}: a gradient after a picture");
        assert_eq!(
            drawn.loss(&microbatch).unwrap().to_bits(),
            alone.0,
            "{precision}: a loss after a gradient"
        );
        assert!(draw(&mut drawn) == picture, "{precision}: a picture after a gradient");
    }
}
