//! The samplers alone: given what a network predicted, the same walk from noise as diffusers'.

use ringtune_model::config::{Keys, SamplerConfig, pipeline::of_pipeline};
use ringtune_model::samplers::Sampler;
use ringtune_model::{Error, SamplerKind};
use serde_json::{Value, json};

use crate::support::{GoldenFile, relative_error};

fn keys(config: impl ToString) -> Keys {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scheduler_config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    Keys::read(&path).unwrap()
}

fn sampler(name: &str, config: &Value, steps: usize) -> Result<Sampler, Error> {
    Sampler::new(&SamplerConfig::from_keys(&keys(config), SamplerKind::from_name(name).unwrap())?, steps)
}

/// Walks with `config` from the case's noise, along what the network predicted for diffusers. Returns the error of
/// what the network is told and sees before every prediction, and of the latents after it.
fn walk(golden: &GoldenFile, case: &str, options: &Value, config: &Value) -> Vec<f64> {
    let steps = options["steps"].as_u64().unwrap() as usize;
    let mut sampler = sampler(options["sampler"].as_str().unwrap(), config, steps).unwrap();
    let floats = |what: &str| golden.floats(&format!("{case}/{what}"));
    let mut errors = vec![relative_error(sampler.timesteps(), floats("timesteps"))];
    if errors[0].is_infinite() {
        return errors;
    }
    let (noise, latents) = (floats("noise"), floats("latents"));
    let size = noise.len();
    let takes_noise = golden.find(&format!("{case}/step_noise")).is_some();
    let mut sample = sampler.start(noise);
    errors.push(relative_error(&sample, &latents[..size]));
    for step in 0..sampler.timesteps().len() {
        let part = |what: &'static str, index: usize| &floats(what)[index * size..][..size];
        errors.push(relative_error(&sampler.model_input(&sample), part("model_inputs", step)));
        let draws = if takes_noise { part("step_noise", step) } else { &[] };
        sampler.step(part("model_outputs", step), draws, &mut sample).unwrap();
        errors.push(relative_error(&sample, part("latents", step + 1)));
    }
    let after_the_end = sampler.step(&sample.clone(), noise, &mut sample);
    assert!(matches!(after_the_end, Err(Error::Argument { field: "step", .. })), "{case}");
    errors
}

fn worst(errors: Vec<f64>) -> f64 {
    errors.into_iter().fold(0.0, f64::max)
}

#[test]
fn every_sampler_walks_as_diffusers_does() {
    let golden = GoldenFile::open("samplers.safetensors");
    let cases = golden.metadata("cases").as_object().unwrap();
    for kind in SamplerKind::ALL {
        let of_kind: Vec<_> = cases.iter().filter(|(_, case)| case["sampler"] == kind.name()).collect();
        assert!(of_kind.len() >= 16, "{kind}: {} cases", of_kind.len());
        let check = |(case, options): &(&String, &Value)| {
            let errors = walk(&golden, case, options, &options["config"]);
            assert!(errors.iter().all(|error| *error <= 2e-5), "{case}: {errors:?}");
            worst(errors)
        };
        println!(
            "{kind}: {} cases, worst error {:.1e}",
            of_kind.len(),
            worst(of_kind.iter().map(check).collect())
        );
    }
}

#[test]
fn every_key_of_the_config_matters() {
    let changes = [
        ("ddim-epsilon-leading", "set_alpha_to_one", json!(true)),
        ("ddim-epsilon-leading", "clip_sample", json!(true)),
        ("ddim-epsilon-to-one", "clip_sample_range", json!(1.0)),
        ("ddim-v_prediction-trailing", "timestep_spacing", json!("linspace")),
        ("ddim-zero-snr", "rescale_betas_zero_snr", json!(false)),
        ("pndm-epsilon-leading", "set_alpha_to_one", json!(true)),
        ("pndm-epsilon-leading", "skip_prk_steps", json!(false)),
        ("pndm-v_prediction-leading", "steps_offset", json!(0)),
        ("pndm-v_prediction-defaults", "prediction_type", json!("epsilon")),
        ("euler-epsilon-karras", "use_karras_sigmas", json!(false)),
        ("lms-epsilon-karras", "use_karras_sigmas", json!(false)),
        ("euler-epsilon-ends-sigma_min-20", "final_sigmas_type", json!("zero")),
        ("euler_a-zero-snr", "rescale_betas_zero_snr", json!(false)),
        ("euler_a-epsilon-defaults", "prediction_type", json!("v_prediction")),
        ("dpm++_2m_karras-epsilon-ends-sigma_min-7", "final_sigmas_type", json!("zero")),
        ("dpm++_2m-epsilon-ends-sigma_min-7", "lower_order_final", json!(false)),
        ("dpm++_2m-epsilon-euler_at_final", "euler_at_final", json!(false)),
        ("dpm++_2m-epsilon-solver_type", "solver_type", json!("midpoint")),
        ("dpm++_2m-epsilon-solver_order", "solver_order", json!(2)),
        ("dpm++_2m-linspace-cosine", "lambda_min_clipped", json!("-Infinity")),
        ("lms-epsilon-leading", "timestep_spacing", json!("trailing")),
    ];
    let golden = GoldenFile::open("samplers.safetensors");
    for (case, key, value) in changes {
        let options = &golden.metadata("cases")[case];
        let mut config = options["config"].clone();
        assert!(config.is_object(), "no case {case}");
        config[key] = value;
        let moved = worst(walk(&golden, case, options, &config));
        assert!(moved > 1e-4, "{case} with another {key}: {moved:.1e}");
    }
}

