//! `README.md` beside a LoRA: the model card, as model hubs show it.
//!
//! It is made of the facts in the files' own metadata, and like them it depends on the job alone.

use std::path::Path;

use serde_json::Value;

use super::{
    Error,
    model_card::{code, heading, network_provenance, quoted, settings},
    read_back,
};

/// The LoRA of the job.
#[derive(Clone, Debug)]
pub struct Chosen<'a> {
    /// After so many steps.
    pub step: u64,
    /// On the held-out samples, where it was taken.
    pub validation_loss: Option<f32>,
    /// The name of kohya's file.
    pub kohya: &'a str,
    /// How many layers have one.
    pub adapters: usize,
    /// Words that were learned beside, each with its file.
    pub words: Vec<(String, String)>,
}

/// Writes the card and reads it back.
///
/// # Errors
/// The file cannot be written, or holds something else than was written.
pub fn write(file: &Path, facts: &Value, chosen: Chosen<'_>) -> Result<(), Error> {
    let card = compose(facts, chosen);
    read_back::write(file, card.as_bytes())
}

/// The card's text. There is no license in it: that is for those to say who own the pictures and the model.
fn compose(facts: &Value, chosen: Chosen<'_>) -> String {
    let fact = |name: &str| facts.get(name).and_then(Value::as_str).unwrap_or_default();
    let job = facts.get("job").unwrap_or(&Value::Null);
    let title = job.get("name").and_then(Value::as_str).unwrap_or_default();
    let Chosen { step, validation_loss, kohya, adapters, words } = chosen;
    let loss = validation_loss
        .map(|loss| format!(", with a loss of {loss} on held-out samples"))
        .unwrap_or_default();
    let base = fact("base_model");
    let (mut word_files, mut loading) = (String::new(), String::new());
    for (word, file) in &words {
        word_files +=
            &format!("| {} | the word {}: diffusers, AUTOMATIC1111 and others |\n", code(file), code(word));
        loading += &format!("pipeline.load_textual_inversion({}, token={})\n", quoted(file), quoted(word));
    }
    format!(
        "---\nbase_model: {}\ninference: true\nlibrary_name: diffusers\ntags:\n- stable-diffusion\n\
         - stable-diffusion-diffusers\n- text-to-image\n- diffusers\n- lora\n---\n\n# {}\n\n\
         A LoRA for {}, beside {adapters} layers of its UNet, trained with Ringtune {}, after step {step} of {}{loss}.\n\n\
         | File | Made for |\n|---|---|\n| `pytorch_lora_weights.safetensors` | diffusers |\n\
         | {} | kohya's sd-scripts, AUTOMATIC1111, ComfyUI |\n{word_files}\n\
         ## Loading\n\n```python\nfrom diffusers import StableDiffusionPipeline\n\n\
         pipeline = StableDiffusionPipeline.from_pretrained({})\npipeline.load_lora_weights(\".\")\n{loading}```\n\n{}\n{}",
        quoted(base),
        heading(title),
        code(base),
        fact("version"),
        job.pointer("/train/max_train_steps").map(Value::to_string).unwrap_or_default(),
        code(kohya),
        quoted(base),
        settings(job, &["data", "lora", "train", "concepts"]),
        network_provenance(facts, step, validation_loss),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_card_says_what_was_trained_and_how_to_load_it() {
        let facts = json!({
            "base_model": "org/sd", "data_hash": "d1", "model_hash": "m1", "numerics_class": "avx2", "version": "9.9.9",
            "job": {"name": "my | toy", "train": {"max_train_steps": 20, "seed": 7}, "lora": {"rank": 4},
                    "cluster": {"world_size": 2}, "precision": "fp32"},
        });
        let words = vec![("<toy>".to_owned(), "learned_embeds-toy.safetensors".to_owned())];
        let chosen =
            Chosen { step: 10, validation_loss: Some(2.5), kohya: "toy.safetensors", adapters: 128, words };
        let card = compose(&facts, chosen.clone());
        for part in [
            "---\nbase_model: \"org/sd\"\n",
            "# my \\| toy\n",
            "A LoRA for `org/sd`, beside 128 layers of its UNet, trained with Ringtune 9.9.9, after step 10 of 20, with a loss \
             of 2.5 on held-out samples.\n",
            "| `toy.safetensors` | kohya's",
            "| `learned_embeds-toy.safetensors` | the word `<toy>`: ",
            "pipeline.load_textual_inversion(\"learned_embeds-toy.safetensors\", token=\"<toy>\")\n```",
            "StableDiffusionPipeline.from_pretrained(\"org/sd\")",
            "| lora.rank | `4` |\n",
            "| train.seed | `7` |\n",
            "| base model (SHA-256 over its files) | `m1` |\n",
        ] {
            assert!(card.contains(part), "{part:?} is missing in {card}");
        }
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("README.md"), &facts, chosen).unwrap();
    }
}
