//! `README.md`: the model card, in the form that diffusers' training scripts leave it and model hubs show it.
//!
//! Like the embeddings it depends on the job alone: no time, no path, no ring size.

use std::path::Path;

use ringtune_shared::files::write_atomically;
use serde_json::Value;

use super::{EmbeddingFacts, Error, Learned, canonical_json, embeds, read_back::check_text};

/// The file's name.
pub const FILE_NAME: &str = "README.md";
/// Those of diffusers' textual_inversion.py, but for "diffusers-training", which this was not.
const TAGS: [&str; 5] =
    ["stable-diffusion", "stable-diffusion-diffusers", "text-to-image", "diffusers", "textual_inversion"];

/// Writes the card of a job's embedding and reads it back.
///
/// # Errors
/// The file cannot be written, or holds something else than was written.
pub fn write(file: &Path, learned: &Learned<'_>, facts: &EmbeddingFacts) -> Result<(), Error> {
    let card = compose(learned, facts);
    write_atomically(file, card.as_bytes()).map_err(|error| Error::writing(file, error.cause))?;
    check_text(file, &card)
}

/// The card's text. There is no license in it: that is for those to say who own the pictures and the checkpoint.
pub fn compose(learned: &Learned<'_>, facts: &EmbeddingFacts) -> String {
    let sections = [
        front_matter(facts),
        introduction(learned, facts),
        loading(learned, facts),
        settings(facts),
        provenance(learned, facts),
    ];
    sections.join("\n")
}

fn front_matter(facts: &EmbeddingFacts) -> String {
    let tags: String = TAGS.iter().map(|tag| format!("- {tag}\n")).collect();
    let base_model = quoted(&facts.base_model);
    format!("---\nbase_model: {base_model}\ninference: true\nlibrary_name: diffusers\ntags:\n{tags}---\n")
}

fn introduction(learned: &Learned<'_>, facts: &EmbeddingFacts) -> String {
    let [vectors, width] = learned.shape();
    let plural = if vectors == 1 { "" } else { "s" };
    format!(
        "# {}\n\nThe word {} for {}, learned by textual inversion with Ringtune {} from {}: {vectors} \
         vector{plural} of {width} numbers, after step {} of {}.\n\n\
         | File | Key | Made for |\n|---|---|---|\n\
         | `{}` | {} | diffusers |\n| `{}` | `{}` | kohya's sd-scripts, AUTOMATIC1111 |\n",
        heading(&facts.title),
        code(learned.placeholder_token),
        code(&facts.base_model),
        facts.version,
        code(learned.initializer_token),
        learned.step,
        facts.max_train_steps,
        embeds::FILE_NAME,
        code(learned.placeholder_token),
        embeds::EMB_PARAMS_FILE_NAME,
        embeds::EMB_PARAMS_KEY,
    )
}

fn loading(learned: &Learned<'_>, facts: &EmbeddingFacts) -> String {
    let word = file_stem_for(learned.placeholder_token);
    let (base_model, file) = (quoted(&facts.base_model), embeds::FILE_NAME);
    let prompt = quoted(&format!("a photo of a {}", learned.placeholder_token));
    format!(
        "## Loading\n\n**diffusers**: the word is the file's key.\n\n\
         ```python\nfrom diffusers import StableDiffusionPipeline\n\n\
         pipeline = StableDiffusionPipeline.from_pretrained({base_model})\n\
         pipeline.load_textual_inversion(\"{file}\")\n\
         image = pipeline({prompt}).images[0]\n```\n\n\
         The other tools go by the file's name, not by what is in it. Copy either file under the name that you want \
         to write in prompts, say `{word}.safetensors`.\n\n\
         - **AUTOMATIC1111**: into `embeddings/`; prompt: `a photo of a {word}`\n\
         - **ComfyUI**: into `models/embeddings/`; prompt: `a photo of a embedding:{word}`\n\
         - **kohya's sd-scripts**: `gen_img.py --textual_inversion_embeddings {word}.safetensors`; \
         prompt: `a photo of a {word}`\n"
    )
}

fn settings(facts: &EmbeddingFacts) -> String {
    let train = facts.job.get("train").and_then(Value::as_object);
    let mut rows: Vec<(String, String)> = train
        .into_iter()
        .flatten()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (format!("train.{key}"), shown(value)))
        .collect();
    let cluster = facts.job.get("cluster").and_then(|cluster| cluster.get("world_size"));
    rows.extend(cluster.map(|size| ("cluster.world_size".to_owned(), shown(size))));
    rows.extend(facts.job.get("precision").map(|precision| ("computed in".to_owned(), shown(precision))));
    rows.sort();
    table("## Settings\n\n| Setting | Value |", &rows)
}