#[test]
fn a_checkpoints_class_decides_its_sampler() {
    let golden = GoldenFile::open("samplers.safetensors");
    let cases = golden.metadata("cases").as_object().unwrap();
    for (case, options) in cases {
        let Some(class) = options["config"]["_class_name"].as_str() else { continue };
        let is_karras = options["config"]["use_karras_sigmas"] == true;
        let kind = SamplerKind::of_class(class, is_karras).unwrap();
        assert_eq!(kind.name(), options["sampler"], "{case}");
    }
    assert_eq!(SamplerKind::of_class("UniPCMultistepScheduler", false), None);
}

#[test]
fn what_diffusers_writes_is_read_as_what_it_was_made_from() {
    let golden = GoldenFile::open("samplers.safetensors");
    for kind in SamplerKind::ALL {
        let saved = keys(golden.metadata("saved")[kind.name()].as_str().unwrap());
        let case = format!("{kind}-in-place-of-the-checkpoint's");
        let made_from = keys(&golden.metadata("cases")[case.as_str()]["config"]);
        let read = |keys: &Keys| SamplerConfig::from_keys(keys, kind).unwrap();
        assert_eq!(read(&saved), read(&made_from), "{kind}");
    }
}

/// The pipeline corrects what its schedulers' classes take as it is.
#[test]
fn old_configurations_are_corrected_as_the_pipeline_does() {
    let golden = GoldenFile::open("samplers.safetensors");
    let cases = golden.metadata("pipelines").as_array().unwrap();
    let mut corrected = 0;
    for case in cases {
        let kind = |key: &str| SamplerKind::from_name(case[key].as_str().unwrap()).unwrap();
        let (own, wanted, file) = (kind("own"), kind("wanted"), keys(&case["file"]));
        let read = |keys: &Keys| SamplerConfig::from_keys(keys, wanted).unwrap();
        let expected = read(&keys(case["scheduler"].as_str().unwrap()));
        assert_eq!(read(&of_pipeline(&file, Some(own), wanted)), expected, "{case}");
        corrected += usize::from(read(&file) != expected);
    }
    assert!(corrected > 20 && corrected < cases.len(), "{corrected} of {}", cases.len());
    // A model whose own class is none of ours is loaded, too, and its scheduler exchanged.
    let unknown = read_offset(&json!({}), None);
    assert_eq!((unknown, read_offset(&json!({"steps_offset": 2}), None)), (0, 1));
}

fn read_offset(file: &Value, own: Option<SamplerKind>) -> i64 {
    let keys = of_pipeline(&keys(file), own, SamplerKind::Ddim);
    SamplerConfig::from_keys(&keys, SamplerKind::Ddim).unwrap().steps_offset
}

#[test]
fn what_a_sampler_does_not_do_is_refused_by_name() {
    let cases = [
        ("ddim", "thresholding", json!(true)),
        ("euler", "timestep_type", json!("continuous")),
        ("euler", "interpolation_type", json!("log_linear")),
        ("euler", "use_beta_sigmas", json!(true)),
        ("lms", "use_exponential_sigmas", json!(true)),
        ("dpm++_2m", "algorithm_type", json!("sde-dpmsolver++")),
        ("dpm++_2m", "solver_order", json!(3)),
        ("dpm++_2m", "solver_type", json!("logarithmic")),
        ("dpm++_2m_karras", "use_lu_lambdas", json!(true)),
        ("dpm++_2m", "final_sigmas_type", json!("one")),
        ("dpm++_2m", "lambda_min_clipped", json!("low")),
        ("pndm", "timestep_spacing", json!("even")),
        ("pndm", "skip_prk_steps", json!(1)),
        ("euler_a", "steps_offset", json!(-1)),
    ];
    for (name, key, value) in cases {
        let refused = sampler(name, &json!({ key: value }), 20).map(|_| ()).unwrap_err();
        assert!(
            matches!(&refused, Error::Config { key: named, .. } if named == key),
            "{name} {key}: {refused}"
        );
        // The same key means nothing to a class that does not have it.
        let other = if name == "pndm" || key == "steps_offset" { continue } else { "pndm" };
        assert!(sampler(other, &json!({ key: value, "skip_prk_steps": true }), 20).is_ok(), "{key}");
    }
}

#[test]
fn numbers_of_steps_that_make_no_walk_are_refused() {
    for kind in SamplerKind::ALL {
        for steps in [0, 1001] {
            let refused = sampler(kind.name(), &json!({}), steps).map(|_| ());
            assert!(matches!(refused, Err(Error::Argument { field: "steps", .. })), "{kind} {steps}");
        }
    }
    // Runge-Kutta steps need four; DPM-Solver's leading timesteps would all be the same.
    let leading = json!({"timestep_spacing": "leading"});
    for (name, steps) in [("pndm", 3), ("dpm++_2m", 1000)] {
        let refused = sampler(name, &leading, steps).map(|_| ());
        assert!(matches!(refused, Err(Error::Argument { field: "steps", .. })), "{name} {steps}");
    }
    assert!(sampler("pndm", &leading, 4).is_ok() && sampler("dpm++_2m", &leading, 499).is_ok());
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut ancestral = sampler("euler_a", &json!({}), 5).unwrap();
    let mut sample = [0.5; 4];
    let mut try_with = |predicted: &[f32], noise: &[f32]| ancestral.step(predicted, noise, &mut sample);
    assert!(matches!(try_with(&[0.0; 3], &[0.0; 4]), Err(Error::Argument { field: "predicted", .. })));
    assert!(matches!(try_with(&[0.0; 4], &[]), Err(Error::Argument { field: "step_noise", .. })));
    assert!(try_with(&[0.0; 4], &[0.0; 4]).is_ok());
}
