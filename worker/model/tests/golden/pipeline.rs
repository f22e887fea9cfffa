//! Whole pictures: prompt, every sampler with classifier-free guidance, decoder; and the encoding of pictures.

use ringtune_model::{GenerateRequest, Pixels, Precision, Runtime, SamplerKind, StableDiffusion};

use crate::blocks::CHECKPOINTS;
use crate::support::{GoldenFile, golden_folder, relative_error};

fn open(name: &str, precision: Precision) -> StableDiffusion {
    Runtime::initialise(1).unwrap();
    StableDiffusion::open(&golden_folder().join(name), precision).unwrap()
}

/// diffusers' conversion of decoded pixels [3, height, width]: bytes [height, width, 3].
fn to_bytes(pixels: &[f32]) -> Vec<u8> {
    let plane = pixels.len() / 3;
    let byte = |value: f32| ((value / 2.0 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8;
    (0..plane).flat_map(|pixel| [0, 1, 2].map(|channel| byte(pixels[channel * plane + pixel]))).collect()
}

fn check_pictures(name: &str) {
    let golden = GoldenFile::open(&format!("{name}-pipeline.safetensors"));
    let mut model = open(name, Precision::Fp32);
    for (case, options) in golden.metadata("cases").as_object().unwrap() {
        let pixels = golden.get(&format!("{case}/pixels"));
        let request = GenerateRequest {
            batch: 1,
            height: pixels.shape[2],
            width: pixels.shape[3],
            prompt_ids: golden.integers(&format!("{case}/input_ids")),
            negative_ids: golden.integers(&format!("{case}/negative_input_ids")),
            rows: &[],
            sampler: SamplerKind::from_name(options["sampler"].as_str().unwrap()).unwrap(),
            steps: options["steps"].as_u64().unwrap() as usize,
            guidance: options["guidance_scale"].as_f64().unwrap(),
            noise: golden.floats(&format!("{case}/noise")),
            step_noise: match golden.find(&format!("{case}/step_noise")) {
                Some(_) => golden.floats(&format!("{case}/step_noise")),
                None => &[],
            },
        };
        let picture = model.generate(&request, |_, _| true).unwrap().unwrap().remove(0);
        let expected = to_bytes(golden.floats(&format!("{case}/pixels")));
        assert_eq!(picture.data.len(), expected.len(), "{name} {case}");
        // Rounding may turn a last bit into one level.
        let worst = picture.data.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(worst <= 1, "{name} {case}: {worst} levels apart");
        let spread = expected.iter().max().unwrap() - expected.iter().min().unwrap();
        assert!(spread > 20, "{name} {case}: the picture is flat, it would prove nothing");
    }
}

#[test]
fn pictures_of_sd_1_are_those_of_diffusers() {
    check_pictures(CHECKPOINTS[0]);
}

#[test]
fn pictures_of_sd_2_are_those_of_diffusers() {
    check_pictures(CHECKPOINTS[1]);
}

#[test]
fn a_batch_encoded_one_by_one_has_the_moments_of_diffusers() {
    for name in CHECKPOINTS {
        let golden = GoldenFile::open(&format!("{name}-vae.safetensors"));
        let mut model = open(name, Precision::Fp32);
        for case in ["even", "odd"] {
            let pixels = golden.get(&format!("{case}/encode/in/pixels"));
            let all = golden.floats(&format!("{case}/encode/in/pixels"));
            let (batch, height, width) = (pixels.shape[0], pixels.shape[2], pixels.shape[3]);
            let moments: Vec<_> = all
                .chunks_exact(all.len() / batch)
                .map(|data| model.encode_image(&Pixels { height, width, data: data.to_vec() }).unwrap())
                .collect();
            let joined = |pick: fn(&ringtune_model::Moments) -> &Vec<f32>| -> Vec<f32> {
                moments.iter().flat_map(|one| pick(one).clone()).collect()
            };
            let outputs = [("mean", joined(|one| &one.mean)), ("logvar", joined(|one| &one.logvar))];
            for (what, ours) in outputs {
                let error = relative_error(&ours, golden.floats(&format!("{case}/encode/fp32/{what}")));
                assert!(error <= 1e-4, "{name} {case} {what}: {error:.2e}");
            }
        }
    }
}
