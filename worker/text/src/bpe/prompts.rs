//! Prompts of a model: the tokens that transformers' tokenizer of the same folder makes of a text, which are not those of a
//! document. Added tokens are looked for before anything is merged, and tokenizer_config.json may ask for more.
//!
//! Source: the crate `tokenizers`, `AddedVocabulary::extract_and_normalize`, and its `ByteLevel`.

use std::path::PathBuf;

use super::Encoder;
use crate::Error;

/// A token that is looked for in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Added {
    pub(super) content: String,
    pub(super) id: u16,
    /// Not as a part of a word.
    pub(super) single_word: bool,
    /// Takes the blanks before it.
    pub(super) lstrip: bool,
    /// Takes the blanks behind it.
    pub(super) rstrip: bool,
    /// Looked for after all that are not.
    pub(super) normalized: bool,
}

/// Rules for prompts that documents do not have.
#[derive(Debug, Default)]
pub(super) struct PromptRules {
    pub(super) added: Vec<Added>,
    /// Special tokens that a file names and the vocabulary has no id for: the file, and the token.
    pub(super) nameless: Vec<(PathBuf, String)>,
    /// Text begins with a blank, at the beginning and behind each added token.
    pub(super) prefix_space: bool,
    /// An unsupported request of a file: the file, and the problem.
    pub(super) refused: Option<(PathBuf, String)>,
}

/// A part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    Token(u16),
}

impl PromptRules {
    /// # Errors
    /// The files ask for what is not done here, or for a token without an id.
    pub(super) fn encode(&self, encoder: &mut Encoder<'_>, prompt: &str) -> Result<Vec<u16>, Error> {
        if let Some((file, problem)) = &self.refused {
            return Err(Error::unusable(file, problem.clone()));
        }
        if let Some((file, token)) = self.nameless.iter().find(|(_, token)| prompt.contains(token.as_str())) {
            let problem = format!(
                "names the special token {token:.40?}, which the vocabulary has no id for, and a prompt holds it; allowed: \
                 prompts without it, or a tokenizer that has it (transformers: `add_special_tokens`, then `save_pretrained`)"
            );
            return Err(Error::unusable(file, problem));
        }
        let mut pieces = vec![Piece::Text(prompt)];
        for normalized in [false, true] {
            let of_pass: Vec<&Added> =
                self.added.iter().filter(|token| token.normalized == normalized).collect();
            pieces = pieces.into_iter().flat_map(|piece| split(piece, &of_pass)).collect();
        }
        let mut tokens = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Token(id) => tokens.push(id),
                Piece::Text(text) if self.prefix_space && !text.is_empty() && !text.starts_with(' ') => {
                    encoder.encode_ordinary(&format!(" {text}"), &mut tokens);
                }
                Piece::Text(text) => encoder.encode_ordinary(text, &mut tokens),
            }
        }
        Ok(tokens)
    }
}

/// A text cut at the tokens in it, the longest of those that begin at the same place.
fn split<'a>(piece: Piece<'a>, tokens: &[&Added]) -> Vec<Piece<'a>> {
    let Piece::Text(text) = piece else { return vec![piece] };
    let mut pieces = Vec::new();
    // Up to where pieces are made, and where the next token may begin.
    let (mut done, mut at) = (0, 0);
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let found = tokens.iter().filter(|token| rest.starts_with(token.content.as_str()));
        let Some(token) = found.max_by_key(|token| token.content.len()) else {
            at += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        };
        let (mut start, mut stop) = (at, at + token.content.len());
        at = stop;
        if token.single_word && (ends_with_word(&text[..start]) || starts_with_word(&text[stop..])) {
            continue;
        }
        if token.lstrip {
            start = text[..start].trim_end().len().max(done);
        }
        if token.rstrip {
            stop = text.len() - text[stop..].trim_start().len();
        }
        if done < start {
            pieces.push(Piece::Text(&text[done..start]));
        }
        pieces.push(Piece::Token(token.id));
        done = stop;
        at = at.max(done);
    }
    if done < text.len() {
        pieces.push(Piece::Text(&text[done..]));
    }
    pieces
}

fn ends_with_word(text: &str) -> bool {
    text.chars().next_back().is_some_and(is_word)
}

fn starts_with_word(text: &str) -> bool {
    text.chars().next().is_some_and(is_word)
}

