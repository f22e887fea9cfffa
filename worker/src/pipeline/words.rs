//! The tokenizer's folder with more tokens, in every form in which transformers keeps them.

use std::{fs, path::Path};

use serde_json::{Map, Value, json};

use super::error::{Error, failed_at, unusable};
use crate::data::tokenizer::FOLDER_FILES;

/// Of each of a tokenizer's files; vocabularies have about 1 MB.
const LARGEST_FILE: u64 = 64 << 20;

/// Copies the tokenizer in `from` to `to`, with `tokens` from the id `first_id` on.
///
/// added_tokens.json is what transformers before 4.34 and `CLIPTokenizer` without more read; tokenizer_config.json has
/// an `added_tokens_decoder` since, and it counts where it is; the fast tokenizer's tokenizer.json has a list.
pub(super) fn write(from: &Path, to: &Path, first_id: usize, tokens: &[String]) -> Result<(), Error> {
    fs::create_dir_all(to).map_err(failed_at(to))?;
    let numbered = || tokens.iter().zip(first_id..);
    for name in FOLDER_FILES {
        let (source, target) = (from.join(name), to.join(name));
        let missing = !source.is_file();
        let content = match name {
            "added_tokens.json" => {
                let mut added = if missing { Map::new() } else { object(&source)? };
                added.extend(numbered().map(|(token, id)| (token.clone(), Value::from(id))));
                pretty(added)
            }
            _ if missing => continue,
            "tokenizer_config.json" => {
                let mut config = object(&source)?;
                if let Some(Value::Object(decoder)) = config.get_mut("added_tokens_decoder") {
                    decoder.extend(numbered().map(|(token, id)| (id.to_string(), added_token(token))));
                }
                pretty(config)
            }
            "tokenizer.json" => {
                let mut whole = object(&source)?;
                let list = whole.entry("added_tokens").or_insert_with(|| json!([]));
                let Value::Array(list) = list else {
                    return Err(unusable(&source, "has no list of added tokens"));
                };
                list.extend(numbered().map(|(token, id)| {
                    let mut entry = added_token(token);
                    entry["id"] = Value::from(id);
                    entry
                }));
                pretty(whole)
            }
            _ => read(&source)?,
        };
        fs::write(&target, content).map_err(failed_at(&target))?;
    }
    Ok(())
}

/// The entry that `tokenizer.add_tokens` makes of a text.
fn added_token(content: &str) -> Value {
    json!({
        "content": content, "lstrip": false, "normalized": true, "rstrip": false, "single_word": false,
        "special": false
    })
}

fn pretty(object: Map<String, Value>) -> Vec<u8> {
    format!("{:#}\n", Value::Object(object)).into_bytes()
}

fn object(file: &Path) -> Result<Map<String, Value>, Error> {
    match serde_json::from_slice(&read(file)?) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(unusable(file, "is not a JSON object")),
        Err(error) => Err(unusable(file, format!("is not JSON: {error}"))),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Error> {
    let size = fs::metadata(file).map_err(failed_at(file))?.len();
    if size > LARGEST_FILE {
        return Err(unusable(file, format!("has {size} bytes, allowed are {LARGEST_FILE}")));
    }
    fs::read(file).map_err(failed_at(file))
}
