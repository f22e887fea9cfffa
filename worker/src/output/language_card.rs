//! `README.md` beside a language model: the model card, as model hubs show it.
//!
//! It is made of the facts in the model's own metadata, and like them it depends on the job alone.

use std::path::Path;

use serde_json::Value;

use super::{
    Error,
    model_card::{code, heading, settings, shown, table},
    read_back,
};

/// The model of the job: its step and loss.
#[derive(Clone, Copy, Debug)]
pub struct Chosen {
    /// After so many steps.
    pub step: u64,
    /// On the held-out tokens, where it was taken.
    pub validation_loss: Option<f32>,
    /// Whether a tokenizer lies beside it.
    pub has_tokenizer: bool,
}

/// Writes the card and reads it back.
///
/// # Errors
/// The file cannot be written, or holds something else than was written.
pub fn write(file: &Path, facts: &Value, chosen: Chosen) -> Result<(), Error> {
    let card = compose(facts, chosen);
    read_back::write(file, card.as_bytes())
}

/// The card's text. There is no license in it: that is for those to say who own the text and the model.
fn compose(facts: &Value, chosen: Chosen) -> String {
    let fact = |name: &str| facts.get(name).and_then(Value::as_str).unwrap_or_default();
    let job = facts.get("job").unwrap_or(&Value::Null);
    let title = job.get("name").and_then(Value::as_str).unwrap_or_default();
    let Chosen { step, validation_loss, has_tokenizer } = chosen;
    let loss =
        validation_loss.map(|loss| format!(", with a loss of {loss} on held-out tokens")).unwrap_or_default();
    let loading = if has_tokenizer {
        "```python\nfrom transformers import pipeline\n\n\
         generator = pipeline(\"text-generation\", model=\".\")\n\
         print(generator(\"Once upon a time\")[0][\"generated_text\"])\n```\n\n\
         `ringtune generate-text .` continues a text, too.\n"
    } else {
        "```python\nfrom transformers import GPT2LMHeadModel\n\n\
         model = GPT2LMHeadModel.from_pretrained(\".\")\n```\n\n\
         There is no tokenizer beside it: it takes ids and gives ids.\n"
    };
    let rows = [
        ("Ringtune", fact("version").to_owned()),
        ("base model (SHA-256 over its files)", fact("model_hash").to_owned()),
        ("tokens (SHA-256 over both files)", fact("data_hash").to_owned()),
        ("computed on", fact("numerics_class").to_owned()),
        ("sums", fact("sums").to_owned()),
        ("step", step.to_string()),
        ("validation loss", validation_loss.map(|loss| loss.to_string()).unwrap_or_default()),
    ];
    let rows = rows.into_iter().filter(|(_, value)| !value.is_empty());
    let rows: Vec<_> = rows.map(|(what, value)| (what.to_owned(), code(&value))).collect();
    format!(
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- gpt2\n- text-generation\n---\n\n\
         # {}\n\nA GPT-2 trained with Ringtune {}, after step {step} of {}{loss}.\n\n\
         ## Loading\n\n{loading}\n{}\n{}",
        heading(title),
        fact("version"),
        job.pointer("/gpt2/max_iters").map(shown).unwrap_or_default().trim_matches('`'),
        settings(job, &["gpt2"]),
        table("## Provenance\n\n| What | Value |", &rows),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_card_says_what_was_trained_and_how_to_load_it() {
        let facts = json!({
            "data_hash": "d1", "model_hash": "m1", "numerics_class": "avx2", "version": "9.9.9",
            "job": {"name": "words | more", "gpt2": {"max_iters": 20, "seed": 7}, "cluster": {"world_size": 2},
                    "precision": "fp32"},
        });
        let chosen = Chosen { step: 10, validation_loss: Some(2.5), has_tokenizer: true };
        let card = compose(&facts, chosen);
        for part in [
            "---\nlibrary_name: transformers\n",
            "# words \\| more\n",
            "A GPT-2 trained with Ringtune 9.9.9, after step 10 of 20, with a loss of 2.5 on held-out tokens.\n",
            "pipeline(\"text-generation\", model=\".\")",
            "| gpt2.seed | `7` |\n",
            "| computed in | `fp32` |\n",
            "| base model (SHA-256 over its files) | `m1` |\n",
        ] {
            assert!(card.contains(part), "{part:?} is missing in {card}");
        }
        assert!(!card.contains("sums") && !card.contains("exchange"), "{card}");
        let plain = compose(&facts, Chosen { validation_loss: None, has_tokenizer: false, ..chosen });
        assert!(plain.contains("GPT2LMHeadModel") && plain.contains("after step 10 of 20.\n"), "{plain}");

        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("README.md"), &facts, chosen).unwrap();
    }
}
