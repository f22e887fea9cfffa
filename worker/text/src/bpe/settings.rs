//! What stands beside a vocabulary: tokenizer_config.json and special_tokens_map.json. What transformers would do with a
//! prompt because of them is done here or refused.
//!
//! Not looked at, as transformers 5 does nothing with it when it encodes or decodes with a GPT-2's tokenizer: `errors`,
//! `clean_up_tokenization_spaces`, `do_lower_case`, `model_max_length`.
//!
//! Source: transformers 5, `PreTrainedTokenizerBase._from_pretrained`, `TokenizersBackend.__init__`, `GPT2Tokenizer`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::prompts::{Added, PromptRules};
use crate::{Error, limits::LARGEST_TOKENIZER_FILE};

const CONFIG: &str = "tokenizer_config.json";
/// Classes whose tokens are GPT-2's; without a class, the model's own is taken.
const CLASSES: [&str; 5] = [
    "GPT2Tokenizer",
    "GPT2TokenizerFast",
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
    "PreTrainedTokenizer",
];
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
const LISTS: [&str; 2] = ["extra_special_tokens", "additional_special_tokens"];

/// Adds to `rules` what the files of `folder` say. `vocabulary`: all ids, added tokens included.
///
/// # Errors
/// A file that is none; an added token that the vocabulary does not have, or with another id.
pub(super) fn read(
    folder: &Path,
    vocabulary: &BTreeMap<String, u32>,
    rules: &mut PromptRules,
) -> Result<(), Error> {
    let file = folder.join(CONFIG);
    let config = object(&file)?;
    // 1. What texts begin with, and what is not done here.
    let is = |key: &str| config.get(key) == Some(&Value::Bool(true));
    rules.prefix_space = is("add_prefix_space");
    let class = config.get("tokenizer_class").and_then(Value::as_str);
    let mut refuse = |problem: String| {
        rules.refused.get_or_insert((file.clone(), problem));
    };
    if let Some(class) = class.filter(|class| !CLASSES.contains(class)) {
        refuse(format!("has the tokenizer_class {class:.40?}; allowed: {}", CLASSES.join(", ")));
    }
    for (key, does) in [
        ("add_bos_token", "puts a token before each text"),
        ("add_eos_token", "puts a token behind each text"),
        ("split_special_tokens", "takes special tokens in a text for text"),
    ] {
        if is(key) {
            refuse(format!("has {key} true, which {does}: that is not done here; allowed: false"));
        }
    }
    // 2. Tokens that are looked for, with how.
    let decoder = config.get("added_tokens_decoder").and_then(Value::as_object);
    for (id, token) in decoder.into_iter().flatten() {
        let fields = token.as_object();
        let text = fields.and_then(|fields| fields.get("content")?.as_str());
        let (Some(fields), Some(text)) = (fields, text) else {
            return Err(Error::unusable(&file, format!("added_tokens_decoder: {id} is no token")));
        };
        match vocabulary.get(text) {
            Some(known) if id.parse() == Ok(*known) => put(rules, text, *known, Some(fields)),
            _ => return Err(Error::unusable(&file, added_token(text))),
        }
    }
    // 3. Special tokens by their names. Older folders have them in a file of their own, which wins there.
    let map_file = folder.join("special_tokens_map.json");
    let map = if decoder.is_none() { object(&map_file)? } else { Map::new() };
    let named = |key: &&str| match map.get(*key) {
        Some(token) => Some((&map_file, token)),
        None => config.get(*key).map(|token| (&file, token)),
    };
    let listed = LISTS.iter().filter_map(named).flat_map(|(file, tokens)| {
        let tokens: Vec<&Value> = match tokens {
            Value::Array(tokens) => tokens.iter().collect(),
            Value::Object(tokens) => tokens.values().collect(),
            _ => Vec::new(),
        };
        tokens.into_iter().map(move |token| (file, token))
    });
    let all: Vec<(&PathBuf, &Value)> = NAMED.iter().filter_map(named).chain(listed).collect();
    for (file, token) in all {
        let fields = token.as_object();
        let text = token.as_str().or_else(|| fields?.get("content")?.as_str());
        let Some(text) = text.filter(|text| !text.is_empty()) else { continue };
        match vocabulary.get(text) {
            Some(id) if !rules.added.iter().any(|added| added.content == text) => {
                put(rules, text, *id, fields)
            }
            Some(_) => (),
            None => rules.nameless.push((file.clone(), text.to_owned())),
        }
    }
    Ok(())
}

/// Adds a token, or says anew how it is looked for.
pub(super) fn put(rules: &mut PromptRules, text: &str, id: u32, fields: Option<&Map<String, Value>>) {
    let flag = |name: &str| fields.and_then(|fields| fields.get(name)) == Some(&Value::Bool(true));
    let token = Added {
        content: text.to_owned(),
        // Larger ones are refused before anything is encoded.
        id: id as u16,
        single_word: flag("single_word"),
        lstrip: flag("lstrip"),
        rstrip: flag("rstrip"),
        normalized: flag("normalized"),
    };
    match rules.added.iter_mut().find(|added| added.content == text) {
        Some(known) => *known = token,
        None => rules.added.push(token),
    }
}

/// An absent file is an empty object.
fn object(file: &Path) -> Result<Map<String, Value>, Error> {
    if !file.is_file() {
        return Ok(Map::new());
    }
    serde_json::from_slice(&content(file)?)
        .map_err(|error| Error::unusable(file, format!("is not a JSON object: {error}")))
}

/// The problem of a token that its vocabulary does not have.
pub(super) fn added_token(text: &str) -> String {
    format!(
        "has the added token {text:.40?}, which texts would be searched for; allowed: tokens of its vocabulary alone"
    )
}

/// A file of a size that a tokenizer has.
pub(super) fn content(file: &Path) -> Result<Vec<u8>, Error> {
    let size = fs::metadata(file).map_err(Error::io("read", file))?.len();
    if size > LARGEST_TOKENIZER_FILE {
        let problem = format!("has {size} bytes; allowed: {LARGEST_TOKENIZER_FILE}");
        return Err(Error::unusable(file, problem));
    }
    fs::read(file).map_err(Error::io("read", file))
}
