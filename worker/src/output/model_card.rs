//! `README.md`: the model card, in the form that diffusers' training scripts leave it and model hubs show it.
//!
//! Like the embeddings it depends on the job alone: no time, no path, no ring size.

use std::path::Path;

use ringtune_shared::ids::ContentHash;
use serde_json::Value;

use super::{EmbeddingFacts, Error, Learned, canonical_json, embeds, read_back};

/// The file's name.
pub const FILE_NAME: &str = "README.md";
/// Tags of diffusers' textual_inversion.py, without "diffusers-training".
const TAGS: [&str; 5] =
    ["stable-diffusion", "stable-diffusion-diffusers", "text-to-image", "diffusers", "textual_inversion"];

/// Writes the card of a job's embeddings, one for each concept, and reads it back.
///
/// # Errors
/// The file cannot be written, or holds something else than was written.
pub fn write(
    file: &Path,
    learned: &[Learned<'_>],
    facts: &EmbeddingFacts,
    last_state: Option<ContentHash>,
) -> Result<(), Error> {
    let card = compose(learned, facts, last_state);
    read_back::write(file, card.as_bytes())
}

/// The card's text. `last_state`: the hash of the training's state after the job's last step. There is no license in it: that is for those to say who own the pictures and the model.
pub fn compose(learned: &[Learned<'_>], facts: &EmbeddingFacts, last_state: Option<ContentHash>) -> String {
    let sections = [
        front_matter(facts),
        introduction(learned, facts),
        loading(learned, facts),
        settings(&facts.job, &["train"]),
        provenance(learned, facts),
    ];
    sections.join("\n") + &last_state.map(how_to_check).unwrap_or_default()
}

/// Every step can be computed again from the job.
fn how_to_check(last_state: ContentHash) -> String {
    format!(
        "\nState after the last step: `sha256:{last_state}`. To check it, run `ringtune verify JOB` against the coordinator \
         that has the job: a worker computes the steps again and compares the state after each.\n"
    )
}

fn front_matter(facts: &EmbeddingFacts) -> String {
    let tags: String = TAGS.iter().map(|tag| format!("- {tag}\n")).collect();
    let base_model = quoted(&facts.base_model);
    format!("---\nbase_model: {base_model}\ninference: true\nlibrary_name: diffusers\ntags:\n{tags}---\n")
}

fn introduction(learned: &[Learned<'_>], facts: &EmbeddingFacts) -> String {
    let heading = heading(&facts.title);
    let base_model = code(&facts.base_model);
    let (version, total) = (&facts.version, facts.max_train_steps);
    let step = learned.first().map_or(0, |learned| learned.step);
    let chosen = chosen(learned);
    let words = match learned {
        [one] => format!(
            "The word {} for {base_model}, learned by textual inversion with Ringtune {version} from {}: {}, after \
             step {step} of {total}{chosen}.",
            code(&one.concept.placeholder_token),
            code(one.concept.start()),
            size(one),
        ),
        several => {
            let words: String = several
                .iter()
                .map(|one| {
                    let (word, start) = (&one.concept.placeholder_token, one.concept.start());
                    format!("- {} from {}: {}\n", code(word), code(start), size(one))
                })
                .collect();
            format!(
                "{} words for {base_model}, learned together by textual inversion with Ringtune {version}, after step \
                 {step} of {total}{chosen}:\n\n{}",
                several.len(),
                words.trim_end(),
            )
        }
    };
    let files: String = learned
        .iter()
        .map(|one| {
            format!(
                "| `{}` | {} | diffusers |\n| `{}` | `{}` | kohya's sd-scripts, AUTOMATIC1111 |\n",
                one.concept.files.diffusers(),
                code(&one.concept.placeholder_token),
                one.concept.files.emb_params(),
                embeds::EMB_PARAMS_KEY,
            )
        })
        .collect();
    format!("# {heading}\n\n{words}\n\n| File | Key | Made for |\n|---|---|---|\n{files}")
}

/// Why it is this step's.
fn chosen(learned: &[Learned<'_>]) -> String {
    let said = |loss| format!(", with a loss of {loss} on held-out samples");
    validation_loss(learned).map(said).unwrap_or_default()
}

/// Validation loss of all words, which are judged together.
fn validation_loss(learned: &[Learned<'_>]) -> Option<f32> {
    learned.first().and_then(|learned| learned.validation_loss)
}

fn size(learned: &Learned<'_>) -> String {
    let [vectors, width] = learned.shape();
    let plural = if vectors == 1 { "" } else { "s" };
    format!("{vectors} vector{plural} of {width} numbers")
}

fn loading(learned: &[Learned<'_>], facts: &EmbeddingFacts) -> String {
    let tokens: Vec<&str> = learned.iter().map(|one| one.concept.placeholder_token.as_str()).collect();
    let word = file_stem_for(tokens.first().unwrap_or(&""));
    let base_model = quoted(&facts.base_model);
    let open =
        if facts.base_model.ends_with(".safetensors") { "from_single_file" } else { "from_pretrained" };
    let loads: String = learned
        .iter()
        .map(|one| format!("pipeline.load_textual_inversion(\"{}\")\n", one.concept.files.diffusers()))
        .collect();
    let prompt = quoted(&format!("a photo of a {}", tokens.join(" and a ")));
    let (key, either) = match learned.len() {
        1 => ("the word is the file's key", "Copy either file"),
        _ => ("each word is its file's key", "Copy either file of a word"),
    };
    format!(
        "## Loading\n\n**diffusers**: {key}.\n\n\
         ```python\nfrom diffusers import StableDiffusionPipeline\n\n\
         pipeline = StableDiffusionPipeline.{open}({base_model})\n\
         {loads}\
         image = pipeline({prompt}).images[0]\n```\n\n\
         The other tools go by the file's name, not by what is in it. {either} under the name that you want \
         to write in prompts, say `{word}.safetensors`.\n\n\
         - **AUTOMATIC1111**: into `embeddings/`; prompt: `a photo of a {word}`\n\
         - **ComfyUI**: into `models/embeddings/`; prompt: `a photo of a embedding:{word}`\n\
         - **kohya's sd-scripts**: `gen_img.py --textual_inversion_embeddings {word}.safetensors`; \
         prompt: `a photo of a {word}`\n"
    )
}

/// The options of a job's sections, of its concepts, and what else decides its bits.
pub(super) fn settings(job: &Value, sections: &[&str]) -> String {
    let mut rows: Vec<(String, String)> = Vec::new();
    for section in sections {
        let options = job.get(section).and_then(Value::as_object).into_iter().flatten();
        let given = options.filter(|(_, value)| !value.is_null());
        rows.extend(given.map(|(key, value)| (format!("{section}.{key}"), shown(value))));
    }
    for (index, concept) in job.get("concepts").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let keys = concept.as_object().into_iter().flatten();
        rows.extend(keys.map(|(key, value)| (format!("concepts[{index}].{key}"), shown(value))));
    }
    let cluster = job.get("cluster").and_then(|cluster| cluster.get("world_size"));
    rows.extend(cluster.map(|size| ("cluster.world_size".to_owned(), shown(size))));
    rows.extend(job.get("precision").map(|precision| ("computed in".to_owned(), shown(precision))));
    rows.sort();
    table("## Settings\n\n| Setting | Value |", &rows)
}

fn provenance(learned: &[Learned<'_>], facts: &EmbeddingFacts) -> String {
    let base_model = facts.base_model_reference().map(|reference| ("base model", reference));
    let rows = [
        ("Ringtune", facts.version.clone()),
        ("base model (SHA-256 over its files)", facts.model_hash.clone()),
        ("pictures (SHA-256 of their manifest)", facts.data_hash.clone()),
        ("job (SHA-256 of its canonical JSON)", facts.job_hash()),
        ("computed on", facts.numerics_class.clone()),
        ("step", learned.first().map_or(0, |learned| learned.step).to_string()),
        ("validation loss", validation_loss(learned).map(|loss| loss.to_string()).unwrap_or_default()),
    ];
    let given = base_model.into_iter().chain(rows).filter(|(_, value)| !value.is_empty());
    let rows: Vec<_> = given.map(|(what, value)| (what.to_owned(), code(&value))).collect();
    table("## Provenance\n\n| What | Value |", &rows)
}

/// Where a network that learned from pictures comes from: a table.
pub(super) fn network_provenance(facts: &Value, step: u64, validation_loss: Option<f32>) -> String {
    let fact = |name: &str| facts.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let rows = [
        ("Ringtune", fact("version")),
        ("base model (SHA-256 over its files)", fact("model_hash")),
        ("pictures (SHA-256)", fact("data_hash")),
        ("computed on", fact("numerics_class")),
        ("step", step.to_string()),
        ("validation loss", validation_loss.map(|loss| loss.to_string()).unwrap_or_default()),
    ];
    let rows = rows.into_iter().filter(|(_, value)| !value.is_empty());
    let rows: Vec<_> = rows.map(|(what, value)| (what.to_owned(), code(&value))).collect();
    table("## Provenance\n\n| What | Value |", &rows)
}

pub(super) fn table(head: &str, rows: &[(String, String)]) -> String {
    let rows: String = rows.iter().map(|(key, value)| format!("| {key} | {value} |\n")).collect();
    format!("{head}\n|---|---|\n{rows}")
}

pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => code(text),
        other => code(&canonical_json(other)),
    }
}

/// A text in double quotes: a YAML scalar, and a Python string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(plain(text)).to_string()
}

/// A text as code within a line or a table's cell. Whatever backticks it holds, its fence is longer.
pub(super) fn code(text: &str) -> String {
    let text = plain(text).replace('|', "\\|");
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let pad = if text.is_empty() || text.starts_with('`') || text.ends_with('`') { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

/// A text that is no markup.
pub(super) fn heading(text: &str) -> String {
    let escaped = |c: char| if c.is_ascii_punctuation() { format!("\\{c}") } else { c.to_string() };
    plain(text).chars().map(escaped).collect()
}

/// Reduces a text to one line without characters that YAML cannot express.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A file name that every tool can read as a word of a prompt.
fn file_stem_for(token: &str) -> String {
    let word = ringtune_shared::embedding::file_word(token);
    if word.is_empty() { "my-concept".to_owned() } else { word }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{
            Concept, Taught,
            facts::tests::{example, learned},
        },
        *,
    };

    #[test]
    fn the_card_says_what_the_embedding_was_chosen_by() {
        let judged = Learned { validation_loss: Some(0.25), ..learned(&[0.0; 6]) };
        let card = compose(&[judged], &example(), None);
        assert!(card.contains("after step 5 of 9, with a loss of 0.25 on held-out samples.\n"), "{card}");
        assert!(card.contains("| validation loss | `0.25` |\n"), "{card}");
        assert!(!compose(&[learned(&[0.0; 6])], &example(), None).contains("validation"));
    }

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
        let card = compose(&[learned(&rows)], &facts, None);
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
        assert_eq!(card, compose(&[learned(&rows)], &facts, None));
    }

    #[test]
    fn one_card_lists_all_concepts() {
        let taught = |token: &str, initializer: &str, num_vectors| Taught {
            placeholder_token: token.to_owned(),
            initializer_token: initializer.to_owned(),
            num_vectors,
            ..Taught::default()
        };
        let concepts = Concept::list(vec![taught("<a>", "star", 1), taught("<b>", "heart", 2)]);
        let facts = EmbeddingFacts {
            job: json!({"concepts": [{"placeholder_token": "<a>"}, {"placeholder_token": "<b>", "num_vectors": 2}]}),
            ..example()
        };
        let card = compose(&Concept::split(&concepts, &[0.5; 9], 5), &facts, None);
        for line in [
            "2 words for `toy-sd`, learned together by textual inversion with Ringtune 0.1.0, after step 5 of 9:\n\n\
             - `<a>` from `star`: 1 vector of 3 numbers\n- `<b>` from `heart`: 2 vectors of 3 numbers\n\n",
            "| `learned_embeds-a.safetensors` | `<a>` | diffusers |\n",
            "| `learned_embeds-b-emb_params.safetensors` | `emb_params` | kohya's sd-scripts, AUTOMATIC1111 |\n",
            "pipeline.load_textual_inversion(\"learned_embeds-a.safetensors\")\n\
             pipeline.load_textual_inversion(\"learned_embeds-b.safetensors\")\n",
            "image = pipeline(\"a photo of a <a> and a <b>\").images[0]\n",
            "| concepts[1].num_vectors | `2` |\n| concepts[1].placeholder_token | `<b>` |\n",
        ] {
            assert!(card.contains(line), "{line:?} is missing in {card}");
        }
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
    fn the_state_after_the_last_step_is_named_with_how_to_check_it() {
        let card = |state| compose(&[learned(&[0.0; 6])], &example(), state);
        let state = ContentHash::of(b"state");
        let (without, with) = (card(None), card(Some(state)));
        let added = with.strip_prefix(&without).expect("the rest is the same");
        assert!(added.starts_with(&format!("\nState after the last step: `sha256:{state}`.")), "{added}");
        assert!(added.contains("`ringtune verify JOB`"), "{added}");
    }

    #[test]
    fn the_file_is_what_was_composed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE_NAME);
        write(&file, &[learned(&[0.0; 6])], &example(), None).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), compose(&[learned(&[0.0; 6])], &example(), None));
        let absent =
            write(Path::new("/nonexistent-folder/README.md"), &[learned(&[0.0; 6])], &example(), None);
        assert!(matches!(absent, Err(Error::Write { .. })));
    }
}
