//! Reads a tokenizer's folder: tokenizer.json where there is one, else vocab.json and merges.txt. A tokenizer of another kind
//! than GPT-2's is refused, whatever it is, because its tokens would be wrong.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use ringtune_shared::ids::{ContentHash, ContentHasher};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{END_OF_TEXT, prompts::PromptRules, settings};
use crate::Error;

/// The contents of a folder.
pub(super) struct Read {
    /// The file that errors are about.
    pub(super) file: PathBuf,
    /// Ids by the tokens' texts, added tokens included.
    pub(super) vocabulary: BTreeMap<String, u32>,
    /// Ids of added tokens, whose texts are as they are read: no letters that stand for bytes.
    pub(super) added: BTreeSet<u32>,
    /// The first is merged first.
    pub(super) merges: Vec<(String, String)>,
    /// Of all files that decide about documents, in order.
    pub(super) hash: ContentHash,
    pub(super) rules: PromptRules,
}

pub(super) fn read(folder: &Path) -> Result<Read, Error> {
    let mut read = read_vocabulary(folder)?;
    settings::read(folder, &read.vocabulary, &mut read.rules)?;
    if let Some(id) = read.vocabulary.get(END_OF_TEXT)
        && !read.rules.added.iter().any(|added| added.content == END_OF_TEXT)
    {
        settings::put(&mut read.rules, END_OF_TEXT, *id, None);
    }
    Ok(read)
}

fn read_vocabulary(folder: &Path) -> Result<Read, Error> {
    let whole = folder.join("tokenizer.json");
    if whole.is_file() {
        return from_json(whole);
    }
    let [vocabulary, merges] = ["vocab.json", "merges.txt"].map(|name| folder.join(name));
    check_added(&folder.join("added_tokens.json"))?;
    for file in [&vocabulary, &merges] {
        if !file.is_file() {
            let problem =
                "it is missing; a tokenizer's folder has tokenizer.json, or vocab.json and merges.txt";
            return Err(Error::unusable(file, problem));
        }
    }
    from_vocabulary_and_merges(vocabulary, &merges)
}

/// As the crate `tokenizers` writes it; only what decides about tokens.
#[derive(Deserialize)]
struct Whole {
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    model: Model,
    #[serde(default)]
    added_tokens: Vec<Map<String, Value>>,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: BTreeMap<String, u32>,
    merges: Vec<Merge>,
    dropout: Option<f64>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
}

/// Older files have "a b", newer ones ["a", "b"].
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Text(String),
    Pair(String, String),
}

/// An added token, without how it is looked for.
#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    /// Whether it stands for no text. The others are words of texts, which are looked for before anything is merged.
    special: Option<bool>,
}

fn from_json(file: PathBuf) -> Result<Read, Error> {
    let content = settings::content(&file)?;
    let whole: Whole = serde_json::from_slice(&content).map_err(|error| {
        Error::unusable(&file, format!("is not a tokenizer.json with a BPE model: {error}"))
    })?;
    let added = whole.added_tokens.iter().map(|fields| Added::deserialize(Value::from(fields.clone())));
    let added = added
        .collect::<Result<Vec<Added>, _>>()
        .map_err(|error| Error::unusable(&file, format!("has an added token that is none: {error}")))?;
    whole.check(&added).map_err(|problem| {
        let problem = format!("{problem}; only GPT-2's byte-level BPE is taken");
        Error::unusable(&file, problem)
    })?;
    let mut merges = Vec::with_capacity(whole.model.merges.len());
    for merge in whole.model.merges {
        merges.push(match merge {
            Merge::Pair(left, right) => (left, right),
            Merge::Text(text) => pair(&text).ok_or_else(|| broken_merge(&file, merges.len() + 1, &text))?,
        });
    }
    let mut vocabulary = whole.model.vocab;
    let mut rules = PromptRules::default();
    for (fields, token) in whole.added_tokens.iter().zip(&added) {
        settings::put(&mut rules, &token.content, token.id, Some(fields));
    }
    rules.refused =
        whole.post_processor.as_ref().and_then(adds_tokens).map(|problem| (file.clone(), problem));
    let ids = added.iter().map(|added| added.id).collect();
    vocabulary.extend(added.into_iter().map(|added| (added.content, added.id)));
    Ok(Read { file, vocabulary, added: ids, merges, hash: ContentHash::of(&content), rules })
}

/// Refuses tokens that slow tokenizers have beside their vocabulary. The file is an object of texts and ids.
fn check_added(file: &Path) -> Result<(), Error> {
    if !file.is_file() {
        return Ok(());
    }
    let added: BTreeMap<String, u32> = serde_json::from_slice(&settings::content(file)?)
        .map_err(|error| Error::unusable(file, format!("is not a JSON object of tokens and ids: {error}")))?;
    match added.keys().find(|text| *text != END_OF_TEXT) {
        None => Ok(()),
        Some(text) => Err(Error::unusable(file, settings::added_token(text))),
    }
}

