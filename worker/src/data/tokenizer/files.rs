//! Reads a model's `tokenizer` folder in any of the forms that transformers has written.
//! Source: transformers 5, `CLIPTokenizer` and `PreTrainedTokenizerBase._from_pretrained`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use ringtune_shared::ids::ContentHash;
use serde_json::{Map, Value};
use tokenizers::{
    AddedToken, ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer,
    models::bpe::BPE,
    normalizers::{
        replace::{Replace, ReplacePattern},
        unicode::NFC,
        utils::{Lowercase, Sequence as NormalizerSequence},
    },
    pre_tokenizers::{
        byte_level::ByteLevel,
        sequence::Sequence as PreTokenizerSequence,
        split::{Split, SplitPattern},
    },
};

use super::{
    super::Error,
    twins::{self, Twins},
};

/// CLIP's pattern of words.
const WORDS: &str =
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";
/// CLIP's defaults for tokens that no file names.
const BEGIN: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";

pub(super) struct Opened {
    pub(super) tokenizer: Tokenizer,
    pub(super) begin: u32,
    pub(super) end: u32,
    pub(super) padding: u32,
    pub(super) model_max_length: Option<usize>,
    pub(super) twins: Twins,
}

pub(super) fn open(folder: &Path) -> Result<Opened, Error> {
    // 1. The settings.
    let settings = Settings::read(folder)?;
    // 2. The model: vocabulary, merges and how text is cut up.
    let whole = folder.join("tokenizer.json");
    let mut tokenizer = if whole.is_file() {
        from_json(&whole)?
    } else {
        from_vocabulary_and_merges(folder, &settings.unknown.content)?
    };
    // Cutting and padding are ours, whatever the file says.
    tokenizer.with_padding(None).with_truncation(None).map_err(|error| broken(folder, error.to_string()))?;
    // 3. Added and special tokens that are not in it yet.
    let mut known: Vec<String> =
        tokenizer.get_added_tokens_decoder().into_values().map(|token| token.content).collect();
    let special = [&settings.begin, &settings.end, &settings.unknown, &settings.padding];
    for token in settings.added.values().chain(special).chain(&settings.extra) {
        if !known.contains(&token.content) {
            known.push(token.content.clone());
            tokenizer.add_tokens([token.clone()]).map_err(|error| broken(folder, error.to_string()))?;
        }
    }
    // 4. The ids that the files promise.
    let id_of = |token: &str| {
        let missing = || broken(folder, format!("the vocabulary has no token {token:?}"));
        tokenizer.token_to_id(token).ok_or_else(missing)
    };
    for (id, token) in &settings.added {
        if id_of(&token.content)? != *id {
            let problem = format!("the added token {:?} should have id {id} but gets another", token.content);
            return Err(broken(folder, problem));
        }
    }
    let (begin, end, padding) =
        (id_of(&settings.begin.content)?, id_of(&settings.end.content)?, id_of(&settings.padding.content)?);
    let twins = twins::find(&tokenizer).map_err(|error| broken(folder, error.to_string()))?;
    Ok(Opened { begin, end, padding, model_max_length: settings.model_max_length, twins, tokenizer })
}

/// The last tokenizer.json that was read: one job after the other has the same model, and reading it takes a third of a
/// second.
static LAST_READ: Mutex<Option<(ContentHash, Tokenizer)>> = Mutex::new(None);

fn from_json(file: &Path) -> Result<Tokenizer, Error> {
    let content = std::fs::read(file).map_err(|error| broken(file, error.to_string()))?;
    let hash = ContentHash::of(&content);
    let last = || LAST_READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((known, tokenizer)) = &*last()
        && *known == hash
    {
        return Ok(tokenizer.clone());
    }
    let tokenizer = Tokenizer::from_bytes(&content).map_err(|error| broken(file, error.to_string()))?;
    match tokenizer.get_model() {
        ModelWrapper::BPE(model) if model.dropout.is_none_or(|share| share == 0.0) => (),
        ModelWrapper::BPE(_) => {
            let problem = "it leaves merges out at random (model.dropout), so that the same prompt has other tokens each \
                           time; allowed: none, or 0";
            return Err(broken(file, problem.to_owned()));
        }
        _ => return Err(broken(file, "its model is not BPE, which CLIP's tokenizer is".to_owned())),
    }
    *last() = Some((hash, tokenizer.clone()));
    Ok(tokenizer)
}

