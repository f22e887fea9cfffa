//! `README.md` beside a UNet's weights: the model card, as model hubs show it.
//!
//! It is made of the facts in the files' own metadata, and like them it depends on the job alone.

use std::path::Path;

use serde_json::Value;

use super::{
    Error,
    model_card::{code, heading, network_provenance, quoted, settings},
    read_back,
};

/// The UNet of the job.
#[derive(Clone, Copy, Debug)]
pub struct Chosen {
    /// After so many steps.
    pub step: u64,
    /// On the held-out samples, where it was taken.
    pub validation_loss: Option<f32>,
    /// Numbers that were trained.
    pub numbers: usize,
    /// They are all of the UNet's.
    pub is_whole: bool,
}

/// Writes the card and reads it back.
///
/// # Errors
/// The file cannot be written, or holds something else than was written.
pub fn write(file: &Path, facts: &Value, chosen: Chosen) -> Result<(), Error> {
    read_back::write(file, compose(facts, chosen).as_bytes())
}

/// The card's text. There is no license in it: that is for those to say who own the pictures and the model.
fn compose(facts: &Value, chosen: Chosen) -> String {
    let fact = |name: &str| facts.get(name).and_then(Value::as_str).unwrap_or_default();
    let job = facts.get("job").unwrap_or(&Value::Null);
    let title = job.get("name").and_then(Value::as_str).unwrap_or_default();
    let Chosen { step, validation_loss, numbers, is_whole } = chosen;
    let loss = validation_loss
        .map(|loss| format!(", with a loss of {loss} on held-out samples"))
        .unwrap_or_default();
    let what = if is_whole { "all" } else { "a part" };
    let base = fact("base_model");
    format!(
        "---\nbase_model: {}\ninference: true\nlibrary_name: diffusers\ntags:\n- stable-diffusion\n\
         - stable-diffusion-diffusers\n- text-to-image\n- diffusers\n---\n\n# {}\n\n\
         The UNet of {}, of which {what} ({:.2} million parameters) was trained with Ringtune {}, after step {step} of \
         {}{loss}.\n\n\
         ## Loading\n\n```sh\nringtune pipeline --model {} --unet diffusion_pytorch_model.safetensors -o pipeline\n```\n\n\
         ```python\nfrom diffusers import StableDiffusionPipeline\n\n\
         pipeline = StableDiffusionPipeline.from_pretrained(\"pipeline\")\n```\n\n{}\n{}",
        quoted(base),
        heading(title),
        code(base),
        numbers as f64 / 1e6,
        fact("version"),
        job.pointer("/train/max_train_steps").map(Value::to_string).unwrap_or_default(),
        base,
        settings(job, &["data", "train"]),
        network_provenance(facts, step, validation_loss),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_card_says_what_was_trained_and_how_it_is_loaded() {
        let facts = json!({
            "base_model": "org/sd", "data_hash": "d1", "model_hash": "m1", "numerics_class": "avx2", "version": "9.9.9",
            "job": {"name": "my | toy", "train": {"max_train_steps": 20, "trainable": ["all"]}},
        });
        let chosen = Chosen { step: 12, validation_loss: Some(0.25), numbers: 1_234_567, is_whole: true };
        let card = compose(&facts, chosen);
        for part in [
            "base_model: \"org/sd\"",
            "of which all (1.23 million parameters) was trained with Ringtune 9.9.9, after step 12 of 20, with a loss of 0.25",
            "ringtune pipeline --model org/sd --unet diffusion_pytorch_model.safetensors",
            "| pictures (SHA-256) | `d1` |",
        ] {
            assert!(card.contains(part), "{part}: {card}");
        }
    }
}