impl Whole {
    /// Whether all that changes tokens is as in GPT-2's own file.
    fn check(&self, added: &[Added]) -> Result<(), String> {
        let is_word = |added: &&Added| added.special == Some(false) && added.content != END_OF_TEXT;
        if let Some(Added { content, .. }) = added.iter().find(is_word) {
            return Err(settings::added_token(content));
        }
        if let Some(normalizer) = &self.normalizer {
            return Err(format!("has the normalizer {}, which changes texts", kind_of(normalizer)));
        }
        let words = self.pre_tokenizer.as_ref();
        let is = |field: &str, wanted: bool| {
            words.and_then(|words| words.get(field)).is_none_or(|found| *found == Value::Bool(wanted))
        };
        match words {
            Some(words) if kind_of(words) == "ByteLevel" => (),
            Some(words) => return Err(format!("cuts words with {} instead of ByteLevel", kind_of(words))),
            None => return Err("has no pre_tokenizer: allowed is ByteLevel".to_owned()),
        }
        if !is("add_prefix_space", false) || !is("use_regex", true) {
            return Err("has a pre_tokenizer with add_prefix_space true or use_regex false".to_owned());
        }
        let Model {
            kind,
            dropout,
            continuing_subword_prefix,
            end_of_word_suffix,
            byte_fallback,
            ignore_merges,
            ..
        } = &self.model;
        let given = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
        match () {
            () if kind.as_deref().is_some_and(|kind| kind != "BPE") => Err(format!(
                "has a model of the type {:?} instead of BPE",
                kind.as_deref().unwrap_or_default()
            )),
            () if dropout.is_some_and(|share| share != 0.0) => {
                Err("leaves merges out at random (dropout)".to_owned())
            }
            () if given(continuing_subword_prefix) || given(end_of_word_suffix) => {
                Err("marks the beginnings or ends of words".to_owned())
            }
            () if byte_fallback == &Some(true) || ignore_merges == &Some(true) => {
                Err("has byte_fallback or ignore_merges".to_owned())
            }
            () => Ok(()),
        }
    }
}

/// The problem of a post-processor that puts tokens around a text.
fn adds_tokens(processor: &Value) -> Option<String> {
    let kind = kind_of(processor);
    let nothing = match kind {
        "ByteLevel" => true,
        "TemplateProcessing" => {
            let parts = processor.get("single").and_then(Value::as_array).map(Vec::as_slice);
            matches!(parts, Some([only]) if only.get("Sequence").is_some())
        }
        "Sequence" => {
            let parts = processor.get("processors").and_then(Value::as_array);
            return parts.into_iter().flatten().find_map(adds_tokens);
        }
        _ => false,
    };
    (!nothing).then(|| {
        format!("has a post_processor ({kind}) that puts tokens around each text: that is not done here; allowed: ByteLevel, or none")
    })
}

fn kind_of(part: &Value) -> &str {
    part.get("type").and_then(Value::as_str).unwrap_or("of an unknown type")
}

fn from_vocabulary_and_merges(file: PathBuf, merges_file: &Path) -> Result<Read, Error> {
    let mut hasher = ContentHasher::new();
    let bytes = settings::content(&file)?;
    hasher.update(&bytes);
    let vocabulary = serde_json::from_slice(&bytes).map_err(|error| {
        Error::unusable(&file, format!("is not a JSON object of tokens and ids: {error}"))
    })?;
    let bytes = settings::content(merges_file)?;
    hasher.update(&bytes);
    let text = std::str::from_utf8(&bytes)
        .map_err(|error| Error::unusable(merges_file, format!("is not UTF-8: {error}")))?;
    let mut merges = Vec::new();
    // The first line names a version.
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with("#version")) {
        if !line.is_empty() {
            merges.push(pair(line).ok_or_else(|| broken_merge(merges_file, number + 1, line))?);
        }
    }
    let rules = PromptRules::default();
    Ok(Read { file, vocabulary, added: BTreeSet::new(), merges, hash: hasher.finish(), rules })
}

fn pair(line: &str) -> Option<(String, String)> {
    let (left, right) = line.split_once(' ')?;
    let is_one = |text: &str| !text.is_empty() && !text.contains(' ');
    (is_one(left) && is_one(right)).then(|| (left.to_owned(), right.to_owned()))
}

fn broken_merge(file: &Path, number: usize, line: &str) -> Error {
    let shown: String = line.chars().take(40).collect();
    Error::unusable(
        file,
        format!("merge {number} is {shown:?}; allowed: two tokens with one space between them"),
    )
}
