//! The DDIM sampler alone: given what a network predicted, the next latents.

use ringtune_model::ddim::DdimSampler;

use crate::schedule::scheduler_config;
use crate::support::{GoldenFile, relative_error};

#[test]
fn ddim_walks_as_diffusers_does() {
    let golden = GoldenFile::open("ddim.safetensors");
    let cases = golden.metadata("cases").as_object().unwrap();
    assert!(cases.len() >= 16, "{} cases", cases.len());
    for (case, config) in cases {
        let steps = config["steps"].as_u64().unwrap() as usize;
        let sampler = DdimSampler::new(&scheduler_config(config), steps).unwrap();
        assert_eq!(sampler.timesteps(), golden.integers(&format!("{case}/timesteps")), "{case}");
        let latents = golden.floats(&format!("{case}/latents"));
        let outputs = golden.floats(&format!("{case}/model_outputs"));
        let size = latents.len() / (steps + 1);
        let mut sample = latents[..size].to_vec();
        for (step, &timestep) in sampler.timesteps().iter().enumerate() {
            sampler.step(&outputs[step * size..][..size], timestep, &mut sample);
            let error = relative_error(&sample, &latents[(step + 1) * size..][..size]);
            assert!(error <= 1e-5, "{case} after step {step}: {error:.2e}");
        }
    }
}