fn from_vocabulary_and_merges(folder: &Path, unknown: &str) -> Result<Tokenizer, Error> {
    let (vocabulary, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
    for file in [&vocabulary, &merges] {
        if !file.is_file() {
            let problem =
                "it is missing; a tokenizer folder has tokenizer.json, or vocab.json and merges.txt";
            return Err(broken(file, problem.to_string()));
        }
    }
    let text = |path: &PathBuf| path.to_str().map(str::to_string);
    let (Some(vocabulary_path), Some(merges_path)) = (text(&vocabulary), text(&merges)) else {
        return Err(broken(folder, "its path is not UTF-8".to_string()));
    };
    let model = BPE::from_file(&vocabulary_path, &merges_path)
        .continuing_subword_prefix(String::new())
        .end_of_word_suffix("</w>".to_string())
        .unk_token(unknown.to_string())
        .build()
        .map_err(|error| broken(&vocabulary, format!("with merges.txt: {error}")))?;
    let failed = |error: tokenizers::Error| broken(folder, error.to_string());
    let normalizers: Vec<NormalizerWrapper> = vec![
        NFC.into(),
        Replace::new(ReplacePattern::Regex(r"\s+".to_string()), " ").map_err(failed)?.into(),
        Lowercase.into(),
    ];
    // Kept are the matches, not what is between them.
    let words = Split::new(SplitPattern::Regex(WORDS.to_string()), SplitDelimiterBehavior::Removed, true);
    let pre_tokenizers: Vec<PreTokenizerWrapper> =
        vec![words.map_err(failed)?.into(), ByteLevel::new(false, true, true).into()];
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(Some(NormalizerSequence::new(normalizers))).map_err(failed)?;
    tokenizer.with_pre_tokenizer(Some(PreTokenizerSequence::new(pre_tokenizers)));
    Ok(tokenizer)
}

/// Settings of the small files beside the vocabulary.
struct Settings {
    begin: AddedToken,
    end: AddedToken,
    unknown: AddedToken,
    padding: AddedToken,
    /// Special tokens that CLIP gives no meaning, in the order in which they get ids.
    extra: Vec<AddedToken>,
    /// Added tokens by id.
    added: BTreeMap<u32, AddedToken>,
    model_max_length: Option<usize>,
}

impl Settings {
    fn read(folder: &Path) -> Result<Self, Error> {
        let config_file = folder.join("tokenizer_config.json");
        let config = read_object(&config_file)?;
        let mut special = config.clone();
        let mut added = BTreeMap::new();
        if let Some(Value::Object(tokens)) = config.get("added_tokens_decoder") {
            // Files of this age repeat everything here.
            for (id, token) in tokens {
                let parsed = id.parse().ok().zip(added_token(token, false));
                let (id, token) = parsed.ok_or_else(|| {
                    broken(&config_file, format!("added_tokens_decoder: {id}: not an added token"))
                })?;
                added.insert(id, token);
            }
        } else {
            // Older ones: special_tokens_map.json wins over tokenizer_config.json (SD 2 pads with "!" that way).
            special.extend(read_object(&folder.join("special_tokens_map.json"))?);
            let added_file = folder.join("added_tokens.json");
            for (content, id) in read_object(&added_file)? {
                let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
                let id =
                    id.ok_or_else(|| broken(&added_file, format!("{content:?}: its id is not a number")))?;
                added.insert(id, AddedToken::from(content, false));
            }
        }
        let token = |key: &str, default: &str| match special.get(key) {
            None | Some(Value::Null) => Ok(AddedToken::from(default, true)),
            Some(value) => added_token(value, true)
                .ok_or_else(|| broken(&config_file, format!("{key}: {value} is not a token"))),
        };
        let (begin, end) = (token("bos_token", BEGIN)?, token("eos_token", END)?);
        let (unknown, padding) = (token("unk_token", END)?, token("pad_token", END)?);
        let mut extra = Vec::new();
        for key in
            ["sep_token", "cls_token", "mask_token", "additional_special_tokens", "extra_special_tokens"]
        {
            let given: Vec<&Value> = match special.get(key) {
                None | Some(Value::Null) => Vec::new(),
                Some(Value::Array(tokens)) => tokens.iter().collect(),
                Some(Value::Object(tokens)) if key.ends_with('s') => tokens.values().collect(),
                Some(token) => vec![token],
            };
            for token in given {
                let token = added_token(token, true);
                extra.push(token.ok_or_else(|| broken(&config_file, format!("{key}: it is no token")))?);
            }
        }
        for token in added.values_mut() {
            token.special |= [&begin, &end, &unknown, &padding].iter().any(|s| s.content == token.content);
        }
        // transformers writes 1e30 for "no limit": no u64.
        let limit = config.get("model_max_length").and_then(Value::as_u64);
        let model_max_length = limit.and_then(|limit| usize::try_from(limit).ok());
        Ok(Self { begin, end, unknown, padding, extra, added, model_max_length })
    }
}

/// A token as transformers writes it: its text, or an object with its text as "content".
fn added_token(value: &Value, special: bool) -> Option<AddedToken> {
    let Value::Object(fields) = value else {
        return value.as_str().map(|content| AddedToken::from(content, special));
    };
    let flag = |name: &str| fields.get(name).and_then(Value::as_bool);
    let special = special || flag("special").unwrap_or(false);
    let token = AddedToken::from(fields.get("content")?.as_str()?, special)
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false))
        .single_word(flag("single_word").unwrap_or(false))
        .normalized(flag("normalized").unwrap_or(!special));
    Some(token)
}

/// An absent file is an empty object.
fn read_object(file: &Path) -> Result<Map<String, Value>, Error> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Map::new()),
        Err(error) => return Err(broken(file, error.to_string())),
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(broken(file, "it is not a JSON object".to_string())),
        Err(error) => Err(broken(file, format!("it is not valid JSON: {error}"))),
    }
}

fn broken(file: &Path, problem: String) -> Error {
    Error::TokenizerFile { file: file.to_path_buf(), problem }
}