fn provenance(learned: &Learned<'_>, facts: &EmbeddingFacts) -> String {
    let rows = [
        ("Ringtune", facts.version.clone()),
        ("base model (SHA-256 over its files)", facts.model_hash.clone()),
        ("pictures (SHA-256 of their manifest)", facts.data_hash.clone()),
        ("job (SHA-256 of its canonical JSON)", facts.job_hash()),
        ("computed on", facts.numerics_class.clone()),
        ("step", learned.step.to_string()),
    ]
    .map(|(what, value)| (what.to_owned(), code(&value)));
    table("## Provenance\n\n| What | Value |", &rows)
}

fn table(head: &str, rows: &[(String, String)]) -> String {
    let rows: String = rows.iter().map(|(key, value)| format!("| {key} | {value} |\n")).collect();
    format!("{head}\n|---|---|\n{rows}")
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => code(text),
        other => code(&canonical_json(other)),
    }
}

/// A text in double quotes: a YAML scalar, and a Python string.
fn quoted(text: &str) -> String {
    Value::from(plain(text)).to_string()
}

/// A text as code within a line or a table's cell. Whatever backticks it holds, its fence is longer.
fn code(text: &str) -> String {
    let text = plain(text).replace('|', "\\|");
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let pad = if text.is_empty() || text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

/// A text that is no markup.
fn heading(text: &str) -> String {
    let escaped = |c: char| if c.is_ascii_punctuation() { format!("\\{c}") } else { c.to_string() };
    plain(text).chars().map(escaped).collect()
}

/// One line, without characters that YAML has no spelling for.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A file name that every tool can read as a word of a prompt: the token's letters, digits, "-", "_" and ".".
fn file_stem_for(token: &str) -> String {
    let kept: String = token.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).collect();
    let kept = kept.trim_matches('.');
    if kept.is_empty() { "my-concept".to_owned() } else { kept.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::facts::tests::{example, learned},
        *,
    };

    #[test]
    fn the_card_of_a_job() {
        let facts = EmbeddingFacts {
            job: json!({
                "cluster": {"world_size": 6, "min_world_size": 1},
                "precision": "fp32",
                "train": {"seed": 7, "placeholder_token": "<a>", "templates": ["a {} | b"], "center_crop": false},
            }),
            ..example()
        };
        let rows = [0.0; 6];
        let card = compose(&learned(&rows), &facts);
        let head = "---\nbase_model: \"toy-sd\"\ninference: true\nlibrary_name: diffusers\ntags:\n\
            - stable-diffusion\n- stable-diffusion-diffusers\n- text-to-image\n- diffusers\n- textual_inversion\n\
            ---\n\n# my stars\n\n\
            The word `<a>` for `toy-sd`, learned by textual inversion with Ringtune 0.1.0 from `star`: 2 vectors of 3 \
            numbers, after step 5 of 9.\n";
        assert!(card.starts_with(head), "{card}");
        let settings = "## Settings\n\n| Setting | Value |\n|---|---|\n\
            | cluster.world_size | `6` |\n| computed in | `fp32` |\n| train.center_crop | `false` |\n\
            | train.placeholder_token | `<a>` |\n| train.seed | `7` |\n| train.templates | `[\"a {} \\| b\"]` |\n";
        assert!(card.contains(settings), "{card}");
        for line in [
            "pipeline = StableDiffusionPipeline.from_pretrained(\"toy-sd\")\n",
            "image = pipeline(\"a photo of a <a>\").images[0]\n",
            "| `learned_embeds-emb_params.safetensors` | `emb_params` | kohya's sd-scripts, AUTOMATIC1111 |\n",
            "into `models/embeddings/`; prompt: `a photo of a embedding:a`\n",
            "| base model (SHA-256 over its files) | `m` |\n",
        ] {
            assert!(card.contains(line), "{line:?} is missing in {card}");
        }
        // No license is claimed, and the same job has the same card.
        assert!(!card.contains("license"));
        assert_eq!(card, compose(&learned(&rows), &facts));
    }

    #[test]
    fn odd_words_stay_words() {
        assert_eq!(code("a`b``c"), "```a`b``c```");
        assert_eq!(code("`a|"), "`` `a\\| ``");
        assert_eq!(quoted("a\"b\nc"), "\"a\\\"b c\"");
        assert_eq!(heading("a <b> *c*\u{7}"), "a \\<b\\> \\*c\\* ");
        assert_eq!(file_stem_for("<green-star>"), "green-star");
        assert_eq!(file_stem_for("<><../>"), "my-concept");
    }

    #[test]
    fn the_file_is_what_was_composed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE_NAME);
        write(&file, &learned(&[0.0; 6]), &example()).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), compose(&learned(&[0.0; 6]), &example()));
        let absent = write(Path::new("/nonexistent-folder/README.md"), &learned(&[0.0; 6]), &example());
        assert!(matches!(absent, Err(Error::Write { .. })));
    }
}
