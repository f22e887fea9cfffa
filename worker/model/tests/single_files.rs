//! Models in one file, in the original layout: the same to the bit as the folders in diffusers' layout, at the
//! sizes of Stable Diffusion by name and shape; and invalid files.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use ringtune_model::{
    Error, GenerateRequest, Microbatch, ModelOptions, NO_EXTRAS, Pixels, Precision, PredictionType, Runtime,
    StableDiffusion, check_folder,
};
use safetensors::tensor::{Dtype, TensorView};

use support::repository;

/// Runs tests/reference/original_layout.py.
fn original_layout(arguments: &[&str]) {
    let reference = repository().join("tests/reference");
    let setup = Command::new(reference.join("setup.sh")).output().expect("setup.sh starts");
    let printed = String::from_utf8(setup.stdout).expect("UTF-8");
    let python = printed.lines().last().expect("setup.sh prints python's path");
    let output = Command::new(python)
        .arg(reference.join("original_layout.py"))
        .args(arguments)
        .env("GOMP_SPINCOUNT", "0")
        .env("OMP_NUM_THREADS", "1")
        .env("HF_HUB_OFFLINE", "1")
        .env_remove("PYTHONDONTWRITEBYTECODE")
        .output()
        .expect("python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn waves(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|index| (index as f32 * step).sin()).collect()
}

/// Everything that a model computes, on fixed inputs: moments, loss, gradient, a token's row, a picture.
fn computed(path: &Path, precision: Precision) -> Vec<Vec<f32>> {
    let mut model = StableDiffusion::open(path, precision).unwrap();
    let info = model.info();
    let side = 16 * info.vae_factor;
    let pixels = Pixels { height: side, width: side, data: waves(3 * side * side, 0.01) };
    let moments = model.encode_image(&pixels).unwrap();
    let latents: Vec<f32> = moments.mean.iter().map(|mean| mean * info.scaling_factor as f32).collect();
    let noise = waves(latents.len(), 0.7);
    let mut input_ids: Vec<i64> = (0..77).map(|index| 49406 - 3 * index).collect();
    input_ids[5] = info.vocab_size as i64;
    let gradient = model
        .gradient(&Microbatch {
            batch: 1,
            latent_height: moments.height,
            latent_width: moments.width,
            latents: &latents,
            noise: &noise,
            timesteps: &[321],
            input_ids: &input_ids,
            rows: &waves(info.text_width, 0.3),
            snr_gamma: None,
            extras: &NO_EXTRAS,
        })
        .unwrap();
    assert!(gradient.finite);
    let request = GenerateRequest {
        batch: 1,
        height: side,
        width: side,
        prompt_ids: &input_ids,
        negative_ids: &[49407; 77],
        rows: &waves(info.text_width, 0.3),
        sampler: info.sampler,
        steps: 3,
        guidance: 4.0,
        noise: &noise,
        step_noise: &[],
    };
    let pictures = model.generate(&request, |_, _| true).unwrap().unwrap();
    let picture = pictures[0].data.iter().copied().map(f32::from).collect();
    let row = model.token_row(320).unwrap();
    vec![moments.mean, moments.logvar, vec![gradient.loss], gradient.grad, row, picture]
}

#[test]
fn a_single_file_computes_what_its_folder_does_to_the_bit() {
    Runtime::initialise(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    original_layout(&["tiny", folder.path().to_str().unwrap()]);
    for name in ["one", "two", "half-one", "half-two"] {
        let (diffusers, file) = (folder.path().join(name), folder.path().join(format!("{name}.safetensors")));
        let (of_folder, of_file) = (check_folder(&diffusers).unwrap(), check_folder(&file).unwrap());
        assert_eq!(of_file, of_folder, "{name}");
        let velocity = name.ends_with("two");
        assert_eq!(of_file.prediction_type == PredictionType::VPrediction, velocity, "{name}");
        let expected = computed(&diffusers, Precision::Fp32);
        assert_eq!(computed(&file, Precision::Fp32), expected, "{name}");
        assert!(
            expected.iter().all(|values| values.iter().any(|value| *value != values[0]) || values.len() == 1)
        );
    }
    // The option overrides the assumption.
    let options = ModelOptions { prediction_type: Some(PredictionType::Epsilon), ..Default::default() };
    let file = folder.path().join("two.safetensors");
    let base = StableDiffusion::open_with(&file, Precision::Fp32, &options).unwrap().info();
    assert_eq!(base.prediction_type, PredictionType::Epsilon);
    assert_eq!(base.native_resolution, Some(512));
    let diffusers = StableDiffusion::open_with(&folder.path().join("two"), Precision::Fp32, &options);
    assert_eq!(diffusers.unwrap().info().prediction_type, PredictionType::Epsilon);
    // Pure noise can be trained on with velocities, and with nothing else.
    let rescaled = ModelOptions { rescale_zero_snr: true, ..Default::default() };
    assert!(StableDiffusion::open_with(&file, Precision::Fp32, &rescaled).is_ok());
    let file = folder.path().join("one.safetensors");
    let refused = StableDiffusion::open_with(&file, Precision::Fp32, &rescaled).unwrap_err();
    assert!(refused.to_string().contains("rescale_betas_zero_snr"), "{refused}");
}

#[test]
fn the_real_sizes_are_recognised() {
    let folder = tempfile::tempdir().unwrap();
    for (preset, text_width, prediction, side) in
        [("sd15", 768, PredictionType::Epsilon, 512), ("sd2base", 1024, PredictionType::VPrediction, 768)]
    {
        let file = folder.path().join(format!("{preset}.safetensors"));
        original_layout(&["sizes", preset, file.to_str().unwrap()]);
        // Every tensor is where the configuration calls for it, in its shape, and none is left over.
        let info = check_folder(&file).unwrap();
        assert_eq!((info.vocab_size, info.text_width, info.max_text_length), (49408, text_width, 77));
        assert_eq!((info.latent_channels, info.vae_factor, info.scaling_factor), (4, 8, 0.18215));
        assert_eq!((info.prediction_type, info.native_resolution), (prediction, Some(side)));
    }
}

/// A file of tensors with one number each place.
fn write(path: &Path, tensors: &[(&str, &[usize])]) -> PathBuf {
    let bytes = vec![0u8; 4 << 16];
    let views = tensors.iter().map(|(name, shape)| {
        let length = 4 * shape.iter().product::<usize>();
        (*name, TensorView::new(Dtype::F32, shape.to_vec(), &bytes[..length]).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
    path.to_path_buf()
}

/// Name and shape of a tensor.
type Entry = (&'static str, &'static [usize]);

#[test]
fn what_is_no_checkpoint_in_one_file_is_refused() {
    const UNET: (&str, &[usize]) = ("model.diffusion_model.input_blocks.0.0.weight", &[8, 4, 3, 3]);
    const VAE: (&str, &[usize]) = ("first_stage_model.quant_conv.weight", &[8, 8, 1, 1]);
    const CLIP: (&str, &[usize]) = ("cond_stage_model.transformer.text_model.final_layer_norm.weight", &[8]);
    const OPEN_CLIP: (&str, &[usize]) = ("cond_stage_model.model.ln_final.weight", &[8]);
    let folder = tempfile::tempdir().unwrap();
    let refused = |name: &str| check_folder(&folder.path().join(name)).unwrap_err();
    let cases: [(&[Entry], &str); 8] = [
        (&[("emb_params", &[1, 768])], "not a model in the original layout"),
        (&[("lora_unet_down.weight", &[4, 8])], "not a model in the original layout"),
        (&[UNET, ("conditioner.embedders.0.x", &[1])], "Stable Diffusion XL"),
        (&[UNET], "no VAE"),
        (&[UNET, VAE], "no text encoder"),
        (&[UNET, VAE, CLIP, OPEN_CLIP], "two text encoders"),
        (&[UNET, VAE, CLIP], "out.2.weight"),
        (&[("model.diffusion_model.input_blocks.0.0.weight", &[8]), VAE, OPEN_CLIP], "impossible shape"),
    ];
    for (tensors, part) in cases {
        write(&folder.path().join("model.safetensors"), tensors);
        let error = refused("model.safetensors");
        assert!(matches!(error, Error::NotAModel { .. }), "{error}");
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    std::fs::write(folder.path().join("model.ckpt"), "pickle").unwrap();
    assert!(refused("model.ckpt").to_string().contains("pickle"));
    for content in [&b""[..], b"not a model at all", &[0xff; 64]] {
        std::fs::write(folder.path().join("model.safetensors"), content).unwrap();
        let error = refused("model.safetensors");
        assert!(matches!(error, Error::BadSafetensors { .. }), "{error}");
    }
    let nowhere = refused("nothing.safetensors").to_string();
    assert!(nowhere.contains("neither a folder nor a file"), "{nowhere}");
}