/// About `\w` of regular expressions.
fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use serde_json::{Value, json};

    use super::super::Tokenizer;

    const VOCABULARY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/bpe-tokenizer");

    /// A tokenizer's folder with these small files beside the vocabulary.
    fn folder(files: &[(&str, Value)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in ["vocab.json", "merges.txt"] {
            fs::copy(Path::new(VOCABULARY).join(name), folder.path().join(name)).unwrap();
        }
        for (name, value) in files {
            fs::write(folder.path().join(name), value.to_string()).unwrap();
        }
        folder
    }

    fn encoded(config: Value, prompt: &str) -> Result<Vec<u16>, String> {
        let folder = folder(&[("tokenizer_config.json", config)]);
        let tokenizer = Tokenizer::open(folder.path()).map_err(|error| error.to_string())?;
        tokenizer.encode_prompt(prompt).map_err(|error| error.to_string())
    }

    fn token(content: &str, flag: &str) -> Value {
        let mut token = json!({"content": content, "lstrip": false, "rstrip": false, "single_word": false,
            "normalized": false, "special": true});
        match flag {
            "" => (),
            "strip" => (token["lstrip"], token["rstrip"]) = (json!(true), json!(true)),
            flag => token[flag] = json!(true),
        }
        token
    }

    /// Made by the GPT2Tokenizer of transformers 5.23, of the same files.
    #[test]
    fn settings_and_added_tokens_are_applied_as_transformers_does() {
        let list =
            |id: &str, content: &str, flag: &str| json!({"added_tokens_decoder": {id: token(content, flag)}});
        let two =
            json!({"added_tokens_decoder": {"315": token("ender", "normalized"), "310": token("der", "")}});
        let both = json!({"added_tokens_decoder": {"315": token("ender", ""), "310": token("der", "")}});
        let cases: [(Value, &str, &[u16]); 19] = [
            (json!({}), "a  in  b", &[64, 220, 287, 220, 220, 65]),
            (json!({"pad_token": "in"}), "a  in  b", &[64, 300, 263, 220, 220, 65]),
            (json!({"pad_token": token("in", "")}), "a  in  b", &[64, 300, 263, 220, 220, 65]),
            (json!({"extra_special_tokens": ["in"]}), "a  in  b", &[64, 300, 263, 220, 220, 65]),
            (list("263", "in", "strip"), "a  in  b", &[64, 263, 65]),
            (
                list("263", "in", "strip"),
                "in, ring<|endoftext|> begin",
                &[263, 11, 512, 263, 70, 556, 220, 65, 68, 70, 263],
            ),
            (list("263", "in", "single_word"), "inside in", &[263, 82, 72, 267, 220, 263]),
            (list("263", "in", "single_word"), "a  in  b", &[64, 300, 263, 220, 220, 65]),
            (two, "an ender der", &[258, 293, 310, 220, 310]),
            (both, "an ender der", &[258, 220, 315, 220, 310]),
            (
                json!({"add_prefix_space": true}),
                "The ring<|endoftext|>The star",
                &[220, 51, 71, 68, 512, 263, 70, 556, 220, 51, 71, 68, 285, 64, 81],
            ),
            (json!({"add_prefix_space": true}), "!!x!", &[328, 0, 87, 0]),
            (
                json!({"add_prefix_space": true}),
                "The <|endoftext|> star",
                &[220, 51, 71, 68, 220, 556, 285, 64, 81],
            ),
            (json!({"add_prefix_space": true}), " The", &[220, 51, 71, 68]),
            (json!({"add_prefix_space": true}), "\nThe", &[220, 198, 51, 71, 68]),
            (json!({"add_prefix_space": true}), "", &[]),
            (
                json!({"add_prefix_space": true, "pad_token": "in"}),
                "inside in",
                &[263, 486, 72, 267, 220, 263],
            ),
            (
                json!({"add_prefix_space": false, "clean_up_tokenization_spaces": true, "errors": "ignore",
                "do_lower_case": true, "model_max_length": 3, "tokenizer_class": "GPT2Tokenizer"}),
                "The ring",
                &[51, 71, 68, 512, 263, 70],
            ),
            (list("556", "<|endoftext|>", "strip"), "a  <|endoftext|>  <|endoftext|> b", &[64, 556, 556, 65]),
        ];
        for (config, prompt, expected) in cases {
            assert_eq!(encoded(config.clone(), prompt).unwrap(), expected, "{config} {prompt:?}");
        }
        // An older folder's own file of special tokens wins.
        let older = folder(&[
            ("tokenizer_config.json", json!({"pad_token": "der"})),
            ("special_tokens_map.json", json!({"pad_token": "in"})),
        ]);
        let tokenizer = Tokenizer::open(older.path()).unwrap();
        assert_eq!(tokenizer.encode_prompt("ring ender").unwrap(), [81, 263, 70, 293, 310]);
    }

    #[test]
    fn what_is_not_done_here_is_refused_by_its_key() {
        for (config, says) in [
            (json!({"add_bos_token": true}), "add_bos_token"),
            (json!({"add_eos_token": true}), "add_eos_token"),
            (json!({"split_special_tokens": true}), "split_special_tokens"),
            (json!({"tokenizer_class": "LlamaTokenizer"}), "LlamaTokenizer"),
            (json!({"pad_token": "<pad>"}), "\"<pad>\""),
            (json!({"additional_special_tokens": ["<pad>"]}), "\"<pad>\""),
            (json!({"added_tokens_decoder": {"557": token("<pad>", "")}}), "\"<pad>\""),
            (json!({"added_tokens_decoder": {"4": token("in", "")}}), "\"in\""),
            (json!([]), "is not a JSON object"),
        ] {
            let refused = encoded(config.clone(), "a <pad>").unwrap_err();
            assert!(
                refused.contains("tokenizer_config.json") && refused.contains(says),
                "{config}: {refused}"
            );
        }
        // A name without an id is in nobody's way where no prompt has it.
        assert!(encoded(json!({"pad_token": "<pad>"}), "a pad").is_ok());
        let prefixed = folder(&[("tokenizer_config.json", json!({"add_prefix_space": true}))]);
        let tokenizer = Tokenizer::open(prefixed.path()).unwrap();
        let refused = tokenizer.check_for_documents(prefixed.path()).unwrap_err().to_string();
        assert!(refused.contains("add_prefix_space"), "{refused}");
    }
}
