//! Noise schedules: their alphas, the forward process, and what the network should predict.

use ringtune_model::config::{Keys, SchedulerConfig};
use ringtune_model::min_snr;
use ringtune_model::schedule::NoiseSchedule;
use tch::{Kind, Tensor};

use crate::blocks::{to_floats, to_tensor};
use crate::support::{GoldenFile, relative_error};

/// Reads a scheduler's configuration from JSON, by way of a file as in a model.
pub(crate) fn scheduler_config(config: &serde_json::Value) -> SchedulerConfig {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scheduler_config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    SchedulerConfig::from_keys(&Keys::read(&path).unwrap()).unwrap()
}

/// The golden schedules by name, with what they predict put in.
fn schedules(golden: &GoldenFile, prediction_type: &str) -> Vec<(String, NoiseSchedule)> {
    let schedules = golden.metadata("schedules").as_object().unwrap();
    let with_prediction = |config: &serde_json::Value| {
        let mut config = config.clone();
        config["prediction_type"] = prediction_type.into();
        NoiseSchedule::new(&scheduler_config(&config))
    };
    schedules.iter().map(|(name, config)| (name.clone(), with_prediction(config))).collect()
}

#[test]
fn alphas_are_those_of_diffusers_at_every_timestep() {
    let golden = GoldenFile::open("noise_schedules.safetensors");
    let schedules = schedules(&golden, "epsilon");
    assert!(schedules.len() >= 6, "{} schedules", schedules.len());
    for (name, schedule) in schedules {
        let expected = golden.floats(&format!("{name}/alphas_cumprod"));
        assert_eq!(schedule.alphas_cumprod().len(), expected.len(), "{name}");
        for (timestep, (ours, theirs)) in schedule.alphas_cumprod().iter().zip(expected).enumerate() {
            // Each by itself: the norm of all would hide the small ones at the end.
            let bound = 1e-4 * theirs.abs() + 1e-9;
            assert!((ours - theirs).abs() <= bound, "{name} at {timestep}: {ours}, diffusers {theirs}");
        }
        assert!(relative_error(schedule.alphas_cumprod(), expected) <= 1e-6, "{name}");
    }
}

#[test]
fn noising_and_targets_are_those_of_diffusers_in_both_precisions() {
    let golden = GoldenFile::open("noise_schedules.safetensors");
    let (latents, noise) = (to_tensor(golden.get("latents")), to_tensor(golden.get("noise")));
    for (name, schedule) in schedules(&golden, "v_prediction") {
        let timesteps = golden.integers(&format!("{name}/timesteps"));
        for (precision, kind) in [("fp32", Kind::Float), ("bf16", Kind::BFloat16)] {
            let (latents, noise) = (latents.to_kind(kind), noise.to_kind(kind));
            let results: [(&str, Tensor); 2] = [
                ("add_noise", schedule.add_noise(&latents, &noise, timesteps).unwrap()),
                ("get_velocity", schedule.target(&latents, &noise, timesteps).unwrap()),
            ];
            for (what, result) in results {
                let reference = golden.floats(&format!("{name}/fp32/{what}"));
                let theirs = golden.floats(&format!("{name}/{precision}/{what}"));
                let error = relative_error(&to_floats(&result), reference);
                let bound = if kind == Kind::Float { 1e-6 } else { 2.0 * relative_error(theirs, reference) };
                assert!(error <= bound, "{name} {precision} {what}: {error:.2e}, allowed {bound:.2e}");
            }
        }
    }
}

#[test]
fn epsilon_prediction_aims_at_the_noise() {
    let golden = GoldenFile::open("noise_schedules.safetensors");
    let (latents, noise) = (to_tensor(golden.get("latents")), to_tensor(golden.get("noise")));
    for (name, schedule) in schedules(&golden, "epsilon") {
        let timesteps = golden.integers(&format!("{name}/timesteps"));
        assert_eq!(schedule.target(&latents, &noise, timesteps).unwrap(), noise, "{name}");
    }
}

#[test]
fn min_snr_weights_are_those_of_diffusers_in_every_schedule() {
    let golden = GoldenFile::open("noise_schedules.safetensors");
    for prediction in ["epsilon", "v_prediction"] {
        for (name, schedule) in schedules(&golden, prediction) {
            let timesteps = golden.integers(&format!("{name}/timesteps"));
            for gamma in [5.0, 1.0] {
                let expected = golden.floats(&format!("{name}/{prediction}/min_snr_{gamma}"));
                let weights = min_snr::weights(&schedule, timesteps, gamma).unwrap();
                for ((ours, theirs), timestep) in weights.iter().zip(expected).zip(timesteps) {
                    // The alphas at the end of a schedule of zero terminal SNR are differences of nearly nothing.
                    let bound = 1e-4 * theirs + 1e-9;
                    let what = format!("{name} {prediction} {gamma} at {timestep}");
                    assert!((ours - theirs).abs() <= bound, "{what}: {ours}, diffusers {theirs}");
                }
            }
        }
    }
}

#[test]
fn min_snr_refuses_what_is_no_gamma_and_no_timestep() {
    let golden = GoldenFile::open("noise_schedules.safetensors");
    for (_, schedule) in schedules(&golden, "epsilon") {
        for gamma in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(min_snr::weights(&schedule, &[0], gamma).is_err(), "{gamma}");
        }
        for timestep in [-1, schedule.alphas_cumprod().len() as i64] {
            assert!(min_snr::weights(&schedule, &[0, timestep], 5.0).is_err(), "{timestep}");
        }
    }
}
